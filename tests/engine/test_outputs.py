from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.engine import outputs
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
    """Every page is read and compared, wherever sections, pieces and pages begin."""
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
