"""Where records of bytes live while they are not used: on the device, in host memory, in a file.

In:      sizes of records by key
Out:     each on the device while it is used: `begin` (ahead), `get`, then `put` or `drop`
Memory:  on the device all records, or `slots` of the largest; in host memory all, or a slot each

A home of host memory copies on streams of its own: what is begun early arrives while something
else is computed. Every slot has the event after which it may be written again, every record the
event after which it may be read again, so nothing overtakes anything.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lowtide.errors import LowtideError
from lowtide.files import free_disk_bytes
from lowtide.memory import format_size
from lowtide.training.hostcopies import lock_pages, unlock_pages

__all__ = ["DeviceHome", "FileHome", "Home", "HostHome", "HostMemory"]

_PAGE = 4096


class Home(Protocol):
    """Records by key; at most `slots` are in use at once."""

    def begin(self, key: Hashable) -> None:
        """Start to bring a record to the device."""
        ...

    def get(self, key: Hashable) -> Tensor:
        """The record on the device, once it has arrived."""
        ...

    def room(self, key: Hashable) -> Tensor:
        """Memory on the device for a record that will be written anew."""
        ...

    def put(self, key: Hashable) -> None:
        """Take a record back as it is on the device now."""
        ...

    def drop(self, key: Hashable) -> None:
        """Be done with a record that was only read."""
        ...

    def drop_all(self) -> None:
        """Be done with all that are in use, after an error."""
        ...

    def read(self, key: Hashable) -> Tensor:
        """The record on the CPU, when nothing else is under way."""
        ...

    def write(self, key: Hashable, value: Tensor) -> None:
        """Fill a record from the CPU, when nothing else is under way."""
        ...

    def wait(self) -> None:
        """Come back when every record is as it was put."""
        ...

    def close(self) -> None:
        """Return all memory."""
        ...


class DeviceHome:
    """Records that stay on the device."""

    def __init__(self, sizes: Mapping[Hashable, int], device: torch.device) -> None:
        # On a CPU in mappings of their own: between them the C library would keep what is freed.
        self._memory = [HostMemory(s, lock=False) for s in sizes.values() if device.type == "cpu"]
        self._records = {
            key: self._memory[number].bytes
            if self._memory
            else torch.zeros(size, dtype=torch.uint8, device=device)
            for number, (key, size) in enumerate(sizes.items())
        }

    def begin(self, key: Hashable) -> None:
        pass

    def get(self, key: Hashable) -> Tensor:
        return self._records[key]

    def room(self, key: Hashable) -> Tensor:
        return self._records[key]

    def put(self, key: Hashable) -> None:
        pass

    def drop(self, key: Hashable) -> None:
        pass

    def drop_all(self) -> None:
        pass

    def read(self, key: Hashable) -> Tensor:
        return self._records[key].cpu()

    def write(self, key: Hashable, value: Tensor) -> None:
        self._records[key].copy_(value)

    def wait(self) -> None:
        pass

    def close(self) -> None:
        self._records.clear()
        self._memory.clear()


class _Ring:
    """Which slot a record in use has; they are taken in turn."""

    def __init__(self, slots: int) -> None:
        self._slots, self._next = slots, 0
        self.held: dict[Hashable, int] = {}

    def take(self, key: Hashable) -> int:
        """A slot for a record; the one that was taken longest ago."""
        slot = self._next % self._slots
        assert slot not in self.held.values(), "more records in use than slots"
        self._next += 1
        self.held[key] = slot
        return slot


class _Slot:
    """Memory on the device for one record at a time."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.ready: Any = None
        self.free: Any = None


