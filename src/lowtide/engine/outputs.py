"""Files of a task's result: sections written one after the other, then a header that finds them.

In:      bytes, section by section, of any size
Out:     one file; `open_output` reads its header, and stretches of its sections
Memory:  what the caller holds

The header stands at the end, so nothing has to be known before it is written. A task done twice
gives the same bytes: there is no time, name or random number in them.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import xxhash

from lowtide import files
from lowtide.errors import DataError

__all__ = ["Output", "OutputWriter", "open_output"]

_MAGIC = b"LTTASK01"
_TRAILER = struct.Struct("<8sQQ16s")  # magic, where the header begins, its size, its xxh3-128


class OutputWriter:
    """Writes sections into an open file, in any number of pieces each."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = xxhash.xxh3_128()
        self._sections: dict[str, tuple[int, int]] = {}
        self._position = 0
        self._begin = 0
        self._name: str | None = None

    def begin(self, name: str) -> None:
        """Begin a section; the one before it ends here."""
        self._end()
        self._name, self._begin = name, self._position

    def _end(self) -> None:
        if self._name is not None:
            self._sections[self._name] = (self._begin, self._position - self._begin)
            self._name = None

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes to the section."""
        view = memoryview(data)
        self._file.write(view)
        self._digest.update(view)
        self._position += view.nbytes

    def section(self, name: str, data: bytes | memoryview) -> None:
        """Write a section as a whole."""
        self.begin(name)
        self.write(data)

    def finish(self, header: Mapping[str, Any]) -> str:
        """Write the header, and return the checksum of everything."""
        self._end()
        value = {"header": dict(header), "sections": self._sections}
        text = json.dumps(value, sort_keys=True).encode()
        self._digest.update(text)
        digest = xxhash.xxh3_128_digest(text)
        self._file.write(text + _TRAILER.pack(_MAGIC, self._position, len(text), digest))
        return self._digest.hexdigest()


@dataclass(frozen=True)
class Output:
    """A finished file: its header, and where its sections are."""

    path: Path
    header: dict[str, Any]
    sections: dict[str, tuple[int, int]]

    def size(self, name: str) -> int:
        """Bytes of a section."""
        return self.sections[name][1]

    def read(self, name: str, *, begin: int = 0, end: int | None = None) -> memoryview:
        """Read bytes `begin` to `end` of a section."""
        with self.path.open("rb", buffering=0) as file:
            return self.read_from(file.fileno(), name, begin=begin, end=end)

    def read_from(
        self, descriptor: int, name: str, *, begin: int = 0, end: int | None = None
    ) -> memoryview:
        """The same, from a file that is open already."""
        offset, size = self.sections[name]
        end = size if end is None else end
        if not 0 <= begin <= end <= size:
            raise DataError(f"section {name} has {size} bytes, asked for {end}", path=self.path)
        return _read_exactly(descriptor, offset + begin, end - begin, self.path)


def _read_exactly(descriptor: int, offset: int, size: int, path: Path) -> memoryview:
    view = memoryview(bytearray(size))
    done = 0
    while done < size:
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise _damaged(path)
        done += count
    return view


def _damaged(path: Path) -> DataError:
    return DataError(
        "this is not a whole result of a task",
        path=path,
        next_step="remove the work folder, and give the command again: it starts over",
    )


def open_output(path: Path) -> Output:
    """Read a file's header; one that is damaged is refused."""
    with files.open_file(path) as file:
        descriptor = file.fileno()
        end = os.fstat(descriptor).st_size - _TRAILER.size
        if end < 0:
            raise _damaged(path)
        magic, begin, size, digest = _TRAILER.unpack(
            _read_exactly(descriptor, end, _TRAILER.size, path)
        )
        if magic != _MAGIC or begin + size != end:
            raise _damaged(path)
        text = _read_exactly(descriptor, begin, size, path)
    if xxhash.xxh3_128_digest(text) != digest:
        raise _damaged(path)
    value = json.loads(text.tobytes())  # what the digest is of
    sections = {name: (offset, count) for name, (offset, count) in value["sections"].items()}
    return Output(path, value["header"], sections)
