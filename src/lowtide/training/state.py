"""What changes from step to step: a few numbers on the host, and sums on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Counters", "RunState"]


@dataclass
class RunState:
    """Numbers of a run that are part of its checkpoints."""

    step: int = 0
    elapsed_seconds: float = 0.0
    micro_batch: int = 0
    best_val_loss: float | None = None
    last_val_loss: float | None = None
    last_loss: float = float("nan")
    evaluated_step: int = -1
    stopped: str | None = None


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
        return cls(*(torch.zeros((), device=device) for _ in range(5)))

    def add(self, loss: Tensor, norm: Tensor, skip: Tensor) -> None:
        """Take note of a step; a skipped one counts as bad, not towards the loss."""
        self.loss += torch.where(skip.bool(), 0.0, loss)
        self.steps += 1.0 - skip
        self.bad += skip
        self.bad_in_a_row.copy_((self.bad_in_a_row + 1) * skip)
        self.norm.copy_(norm)

    def state_dict(self) -> dict[str, float]:
        """Return all counts."""
        return {name: tensor.item() for name, tensor in vars(self).items()}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take them back."""
        for name, tensor in vars(self).items():
            tensor.fill_(state[name])