class HostHome:
    """Records in page-locked host memory; copies go both ways beside the computing."""

    def __init__(
        self, sizes: Mapping[Hashable, int], device: torch.device, *, slots: int = 2
    ) -> None:
        self._device, self._sizes = device, dict(sizes)
        self._memory = {key: HostMemory(size) for key, size in sizes.items()}
        self.is_locked = all(memory.is_locked for memory in self._memory.values())
        largest = max(sizes.values(), default=0)
        self._slots = [_Slot(largest, device) for _ in range(slots)]
        self._ring = _Ring(slots)
        self._written: dict[Hashable, Any] = {}
        self._inward = torch.cuda.Stream(device)
        self._outward = torch.cuda.Stream(device)

    def begin(self, key: Hashable) -> None:
        if key in self._ring.held:
            return
        slot = self._slots[self._ring.take(key)]
        for event in (slot.free, self._written.get(key)):
            if event is not None:
                self._inward.wait_event(event)
        with torch.cuda.stream(self._inward):
            slot.memory[: self._sizes[key]].copy_(self._memory[key].bytes, non_blocking=True)
            slot.ready = torch.cuda.Event()
            slot.ready.record()

    def get(self, key: Hashable) -> Tensor:
        self.begin(key)
        slot = self._slots[self._ring.held[key]]
        torch.cuda.current_stream(self._device).wait_event(slot.ready)
        return slot.memory[: self._sizes[key]]

    def room(self, key: Hashable) -> Tensor:
        slot = self._slots[self._ring.take(key)]
        if slot.free is not None:
            torch.cuda.current_stream(self._device).wait_event(slot.free)
        return slot.memory[: self._sizes[key]]

    def put(self, key: Hashable) -> None:
        slot = self._slots[self._ring.held.pop(key)]
        self._outward.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._outward):
            self._memory[key].bytes.copy_(slot.memory[: self._sizes[key]], non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        slot.free = self._written[key] = event

    def drop(self, key: Hashable) -> None:
        slot = self._slots[self._ring.held.pop(key)]
        slot.free = torch.cuda.Event()
        slot.free.record(torch.cuda.current_stream(self._device))

    def drop_all(self) -> None:
        self.wait()  # what is on its way to a slot arrives first
        for key in list(self._ring.held):
            self.drop(key)

    def read(self, key: Hashable) -> Tensor:
        return self._memory[key].bytes

    def write(self, key: Hashable, value: Tensor) -> None:
        self._memory[key].bytes.copy_(value)

    def wait(self) -> None:
        self._inward.synchronize()
        self._outward.synchronize()

    def close(self) -> None:
        self.wait()
        for memory in self._memory.values():
            memory.close()
        self._memory.clear()
        self._slots.clear()


class HostMemory:
    """Bytes of host memory, page-locked where the system allows it, in exactly their size."""

    def __init__(self, size: int, *, lock: bool = True) -> None:
        self._map = mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._array = np.frombuffer(self._map, np.uint8)
        self.bytes = torch.from_numpy(self._array)[:size]
        lock = lock and torch.cuda.is_available()
        if lock:
            self.bytes.zero_()  # touched by all threads; locking would do it with one
        self.is_locked = lock and lock_pages(self._array)
        if lock and not self.is_locked:
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device="cuda")  # which takes the refusal off the device
        self._unlock = weakref.finalize(self, unlock_pages, self._array) if self.is_locked else None

    def close(self) -> None:
        """Give up the lock; the memory goes with its last user."""
        if self._unlock is not None:
            self._unlock()


class FileHome:
    """Records in a scratch file, read and written by threads past the page cache.

    The file has all its bytes from the beginning: a disk that is too small is found at once.
    """

    def __init__(
        self, sizes: Mapping[Hashable, int], device: torch.device, path: Path, *, slots: int = 3
    ) -> None:
        self._path, self._device, self._sizes = path, device, dict(sizes)
        self._offsets: dict[Hashable, int] = {}
        end = 0
        for key, size in sizes.items():
            self._offsets[key] = end
            end += _paged(size)
        if end > free_disk_bytes(path.parent):
            raise LowtideError(
                f"the scratch file takes {format_size(end)}, the disk has "
                f"{format_size(free_disk_bytes(path.parent))} free",
                path=path,
                next_step="give --offload-dir on a larger disk",
            )
        self._file = _open_scratch(path)
        path.unlink()  # its room comes back when this process ends, however it ends
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file, 0, max(end, 1))
        largest = _paged(max(sizes.values(), default=0))
        self._staging = [HostMemory(largest) for _ in range(slots)]
        self._on_device = (
            [torch.empty(largest, dtype=torch.uint8, device=device) for _ in range(slots)]
            if device.type == "cuda"
            else [memory.bytes for memory in self._staging]
        )
        self._busy: list[Future[None] | None] = [None] * slots
        self._ring = _Ring(slots)
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
                raise LowtideError("the scratch file ended early", path=self._path)
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
        if fill and self._device.type == "cuda":
            there.copy_(self._staging[slot].bytes[:size], non_blocking=True)
        return there

    def put(self, key: Hashable) -> None:
        slot, size = self._ring.held.pop(key), self._sizes[key]
        event = None
        if self._device.type == "cuda":
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
        if self._device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
            self._busy[slot] = self._reader.submit(event.synchronize)

    def drop_all(self) -> None:
        for key in list(self._ring.held):
            self._finish(self._reading.pop(key, None))
            self.drop(key)

    def _finish(self, task: Future[None] | None) -> None:
        """Wait for a task; what the disk says about it is an error with its name."""
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


def _open_scratch(path: Path) -> int:
    """Open a new file without the page cache, where its file system allows that."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o600)
    except OSError:
        path.unlink(missing_ok=True)
        return os.open(path, flags, 0o600)
