"""Sums over a run's steps, kept on the device by torch."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from lowtide.quickclasses import dataclass
from lowtide.training.distributed import ProcessGroup

__all__ = ["Counters"]


@dataclass
class Counters:
    """Sums kept on the device, so that the loop never waits for them; read when a row is logged."""

    loss: Tensor
    steps: Tensor
    bad_in_a_row: Tensor
    bad: Tensor
    norm: Tensor

    @classmethod
    def zeros(cls, device: torch.device) -> Counters:
        """Start counting."""
        return cls(*(torch.zeros((), dtype=torch.float32, device=device) for _ in range(5)))

    def add(self, loss: Tensor, norm: Tensor, skip: Tensor) -> None:
        """Add a step; a skipped one is counted as bad, and its loss is ignored."""
        self.loss += torch.where(skip.bool(), 0.0, loss)
        self.steps += 1.0 - skip
        self.bad += skip
        self.bad_in_a_row.copy_((self.bad_in_a_row + 1) * skip)
        self.norm.copy_(norm)

    def mean_loss(self, group: ProcessGroup) -> float:
        """The mean loss of the steps since the last row, over all processes; NaN without any."""
        steps = self.steps.item()
        return group.mean(self.loss).item() / steps if steps else math.nan

    def next_row(self) -> None:
        """Reset the sums for the next row."""
        self.loss.zero_()
        self.steps.zero_()

    def state_dict(self) -> dict[str, float]:
        """Return all counts."""
        return {name: tensor.item() for name, tensor in vars(self).items()}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore all counts."""
        for name, tensor in vars(self).items():
            tensor.fill_(state[name])
