"""A stand-in for a GPU's streams on a CPU, in which every copy happens as late as it may.

What is copied on a stream of its own waits in a queue until something asks for an event behind it;
what is computed happens at once. So a wait that the code forgets gives old bytes, and a slot that
is written too early gives wrong ones, on every run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch


class Event:
    """A mark in a stream."""

    def __init__(self) -> None:
        self._stream: Stream | None = None
        self._place = 0

    def record(self, stream: Stream | None = None) -> None:
        self._stream = stream or Stream.current
        self._place = self._stream.num_queued

    def synchronize(self) -> None:
        assert self._stream is not None, "an event that nothing recorded"
        self._stream.run_until(self._place)


class Stream:
    """Work in order, done when somebody waits for it; that of `default` is done at once."""

    default: Stream
    current: Stream

    def __init__(self, device: object = None) -> None:
        self._queue: list[Callable[[], object]] = []
        self._done = 0

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    def add(self, work: Callable[[], object]) -> None:
        self._queue.append(work)
        if self is Stream.default:
            self.run_until(self.num_queued)

    def run_until(self, place: int) -> None:
        while self._done < place:
            self._done += 1
            self._queue[self._done - 1]()

    def wait_event(self, event: Event) -> None:
        self.add(event.synchronize)

    def wait_stream(self, stream: Stream) -> None:
        place = stream.num_queued
        self.add(lambda: stream.run_until(place))

    def synchronize(self) -> None:
        self.run_until(self.num_queued)


@contextlib.contextmanager
def _on(stream: Stream) -> Iterator[None]:
    before, Stream.current = Stream.current, stream
    try:
        yield
    finally:
        Stream.current = before


def use_late_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch.cuda's streams, and copies that do not block, be those of this module."""
    Stream.default = Stream.current = Stream()
    copy = torch.Tensor.copy_

    def copy_late(to: Any, source: Any, non_blocking: bool = False) -> Any:
        if non_blocking:
            Stream.current.add(lambda: copy(to, source))
            return to
        return copy(to, source)

    monkeypatch.setattr(torch.Tensor, "copy_", copy_late)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", _on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream.current)
