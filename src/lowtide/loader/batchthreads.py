"""Threads that make the batches that a loader requests.

In:      shares of global batches; a dataset, or anything that plans rows
Out:     a batch, or the error it ended with, in the queue of each request
Memory:  the batches that were requested and not taken
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import field
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

import numpy as np

from lowtide.loader.ordering import Order
from lowtide.loader.windows import RowPlan, Tokens, TokenWindows
from lowtide.quickclasses import dataclass

__all__ = ["Allocate", "BatchMaker", "BatchRequest", "BatchThreads", "SampleSource", "Share"]

Allocate = Callable[[tuple[int, int], np.dtype[Any]], Tokens]


class SampleSource(Protocol):
    """What a BatchLoader reads from: a TokenDataset or a Mixture."""

    @property
    def seq_len(self) -> int: ...
    @property
    def output_dtype(self) -> np.dtype[Any]: ...
    @property
    def fingerprint(self) -> str: ...
    def __len__(self) -> int: ...
    def plan_rows(self, order: Order, *, seed: int, first: int, count: int) -> list[RowPlan]: ...
    def epoch_of(self, samples: int) -> int: ...
    def require_documents(self) -> None: ...


class Share(NamedTuple):
    """The samples of one global batch, and which of them belong to one rank."""

    first: int
    end: int
    rank_first: int
    rank_count: int


@dataclass(frozen=True)
class BatchMaker:
    """What a thread needs to make a batch, without the loader, which may be deleted meanwhile."""

    dataset: SampleSource
    order: Order
    seed: int
    segments: bool
    allocate: Allocate

    def make(self, share: Share) -> Any:
        """Read the rows of one rank."""
        shape = (share.rank_count, self.dataset.seq_len)
        inputs = self.allocate(shape, self.dataset.output_dtype)
        targets = self.allocate(shape, self.dataset.output_dtype)
        plans = self.dataset.plan_rows(
            self.order, seed=self.seed, first=share.rank_first, count=share.rank_count
        )
        for plan in plans:
            plan.dataset.fill_rows(plan.starts, plan.rows, inputs, targets)
        if not self.segments:
            return inputs, targets
        segment_ids = self.allocate(shape, np.dtype(np.int32))
        positions = self.allocate(shape, np.dtype(np.int32))
        for plan in plans:
            plan.dataset.fill_segments(plan.starts, plan.rows, segment_ids, positions)
        return TokenWindows(inputs, targets, segment_ids, positions)


# SimpleQueue and plain threads instead of an executor, whose futures cost 60 us per batch, as much
# as reading it.
Outcome = tuple[Any, BaseException | None]


@dataclass(frozen=True)
class BatchRequest:
    """A requested batch, and the queue for its result."""

    share: Share
    outcome: SimpleQueue[Outcome] = field(default_factory=SimpleQueue)


class BatchThreads:
    """Threads that make requested batches: as many as asked for, or as the system allows."""

    def __init__(self, maker: BatchMaker, num_workers: int) -> None:
        self._orders: SimpleQueue[BatchRequest | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        for number in range(num_workers):
            thread = threading.Thread(
                target=_work,
                args=(maker, self._orders),
                name=f"lowtide-batch-{number}",
                daemon=True,
            )
            try:
                thread.start()
            except RuntimeError:  # no more threads are allowed: those that exist do the work
                break
            self._threads.append(thread)

    def __len__(self) -> int:
        return len(self._threads)

    def ask(self, share: Share) -> BatchRequest:
        """Request a batch."""
        order = BatchRequest(share)
        self._orders.put(order)
        return order

    def drop(self) -> None:
        """Drop requests that no thread has started."""
        while not self._orders.empty():
            with contextlib.suppress(Empty):
                self._orders.get_nowait()

    def stop(self) -> None:
        """End the threads; each finishes its current batch."""
        self.drop()
        for _ in self._threads:
            self._orders.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():  # called by the garbage collector
                thread.join()


def _work(maker: BatchMaker, orders: SimpleQueue[BatchRequest | None]) -> None:
    while (order := orders.get()) is not None:
        try:
            order.outcome.put((maker.make(order.share), None))
        except BaseException as error:
            order.outcome.put((None, error))
