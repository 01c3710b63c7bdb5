"""Prefetch batches to the device, and keep the data position that belongs to the batch in use.

In:      any iterator of batches with a state (batches.py)
Out:     (inputs, targets) as tensors on the device
Memory:  one batch ahead on the device, and the host arrays of copies in progress
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lowtide.training.batchsources import BatchSource

__all__ = ["Feed"]


class Feed(Iterator[tuple[Tensor, Tensor]]):
    """Returns batches as tensors; on a GPU the next one is copied while this one is computed.

    Its position is that of the next batch it will return: a prefetched one does not count.
    """

    def __init__(self, source: BatchSource, device: torch.device) -> None:
        self._source = source
        self._device = device
        self._ahead: tuple[Tensor, Tensor] | None = None
        self._state = source.state_dict()
        self._copying: deque[tuple[Any, torch.cuda.Event]] = deque()

    def __next__(self) -> tuple[Tensor, Tensor]:
        if self._device.type != "cuda":
            inputs, targets = next(self._source)
            self._state = self._source.state_dict()
            return self._tensor(inputs), self._tensor(targets)
        batch = self._ahead or self._fetch()
        self._state = self._source.state_dict()
        self._ahead = self._fetch()
        return batch

    def _tensor(self, array: Any) -> Tensor:
        tensor = array if isinstance(array, Tensor) else torch.from_numpy(array)
        return tensor.to(self._device, torch.long, non_blocking=True)

    def _fetch(self) -> tuple[Tensor, Tensor]:
        host = next(self._source)
        batch = self._tensor(host[0]), self._tensor(host[1])
        # Host arrays are reused for later batches: keep them until their copy is complete.
        event = torch.cuda.Event()
        event.record()
        self._copying.append((host, event))
        if len(self._copying) > 4:
            self._copying.popleft()[1].synchronize()
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch."""
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position."""
        self._ahead = None
        self._source.load_state_dict(state)
        self._state = self._source.state_dict()

    def close(self) -> None:
        """Stop preparing batches."""
        self._ahead = None
        self._source.close()
