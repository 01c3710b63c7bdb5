"""Copies of torch tensors in host memory, from which a thread writes while training goes on.

In:      tensors in any structure
Out:     the same structure in one block of host memory, reused for the next copy
Memory:  one copy of the tensors, page-locked if a GPU copies into it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["HostCopy", "all_tensors", "lock_pages", "unlock_pages"]

_ALIGNMENT = 64


def all_tensors(value: Any) -> list[Tensor]:
    """Return the tensors of a structure, in its order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in all_tensors(item)]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in all_tensors(item)]
    return []


class HostCopy:
    """Tensors of a structure in one block of host memory, which is reused.

    It is page-locked, so that the GPU copies asynchronously between two steps: 1.2 GB take about a
    tenth of a step, whereas a copy to pageable memory blocks the loop.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._locked = False

    def take(self, value: Any) -> tuple[Any, Callable[[], None]]:
        """Start copying; return the copy, and a function that waits until it is complete."""
        tensors = all_tensors(value)
        on_gpu = any(tensor.is_cuda for tensor in tensors)
        needed = sum(_aligned(tensor) for tensor in tensors)
        if needed > self._memory.size:
            self.close()
            self._memory = np.empty(needed, np.uint8)
            self._locked = on_gpu and lock_pages(self._memory)
        starts = iter(np.cumsum([0, *(_aligned(tensor) for tensor in tensors)]).tolist())
        copy = self._copy(value, starts)
        if not on_gpu:
            return copy, lambda: None
        event = torch.cuda.Event()
        event.record()
        return copy, event.synchronize

    def _copy(self, value: Any, starts: Iterator[int]) -> Any:
        if isinstance(value, Tensor):
            return self._place(value.detach(), next(starts))
        if isinstance(value, Mapping):
            return {key: self._copy(item, starts) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copy(item, starts) for item in value)
        return value

    def _place(self, tensor: Tensor, start: int) -> Tensor:
        if tensor.numel() == 0:
            return tensor.cpu()
        # A separate storage, so that torch.save writes this tensor and not the whole block.
        place = torch.frombuffer(
            self._memory, dtype=tensor.dtype, count=tensor.numel(), offset=start
        ).view(tensor.shape)
        return place.copy_(tensor, non_blocking=True)

    def close(self) -> None:
        """Free the memory."""
        if self._locked:
            unlock_pages(self._memory)
            self._locked = False
        self._memory = np.empty(0, np.uint8)


def _aligned(tensor: Tensor) -> int:
    size = tensor.numel() * tensor.element_size()
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _cuda_runtime() -> Any:
    return torch.cuda.cudart()


def lock_pages(memory: np.ndarray[Any, np.dtype[np.uint8]]) -> bool:
    """Page-lock memory; if the system allows no more of it, copies are only slower."""
    # Not pin_memory, which rounds up to a power of two and never frees it.
    return int(_cuda_runtime().cudaHostRegister(memory.ctypes.data, memory.size, 0)) == 0


def unlock_pages(memory: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """Unlock memory, before the system can reuse its addresses."""
    _cuda_runtime().cudaHostUnregister(memory.ctypes.data)
