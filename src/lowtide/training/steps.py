"""The steps of a run: a network, its batches, its counters, and the progress of the run.

In:      engine, data and state, prepared by a Trainer
Out:     one update of the weights per call; whether any is left
Memory:  that of the engine; the data counts for a few batches
"""

from __future__ import annotations

import time
from dataclasses import field
from typing import Any

from lowtide.loader.streaming import StreamingDataLoader
from lowtide.quickclasses import dataclass
from lowtide.training.backends import Counters, Engine, Feed, Group
from lowtide.training.diagnostics import Diagnostics
from lowtide.training.schedule import RunLength
from lowtide.training.state import RunState

__all__ = ["Steps"]


@dataclass
class Steps:
    """Everything that a step needs, without a run's folder or log."""

    state: RunState
    engine: Engine
    feed: Feed
    counters: Counters
    length: RunLength
    group: Group
    data: Any
    """The source that `feed` reads."""
    where: Diagnostics
    started: float = field(default_factory=time.monotonic)
    """The run's start time on this clock, as if it had never been interrupted."""
    last_rate: float = 0.0
    """The learning rate of the last step."""

    def start_clock(self) -> None:
        """Start the clock, continuing from the time of earlier commands."""
        self.started = time.monotonic() - self.state.elapsed_seconds

    def train_step(self) -> Any:
        """One optimizer update on one batch; return its loss, which nothing here waits for."""
        state = self.state
        self.where.stage("waiting for data", state.step)
        inputs, targets = next(self.feed)
        self.where.stage("computing", state.step)
        loss = self.engine.compute(inputs, targets, share_done=self._share_done())
        self.where.stage("updating", state.step)
        factor = self.learning_rate_factor()
        self.last_rate = self.engine.learning_rate * factor
        norm, skip = self.engine.update(loss, factor)
        self.counters.add(loss, norm, skip)
        state.step += 1
        if self.group.world_size == 1:  # else when a row is logged: all must see the same time
            state.elapsed_seconds = time.monotonic() - self.started
        return loss

    def agree_on_time(self) -> None:
        """Use the first process's clock, if there are several."""
        if self.group.world_size > 1:
            self.state.elapsed_seconds = self.group.first_says(time.monotonic() - self.started)

    def are_over(self) -> bool:
        """True when no step is left to take."""
        return self.length.is_over(self.state.step, self.state.elapsed_seconds, epoch=self.epoch)

    def epoch(self) -> float:
        """How often the data was read."""
        state = self.feed.state_dict()
        if isinstance(self.data, StreamingDataLoader):
            return self.data.epochs_done(state)
        return float(state.get("epoch", 0))

    def learning_rate_factor(self) -> float:
        """The share of the peak learning rate at this step."""
        return self.length.learning_rate_factor(
            self.state.step, self.state.elapsed_seconds, epoch=self.epoch
        )

    def _share_done(self) -> float:
        return self.length.share_done(self.state.step, self.state.elapsed_seconds, epoch=self.epoch)

    def numbers(self) -> dict[str, Any]:
        """The parts of the state that are not tensors, for a checkpoint."""
        return {
            "state": dict(vars(self.state)),
            "data": self.feed.state_dict(),
            "counters": self.counters.state_dict(),
            "world_size": self.group.world_size,
            **self.engine.numbers(),
        }

    def load_numbers(self, numbers: dict[str, Any]) -> None:
        """Restore them; the micro-batch stays as small as this machine needs it."""
        data = numbers["data"]
        if not isinstance(data, dict):
            raise TypeError(f"data is {data!r}")  # and not what a loader would say of its caller
        self.feed.load_state_dict(data)
        self.counters.load_state_dict(numbers["counters"])
        micro = min(self.state.micro_batch, numbers["state"]["micro_batch"])
        self.state = self.engine.state = RunState(**numbers["state"])
        self.state.micro_batch = micro
