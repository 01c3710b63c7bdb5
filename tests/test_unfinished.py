from __future__ import annotations

import os
from pathlib import Path

import pytest

from lowtide import unfinished
from lowtide.unfinished import list_leftovers, listing_folders_once, mark_used, unused_name


def test_leftovers_are_found_in_plain_folders_only(tmp_path: Path) -> None:
    name = unused_name(tmp_path / "a", "partial").name
    for folder in (".", "train", ".hidden"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).touch()
    (tmp_path / "train" / "kept.bin").touch()
    (tmp_path / "link").symlink_to(tmp_path / ".hidden")
    found = {path.relative_to(tmp_path).as_posix() for path in unfinished._iter_leftovers(tmp_path)}
    assert found == {name, f"train/{name}"}
    for path in unfinished._iter_leftovers(tmp_path):
        unfinished._remove_unused(path)
    assert not list(unfinished._iter_leftovers(tmp_path))
    assert (tmp_path / "train" / "kept.bin").exists()


def test_a_folder_is_listed_once_for_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = unused_name(tmp_path / "a*.npy", "unfinished")
    other = unused_name(tmp_path / "a*.npy", "partial")
    for path in (left, other, tmp_path / ".a*.npy.unfinished", tmp_path / "b.npy"):
        path.touch()
    lists: list[object] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: lists.append(path) or scandir(path))
    with listing_folders_once():
        for _ in range(5):
            assert list_leftovers(tmp_path / "a*.npy", "unfinished") == [left]
            assert list_leftovers(tmp_path / "b.npy", "unfinished") == []
    assert len(lists) == 1
    assert list_leftovers(tmp_path / "a*.npy", "partial") == [other]
    assert len(lists) == 2


def test_a_file_that_someone_writes_stays(tmp_path: Path) -> None:
    written, left = (unused_name(tmp_path / "a", "partial") for _ in range(2))
    for path in (written, left):
        path.touch()
    with written.open("r+b") as file:
        mark_used(file.fileno())
        with written.open("rb") as other:
            mark_used(other.fileno())  # it may be held twice
        unfinished.remove_leftovers(tmp_path)
        assert list(tmp_path.iterdir()) == [written]
    unfinished.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []
