from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.engine.outputs import OutputWriter, open_output
from lowtide.errors import DataError


def write(path: Path, header: object = 5, data: bytes = b"abcdef") -> str:
    with path.open("wb") as file:
        writer = OutputWriter(file)
        writer.begin("letters")
        writer.write(data[:2])
        writer.write(memoryview(data[2:]))
        writer.section("empty", b"")
        writer.section("digits", b"123")
        return writer.finish({"what": header})


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


def test_a_changed_header_or_trailer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.out"
    write(path)
    whole = path.read_bytes()
    for place in range(9, len(whole)):  # sections are compared by their records
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DataError, match="not a whole result of a task"):
            open_output(path)
