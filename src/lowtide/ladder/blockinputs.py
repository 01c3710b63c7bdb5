"""The inputs of all blocks in a step, kept until the backward pass.

In:      the inputs of blocks, by block and micro-batch
Out:     the same, once, in reverse order
Memory:  2 * layers * tokens * width bytes in bfloat16, on the device or page-locked on the host,
         with at most two copies in progress
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lowtide.ladder.homes import HostMemory

__all__ = ["HostInputs", "Inputs"]


# Numbers of the inputs that share one allocation on a CPU, and what one begins at a multiple of.
_SLAB, _ALIGNED = 1 << 20, 16


class Inputs:
    """The inputs of blocks, on the device.

    On a CPU small ones are copied together: kept where they are, each would leave a gap of what a
    block computed beside it, which the C library can give to nothing else (40 layers, 32
    micro-batches of a row of 90 KB: 200 MiB where the inputs have 110).
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], Tensor] = {}
        self._slab = torch.empty(0)
        self._used = 0

    def keep(self, key: tuple[int, int], x: Tensor) -> None:
        self._kept[key] = x if x.is_cuda or x.numel() >= _SLAB else self._copied(x)

    def _copied(self, x: Tensor) -> Tensor:
        begin = -(-self._used // _ALIGNED) * _ALIGNED
        if self._slab.dtype != x.dtype or begin + x.numel() > self._slab.numel():
            self._slab, begin = torch.empty(_SLAB, dtype=x.dtype, device=x.device), 0
        self._used = begin + x.numel()
        return self._slab[begin : self._used].view(x.shape).copy_(x)

    def get(self, key: tuple[int, int]) -> Tensor:
        return self._kept.pop(key).detach()

    def clear(self) -> None:
        self._kept.clear()
        self._slab, self._used = torch.empty(0), 0


class HostInputs(Inputs):
    """The inputs of blocks in page-locked host memory, copied while the device computes."""

    def __init__(self) -> None:
        super().__init__()
        self._memory: dict[tuple[int, int], HostMemory] = {}
        self._shapes: dict[tuple[int, int], tuple[torch.Size, torch.dtype]] = {}
        self._outward: Any = None
        self._leaving: list[tuple[Any, Tensor]] = []
        self._ahead: dict[tuple[int, int], tuple[Tensor, Any]] = {}
        self._micro_batches = 0
        self._device: torch.device

    def keep(self, key: tuple[int, int], x: Tensor) -> None:
        if self._outward is None:
            self._device = x.device
            self._outward, self._inward = torch.cuda.Stream(x.device), torch.cuda.Stream(x.device)
        size = x.numel() * x.element_size()
        if key not in self._memory or self._memory[key].bytes.numel() != size:
            self._memory[key] = HostMemory(size)
        self._shapes[key] = x.shape, x.dtype
        self._micro_batches = max(self._micro_batches, key[1] + 1)
        self._outward.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(self._outward):
            there = self._memory[key].bytes.view(x.dtype).view(x.shape)
            there.copy_(x.detach(), non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._leaving.append((event, x))  # its memory must not be reused before the copy ends
        while len(self._leaving) > 2:
            self._leaving.pop(0)[0].synchronize()

    def _begin(self, key: tuple[int, int]) -> None:
        if key in self._ahead or key not in self._shapes:
            return
        shape, dtype = self._shapes.pop(key)
        with torch.cuda.stream(self._inward):
            self._inward.wait_stream(self._outward)
            x = torch.empty(shape, dtype=dtype, device=self._device)
            x.copy_(self._memory[key].bytes.view(dtype).view(shape), non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._ahead[key] = x, event

    def get(self, key: tuple[int, int]) -> Tensor:
        while self._leaving:
            self._leaving.pop(0)[0].synchronize()
        self._begin(key)
        x, event = self._ahead.pop(key)
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        x.record_stream(current)
        number, k = key
        following = (number, k + 1) if k + 1 < self._micro_batches else (number - 1, 0)
        self._begin(following)
        return x

    def clear(self) -> None:
        while self._leaving:
            self._leaving.pop(0)[0].synchronize()
        self._shapes.clear()
        self._ahead.clear()
