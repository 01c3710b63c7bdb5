"""Read a parquet column whose pages are too large to hold in memory, one text at a time.

In:      a column chunk with pages of any size (common writers put 1024 documents into one)
Out:     texts in the order of the rows: bytes, or a StoredText if larger than a block
Memory:  a few MiB, the index numbers of a page, and an offset for each value of a dictionary; pages
         are unpacked into the temporary folder (TMPDIR)

A library that decodes a page holds it compressed, uncompressed and decoded. In a page, texts are
stored plainly, each after its length, so they can be read from the unpacked file; only dictionary
indices and definition levels (which mark rows without a text) need decoding.
"""

from __future__ import annotations

import io
import zlib
from array import array
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import IO, Any, BinaryIO, cast

from lowtide import _native
from lowtide.arrays import np
from lowtide.corpus.decompression import ZstdReader
from lowtide.corpus.parquetpages import Page, PageError, iter_pages, read_varint
from lowtide.quickclasses import dataclass
from lowtide.scratch import scratch_file

__all__ = ["StoredText", "iter_large_rows"]

_READ_BYTES = 1 << 18
_MOST_NUMBERS_BYTES = 8 << 20
_GROUPS_AT_ONCE = 512


@dataclass(frozen=True)
class StoredText:
    """A text stored in a file; valid until the next row is requested."""

    file: IO[bytes]
    position: int
    size: int

    def __len__(self) -> int:
        return self.size

    def reader(self) -> Callable[[int], bytes]:
        """A function that returns its next n bytes."""
        self.file.seek(self.position)
        left = self.size

        def read(size: int) -> bytes:
            nonlocal left
            part = self.file.read(min(size, left))
            left -= len(part)
            return part

        return read


Row = bytes | StoredText


def iter_large_rows(
    stored: BinaryIO, chunk: Any, *, has_nulls: bool, most_bytes: int
) -> Iterator[Row]:
    """Read a column chunk that `ColumnPages.is_streamable`; longer texts as StoredText."""
    codec = chunk.compression
    with scratch_file() as values, scratch_file() as texts:
        dictionary: _Texts | None = None
        for page in iter_pages(stored, chunk):
            if page.is_dictionary:
                opened = _unpack(stored, page.position, page.packed, page.unpacked, codec, values)
                dictionary = _Texts(*opened, most_bytes)
                dictionary.find_places(page.num_values)
            elif page.is_data:
                yield from _iter_page(stored, page, codec, texts, dictionary, has_nulls, most_bytes)


def _iter_page(
    stored: BinaryIO,
    page: Page,
    codec: str,
    texts: IO[bytes],
    dictionary: _Texts | None,
    has_nulls: bool,
    most_bytes: int,
) -> Iterator[Row]:
    levels = b""
    begin, packed, unpacked = page.position, page.packed, page.unpacked
    if page.level_bytes is not None:  # version 2 pages store them separately, uncompressed
        if has_nulls:
            levels = _read_exactly(stored, begin, page.level_bytes)
        begin, packed, unpacked = (
            begin + page.level_bytes,
            packed - page.level_bytes,
            unpacked - page.level_bytes,
        )
    opened = _unpack(
        stored, begin, packed, unpacked, codec if page.is_packed else "UNCOMPRESSED", texts
    )
    body = _Texts(*opened, most_bytes)
    if has_nulls and page.level_bytes is None:
        levels = body.take(int.from_bytes(body.take(4), "little"))
    present = _iter_numbers(levels, 1) if has_nulls else None
    if page.is_of_dictionary:
        if dictionary is None:
            raise PageError("a page of numbers without the dictionary that they are of")
        width = body.take(1)[0]
        numbers = _iter_numbers(body.take(body.left), width)
        following = (dictionary.at(number) for number in numbers)
    else:
        following = iter(body.next, None)
    for _ in range(page.num_values):
        if present is not None and not next(present, 0):
            yield b""
            continue
        text = next(following, None)
        if text is None:
            raise PageError("a page with fewer texts than its header says")
        yield text


