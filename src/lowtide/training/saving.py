"""Checkpoints written while training goes on: a quick copy to host memory, the rest in a thread.

In:      tensors on the device, numbers
Out:     calls of RunFolder.save and save_best, in order, with portable tensors
Memory:  host memory for one checkpoint and one set of weights, page-locked and used again
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lowtide.model.config import GPTConfig
from lowtide.model.weights import portable_tensors
from lowtide.training.checkpoints import Checkpoint, RunFolder, all_tensors

__all__ = ["CheckpointSaver"]

_ALIGNMENT = 64
Rename = Callable[[Mapping[str, Tensor], GPTConfig], dict[str, Tensor]]


class CheckpointSaver:
    """Writes checkpoints, in a thread from a copy where that is wanted; one at a time."""

    def __init__(
        self, run: RunFolder, *, background: bool, rename: Rename = portable_tensors
    ) -> None:
        self._run, self._rename = run, rename
        self._pool = ThreadPoolExecutor(1, "lowtide-save") if background else None
        self._copies = {"checkpoint": _HostCopy(), "best": _HostCopy()}
        self._pending: dict[str, Future[None]] = {}

    def save(self, checkpoint: Checkpoint, config: GPTConfig, *, wait: bool) -> None:
        """Write a checkpoint; with `wait`, only come back when everything is on the disk."""

        def write(copy: tuple[dict[str, Tensor], Any]) -> None:
            weights = self._rename(copy[0], config)
            whole = dataclasses.replace(checkpoint, weights=weights, tensors=copy[1])
            self._run.save(whole, config)

        self._write("checkpoint", (checkpoint.weights, checkpoint.tensors), write)
        if wait:
            self.finish()

    def save_best(
        self, weights: dict[str, Tensor], config: GPTConfig, numbers: Mapping[str, Any]
    ) -> None:
        """Write the weights with the lowest validation loss so far."""

        def write(copy: dict[str, Tensor]) -> None:
            self._run.save_best(self._rename(copy, config), config, numbers)

        self._write("best", weights, write)

    def _write(self, kind: str, value: Any, write: Callable[[Any], None]) -> None:
        if self._pool is None:
            write(value)
            return
        self._finish(kind)  # its copy is about to be overwritten
        copy, is_there = self._copies[kind].take(value)

        def wait_and_write() -> None:
            is_there()
            write(copy)

        self._pending[kind] = self._pool.submit(wait_and_write)

    def _finish(self, kind: str) -> None:
        if kind in self._pending:
            self._pending.pop(kind).result()

    def finish(self) -> None:
        """Wait for what is under way; an error of its writing is raised here."""
        for kind in tuple(self._pending):
            self._finish(kind)

    def __enter__(self) -> CheckpointSaver:
        return self

    def __exit__(self, *details: object) -> None:
        try:
            self.finish()
        finally:
            if self._pool is not None:
                self._pool.shutdown()
            for copy in self._copies.values():
                copy.close()


class _HostCopy:
    """Tensors of a structure in one piece of host memory, which is kept for the next time.

    Page-locked, so that the GPU copies between two steps and nothing waits: 1.2 GB take it about as
    long as a tenth of a step, where a copy to ordinary memory holds the loop up.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._locked = False

    def take(self, value: Any) -> tuple[Any, Callable[[], None]]:
        """Begin to copy; give the copy, and what waits until it is there."""
        tensors = all_tensors(value)
        on_gpu = any(tensor.is_cuda for tensor in tensors)
        needed = sum(_aligned(tensor) for tensor in tensors)
        if needed > self._memory.size:
            self.close()
            self._memory = np.empty(needed, np.uint8)
            self._locked = on_gpu and _lock(self._memory)
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
        # A storage of its own, so that torch.save writes this tensor and not all the memory.
        place = torch.frombuffer(
            self._memory, dtype=tensor.dtype, count=tensor.numel(), offset=start
        ).view(tensor.shape)
        return place.copy_(tensor, non_blocking=True)

    def close(self) -> None:
        """Return the memory back."""
        if self._locked:
            _cuda_runtime().cudaHostUnregister(self._memory.ctypes.data)
            self._locked = False
        self._memory = np.empty(0, np.uint8)


def _aligned(tensor: Tensor) -> int:
    size = tensor.numel() * tensor.element_size()
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _cuda_runtime() -> Any:
    return torch.cuda.cudart()


def _lock(memory: np.ndarray[Any, np.dtype[np.uint8]]) -> bool:
    """Page-lock memory; where the system allows no more of it, copies are slower, not wrong."""
    # Not pin_memory, which takes the next power of two.
    return int(_cuda_runtime().cudaHostRegister(memory.ctypes.data, memory.size, 0)) == 0
