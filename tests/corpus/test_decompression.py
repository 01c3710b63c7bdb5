"""What a file was compressed with counts as memory: it is known from the headers in it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import zstandard

from lowtide.corpus import decompression
from lowtide.corpus.decompression import (
    StreamReader,
    check_reader_bytes,
    open_stream,
    window_bytes,
)
from lowtide.corpus.inputformats import COMPRESSIONS
from lowtide.corpus.inputs import InputFile, expand_inputs
from lowtide.corpus.textblocks import ReadingSettings
from lowtide.errors import BudgetError, DataError
from lowtide.memory import format_size, smallest_budget

MIB = 1 << 20
TEXT = b"some words, and some more of them\n" * 100_000


def write_zstd(path: Path, window_log: int, *, known_size: bool = False) -> InputFile:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=window_log)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    if known_size:
        path.write_bytes(compressor.compress(TEXT))
    else:
        with path.open("wb") as file, compressor.stream_writer(file) as writer:
            writer.write(TEXT)
    return expand_inputs([path])[0]


def write_xz(path: Path, dictionary: int) -> InputFile:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": dictionary}]
    path.write_bytes(lzma.compress(TEXT, filters=filters))
    return expand_inputs([path])[0]


def read_all(source: InputFile, options: ReadingSettings) -> bytes:
    with open_stream(source, options) as reader:
        return b"".join(iter(lambda: reader.read(MIB), b""))


@pytest.mark.parametrize("window_log", [20, 23, 27, 30, 31])
def test_zstd_windows(tmp_path: Path, window_log: int) -> None:
    source = write_zstd(tmp_path / "a.txt.zst", window_log)
    assert window_bytes(source) == (1 << window_log) + MIB
    with pytest.raises(BudgetError, match=r"compressed with a window of") as raised:
        read_all(source, ReadingSettings(reader_bytes=1 << window_log, budget_bytes=64 * MIB))
    assert raised.value.next_step is not None and "--memory 72MiB" in raised.value.next_step
    assert read_all(source, ReadingSettings(reader_bytes=(1 << window_log) + MIB)) == TEXT


@pytest.mark.parametrize("suffix", ["zst", "xz", "gz"])
def test_what_says_nothing_of_its_window_counts_for_nothing(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt.{suffix}"
    path.write_bytes(b"(")
    (source,) = expand_inputs([path])
    assert window_bytes(source) == (0 if suffix == "zst" else MIB)
    path.unlink()
    assert window_bytes(source) == 0
    assert window_bytes(replace(source, compression=None)) == 0


def test_a_zstd_text_shorter_than_its_window_does_not_fill_it(tmp_path: Path) -> None:
    source = write_zstd(tmp_path / "a.txt.zst", 27, known_size=True)
    assert window_bytes(source) == len(TEXT) + MIB


@pytest.mark.parametrize("dictionary", [1 * MIB, 64 * MIB, 96 * MIB])
def test_xz_dictionaries(tmp_path: Path, dictionary: int) -> None:
    source = write_xz(tmp_path / "a.txt.xz", dictionary)
    assert window_bytes(source) == dictionary + MIB
    with pytest.raises(BudgetError, match=r"compressed with a window of"):
        read_all(source, ReadingSettings(reader_bytes=dictionary))
    assert read_all(source, ReadingSettings(reader_bytes=dictionary + MIB)) == TEXT


@pytest.mark.parametrize("known_size", [False, True])
def test_a_later_frame_with_a_larger_window_is_found_beforehand(
    tmp_path: Path, known_size: bool
) -> None:
    """Frames one after the other, some with checksums, and what is to be skipped between them."""
    first = write_zstd(tmp_path / "a.txt.zst", 20, known_size=known_size).path.read_bytes()
    skipped = b"\x53\x2a\x4d\x18\x05\0\0\0-----"
    run = zstandard.ZstdCompressor(write_checksum=True).compress(b"a" * 300_000)
    last = write_zstd(tmp_path / "b.txt.zst", 26).path.read_bytes()
    joined = tmp_path / "c.txt.zst"
    joined.write_bytes(first + skipped + run + last)
    (source,) = expand_inputs([joined])
    assert window_bytes(source) == 65 * MIB
    assert read_all(source, ReadingSettings(reader_bytes=65 * MIB)).endswith(b"a" + TEXT)
    joined.write_bytes(first + run[:-9])  # cut off: the beginning counts
    assert window_bytes(source) == 2 * MIB


def test_a_later_stream_or_block_with_a_larger_dictionary_is_found_beforehand(
    tmp_path: Path,
) -> None:
    parts = [write_xz(tmp_path / f"{size}.txt.xz", size * MIB).path for size in (1, 48, 2)]
    data = [part.read_bytes() for part in parts]
    joined = tmp_path / "all.txt.xz"
    joined.write_bytes(data[0] + data[1] + bytes(8) + data[2] + bytes(4))  # padding has fours
    assert window_bytes(expand_inputs([joined])[0]) == 49 * MIB
    joined.write_bytes(b"".join(data))
    (source,) = expand_inputs([joined])
    assert window_bytes(source) == 49 * MIB
    assert read_all(source, ReadingSettings(reader_bytes=49 * MIB)) == 3 * TEXT
    with pytest.raises(BudgetError, match=r"a window of 48"):
        read_all(source, ReadingSettings(reader_bytes=48 * MIB))
    joined.write_bytes(data[0] + data[1][:-20])  # its end is not there: the beginning counts
    assert window_bytes(source) == 2 * MIB


@pytest.mark.parametrize("padding", [0, 4, 8, 2 * MIB])
@pytest.mark.parametrize(("suffix", "packing"), [("xz", lzma), ("bz2", bz2)])
def test_text_behind_the_padding_of_a_stream_is_read(
    tmp_path: Path, suffix: str, packing: ModuleType, padding: int
) -> None:
    path = tmp_path / f"a.txt.{suffix}"
    streams = packing.compress(TEXT), packing.compress(b"more")
    path.write_bytes(streams[0] + bytes(padding) + streams[1] + bytes(padding))
    (source,) = expand_inputs([path])
    assert read_all(source, ReadingSettings(reader_bytes=64 * MIB)) == TEXT + b"more"


def test_text_of_the_older_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(TEXT, format=lzma.FORMAT_ALONE))
    (source,) = expand_inputs([path])
    assert read_all(source, ReadingSettings(reader_bytes=64 * MIB)) == TEXT


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("xz", b""),
        ("xz", lzma.compress(TEXT)[:-20]),
        ("xz", lzma.compress(TEXT) + b"no stream"),
        ("xz", lzma.compress(TEXT) + bytes(4) + lzma.compress(TEXT)[:400]),
        ("bzip2", b""),
        ("bzip2", bz2.compress(TEXT)[:-8]),
        ("bzip2", bz2.compress(TEXT) + b"no stream"),
        ("bzip2", bz2.compress(TEXT) + bytes(4) + bz2.compress(TEXT)[:-8]),
        ("bzip2", bz2.compress(TEXT)[:-4] + b"lie!"),  # its checksum
    ],
)
def test_a_file_that_ends_early_or_goes_on_with_something_else_is_damaged(
    tmp_path: Path, name: str, data: bytes
) -> None:
    path = tmp_path / f"a.txt{COMPRESSIONS[name].suffix}"
    path.write_bytes(data)
    (source,) = expand_inputs([path])
    damage: list[DataError] = []
    with open_stream(source, ReadingSettings(reader_bytes=64 * MIB), on_damage=damage.append) as r:
        read = b"".join(iter(lambda: r.read(MIB), b""))
    assert [error.path for error in damage] == [path]
    assert f"damaged or cut-off {name} file" in damage[0].message
    assert TEXT.startswith(read[: len(TEXT)]) and (len(read) >= len(TEXT) // 2 or not data)


def test_what_is_damaged_says_nothing_of_its_window(tmp_path: Path) -> None:
    for name, data in (("a.txt.zst", b"\x28\xb5"), ("a.txt.xz", b"\xfd7zXZ\0"), ("b.zst", b"")):
        (tmp_path / name).write_bytes(data)
        (source,) = expand_inputs([tmp_path / name])
        assert window_bytes(source) <= MIB
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(TEXT))
    assert window_bytes(expand_inputs([tmp_path / "a.txt.gz"])[0]) == MIB


def zstd_header(*, window=None, content=None, dictionary=b"", checksum=False, size_bytes=0):
    """The header of a frame as the format describes it (RFC 8878)."""
    codes = {0: 0, 1: 0, 2: 1, 4: 2, 8: 3}
    single = window is None
    flags = codes[size_bytes] << 6 | single << 5 | checksum << 2
    flags |= {0: 0, 1: 1, 2: 2, 4: 3}[len(dictionary)]
    stored = (content or 0) - (256 if size_bytes == 2 else 0)
    size = stored.to_bytes(size_bytes, "little") if size_bytes else b""
    return (
        b"\x28\xb5\x2f\xfd"
        + bytes([flags])
        + (b"" if single else bytes([window]))
        + dictionary
        + size
    )


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({"content": 200, "size_bytes": 1}, 200),
        ({"content": 300, "size_bytes": 2}, 300),
        ({"content": 70_000, "size_bytes": 4}, 70_000),
        ({"content": 1 << 33, "size_bytes": 8}, 1 << 33),
        ({"window": 0}, 1024),
        ({"window": 7}, 1024 + 7 * 128),
        ({"window": 10 << 3 | 3}, (1 << 20) + 3 * (1 << 17)),
        ({"window": 10 << 3, "content": 300, "size_bytes": 2}, 300),
        ({"window": 0, "content": 70_000, "size_bytes": 4}, 1024),
        ({"window": 0, "dictionary": b"\1"}, 1024),
        ({"window": 0, "dictionary": b"\1\2"}, 1024),
        ({"window": 0, "dictionary": b"\1\2\3\4"}, 1024),
    ],
)
@pytest.mark.parametrize("checksum", [False, True])
def test_headers_of_zstd_frames_of_every_shape(options, needed, checksum):
    header = zstd_header(**options, checksum=checksum)
    file = io.BytesIO(header + b"block")
    frame = decompression.read_zstd_frame(file)
    assert (frame.header, frame.window_bytes, frame.has_checksum) == (header, needed, checksum)
    assert file.read() == b"block"


def test_skippable_frames_are_skipped_and_strangers_refused():
    header = zstd_header(window=0)
    skipped = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"12345"
    assert decompression.read_zstd_frame(io.BytesIO(skipped + header)).header == header
    assert decompression.read_zstd_frame(io.BytesIO(b"")) is None
    assert decompression.read_zstd_frame(io.BytesIO(skipped)) is None
    for wrong in (b"abcd", b"\x28\xb5", (0x184D2A60).to_bytes(4, "little") + header):
        with pytest.raises((ValueError, EOFError)):
            decompression.read_zstd_frame(io.BytesIO(wrong))


def test_the_dictionary_of_the_older_format_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.xz"
    for size in (1 << 16, 3 << 20):
        filters = [{"id": lzma.FILTER_LZMA1, "preset": 0, "dict_size": size}]
        path.write_bytes(lzma.compress(TEXT, format=lzma.FORMAT_ALONE, filters=filters))
        assert decompression._xz_dictionary_bytes(path.read_bytes()[:64]) == size
    assert decompression._xz_dictionary_bytes(b"no such file, and no such number") == 0


def test_what_cannot_be_decoded_is_told_once_and_ends_the_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    text = "some words ".encode("utf-16-be") * 3000
    path.write_bytes(gzip.compress(text))
    (source,) = expand_inputs([path])
    told: list[DataError] = []
    with open_stream(source, ReadingSettings(encoding="utf-16"), on_damage=told.append) as reader:
        found = [reader.read(1000) for _ in range(5)]
    assert found == [b""] * 5 and len(told) == 1
    assert told[0].path == path
    with (
        open_stream(source, ReadingSettings(encoding="utf-16")) as reader,
        pytest.raises(DataError) as caught,
    ):
        reader.read(1000)
    assert caught.value.message == told[0].message


def test_damage_in_the_middle_is_told_and_what_stands_before_it_is_read(tmp_path: Path) -> None:
    whole = gzip.compress(random.Random(1).randbytes(300_000))
    path = tmp_path / "a.txt.gz"
    path.write_bytes(whole[:-2000])
    (source,) = expand_inputs([path])
    told: list[DataError] = []
    parts: list[bytes] = []
    with open_stream(source, ReadingSettings(encoding="latin-1"), on_damage=told.append) as reader:
        while part := reader.read(10_000):
            parts.append(part)
        assert reader.read(10) == b""
    read = b"".join(parts).decode().encode("latin-1")
    assert len(read) > 200_000 and random.Random(1).randbytes(300_000).startswith(read)
    assert len(told) == 1
    assert told[0].message.startswith("damaged or cut-off gzip file: ")


@pytest.mark.parametrize(
    ("needed", "budget"), [(100 << 20, None), (100 << 20, 500 << 20), (3 << 20, 50 << 20)]
)
def test_a_reader_that_needs_more_names_the_budget_for_it(needed: int, budget: int | None) -> None:
    """As much more than the budget as the reader needs more than it has."""
    options = ReadingSettings(reader_bytes=2 << 20, budget_bytes=budget)
    check_reader_bytes(2 << 20, options, path=Path("a"), what="a file")
    with pytest.raises(BudgetError) as caught:
        check_reader_bytes(needed, options, path=Path("a"), what="a file", remedy="; or less")
    more = (budget or 2 << 20) + needed - (2 << 20)
    assert caught.value.next_step == smallest_budget(more) + "; or less"
    assert caught.value.message == (
        f"a file: reading it takes {format_size(needed)}, 2.0 MiB of the budget are left for that"
    )
    assert caught.value.path == Path("a")


class Blocks:
    """A reader that gives what it is told, and notes how much it is asked for."""

    def __init__(self, *blocks: bytes) -> None:
        self.blocks = list(blocks)
        self.asked: list[int] = []
        self.closed = 0

    def read1(self, size: int) -> bytes:
        self.asked.append(size)
        return self.blocks.pop(0) if self.blocks else b""

    def close(self) -> None:
        self.closed += 1


def stub_stream(tmp_path: Path, reader: Blocks, encoding: str = "utf-8") -> StreamReader:
    path = tmp_path / "a.txt"
    path.write_bytes(b"stored")
    stream = open_stream(expand_inputs([path])[0], ReadingSettings(encoding=encoding))
    stream._reader = reader
    return stream


def test_no_more_than_a_buffer_is_asked_for_at_a_time(tmp_path: Path) -> None:
    reader = Blocks(b"one", b"two")
    with stub_stream(tmp_path, reader) as stream:
        assert [stream.read(10), stream.read(5 * MIB), stream.read(7)] == [b"one", b"two", b""]
        assert reader.asked == [10, MIB, 7]
        assert stream.read(7) == b"" and len(reader.asked) == 3  # the end is known
        file = stream._file
    assert reader.closed == 1 and file.closed


def test_a_block_that_ends_inside_a_character_is_gone_on_with(tmp_path: Path) -> None:
    """What gives no text yet is no end; what is left over at the end is told as one."""
    text = "\u00e9\u4e2d".encode("utf-16-le")
    reader = Blocks(text[:1], text[1:2], text[2:3])
    with stub_stream(tmp_path, reader, "utf-16-le") as stream:
        assert stream.read(10) == "\u00e9".encode()
        assert stream.read(10) == "\ufffd".encode()
        assert stream.read(10) == b""
    assert reader.asked == [10] * 4


def test_how_far_a_file_is_read_is_never_more_than_it_has(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 100)
    (source,) = expand_inputs([path])
    with open_stream(source) as stream:
        assert stream.stored_position() == 0
        stream.read(10)
        assert stream.stored_position() == 10
    path.write_bytes(b"x" * 300)  # it grows meanwhile
    with open_stream(source) as stream:
        stream.read(250)
        assert stream.stored_position() == 100


def test_a_file_that_cannot_be_opened_as_what_it_is_stays_closed(tmp_path: Path) -> None:
    source = write_xz(tmp_path / "a.txt.xz", 8 * MIB)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(BudgetError) as caught:
        open_stream(source, ReadingSettings(reader_bytes=MIB))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert caught.value.message.startswith("this file was compressed with a window of 8.0 MiB: ")
    assert str(caught.value.next_step).endswith(
        "; or compress it again with a smaller window, without --long or --ultra"
    )


@pytest.mark.parametrize(
    ("header", "last", "size"),
    [(0b0, False, 0), (0b1, True, 0), (5 << 3, False, 5), (5 << 3 | 1, True, 5),
     (5 << 3 | 1 << 1, False, 1), (5 << 3 | 2 << 1, False, 5), (5 << 3 | 3 << 1, False, 5)],
)  # fmt: skip
def test_headers_of_zstd_blocks(header: int, last: bool, size: int) -> None:
    """A run is one byte, however often it comes."""
    found = decompression._read_block_header(header.to_bytes(3, "little"))
    assert found == (last, size)


def test_of_a_store_only_the_first_frame_is_looked_at() -> None:
    def frame(window_log: int) -> bytes:
        parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=window_log)
        writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        return writer.compress(b"x" * 100) + writer.flush()

    both = frame(20) + frame(22)
    for every, window in ((True, 1 << 22), (False, 1 << 20)):
        file = io.BytesIO(both)
        assert decompression._zstd_window_bytes(file, all_frames=every) == window
        assert (file.tell() < 20) == (not every)
    assert decompression._zstd_window_bytes(io.BytesIO(b""), all_frames=True) == 0
