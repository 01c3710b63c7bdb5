"""Storage of records of bytes: on the device, or in host memory with copies to the device.

In:      sizes of records by key
Out:     each on the device while it is used: `begin` (prefetch), `get`, then `put` or `drop`
Memory:  on the device all records, or `slots` of the largest; in host memory all, or a slot each

The storage in host memory copies on separate CUDA streams: a prefetched record arrives during other
computation. Every slot has an event after which it may be written again, every record one after
which it may be read again, so copies cannot overtake each other.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections.abc import Hashable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lowtide.training.hostcopies import lock_pages, unlock_pages

__all__ = ["DeviceHome", "Home", "HostHome", "HostMemory", "Ring"]


class Home(Protocol):
    """Records by key; at most `slots` are in use at once."""

    is_locked: bool
    """True if all host memory that the device copies from is page-locked, or there is none."""

    def begin(self, key: Hashable) -> None:
        """Start copying a record to the device (prefetch)."""
        ...

    def get(self, key: Hashable) -> Tensor:
        """The record on the device, once it has arrived."""
        ...

    def room(self, key: Hashable) -> Tensor:
        """Memory on the device for a record that will be overwritten completely."""
        ...

    def put(self, key: Hashable) -> None:
        """Store a record as it is on the device now."""
        ...

    def drop(self, key: Hashable) -> None:
        """Release a record that was only read."""
        ...

    def drop_all(self) -> None:
        """Release all records in use, after an error."""
        ...

    def read(self, key: Hashable) -> Tensor:
        """The record on the CPU; not while records are in use."""
        ...

    def write(self, key: Hashable, value: Tensor) -> None:
        """Fill a record from the CPU; not while records are in use."""
        ...

    def wait(self) -> None:
        """Wait until every `put` is complete."""
        ...

    def close(self) -> None:
        """Return all memory."""
        ...


class DeviceHome:
    """Records that stay on the device."""

    is_locked = True

    def __init__(self, sizes: Mapping[Hashable, int], device: torch.device) -> None:
        # On a CPU in separate mappings: the C library would not return freed memory between them.
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


class Ring:
    """The slots of records in use, assigned in rotation."""

    def __init__(self, slots: int) -> None:
        self._slots, self._next = slots, 0
        self.held: dict[Hashable, int] = {}

    def take(self, key: Hashable) -> int:
        """A slot for a record: the least recently assigned one."""
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
    """Records in page-locked host memory; copies in both directions overlap with computation."""

    def __init__(
        self, sizes: Mapping[Hashable, int], device: torch.device, *, slots: int = 2
    ) -> None:
        self._device, self._sizes = device, dict(sizes)
        self._memory = {key: HostMemory(size) for key, size in sizes.items()}
        self.is_locked = all(memory.is_locked for memory in self._memory.values())
        largest = max(sizes.values(), default=0)
        self._slots = [_Slot(largest, device) for _ in range(slots)]
        self._ring = Ring(slots)
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
        self.wait()  # copies to slots finish first
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
    """Host memory of exactly the given size, page-locked if the system allows it."""

    def __init__(self, size: int, *, lock: bool = True) -> None:
        self._map = mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._array = np.frombuffer(self._map, np.uint8)
        self.bytes = torch.from_numpy(self._array)[:size]
        lock = lock and torch.cuda.is_available()
        if lock:
            self.bytes.zero_()  # all threads allocate the pages; locking would use only one
        self.is_locked = lock and lock_pages(self._array)
        if lock and not self.is_locked:
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device="cuda")  # clears the error on the device
        self._unlock = weakref.finalize(self, unlock_pages, self._array) if self.is_locked else None

    def close(self) -> None:
        """Unlock the pages; the memory is freed with its last reference."""
        if self._unlock is not None:
            self._unlock()
