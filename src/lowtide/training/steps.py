"""From step to step: a network, its batches, its counters, and how far a run has come.

In:      what a Trainer made ready for the devices at hand
Out:     one update of the weights a call; whether any is left to take
Memory:  as the engine takes it; the data counts for a few batches
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
    """All that a step needs, complete from the start, without a folder or a log."""

    state: RunState
    engine: Engine
    feed: Feed
    counters: Counters
    length: RunLength
    group: Group
    data: Any
    """What `feed` reads."""
    where: Diagnostics
    started: float = field(default_factory=time.monotonic)
    """When the run's first step would have begun, had it never been stopped."""
    last_factor: float = 0.0
    """The share of the peak learning rate that the last step had."""

    def start_clock(self) -> None:
        """Count the time from now on, after what was counted before."""
        self.started = time.monotonic() - self.state.elapsed_seconds

    def train_step(self) -> Any:
        """One optimizer update on one batch; return its loss, which nothing here waits for."""
        state = self.state
        self.where.stage("waiting for data", state.step)
        inputs, targets = next(self.feed)
        self.where.stage("computing", state.step)
        loss = self.engine.compute(inputs, targets, share_done=self._share_done())
        self.where.stage("updating", state.step)
        self.last_factor = self.learning_rate_factor()
        norm, skip = self.engine.update(loss, self.last_factor)
        self.counters.add(loss, norm, skip)
        state.step += 1
        if self.group.world_size == 1:  # else when a row is logged: all must see the same time
            state.elapsed_seconds = time.monotonic() - self.started
        return loss

    def agree_on_time(self) -> None:
        """Take the first process's clock, where there are several."""
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
        """What of the state is no tensor, for a checkpoint."""
        return {
            "state": dict(vars(self.state)),
            "data": self.feed.state_dict(),
            "counters": self.counters.state_dict(),
            "world_size": self.group.world_size,
            **self.engine.numbers(),
        }

    def load_numbers(self, numbers: dict[str, Any]) -> None:
        """Take them back; micro-batches stay as small as they have to be now."""
        self.feed.load_state_dict(numbers["data"])
        self.counters.load_state_dict(numbers["counters"])
        micro = min(self.state.micro_batch, numbers["state"]["micro_batch"])
        self.state = self.engine.state = RunState(**numbers["state"])
        self.state.micro_batch = micro
