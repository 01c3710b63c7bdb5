"""Callbacks of a run: the caller's functions, called after steps, evaluations and checkpoints.

In:      what just happened
Out:     calls; the run ends if `on_evaluation` returns True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lowtide.quickclasses import dataclass
from lowtide.settings import require
from lowtide.training.results import EvalResult

__all__ = ["Callbacks", "CheckpointEvent", "EvaluationEvent", "StepEvent"]


@dataclass(frozen=True)
class StepEvent:
    """An optimizer update that was taken."""

    step: int
    """Updates so far."""
    loss: Any
    """Loss of its batch, on the device; `float(loss)` waits for it."""
    learning_rate: float
    elapsed_seconds: float
    """Seconds of the whole run, earlier commands included. Several processes agree on it only now
    and then, so it may lag behind."""


@dataclass(frozen=True)
class EvaluationEvent:
    """An evaluation, and the text that was written beside it."""

    step: int
    results: Mapping[str, EvalResult]
    """By name: val, and eval_NAME for each of `eval_data`."""
    sample: str
    """Empty without a tokenizer, and in all processes but the first."""


@dataclass(frozen=True)
class CheckpointEvent:
    """A checkpoint that is on the disk."""

    step: int
    path: Path
    """Its folder; the run keeps the newest only."""


@dataclass(frozen=True)
class Callbacks:
    """The callbacks that were given."""

    on_step: Callable[[StepEvent], object] | None = None
    on_evaluation: Callable[[EvaluationEvent], object] | None = None
    on_checkpoint: Callable[[CheckpointEvent], object] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be called before any work is done."""
        for name, given in vars(self).items():
            require(given is None or callable(given), name, given, "a function of an event")
