"""The files of a path, folder or pattern; tests/corpus/test_inputs.py has how they are listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.corpus.localfiles import is_our_output, iter_files
from lowtide.errors import DataError


def test_files_of_a_folder_come_before_those_of_its_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/1.txt", "b.txt", "z.txt", "no.png", ".hidden.txt"):
        (tmp_path / name).write_text("x")
    told: list[str] = []
    found = [path.relative_to(tmp_path).as_posix() for path in iter_files(tmp_path, told.append)]
    assert found == ["b.txt", "z.txt", "a/1.txt"]
    assert told == [f"{tmp_path}: 2 files of other kinds ignored"]


def test_the_standard_input_is_no_file_unless_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="a pipe or a device"):
        list(iter_files("-", print))
    Path("-").write_text("x")
    assert list(iter_files("-", print)) == [Path("-")]


@pytest.mark.parametrize("given", ["https://a.b/c.txt", Path("https://a.b/c.txt"), "S3://b/c"])
def test_addresses_of_the_web_are_no_misspelt_paths(given: str | Path) -> None:
    with pytest.raises(DataError, match="is no kind of address that text is read from") as caught:
        list(iter_files(given, print))
    assert caught.value.path == str(given)


def test_a_log_of_ours_that_cannot_be_opened_is_not_taken_for_one(tmp_path: Path) -> None:
    assert is_our_output(tmp_path / "metrics.jsonl") is False
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    assert is_our_output(tmp_path / "metrics.jsonl") is True


@pytest.mark.parametrize(
    ("name", "text", "ours"),
    [
        ("metrics.jsonl", b'{"time": 1}', True), ("metrics.jsonl", b'{"time": ', True),
        ("metrics.jsonl", b'{"time":', False), ("metrics.jsonl", b'{"text": 1}', False),
        ("merges.txt", b"#version: 0.2\n", True), ("merges.txt", b"#versio", False),
        ("merges.txt", b"", True), ("other.txt", b"#version", False), ("other.txt", b"", False),
    ],
)  # fmt: skip
def test_outputs_of_ours_are_known_by_how_they_begin(
    tmp_path: Path, name: str, text: bytes, ours: bool
) -> None:
    (tmp_path / name).write_bytes(text)
    assert is_our_output(tmp_path / name) is ours
