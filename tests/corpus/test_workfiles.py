"""Work files: whole or not there, and damage is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from lowtide.corpus.workfiles import is_intact, open_work_file, write_work_file
from lowtide.errors import DataError


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "a.block"
    sections = {
        "one": memoryview(np.arange(100).tobytes()),
        "none": memoryview(b""),
        "two": memoryview(b"seven b"),
    }
    write_work_file(path, {"tokens": 5}, sections)
    work = open_work_file(path)
    assert work.header == {"tokens": 5}
    for name, data in sections.items():
        assert work.read(name) == data
    assert work.read("one", begin=16, end=32).cast("q").tolist() == [2, 3]
    assert is_intact(path)
    assert [item.name for item in tmp_path.iterdir()] == ["a.block"]


@pytest.mark.parametrize("place", [0, 20, 60, -3, -200])
def test_a_changed_byte_is_noticed(tmp_path: Path, place: int) -> None:
    path = tmp_path / "a.block"
    write_work_file(path, {}, {"one": memoryview(bytes(range(256)) * 2)})
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert not is_intact(path)


def test_a_cut_off_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.block"
    write_work_file(path, {}, {"one": memoryview(bytes(range(256)) * 2)})
    path.write_bytes(path.read_bytes()[:-8])
    assert not is_intact(path)
    with pytest.raises(DataError, match="damaged"):
        open_work_file(path).read("one")
    path.write_bytes(b"")
    with pytest.raises(DataError, match="not a work file"):
        open_work_file(path)


def test_a_read_that_comes_in_parts_is_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.block"
    data = bytes(range(200))
    write_work_file(path, {}, {"one": memoryview(b"before"), "two": memoryview(data)})
    work = open_work_file(path)
    first, more = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda file, size, at: first(file, min(size, 70), at))
    monkeypatch.setattr(os, "preadv", lambda file, views, at: more(file, [views[0][:50]], at))
    assert work.read("two") == data
    assert work.read("two", begin=3, end=180) == data[3:180]
    os.truncate(path, work.sections["two"][0] + 150)
    with pytest.raises(DataError, match="damaged"):
        work.read("two")