class _Texts:
    """Texts stored consecutively in a file, each after its length."""

    def __init__(self, file: IO[bytes], begin: int, size: int, most_bytes: int) -> None:
        self._file = file
        self._at = begin
        self._end = begin + size
        self._most_bytes = most_bytes
        self._places = array("q")

    @property
    def left(self) -> int:
        return self._end - self._at

    def take(self, size: int) -> bytes:
        if size > min(self.left, _MOST_NUMBERS_BYTES):
            raise PageError(f"a page that ends in the middle of {size} bytes")
        data = _read_exactly(self._file, self._at, size)
        self._at += size
        return data

    def next(self) -> Row:
        return self._read(self.skip())

    def skip(self) -> int:
        """Skip the next text and return its offset."""
        place = self._at
        self._at += 4 + self._size_at(place)
        if self._at > self._end:
            raise PageError("a text that is longer than its page")
        return place

    def find_places(self, count: int) -> None:
        for _ in range(count):
            self._places.append(self.skip())

    def at(self, number: int) -> Row:
        if number >= len(self._places):
            raise PageError(f"text {number} of a dictionary that has {len(self._places)}")
        return self._read(self._places[number])

    def _size_at(self, place: int) -> int:
        return int.from_bytes(_read_exactly(self._file, place, 4), "little")

    def _read(self, place: int) -> Row:
        size = self._size_at(place)
        if size > self._most_bytes:
            return StoredText(self._file, place + 4, size)
        return _read_exactly(self._file, place + 4, size)


def _read_exactly(file: IO[bytes], position: int, size: int) -> bytes:
    if file.tell() != position:
        file.seek(position)  # not always: it empties the buffer
    data = file.read(size)
    if len(data) < size:
        raise PageError(f"a page that ends before byte {position + size}")
    return data


def _iter_numbers(data: bytes, width: int) -> Iterator[int]:
    """Decode parquet's packed numbers of `width` bits: runs of one number, groups of eight."""
    if width > 32:
        raise PageError(f"numbers of {width} bits")
    at, num_bytes = 0, (width + 7) // 8
    weights = 1 << np.arange(width, dtype=np.int64)
    while at < len(data):
        try:
            head, at = read_varint(data, at)
        except IndexError:
            raise PageError("a page that ends in the middle of a number") from None
        if not head & 1:
            number = int.from_bytes(data[at : at + num_bytes], "little")
            at += num_bytes
            for _ in range(head >> 1):
                yield number
            continue
        end = at + (head >> 1) * width
        for begin in range(at, min(end, len(data)), max(width, 1) * _GROUPS_AT_ONCE):
            part = data[begin : min(begin + width * _GROUPS_AT_ONCE, end)]
            bits = np.unpackbits(np.frombuffer(part, dtype=np.uint8), bitorder="little")
            whole = bits[: len(bits) // width * width].reshape(-1, width)
            yield from (whole @ weights).tolist()
        if width == 0:
            for _ in range((head >> 1) * 8):
                yield 0
        at = end


def _unpack(
    stored: BinaryIO, position: int, packed: int, unpacked: int, codec: str, into: IO[bytes]
) -> tuple[IO[bytes], int, int]:
    """Where a page's bytes are uncompressed: (file, offset, size)."""
    if codec == "UNCOMPRESSED":
        return stored, position, packed
    into.seek(0)
    into.truncate(0)
    if codec == "SNAPPY":
        with _in_a_file(stored, position, packed) as (descriptor, begin):
            size = _native.unpack_snappy(descriptor, begin, packed, into.fileno())
    else:
        with _part(stored, position, packed) as part:
            size = sum(into.write(text) for text in _iter_unpacked(part, codec))
        into.flush()
    if size != unpacked:
        raise PageError(f"a page that unpacks to {size} bytes, its header says {unpacked}")
    into.seek(0)
    return into, 0, size


def _iter_unpacked(part: BinaryIO, codec: str) -> Iterator[bytes]:
    if codec == "ZSTD":
        reader = ZstdReader(part, lambda _: None)  # its window was counted with the pages
        while text := reader.read1(_READ_BYTES):
            yield text
        return
    decoder = zlib.decompressobj(wbits=47)  # gzip or zlib, depending on the writer
    while data := part.read(_READ_BYTES):
        while data and not decoder.eof:
            yield decoder.decompress(data, _READ_BYTES)
            data = decoder.unconsumed_tail
    yield decoder.flush()


class _Part(io.RawIOBase):
    """A byte range of a file."""

    def __init__(self, file: BinaryIO, position: int, size: int) -> None:
        self._file = file
        self._left = size
        file.seek(position)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._file.read(min(len(buffer), self._left))
        self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def _in_a_file(stored: BinaryIO, position: int, size: int) -> Generator[tuple[int, int]]:
    """Descriptor and offset of a range; from a store, of a local copy."""
    try:
        descriptor = stored.fileno()
    except OSError:  # no descriptor: raises io.UnsupportedOperation
        with scratch_file() as copy, _part(stored, position, size) as part:
            while data := part.read(_READ_BYTES):
                copy.write(data)
            copy.flush()
            yield copy.fileno(), 0
    else:
        yield descriptor, position


@contextmanager
def _part(file: BinaryIO, position: int, size: int) -> Generator[BinaryIO]:
    with io.BufferedReader(_Part(file, position, size), _READ_BYTES) as part:
        yield cast("BinaryIO", part)
