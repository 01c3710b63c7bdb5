from __future__ import annotations

import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.engine import outputs
from lowtide.engine.outputs import OutputWriter, open_output
from lowtide.errors import DataError
from lowtide.stores.refusals import ObjectChangedError


def write(path: Path, header: object = 5, data: bytes = b"abcdef") -> str:
    with path.open("wb") as file:
        writer = OutputWriter(file)
        writer.begin("letters")
        writer.write(data[:2])
        writer.write(memoryview(data[2:]))
        writer.section("empty", b"")
        writer.section("digits", b"123")
        return writer.finish({"what": header})[0]


def test_sections_are_found_again(tmp_path: Path) -> None:
    write(tmp_path / "a.out")
    output = open_output(tmp_path / "a.out")
    assert output.header == {"what": 5}
    assert [output.size(name) for name in ("letters", "empty", "digits")] == [6, 0, 3]
    assert bytes(output.read("letters")) == b"abcdef"
    assert bytes(output.read("letters", begin=1, end=4)) == b"bcd"
    assert bytes(output.read("digits", begin=2)) == b"3"
    assert bytes(output.read("empty")) == b""


@pytest.mark.parametrize(("begin", "end"), [(0, 7), (4, 3), (-1, 2)])
def test_no_byte_of_a_neighbour_is_read(tmp_path: Path, begin: int, end: int) -> None:
    write(tmp_path / "a.out")
    with pytest.raises(DataError, match="section letters has 6 bytes"):
        open_output(tmp_path / "a.out").read("letters", begin=begin, end=end)


def test_the_checksum_covers_sections_and_header(tmp_path: Path) -> None:
    first = write(tmp_path / "a.out")
    assert write(tmp_path / "b.out") == first
    assert (tmp_path / "a.out").read_bytes() == (tmp_path / "b.out").read_bytes()
    assert write(tmp_path / "c.out", header=6) != first
    assert write(tmp_path / "d.out", data=b"abcdeg") != first


def test_a_part_of_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.out"
    write(path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match="not a whole result of a task"):
            open_output(path)


