"""Temporary data of a task: in memory up to a limit, then spilled to scratch files.

In:      bytes, a piece at a time
Out:     the same bytes, by offset
Memory:  `room_bytes` for each
Disk:    the rest, until the task is done

Most tasks need no file. A file for every task would be created, opened and removed by every thread
in the few folders that all of them share.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

__all__ = ["HeldBytes", "TaskScratch"]

_STEP_BYTES = 8 << 20


class HeldBytes:
    """Bytes kept in memory, and from `room_bytes` on in a file without a name."""

    def __init__(self, open_file: Callable[[], IO[bytes]], room_bytes: int) -> None:
        self._open_file = open_file
        self._room_bytes = room_bytes
        self._held = bytearray()
        self._file: IO[bytes] | None = None
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes."""
        self.size += memoryview(data).nbytes
        if self._file is None and self.size > self._room_bytes:
            self._file = self._open_file()
            self._file.write(self._held)
            self._held = bytearray()
        if self._file is None:
            self._held += data
        else:
            self._file.write(data)

    def read(self, begin: int, end: int) -> memoryview:
        """Bytes `begin` to `end`, once all are written."""
        if self._file is None:
            return memoryview(self._held)[begin:end]
        self._file.flush()
        room = memoryview(bytearray(end - begin))
        done = 0
        while done < len(room):
            count = os.preadv(self._file.fileno(), [room[done:]], begin + done)
            if not count:
                raise OSError(f"a scratch file ends after {begin + done} bytes")
            done += count
        return room

    def iter_pieces(self) -> Iterator[memoryview]:
        """Iterate over all bytes, some MiB at a time."""
        for begin in range(0, self.size, _STEP_BYTES):
            yield self.read(begin, min(begin + _STEP_BYTES, self.size))


class TaskScratch:
    """A context in which a task may create scratch files, and with the first, their folder."""

    def __init__(
        self, scratch_folder: Callable[[], contextlib.AbstractContextManager[Path]]
    ) -> None:
        self._scratch_folder = scratch_folder
        self._folder: Path | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> TaskScratch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    @property
    def folder(self) -> Path:
        """The folder, removed with the task's scratch files."""
        if self._folder is None:
            self._folder = self._stack.enter_context(self._scratch_folder())
        return self._folder

    def hold(self, room_bytes: int = 0) -> HeldBytes:
        """A buffer for bytes that are needed at the end of the task."""
        return HeldBytes(self._open_file, room_bytes)

    def create_file(self, name: str) -> IO[bytes]:
        """Create a named file, to be written and read."""
        return self._stack.enter_context((self.folder / name).open("x+b"))

    def _open_file(self) -> IO[bytes]:
        return self._stack.enter_context(tempfile.TemporaryFile(dir=self.folder))
