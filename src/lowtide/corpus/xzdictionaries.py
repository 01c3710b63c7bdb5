"""Find the largest dictionary of an xz file, over all its streams and blocks.

In:      a file, open for reading; nothing of it is decompressed
Out:     bytes of the largest dictionary: the memory for reading the file
Memory:  the index of one stream, some bytes for each of its blocks

`cat a.xz b.xz` makes a file of several streams, and `xz -T` streams of several blocks. Each block
has its own dictionary size. A stream ends with an index of its blocks and a footer with the size of
that index, so blocks are found from the end of the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["XZ_HEADER_BYTES", "XZ_MAGIC", "block_dictionary_bytes", "later_dictionary_bytes"]

XZ_MAGIC = b"\xfd7zXZ\0"
XZ_HEADER_BYTES = 12
_FOOTER_MAGIC = b"YZ"
_LONGEST_HEADER = 1024
_LONGEST_INDEX = 16 << 20
_LZMA2 = 0x21
_PADDING_STEP = 64 << 10


def block_dictionary_bytes(header: bytes) -> int:
    """The dictionary size in a block's header; 0 if it has none."""
    flags, at = header[1], 2
    for _ in range(flags >> 6):  # optional sizes
        _, at = _number(header, at)
    for _ in range((flags & 3) + 1):
        kind, size = header[at], header[at + 1]
        if kind == _LZMA2:
            bits = header[at + 2] & 63
            return min((2 | bits & 1) << (bits // 2 + 11), (1 << 32) - 1)
        at += 2 + size
    return 0


def later_dictionary_bytes(file: BinaryIO) -> int:
    """The largest dictionary of all blocks; if there is damage, of the blocks after it."""
    largest = 0
    try:
        for place in _iter_blocks(file):
            file.seek(place)
            largest = max(largest, block_dictionary_bytes(file.read(_LONGEST_HEADER)))
    except (ValueError, IndexError):
        pass  # reported when it is read
    return largest


def _iter_blocks(file: BinaryIO) -> Iterator[int]:
    """The offsets of blocks, stream by stream from the end of the file."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        end = _without_padding(file, end)
        footer = _read(file, end - XZ_HEADER_BYTES, XZ_HEADER_BYTES)
        index_bytes = (int.from_bytes(footer[4:8], "little") + 1) * 4
        if footer[-2:] != _FOOTER_MAGIC or index_bytes > _LONGEST_INDEX:
            raise ValueError("no end of a stream")
        index = _read(file, end - XZ_HEADER_BYTES - index_bytes, index_bytes)
        sizes = list(_iter_sizes(index))
        place = end - XZ_HEADER_BYTES - index_bytes - sum(sizes)
        end = place - XZ_HEADER_BYTES
        for size in sizes:
            yield place
            place += size


def _without_padding(file: BinaryIO, end: int) -> int:
    """The offset before the padding after a stream (zeros, a multiple of four)."""
    while end > 0:
        begin = max(0, end - _PADDING_STEP)
        data = _read(file, begin, end - begin)
        if kept := data.rstrip(b"\0"):
            return end - (len(data) - len(kept)) // 4 * 4
        end = begin
    return end


def _iter_sizes(index: bytes) -> Iterator[int]:
    """Bytes of each block in the file: its size in the index, padded to a multiple of four."""
    count, at = _number(index, 1)
    for _ in range(count):
        size, at = _number(index, at)
        _, at = _number(index, at)
        yield -(-size // 4) * 4


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Decode a varint (seven bits per byte), and the offset after it."""
    number = shift = 0
    while data[at] & 0x80:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | data[at] << shift, at + 1


def _read(file: BinaryIO, place: int, size: int) -> bytes:
    if place < 0:
        raise ValueError("no whole stream")
    file.seek(place)
    return file.read(size)