def test_every_changed_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.out"
    write(path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        is_header = place >= 9 + 8  # behind the sections and the checksum of their only page
        with pytest.raises(DataError, match="a whole result of a task" if is_header else "damaged"):
            open_output(path).read("letters", begin=2, end=3)


@pytest.mark.parametrize("pieces", [1, 7, 4095, 4096, 4097, 9000, 30_000])
def test_pages_do_not_depend_on_how_they_are_written(tmp_path: Path, pieces: int) -> None:
    """Every page read is verified, wherever sections, pieces and pages begin."""
    data = bytes(number * number % 251 for number in range(20_000))

    def make(name: str, step: int) -> Path:
        with (tmp_path / name).open("wb") as file:
            writer = OutputWriter(file)
            writer.section("before", b"abc")
            writer.begin("data")
            for begin in range(0, len(data), step):
                writer.write(data[begin : begin + step])
            writer.section("after", data[:193])  # 20,196 bytes of sections: five pages
            writer.finish({})
        return tmp_path / name

    path = make("a.out", pieces)
    assert path.read_bytes() == make("b.out", len(data)).read_bytes()
    output = open_output(path)
    for begin, end in ((0, 20_000), (0, 1), (4092, 4094), (8189, 8190), (19_999, 20_000), (5, 5)):
        assert bytes(output.read("data", begin=begin, end=end)) == data[begin:end]
    assert bytes(output.read("after")) == data[:193]
    output.check("data")


def test_damage_is_found_where_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.out"
    with path.open("wb") as file:
        writer = OutputWriter(file)
        writer.section("data", bytes(3 << 20))
        writer.finish({})
    with path.open("r+b") as file:
        file.seek(2_000_000)
        file.write(b"x")
    output = open_output(path)
    assert len(output.read("data", end=1_998_848)) == 1_998_848
    output.check("data", begin=2_002_944)
    with pytest.raises(DataError, match="bytes 1998848 to 2002944 are not those") as caught:
        output.read("data", begin=2_002_943, end=2_002_944)
    assert caught.value.path == path
    with pytest.raises(DataError, match="bytes 1998848 to 2002944 are not those"):
        output.check("data")
    with path.open("r+b") as file:
        file.truncate(1_000_000)  # while it is open
    with pytest.raises(DataError, match="bytes 0 to 4096 are not those"):
        output.check("data")


def test_a_stretch_is_read_with_its_pages_and_no_more(tmp_path: Path) -> None:
    data = bytes(range(256)) * 64 * 16
    write(tmp_path / "a.out", data=data)
    output = open_output(tmp_path / "a.out")
    for begin in (0, 5, outputs.PAGE_BYTES, 2 * outputs.PAGE_BYTES + 9):
        found = output.read("letters", begin=begin, end=begin + 8)
        assert bytes(found) == data[begin : begin + 8]
        assert len(memoryview(found).obj) < 2 * outputs.PAGE_BYTES + outputs._ALIGNMENT  # pyright: ignore


class Object(io.BytesIO):
    """A stored object that is read a few bytes at a time and changes once during that."""

    def __init__(self, data: bytes, *, changes: int = 0) -> None:
        super().__init__(data)
        self.changes = changes
        self.renewed = 0
        self.seeks: list[int] = []

    def seek(self, offset: int, whence: int = 0) -> int:
        self.seeks.append(offset)
        return super().seek(offset, whence)

    def renew(self) -> None:
        self.renewed += 1

    def readinto(self, buffer: Any) -> int:
        if self.changes:
            self.changes -= 1
            super().read(1)  # the position had changed by then
            raise ObjectChangedError("changed")
        return super().readinto(memoryview(buffer)[:3])


def test_an_object_is_read_in_any_pieces_and_renewed_where_it_was_stored_again() -> None:
    for changes in (0, 1):
        file = Object(b"0123456789", changes=changes)
        room = memoryview(bytearray(7))
        assert bytes(outputs._fill(room, file, 2, Path("a"))) == b"2345678"
        assert file.renewed == changes
        assert file.seeks == [2] * (1 + changes) + [5, 8]
    with pytest.raises(DataError, match="not a whole result of a task"):
        outputs._fill(memoryview(bytearray(9)), Object(b"0123456789"), 2, Path("a"))


def test_a_header_is_read_in_one_piece_or_where_it_is_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.out"
    read: list[tuple[int, int]] = []
    real = outputs._read_exactly

    def note(file: Any, offset: int, size: int, path: Path) -> Any:
        read.append((offset, size))
        return real(file, offset, size, path)

    monkeypatch.setattr(outputs, "_read_exactly", note)
    tail = outputs._TAIL_BYTES
    write(path, header="", data=bytes(100))
    exact = tail - (path.stat().st_size - 103 - 8)
    for letters in (10, exact - 1, exact, exact + 1, 3 * tail):
        write(path, header="x" * letters, data=bytes(100))
        total = path.stat().st_size
        read.clear()
        output = open_output(path)
        assert output.header == {"what": "x" * letters}
        assert output.num_bytes == 103
        assert output.find("letters") == 0 and output.find("digits") == 100
        size = total - 103 - 8 - outputs._TRAILER.size  # behind sections and one checksum
        whole = (max(total - tail, 0), min(total, tail))
        is_longer = size + outputs._TRAILER.size > tail
        assert read == [whole, *([(103 + 8, size)] if is_longer else [])]


def test_a_file_of_a_trailer_alone_has_an_empty_header(tmp_path: Path) -> None:
    """Of minimal size: the content decides, not the length."""
    digest = outputs.xxhash.xxh3_128_digest(b"")
    path = tmp_path / "a.out"
    path.write_bytes(outputs._TRAILER.pack(outputs._MAGIC, 0, 0, digest))
    with pytest.raises(ValueError):  # not JSON, although its checksum matches
        open_output(path)
    path.write_bytes(outputs._TRAILER.pack(outputs._MAGIC, 1, 0, digest))
    with pytest.raises(DataError, match="not a whole result"):
        open_output(path)


def test_stretches_are_copied_in_steps_that_end_with_pages(tmp_path: Path) -> None:
    data = np.arange(1_100_000, dtype="<u4").tobytes()
    write(tmp_path / "a.out", data=data)
    output = open_output(tmp_path / "a.out")
    parts: list[bytes] = []
    target: Any = SimpleNamespace(write=lambda part: parts.append(bytes(part)))
    output.copy("letters", target, begin=5000, end=4_300_000)
    step = 2 << 20
    assert b"".join(parts) == data[5000:4_300_000]
    assert [len(part) for part in parts] == [4096 + step - 5000, step, 4_300_000 - 4096 - 2 * step]
    parts.clear()
    output.copy("letters", target, begin=7, end=7)
    assert parts == []


def test_what_native_code_reads_is_checked_by_its_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.out", data=bytes(3 * 4096 + 5))
    output = open_output(tmp_path / "a.out")
    asked: list[tuple[int, ...]] = []

    def find(descriptor: int, *given: int) -> int:
        asked.append(given)
        return answers.pop()

    monkeypatch.setattr(outputs._native, "find_damaged_page", find)
    answers = [2]
    output.check("letters", begin=4096, end=4097)
    answers = [4]
    output.check("letters")
    assert asked == [(1, 2, 3 * 4096 + 8, 4096), (0, 4, 3 * 4096 + 8, 4096)]
    answers = [3]
    with pytest.raises(DataError, match="bytes 12288 to 12296 are not those that were written"):
        output.check("letters")


def test_a_stretch_begins_where_rows_of_numbers_may(tmp_path: Path) -> None:
    data = bytes(range(256)) * 64
    write(tmp_path / "a.out", data=data)
    output = open_output(tmp_path / "a.out")
    for begin in range(4090, 4106):
        found = output.read("letters", begin=begin, end=begin + 16)
        assert bytes(found) == data[begin : begin + 16]
        assert np.frombuffer(found, np.uint8).ctypes.data % 8 == 0


def test_bytes_that_come_in_parts_are_put_together(tmp_path: Path) -> None:
    """For a file and an object, with any size of reads."""
    path = tmp_path / "a"
    data = bytes(range(100))
    path.write_bytes(data)
    room = memoryview(bytearray(60))
    with path.open("rb", buffering=0) as file, pytest.MonkeyPatch.context() as patch:
        preadv = os.preadv
        patch.setattr(os, "preadv", lambda fd, rooms, at: preadv(fd, [rooms[0][:7]], at))
        assert outputs._fill(room, file, 30, path) == data[30:90]
    part = io.BytesIO(data)
    of_object = SimpleNamespace(
        seek=part.seek, readinto=lambda room: part.readinto(room[:7]), renew=None
    )
    assert outputs._fill(memoryview(bytearray(60)), of_object, 30, path) == data[30:90]
    with pytest.raises(DataError):
        outputs._fill(memoryview(bytearray(60)), of_object, 50, path)
