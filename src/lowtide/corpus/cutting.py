"""Find the ends of blocks: the first document border after a fixed offset, else a line border.

In:      an open file, or a window of text; the offset where a block should end
Out:     the offset of the end, and whether it is inside a document
Memory:  one window of half a block
"""

from __future__ import annotations

import errno
import os
import re
from io import FileIO
from typing import BinaryIO

from lowtide.corpus.inputs import InputFile
from lowtide.corpus.textblocks import ReadingSettings, separator_spellings

__all__ = ["PROBE_BYTES", "context_bytes", "cut_text", "find_cut", "read_at"]

PROBE_BYTES = 64 << 10
_BETWEEN_WORDS = re.compile(rb"(?<=[^ \t\r\n\v\f])\n(?=[A-Za-z0-9])")
"""A line end between two words. Searched natively: there may be millions of empty lines."""


def read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Read up to `size` bytes at `offset`, fewer at the end of the file."""
    parts: list[bytes] = []
    while size > 0 and (part := _read_some(file, offset, size)):
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _read_some(file: BinaryIO | FileIO, offset: int, size: int) -> bytes:
    if isinstance(file, FileIO):
        return os.pread(file.fileno(), size, offset)
    file.seek(offset)  # of a store
    return file.read(size)


def find_cut(
    file: BinaryIO,
    source: InputFile,
    nominal: int,
    options: ReadingSettings,
    *,
    probe_bytes: int = PROBE_BYTES,
) -> tuple[int, bool]:
    """The end of the block that nominally ends at `nominal`, and if it is inside a document."""
    if nominal <= 0:
        return 0, False
    if nominal >= source.size_bytes:
        return source.size_bytes, False
    if source.format.block_kind == "jsonl":
        return _find_line_end(file, source, nominal, probe_bytes), False
    back = context_bytes(options.separator)
    wanted = min(probe_bytes, options.window_bytes)
    while True:  # a border is usually near: search a small window first, then all of it
        window = read_at(file, nominal - back, back + wanted + back)
        cut = cut_text(window, back, options.separator, len(window) - back)
        if cut is not None and not cut[1]:
            return nominal - back + cut[0], False
        if nominal + options.window_bytes >= source.size_bytes:
            if nominal + wanted >= source.size_bytes:
                return source.size_bytes, False  # the end of the file is a border too
        elif wanted >= options.window_bytes:
            return nominal - back + (cut[0] if cut is not None else len(window)), True
        wanted = min(wanted * 8, options.window_bytes)


def context_bytes(separator: bytes) -> int:
    """Bytes before a place that a search for a border there has to see."""
    return max(1, max(map(len, separator_spellings(separator))) - 1)


def _find_line_end(file: BinaryIO, source: InputFile, nominal: int, probe_bytes: int) -> int:
    position = nominal - 1
    while position < source.size_bytes:
        window = read_at(file, position, probe_bytes)
        found = window.find(b"\n")
        if found >= 0:
            return position + found + 1
        if not window:  # the file was cut short while it was read
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(source.path))
        position += len(window)
    return source.size_bytes


def cut_text(window: bytes, start: int, separator: bytes, limit: int) -> tuple[int, bool] | None:
    """Find where to cut a window at or after `start`: (position, inside a document).

    First choice is the end of a separator. Else a line border between two words, where every
    pre-tokenization pattern cuts anyway; else any line border, any blank, any character.
    """
    if separator:
        found = [
            (place, place + len(mark))
            for mark in separator_spellings(separator)
            if 0 <= (place := window.find(mark, max(start - len(mark) + 1, 0))) <= limit
        ]
        if found:
            return min(found)[1], False
    if start >= len(window):
        return None
    between = _BETWEEN_WORDS.search(window, start, limit + 1)
    if between is not None:
        return between.end(), True
    position = window.find(b"\n", start)
    first_line = position + 1 if 0 <= position < limit else 0
    if first_line:
        return first_line, True
    position = window.find(b" ", start)
    if 0 < position < limit:
        return position, True  # a space belongs to the word after it
    position = start
    while position < len(window) and window[position] & 0xC0 == 0x80:
        position += 1
    return position, True
