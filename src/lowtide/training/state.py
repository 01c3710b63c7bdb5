"""The state of a run that changes from step to step: a few numbers on the host."""

from __future__ import annotations

from dataclasses import field

from lowtide.quickclasses import dataclass

__all__ = ["RunState"]


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
    measured_on: dict[str, str] = field(default_factory=dict)
    """The windows that each loss of an evaluation is of, by the dataset's name."""
