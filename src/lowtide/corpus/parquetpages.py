"""Read the page headers of a parquet column, to know the memory that reading it needs.

In:      a parquet file's column chunk
Out:     ColumnPages: the largest page, and the most bytes that a row can have on average
Memory:  a header, and once a dictionary page

A page is read and unpacked as a whole, so the largest one decides the memory. The footer does not
contain its size: it has sums over row groups, and with a dictionary a few bytes can represent long
texts. A header is a structure in Thrift's compact protocol; this reads the fields that are needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from lowtide.corpus.cutting import read_at
from lowtide.corpus.decompression import read_zstd_frame
from lowtide.packages import import_package
from lowtide.quickclasses import dataclass

__all__ = ["ColumnPages", "Page", "PageError", "iter_pages", "read_column_pages", "read_varint"]

_HEADER_BYTES = 1 << 12
_LARGEST_HEADER = 1 << 24
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_ABOUT = {_DATA_PAGE: 5, _DICTIONARY_PAGE: 7, _DATA_PAGE_V2: 8}
_DICTIONARY_ENCODINGS = (2, 8)
_INCREMENTAL = 7
_PLAIN, _RUNS = 0, 3
_SMALL_DICTIONARY = 1 << 14
_MOST_VALUES = 1 << 20
_STREAMED_BYTES = 4 << 20
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD")


class PageError(Exception):
    """The bytes are not a valid page header."""


@dataclass(frozen=True)
class Page:
    """A page, by its header."""

    header: dict[int, Any]
    position: int
    """Offset of its first byte after the header."""
    packed: int
    unpacked: int

    @property
    def is_dictionary(self) -> bool:
        """True for a page of dictionary values, which later pages refer to by index."""
        return self.header.get(1) == _DICTIONARY_PAGE

    @property
    def is_data(self) -> bool:
        """True for a page of rows."""
        return self.header.get(1) in (_DATA_PAGE, _DATA_PAGE_V2)

    @property
    def num_values(self) -> int:
        """Number of rows, or of dictionary values."""
        return max(int(self._about.get(1, 0)), 0)

    @property
    def encoding(self) -> int | None:
        """The encoding of a page of rows."""
        return self._about.get(4 if self.header[1] == _DATA_PAGE_V2 else 2)

    @property
    def is_of_dictionary(self) -> bool:
        """True for rows stored as indices into a dictionary."""
        return self.encoding in _DICTIONARY_ENCODINGS

    @property
    def level_bytes(self) -> int | None:
        """Bytes of the definition levels (rows that have a text), if stored uncompressed."""
        if self.header[1] != _DATA_PAGE_V2:
            return None
        return max(int(self._about.get(5, 0)), 0) + max(int(self._about.get(6, 0)), 0)

    @property
    def is_packed(self) -> bool:
        """False if this page does not use the chunk's compression."""
        return self.header[1] != _DATA_PAGE_V2 or bool(self._about.get(7, True))

    def is_streamable(self, large_page_bytes: int) -> bool:
        """True if texts can be read one by one: plain, or by their offsets in a dictionary."""
        if self.is_dictionary:
            return self.num_values <= _MOST_VALUES
        levels = self._about.get(3) == _RUNS if self.header[1] == _DATA_PAGE else True
        small = self.encoding == _PLAIN or max(self.packed, self.unpacked) <= large_page_bytes
        return levels and small and (self.encoding == _PLAIN or self.is_of_dictionary)

    @property
    def _about(self) -> dict[int, Any]:
        kind = self.header.get(1)
        about = self.header.get(_ABOUT[kind]) if kind in _ABOUT else None
        if not isinstance(about, dict):
            raise PageError("a page without its header")
        return cast("dict[int, Any]", about)


