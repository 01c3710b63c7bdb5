"""The length of a run, and the learning rate at each step: pure functions, without state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

from lowtide.quickclasses import dataclass
from lowtide.settings import require

if TYPE_CHECKING:
    from lowtide.training.learningsettings import LearningSettings
    from lowtide.training.settinggroups import LengthSettings

__all__ = [
    "RunLength",
    "Schedule",
    "default_learning_rate",
    "learning_rate_factor",
    "momentum_at",
    "total_steps",
]

Schedule = Literal["cosine", "linear-decay", "constant"]

_MOST_WARMUP_STEPS = 100  # of a stream that is read by epochs


def total_steps(
    length: LengthSettings,
    num_parameters: int,
    data: Any,
    *,
    rows_per_step: int,
    tokens_per_step: int,
) -> int | None:
    """Return the steps of a run, by number, epochs or tokens; None when the clock ends it."""
    if length.max_iters is not None:
        return length.max_iters
    if length.epochs is not None:
        if not hasattr(data, "__len__"):  # a stream of unknown length
            return None
        return max(1, math.ceil(length.epochs * len(data) / rows_per_step))
    if length.max_hours is not None:
        return None
    return max(1, math.ceil(length.tokens_per_param * num_parameters / tokens_per_step))


def default_learning_rate(num_parameters: int, optimizer: str, *, adapting: bool) -> float:
    """Return a peak learning rate for a size: 3e-3 at a million parameters, 7e-4 at 124 million.

    Muon's steps have AdamW's size, but allow a higher rate; an adapted model gets a fifth.
    """
    rate = 3e-3 * (1e6 / num_parameters) ** 0.3
    rate = min(rate, 5e-3) * (2.0 if optimizer == "muon" else 1.0)
    return rate / 5 if adapting else rate


def momentum_at(step: int, *, momentum: float, warmup_steps: int) -> float:
    """Return Muon's momentum at `step`: it rises over the warm-up from 0.1 below to `momentum`.

    >>> round(momentum_at(150, momentum=0.95, warmup_steps=300), 3)
    0.9
    """
    if step >= warmup_steps:
        return momentum
    return momentum - 0.1 * (1 - step / warmup_steps)


def learning_rate_factor(
    step: int,
    *,
    total_steps: int | None,
    warmup: float,
    schedule: Schedule,
    final_fraction: float,
    decay_fraction: float = 0.4,
    elapsed_fraction: float = 0.0,
    most_warmup_steps: int | None = None,
) -> float:
    """Return the share of the peak learning rate at `step` (the first is 0).

    `warmup` counts steps, or below 1 is a share of the run. `elapsed_fraction` is the share of a
    time limit, or of the work, that is used up: decay follows steps or that share, whichever is
    further. Without a number of steps a warm-up by share ends after `most_warmup_steps` at the
    latest.

    >>> learning_rate_factor(0, total_steps=100, warmup=10, schedule="cosine", final_fraction=0.1)
    0.1
    >>> learning_rate_factor(100, total_steps=100, warmup=10, schedule="cosine", final_fraction=0.1)
    0.1
    """
    known = get_args(Schedule)
    require(schedule in known, "schedule", schedule, f"one of {', '.join(known)}")
    if total_steps is None:
        in_warmup = most_warmup_steps is None or step < most_warmup_steps
        if warmup < 1 and elapsed_fraction < warmup and in_warmup:
            by_steps = 0.0 if most_warmup_steps is None else (step + 1) / most_warmup_steps
            return max(elapsed_fraction / warmup, by_steps, 0.01)
        warmup_steps, progress = (int(warmup) if warmup >= 1 else 0), elapsed_fraction
    else:
        warmup_steps = round(warmup * total_steps) if warmup < 1 else int(warmup)
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = min(1.0, max(progress, elapsed_fraction))
    if schedule == "constant":
        return 1.0
    if schedule == "cosine":
        return final_fraction + (1 - final_fraction) * 0.5 * (1 + math.cos(math.pi * progress))
    left = min(1.0, (1 - progress) / decay_fraction)
    return final_fraction + (1 - final_fraction) * left


@dataclass(frozen=True)
class RunLength:
    """When a run ends, and its learning rate until then: by steps, the clock, or a stream's end.

    `epoch` returns how often a stream was read, with the share of the current epoch if it can be
    estimated; it is called only if nothing else ends the run.
    """

    length: LengthSettings
    learning: LearningSettings
    steps: int | None
    """As returned by `total_steps`."""
    follows_share: bool = False
    """Whether the position within an epoch of a stream is known."""

    def time_is_up(self, elapsed_seconds: float) -> bool:
        """True if the time limit is reached."""
        hours = self.length.max_hours
        return hours is not None and elapsed_seconds >= hours * 3600

    def is_over(self, step: int, elapsed_seconds: float, *, epoch: Callable[[], float]) -> bool:
        """True if no step is left to take."""
        if self.steps is not None and step >= self.steps:
            return True
        if self.steps is None and self.length.epochs is not None:
            return epoch() >= self.length.epochs
        return self.time_is_up(elapsed_seconds)

    def learning_rate_factor(
        self, step: int, elapsed_seconds: float, *, epoch: Callable[[], float]
    ) -> float:
        """Return the share of the peak learning rate at `step`."""
        learning = self.learning
        # A share of a stream of unknown length cannot be computed: a hundred steps then.
        streams = self.steps is None and self.length.max_hours is None
        unknown = streams and not self.follows_share and learning.warmup < 1
        return learning_rate_factor(
            step,
            total_steps=self.steps,
            warmup=_MOST_WARMUP_STEPS if unknown else learning.warmup,
            most_warmup_steps=_MOST_WARMUP_STEPS if streams else None,
            schedule=learning.schedule,
            final_fraction=learning.final_learning_rate,
            decay_fraction=learning.decay_fraction,
            elapsed_fraction=self._elapsed_fraction(elapsed_seconds, epoch),
        )

    def share_done(self, step: int, elapsed_seconds: float, *, epoch: Callable[[], float]) -> float:
        """Return how much of the run is over: by steps, the clock, or the epochs of a stream."""
        by_steps = step / self.steps if self.steps else 0.0
        return max(by_steps, self._elapsed_fraction(elapsed_seconds, epoch))

    def _elapsed_fraction(self, elapsed_seconds: float, epoch: Callable[[], float]) -> float:
        """Return how much of the run is over by the clock, or by the epochs of a stream."""
        hours, epochs = self.length.max_hours, self.length.epochs
        parts = [0.0 if hours is None else elapsed_seconds / (hours * 3600)]
        if self.steps is None and epochs is not None:
            parts.append(epoch() / epochs)
        return max(parts)
