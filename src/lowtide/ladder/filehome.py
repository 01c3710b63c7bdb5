"""Records of bytes that are stored in a scratch file while they are not used.

In:      sizes of records by key, the path of the file
Out:     as the other homes (homes.py): `begin` (ahead), `get`, then `put` or `drop`
Memory:  `slots` times the largest record on the device, and as much in host memory
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lowtide.errors import LowtideError
from lowtide.files import free_disk_bytes
from lowtide.ladder.homes import HostMemory, Ring
from lowtide.memory import format_size

__all__ = ["FileHome"]

_PAGE = 4096


class FileHome:
    """Records in a scratch file, read and written by threads with direct I/O (no page cache).

    The whole file is allocated at the start: a disk that is too small gives an error at once.
    """

    def __init__(
        self,
        sizes: Mapping[Hashable, int],
        device: torch.device,
        path: Path,
        *,
        slots: int = 3,
        staged: bool = False,
    ) -> None:
        """`staged`: the device has its own memory, so records pass through host memory."""
        self._path, self._staged, self._sizes = path, staged, dict(sizes)
        self._offsets: dict[Hashable, int] = {}
        end = 0
        for key, size in sizes.items():
            self._offsets[key] = end
            end += _paged(size)
        self._file = _make_scratch(path, end)
        largest = _paged(max(sizes.values(), default=0))
        self._staging = [HostMemory(largest) for _ in range(slots)]
        self._on_device = (
            [torch.empty(largest, dtype=torch.uint8, device=device) for _ in range(slots)]
            if staged
            else [memory.bytes for memory in self._staging]
        )
        self.is_locked = not staged or all(memory.is_locked for memory in self._staging)
        self._busy: list[Future[None] | None] = [None] * slots
        self._ring = Ring(slots)
        self._reading: dict[Hashable, Future[None]] = {}
        self._writing: dict[Hashable, Future[None]] = {}
        self._reader = ThreadPoolExecutor(1, "lowtide-read")
        self._writer = ThreadPoolExecutor(1, "lowtide-write")

    def begin(self, key: Hashable) -> None:
        if key in self._ring.held:
            return
        slot = self._ring.take(key)
        before = [self._busy[slot], self._writing.get(key)]
        self._reading[key] = self._reader.submit(self._read_into, key, slot, before)

    def _read_into(self, key: Hashable, slot: int, before: list[Future[None] | None]) -> None:
        for task in before:
            if task is not None:
                task.result()
        place = self._staging[slot].bytes.numpy()[: _paged(self._sizes[key])]
        done = 0
        while done < place.size:
            count = os.preadv(self._file, [place[done:].data], self._offsets[key] + done)
            if count <= 0:
                raise LowtideError(
                    "the scratch file ended early; the last checkpoint is whole",
                    path=self._path,
                    next_step="give the same command again, on another disk with --offload-dir",
                )
            done += count

    def get(self, key: Hashable) -> Tensor:
        self.begin(key)
        self._finish(self._reading.pop(key, None))
        return self._device_copy(key, fill=True)

    def room(self, key: Hashable) -> Tensor:
        slot = self._ring.take(key)
        self._finish(self._busy[slot])
        return self._device_copy(key, fill=False)

    def _device_copy(self, key: Hashable, *, fill: bool) -> Tensor:
        slot, size = self._ring.held[key], self._sizes[key]
        there = self._on_device[slot][:size]
        if fill and self._staged:
            there.copy_(self._staging[slot].bytes[:size], non_blocking=True)
        return there

    def put(self, key: Hashable) -> None:
        slot, size = self._ring.held.pop(key), self._sizes[key]
        event = None
        if self._staged:
            self._staging[slot].bytes[:size].copy_(self._on_device[slot][:size], non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        task = self._writer.submit(self._write_out, key, slot, event)
        self._busy[slot] = self._writing[key] = task

    def _write_out(self, key: Hashable, slot: int, event: Any) -> None:
        if event is not None:
            event.synchronize()
        place = self._staging[slot].bytes.numpy()[: _paged(self._sizes[key])]
        done = 0
        while done < place.size:
            done += os.pwritev(self._file, [place[done:].data], self._offsets[key] + done)

    def drop(self, key: Hashable) -> None:
        slot = self._ring.held.pop(key)
        if self._staged:
            event = torch.cuda.Event()
            event.record()
            self._busy[slot] = self._reader.submit(event.synchronize)

    def drop_all(self) -> None:
        for key in list(self._ring.held):
            self._finish(self._reading.pop(key, None))
            self.drop(key)

    def _finish(self, task: Future[None] | None) -> None:
        """Wait for a task; a disk error is raised again with the file's name."""
        if task is None:
            return
        try:
            task.result()
        except OSError as error:
            raise LowtideError(
                f"the disk failed during a step ({error.strerror}); the last checkpoint is whole",
                path=self._path,
                next_step="give --offload-dir on another disk, and the same command again",
            ) from error

    def read(self, key: Hashable) -> Tensor:
        value = self.get(key).to("cpu", copy=True)
        self.drop(key)
        return value

    def write(self, key: Hashable, value: Tensor) -> None:
        self.room(key).copy_(value)
        self.put(key)

    def wait(self) -> None:
        for task in self._writing.values():
            self._finish(task)

    def close(self) -> None:
        self._reader.shutdown(cancel_futures=True)
        self._writer.shutdown(cancel_futures=True)
        os.close(self._file)
        for memory in self._staging:
            memory.close()


def _paged(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _make_scratch(path: Path, size: int) -> int:
    """Open a new file with all its space and no name: the space is freed when the process ends."""
    free = free_disk_bytes(path.parent)
    file = -1
    try:
        if size > free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _open_uncached(path)
        path.unlink()
        _reserve(file, size)
    except OSError as error:
        if file >= 0:
            os.close(file)
        if error.errno != errno.ENOSPC:
            raise LowtideError(
                f"the scratch file cannot be made ({error.strerror})",
                path=path,
                next_step="give --offload-dir as a folder that may be written to",
            ) from error
        raise LowtideError(
            f"the scratch file takes {format_size(size)}, the disk has {format_size(free)} free "
            f"({error.strerror})",
            path=path,
            next_step="give --offload-dir on a larger disk",
        ) from error
    return file


def _reserve(file: int, size: int) -> None:
    """Reserve all space of the file; if that is not supported, it grows as it is written."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, max(size, 1))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise


def _open_uncached(path: Path) -> int:
    """Open a new file for direct I/O, if the file system supports that.

    Some file systems open such a file and refuse to write to it, so a page is written as a test.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    file = -1
    try:
        file = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o600)
        os.pwritev(file, [mmap.mmap(-1, _PAGE)], 0)
    except OSError as error:
        if file >= 0:
            os.close(file)
            path.unlink()
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        return os.open(path, flags, 0o600)
    return file
