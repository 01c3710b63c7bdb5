from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from lowtide.engine.taskscratch import TaskScratch


@contextlib.contextmanager
def make_folder(path: Path) -> Generator[Path]:
    path.mkdir()
    yield path
    path.rmdir()  # files without a name were removed with their task


@pytest.mark.parametrize("room", [0, 5, 6, 10, 100])
def test_bytes_come_back_from_memory_and_from_the_disk(tmp_path: Path, room: int) -> None:
    folder = tmp_path / "scratch"
    with TaskScratch(lambda: make_folder(folder)) as scratch:
        held = scratch.hold(room)
        for piece in (b"abc", b"", b"def", b"ghij"):
            held.write(memoryview(piece))
        assert folder.exists() == (room < 10)
        assert held.size == 10
        assert [bytes(held.read(*place)) for place in ((0, 10), (2, 7), (4, 4))] == [
            b"abcdefghij",
            b"cdefg",
            b"",
        ]
        assert b"".join(held.iter_pieces()) == b"abcdefghij"
    assert not folder.exists()


def test_a_scratch_file_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    with TaskScratch(lambda: make_folder(tmp_path / "scratch")) as scratch:
        held = scratch.hold(0)
        held.write(b"abc")
        with pytest.raises(OSError, match="ends after 3 bytes"):
            held.read(0, 4)


def test_a_named_file_is_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    with TaskScratch(lambda: make_folder(folder)) as scratch:
        file = scratch.create_file("blocks")
        assert Path(file.name) == folder / "blocks"
        (folder / "blocks").unlink()
    assert file.closed


def test_pieces_are_eight_mebibytes_at_a_time(tmp_path: Path) -> None:
    with TaskScratch(lambda: make_folder(tmp_path / "scratch")) as scratch:
        held = scratch.hold(0)
        data = bytes(range(256)) * (40 << 10)  # 10 MiB
        held.write(data)
        held.write(memoryview(data))
        pieces = list(map(bytes, held.iter_pieces()))
        assert [len(piece) for piece in pieces] == [8 << 20, 8 << 20, 4 << 20]
        assert b"".join(pieces) == data + data
        assert len(held._held) == 0


def test_a_short_read_of_a_scratch_file_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TaskScratch(lambda: make_folder(tmp_path / "scratch")) as scratch:
        held = scratch.hold(0)
        held.write(b"0123456789")
        real = os.preadv
        monkeypatch.setattr(
            os, "preadv", lambda file, rooms, at: real(file, [rooms[0][:3]], at)
        )  # as a disk may
        assert bytes(held.read(1, 9)) == b"12345678"
