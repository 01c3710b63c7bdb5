"""The file format of a task's result: sections, then a header with their offsets.

    sections   one after the other
    checksums  8 bytes for each page of 4 KiB of the sections
    header     JSON: values of the stage, offsets and sizes of the sections
    trailer    magic, offset of the header, its size, its xxh3-128

In:      bytes, section by section, of any size
Out:     one file; `open_output` reads its header, and ranges of its sections
Memory:  8 bytes a page while a file is written; data of the caller

Header and checksums are at the end, so nothing has to be known before the sections are written. A
repeated task gives the same bytes: they contain no time, host name or random number.

Workers read ranges of files that others wrote hours ago, on disks of all kinds, so every page is
verified by its checksum as it is read. Pages are small because many ranges are small. The checksums
themselves need no checksum: a damaged one does not match its page.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import xxhash

from lowtide import _native, files
from lowtide.errors import DataError
from lowtide.quickclasses import dataclass
from lowtide.stores.paths import is_stored
from lowtide.stores.refusals import ObjectChangedError

__all__ = [
    "OUTPUT_FORMAT",
    "PAGE_BYTES",
    "Output",
    "OutputWriter",
    "open_output",
    "parse_header",
]

OUTPUT_FORMAT = "LTTASK05"
"""The format of these files. It is part of the plan of unfinished work, so that files of another
format are never taken for damaged ones."""
_MAGIC = OUTPUT_FORMAT.encode()
PAGE_BYTES = 4096
"""Bytes covered by one checksum."""
_SUM_BYTES = 8
_COPY_BYTES = 2 << 20
_TAIL_BYTES = 8 << 10
_ALIGNMENT = 8
_START_OVER = "remove the work folder, and give the command again: it starts over"
_TRAILER = struct.Struct("<8sQQ16s")  # magic, offset of the header, its size, its xxh3-128


class OutputWriter:
    """Writes sections into an open file, in any number of pieces each."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sums = bytearray()
        self._page = bytearray()  # the last one, not full yet
        self._sections: dict[str, tuple[int, int]] = {}
        self._position = 0
        self._begin = 0
        self._name: str | None = None

    def begin(self, name: str) -> None:
        """Begin a section, which ends the one before it."""
        self._end()
        self._name, self._begin = name, self._position

    def _end(self) -> None:
        if self._name is not None:
            self._sections[self._name] = (self._begin, self._position - self._begin)
            self._name = None

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes to the section."""
        view = memoryview(data).cast("B")
        self._file.write(view)
        begin = min(-self._position % PAGE_BYTES, view.nbytes)
        self._page += view[:begin]
        self._position += view.nbytes
        if len(self._page) == PAGE_BYTES:
            self._end_page()
        end = max(view.nbytes - self._position % PAGE_BYTES, begin)
        self._sums += _sum_pages(view[begin:end])
        self._page += view[end:]

    def _end_page(self) -> None:
        self._sums += _sum_pages(memoryview(bytes(self._page)))
        self._page.clear()

    def section(self, name: str, data: bytes | memoryview) -> None:
        """Write a whole section."""
        self.begin(name)
        self.write(data)

    def finish(self, header: Mapping[str, Any]) -> tuple[str, bytes]:
        """Write checksums and header; return one checksum of everything, and the header as JSON."""
        self._end()
        if self._page:
            self._end_page()
        value = {"header": dict(header), "sections": self._sections, "bytes": self._position}
        text = json.dumps(value, sort_keys=True).encode()
        begin = self._position + len(self._sums)
        digest = xxhash.xxh3_128_digest(text)
        self._file.write(self._sums)
        self._file.write(text + _TRAILER.pack(_MAGIC, begin, len(text), digest))
        return xxhash.xxh3_128_hexdigest(bytes(self._sums) + text), text


def _sum_pages(data: memoryview) -> memoryview:
    """The checksums of pages; the last one may be shorter than the others."""
    return _native.sum_pages(data, PAGE_BYTES)


@dataclass(frozen=True)
class Output:
    """A finished file: its header, and the offsets of its sections."""

    path: Path
    header: dict[str, Any]
    sections: dict[str, tuple[int, int]]
    num_bytes: int
    """Of all sections."""

    def size(self, name: str) -> int:
        """Bytes of a section."""
        return self.sections[name][1]

    def find(self, name: str) -> int:
        """The offset of a section in the file."""
        return self.sections[name][0]

    def read(self, name: str, *, begin: int = 0, end: int | None = None) -> memoryview:
        """Read bytes `begin` to `end` of a section; damage is an error."""
        with self.path.open("rb", buffering=0) as file:
            return self.read_from(file, name, begin=begin, end=end)

    def read_from(
        self, file: IO[bytes], name: str, *, begin: int = 0, end: int | None = None
    ) -> memoryview:
        """The same, from an open file."""
        first, last = self._place(name, begin, end)
        return self._read_pages(file, first, last) if first < last else memoryview(b"")

    def check(self, name: str, *, begin: int = 0, end: int | None = None) -> None:
        """Verify bytes of a local file before native code reads them."""
        first, last = self._place(name, begin, end)
        page, after = first // PAGE_BYTES, -(-last // PAGE_BYTES)
        with files.open_file(self.path) as file:
            wrong = _native.find_damaged_page(
                file.fileno(), page, after, self.num_bytes, PAGE_BYTES
            )
        if wrong < after:
            raise self.damaged_page(wrong)

    def copy(self, name: str, target: IO[bytes], *, begin: int = 0, end: int | None = None) -> None:
        """Copy bytes from a store into a local file, for native code to read."""
        first, last = self._place(name, begin, end)
        with self.path.open("rb", buffering=0) as file:
            while first < last:
                stop = min(first - first % PAGE_BYTES + _COPY_BYTES, last)
                target.write(self._read_pages(file, first, stop))
                first = stop

    def _place(self, name: str, begin: int, end: int | None) -> tuple[int, int]:
        """The begin and end of a range of a section, as offsets in the file."""
        offset, size = self.sections[name]
        end = size if end is None else end
        if not 0 <= begin <= end <= size:
            raise DataError(f"section {name} has {size} bytes, asked for {end}", path=self.path)
        return offset + begin, offset + end

    def _read_pages(self, file: IO[bytes], first: int, last: int) -> memoryview:
        """Read and verify the pages that contain a range, and return the range."""
        page, after = first // PAGE_BYTES, -(-last // PAGE_BYTES)
        begin, end = page * PAGE_BYTES, min(after * PAGE_BYTES, self.num_bytes)
        # The range begins where native code can read aligned rows of numbers.
        pad = (begin - first) % _ALIGNMENT
        room = memoryview(bytearray(pad + end - begin))[pad:]
        data = _fill(room, file, begin, self.path)
        sums = _read_exactly(
            file, self.num_bytes + page * _SUM_BYTES, (after - page) * _SUM_BYTES, self.path
        )
        if _sum_pages(data) != sums:
            raise self._not_as_written(begin, end)
        return data[first - begin : last - begin]

    def damaged_page(self, page: int) -> DataError:
        """The error for a page that does not match its checksum."""
        begin = page * PAGE_BYTES
        return self._not_as_written(begin, min(begin + PAGE_BYTES, self.num_bytes))

    def _not_as_written(self, begin: int, end: int) -> DataError:
        return DataError(
            f"bytes {begin} to {end} are not those that were written: this file is damaged",
            path=self.path,
            next_step=_START_OVER,
        )


def _read_exactly(file: IO[bytes], offset: int, size: int, path: Path) -> memoryview:
    return _fill(memoryview(bytearray(size)), file, offset, path)


def _fill(room: memoryview, file: Any, offset: int, path: Path) -> memoryview:
    done = 0
    while done < room.nbytes:
        if isinstance(file, io.FileIO):
            count = os.preadv(file.fileno(), [room[done:]], offset + done)
        else:  # an object
            file.seek(offset + done)
            try:
                count = file.readinto(room[done:])
            except ObjectChangedError:
                # Another worker stored the same bytes again; some stores then change the tag.
                file.renew()
                file.seek(offset + done)
                count = file.readinto(room[done:])
        if count == 0:
            raise _damaged(path)
        done += count
    return room


def _damaged(path: Path) -> DataError:
    return DataError(
        "this is not a whole result of a task",
        path=path,
        next_step=_START_OVER,
    )


def open_output(path: Path) -> Output:
    """Read a file's header; a damaged one is an error."""
    with path.open("rb", buffering=0) if is_stored(path) else files.open_file(path) as file:
        total = file.seek(0, os.SEEK_END)
        if total < _TRAILER.size:
            raise _damaged(path)
        # One request for most of them: the header is right before the trailer.
        tail = _read_exactly(file, max(total - _TAIL_BYTES, 0), min(total, _TAIL_BYTES), path)
        magic, begin, size, digest = _TRAILER.unpack(tail[-_TRAILER.size :])
        end = total - _TRAILER.size
        if magic != _MAGIC or begin + size != end:
            raise _damaged(path)
        inside = begin - (total - len(tail))
        text = tail[inside : inside + size]
        if inside < 0:
            text = _read_exactly(file, begin, size, path)
    if xxhash.xxh3_128_digest(text) != digest:
        raise _damaged(path)
    return parse_header(path, text.tobytes())  # its checksum is right, so we wrote it


def parse_header(path: Path, text: bytes) -> Output:
    """A finished file, by its header as JSON."""
    value = json.loads(text)
    sections = {name: (offset, count) for name, (offset, count) in value["sections"].items()}
    return Output(path, value["header"], sections, value["bytes"])
