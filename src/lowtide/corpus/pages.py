"""The pages of a parquet column, as their headers describe them: what reading it will hold.

In:      a parquet file's column chunk
Out:     ColumnPages: the largest page, and the most bytes that a row can have on average
Memory:  a header, and once a dictionary page

A page is read and unpacked whole, so the largest one decides the memory. The footer knows neither:
it has sums over row groups, and a dictionary lets a few bytes stand for long texts. A header is a
structure of Thrift's compact protocol, of which this reads what is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, BinaryIO

from lowtide.corpus.cutting import read_at

__all__ = ["ColumnPages", "PageError", "read_column_pages"]

_HEADER_BYTES = 1 << 12
_LARGEST_HEADER = 1 << 24
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_DICTIONARY_ENCODINGS = (2, 8)
_INCREMENTAL = 7
_SMALL_DICTIONARY, _LARGE_DICTIONARY = 1 << 14, 4 << 20


class PageError(Exception):
    """What is there is no page header."""


@dataclass(frozen=True)
class ColumnPages:
    """What the pages of one column chunk say of it."""

    packed_bytes: int
    """Of the largest page as it is stored."""
    unpacked_bytes: int
    """Of the largest page as it is held."""
    value_bytes: int
    """The most that a single row can have."""
    row_bytes: int
    """The most that a row has on average, over the rows of a page."""

    def batch_rows(self, most_rows: int, batch_bytes: int) -> int:
        """How many rows to read at a time, at most so many and so many bytes."""
        return max(min(most_rows, batch_bytes // self.row_bytes), 1)

    def held_bytes(self, num_rows: int) -> int:
        """What reading so many rows at a time holds: pages, the batch as it grows, the one before.

        Fitted to pyarrow 26 with dictionaries, plain pages and cells of 1 to 250 MiB.
        """
        batch = 7 * num_rows * self.row_bytes if num_rows > 1 else 0
        return self.packed_bytes + 2 * self.unpacked_bytes + max(batch, 3 * self.value_bytes)


def read_column_pages(file: BinaryIO, chunk: Any) -> ColumnPages:
    """Go through the page headers of a column chunk (pyarrow's ColumnChunkMetaData)."""
    begins = [chunk.data_page_offset]
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        begins.append(chunk.dictionary_page_offset)
    position = min(begins)
    end = position + chunk.total_compressed_size
    most_packed = most_unpacked = longest_value = value_bytes = 0
    row_bytes = 1.0
    while position < end:
        header, size = _read_header(file, position)
        unpacked, packed = int(header.get(2, 0)), int(header.get(3, 0))
        position += size
        most_packed, most_unpacked = max(most_packed, packed), max(most_unpacked, unpacked)
        if header.get(1) == _DICTIONARY_PAGE:
            longest_value = _longest_value(file, position, packed, unpacked, chunk.compression)
            value_bytes = max(value_bytes, longest_value)
        elif header.get(1) in (_DATA_PAGE, _DATA_PAGE_V2):
            of_row, most = _row_bytes(header, unpacked, longest_value)
            row_bytes, value_bytes = max(row_bytes, of_row), max(value_bytes, most)
        position += packed
    return ColumnPages(most_packed, most_unpacked, value_bytes, math.ceil(row_bytes))


def _row_bytes(header: dict[int, Any], unpacked: int, longest_value: int) -> tuple[float, int]:
    """The bytes of a data page's rows on average, and of one at most."""
    second = header[1] == _DATA_PAGE_V2
    about = header.get(8 if second else 5)
    if not isinstance(about, dict):
        raise PageError("a data page without its header")
    encoding = about.get(4 if second else 2)
    if encoding in _DICTIONARY_ENCODINGS:
        return longest_value, longest_value
    if encoding == _INCREMENTAL:  # a row may repeat all of the one before
        return unpacked, unpacked
    return unpacked / max(int(about.get(1, 1)), 1), unpacked


def _longest_value(file: BinaryIO, position: int, packed: int, unpacked: int, codec: str) -> int:
    """Bytes of the longest value of a dictionary page; where that is not worth a look, of all."""
    import pyarrow as pa

    if not _SMALL_DICTIONARY < unpacked <= _LARGE_DICTIONARY:
        return unpacked
    data = read_at(file, position, packed)
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
            number, at = _read_varint(data, at)
            field = number >> 1 ^ -(number & 1)
        fields[field], at = _read_value(data, at, head & 15)


def _read_value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind == 3:
        return data[at], at + 1
    if kind in (4, 5, 6):
        number, at = _read_varint(data, at)
        return number >> 1 ^ -(number & 1), at
    if kind == 7:
        return None, at + 8
    if kind == 8:
        size, at = _read_varint(data, at)
        return None, at + size
    if kind in (9, 10):
        head = data[at]
        count, at = (head >> 4, at + 1) if head >> 4 != 15 else _read_varint(data, at + 1)
        for _ in range(count):
            _, at = _read_value(data, at, head & 15)
        return None, at
    if kind == 12:
        return _read_struct(data, at)
    raise PageError(f"no page header: a field of kind {kind}")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise PageError("no page header: a number without end")
