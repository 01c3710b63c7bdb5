"""The format of work files: a small header and named sections, written atomically.

In:      arrays of one task's result
Out:     PATH, renamed when complete; `read_section` reads parts of it
Memory:  data of the caller; a reader holds one section

They are not flushed to the disk, because data written by a killed process is not lost. A command
that resumes calls `is_intact` first, which detects damage by a power cut or a bad disk.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from lowtide import _native, files
from lowtide.errors import DataError
from lowtide.quickclasses import dataclass

__all__ = [
    "WorkFile",
    "is_intact",
    "open_work_file",
    "read_section",
    "unfinished_name",
    "write_work_file",
]

_MAGIC = b"LTWORK01"
_PREFIX = struct.Struct("<8sQ16s")  # magic, bytes of the JSON header, xxh3-128 of what follows it
_ALIGNMENT = 64


@dataclass(frozen=True)
class WorkFile:
    """A finished task's file: its header, and the offsets of its sections."""

    path: Path
    header: dict[str, Any]
    sections: dict[str, tuple[int, int]]

    def read(self, name: str, *, begin: int = 0, end: int | None = None) -> memoryview:
        """Read bytes `begin` to `end` of a section."""
        offset, size = self.sections[name]
        end = size if end is None else end
        return read_section(self.path, offset + begin, end - begin)


def read_section(path: Path, offset: int, size: int) -> memoryview:
    """Read a byte range of a work file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read_exactly(descriptor, offset, size, path)
    finally:
        os.close(descriptor)


def _read_exactly(descriptor: int, offset: int, size: int, path: Path) -> memoryview:
    data = os.pread(descriptor, size, offset)
    if len(data) == size:
        return memoryview(data)
    view = memoryview(bytearray(size))  # a large read may return fewer bytes
    view[: len(data)] = data
    done = len(data)
    while done < size:
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise _damaged(path)
        done += count
    return view


def write_work_file(
    path: Path, header: dict[str, Any], sections: Mapping[str, memoryview]
) -> WorkFile:
    """Write a task's result atomically; returns it like `open_work_file`."""
    table: dict[str, tuple[int, int]] = {}
    position = 0
    for name, data in sections.items():
        table[name] = (position, data.nbytes)
        position += -(-data.nbytes // _ALIGNMENT) * _ALIGNMENT
    text = json.dumps({"header": header, "sections": table}).encode()
    text += b" " * (-(_PREFIX.size + len(text)) % _ALIGNMENT)
    digest = xxhash.xxh3_128(text)
    for data in sections.values():
        digest.update(data)
    _native.write_work_file(
        os.fsencode(unfinished_name(path)),
        os.fsencode(path),
        _PREFIX.pack(_MAGIC, len(text), digest.digest()) + text,
        [memoryview(data).cast("B") for data in sections.values()],
        _ALIGNMENT,
    )
    base = _PREFIX.size + len(text)
    found = {name: (base + offset, count) for name, (offset, count) in table.items()}
    return WorkFile(path, header, found)


def unfinished_name(path: Path) -> str:
    """The name of a work file until it is whole.

    A string, because there are thousands of them, and a Path takes ten times as long to make.
    """
    folder, name = os.path.split(path)
    return f"{folder}/.{name}.partial"


def open_work_file(path: Path) -> WorkFile:
    """Read a work file's header."""
    with files.open_file(path) as file:
        prefix = file.read(_PREFIX.size)
        if len(prefix) != _PREFIX.size or not prefix.startswith(_MAGIC):
            raise _damaged(path)
        _, size, _ = _PREFIX.unpack(prefix)
        if size > os.fstat(file.fileno()).st_size:
            raise _damaged(path)
        text = _read_exactly(file.fileno(), _PREFIX.size, size, path)
    base = _PREFIX.size + size
    try:
        value = json.loads(text.tobytes())
        found = {
            name: (base + offset, count) for name, (offset, count) in value["sections"].items()
        }
        return WorkFile(path, value["header"], found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _damaged(path) from None


def _damaged(path: Path) -> DataError:
    return DataError(
        "this is not a work file of lowtide, or a damaged one",
        path=path,
        next_step="give the same command again; if that does not help, start over with --restart",
    )


def is_intact(path: Path) -> bool:
    """True if a work file still has the contents that were written."""
    try:
        work = open_work_file(path)
        with files.open_file(path) as file:
            end = os.fstat(file.fileno()).st_size
            if any(offset + count > end for offset, count in work.sections.values()):
                return False  # before that much is allocated
            _, size, expected = _PREFIX.unpack(file.read(_PREFIX.size))
            digest = xxhash.xxh3_128(_read_exactly(file.fileno(), _PREFIX.size, size, path))
            for offset, count in work.sections.values():
                digest.update(_read_exactly(file.fileno(), offset, count, path))
    except (DataError, OSError, ValueError, TypeError):
        return False
    return digest.digest() == expected