@dataclass(frozen=True)
class ColumnPages:
    """Sizes of the pages of one column chunk."""

    packed_bytes: int
    """Bytes of the largest page as stored."""
    unpacked_bytes: int
    """Bytes of the largest page in memory."""
    value_bytes: int
    """The most bytes that a single row can have."""
    row_bytes: int
    """The largest average bytes of a row, over the rows of a page."""
    streamed_bytes: int | None
    """Memory for streaming texts one by one; None if they cannot be streamed."""
    large_page_bytes: int

    @property
    def is_streamed(self) -> bool:
        """True for pages so large that texts are streamed one by one."""
        return self.streamed_bytes is not None and self.unpacked_bytes > self.large_page_bytes

    def batch_rows(self, most_rows: int, batch_bytes: int) -> int:
        """How many rows to read at a time, limited by rows and bytes."""
        return max(min(most_rows, batch_bytes // self.row_bytes), 1)

    def held_bytes(self, num_rows: int) -> int:
        """Memory for reading this many rows at a time: pages, the growing batch, the one before.

        Fitted to pyarrow 26 with dictionaries, plain pages and cells of 1 to 250 MiB.
        """
        if self.is_streamed and self.streamed_bytes is not None:
            return self.streamed_bytes
        batch = 7 * num_rows * self.row_bytes if num_rows > 1 else 0
        return self.packed_bytes + 2 * self.unpacked_bytes + max(batch, 3 * self.value_bytes)


def iter_pages(file: BinaryIO, chunk: Any) -> Iterator[Page]:
    """The pages of a column chunk (pyarrow's ColumnChunkMetaData), in the order of the file."""
    if chunk.num_values == 0:  # its first page of rows is recorded at byte 0
        return
    begins = [chunk.data_page_offset]
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        begins.append(chunk.dictionary_page_offset)
    position = min(begins)
    end = position + chunk.total_compressed_size
    while position < end:
        header, size = _read_header(file, position)
        position += size
        page = Page(header, position, packed=int(header.get(3, 0)), unpacked=int(header.get(2, 0)))
        if page.unpacked > chunk.total_uncompressed_size > 0:  # some writers leave the sum out
            raise PageError(
                f"a page of {page.unpacked} bytes, in a column that has "
                f"{chunk.total_uncompressed_size} of them"
            )
        yield page
        position += page.packed


def read_column_pages(file: BinaryIO, chunk: Any, *, large_page_bytes: int) -> ColumnPages:
    """Go through the page headers of a column chunk (pyarrow's ColumnChunkMetaData).

    Texts of pages of more than `large_page_bytes` are streamed one by one, if possible.
    """
    most_packed = most_unpacked = longest_value = value_bytes = streamed = 0
    row_bytes = 1.0
    codec = chunk.compression
    streamable = codec in _CODECS and chunk.physical_type == "BYTE_ARRAY"
    for page in iter_pages(file, chunk):
        most_packed = max(most_packed, page.packed)
        most_unpacked = max(most_unpacked, page.unpacked)
        if page.is_dictionary:
            longest_value = _longest_value(file, page, codec, large_page_bytes)
            value_bytes = max(value_bytes, longest_value)
        elif page.is_data:
            of_row, most = _row_bytes(page, longest_value)
            row_bytes, value_bytes = max(row_bytes, of_row), max(value_bytes, most)
        if page.is_dictionary or page.is_data:
            streamable = streamable and page.is_streamable(large_page_bytes)
            streamed = max(streamed, _streamed_bytes(file, page, codec))
    return ColumnPages(
        most_packed,
        most_unpacked,
        value_bytes,
        math.ceil(row_bytes),
        streamed_bytes=_STREAMED_BYTES + streamed if streamable else None,
        large_page_bytes=large_page_bytes,
    )


def _streamed_bytes(file: BinaryIO, page: Page, codec: str) -> int:
    """Memory for a page whose texts are streamed: offsets and indices, a window."""
    held = 8 * page.num_values if page.is_dictionary else page.num_values // 8
    if page.is_data and page.is_of_dictionary:
        held += page.packed + 2 * page.unpacked
    if codec == "ZSTD":
        file.seek(page.position + (page.level_bytes or 0 if page.is_data else 0))
        try:
            frame = read_zstd_frame(file) if page.packed else None
        except (EOFError, ValueError):
            frame = None  # reading it will report the error
        held += min(frame.window_bytes, page.unpacked) if frame else 0
    return held


def _row_bytes(page: Page, longest_value: int) -> tuple[float, int]:
    """The bytes of a data page's rows on average, and of one at most."""
    if page.is_of_dictionary:
        return longest_value, longest_value
    if page.encoding == _INCREMENTAL:  # a row may repeat the previous row as a whole
        return page.unpacked, page.unpacked
    return page.unpacked / max(page.num_values, 1), page.unpacked


def _longest_value(file: BinaryIO, page: Page, codec: str, large_page_bytes: int) -> int:
    """Bytes of a dictionary page's longest value; of all values if a scan is not worth it."""
    pa = import_package("pyarrow", "a parquet file")
    unpacked = page.unpacked
    if not _SMALL_DICTIONARY < unpacked <= large_page_bytes:
        return unpacked
    data = read_at(file, page.position, page.packed)
    if codec != "UNCOMPRESSED":
        try:
            data = pa.Codec(codec.lower()).decompress(data, unpacked).to_pybytes()
        except (pa.ArrowException, ValueError, OSError):
            return unpacked
    longest = at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        longest = max(longest, size)
        at += 4 + size
    if at > len(data):
        raise PageError(
            f"a text of a dictionary that is {at - len(data)} bytes longer than its page"
        )
    return longest


def _read_header(file: BinaryIO, position: int) -> tuple[dict[int, Any], int]:
    size = _HEADER_BYTES
    while True:
        data = read_at(file, position, size)
        try:
            fields, end = _read_struct(data, 0)
        except IndexError:
            if len(data) < size or size > _LARGEST_HEADER:
                raise PageError(f"no page header at byte {position}") from None
            size *= 16
            continue
        except PageError as error:
            raise PageError(f"no page header at byte {position}: {error}") from None
        if not isinstance(fields.get(3), int) or fields[3] < 0 or fields.get(2, 0) < 0:
            raise PageError(f"no page header at byte {position}")
        return fields, end


def _read_struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    fields: dict[int, Any] = {}
    field = 0
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return fields, at
        if head >> 4:
            field += head >> 4
        else:
            number, at = read_varint(data, at)
            field = number >> 1 ^ -(number & 1)
        fields[field], at = _read_value(data, at, head & 15)


def _read_value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind == 3:
        return data[at], at + 1
    if kind in (4, 5, 6):
        number, at = read_varint(data, at)
        return number >> 1 ^ -(number & 1), at
    if kind == 7:
        return None, at + 8
    if kind == 8:
        size, at = read_varint(data, at)
        return None, at + size
    if kind in (9, 10):
        head = data[at]
        count, at = (head >> 4, at + 1) if head >> 4 != 15 else read_varint(data, at + 1)
        for _ in range(count):
            _, at = _read_value(data, at, head & 15)
        return None, at
    if kind == 12:
        return _read_struct(data, at)
    raise PageError(f"a field of kind {kind}")


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a varint (seven bits per byte) and its end; IndexError if the data ends first."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise PageError("a number without end")
