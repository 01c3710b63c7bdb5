"""Batches in a reproducible order, prefetched by threads, resumable after any batch.

In:      a TokenDataset or a Mixture
Out:     (inputs, targets) [B, T], endlessly or for a number of epochs; state of a few integers
Memory:  `prefetch_batches` + 1 batches (see planned_bytes)
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lowtide.aliases import takes_second_names
from lowtide.counts import plain_number
from lowtide.errors import DataError, UsageError
from lowtide.loader.batchthreads import (
    Allocate,
    BatchMaker,
    BatchRequest,
    BatchThreads,
    SampleSource,
    Share,
)
from lowtide.loader.ordering import Order, check_order
from lowtide.loader.windows import empty_array
from lowtide.packages import naming_missing_packages
from lowtide.settings import require_counts

__all__ = [
    "BatchLoader",
    "SampleSource",
    "Share",
    "check_rank",
    "check_state",
    "make_state",
    "planned_bytes",
    "rank_share",
    "read_count",
]

STATE_VERSION = 1


def planned_bytes(
    *,
    batch_size: int,
    seq_len: int,
    prefetch_batches: int = 4,
    item_bytes: int = 8,
    segments: bool = False,
) -> int:
    """Return the memory of one loader's batches: inputs and targets, delivered and prefetched.

    >>> planned_bytes(batch_size=64, seq_len=1024)
    5242880
    """
    row_bytes = seq_len * (2 * item_bytes + (8 if segments else 0))
    return batch_size * row_bytes * (prefetch_batches + 1)


def rank_share(
    first: int, *, batch_size: int, rank: int, world_size: int, end: int | None = None
) -> Share | None:
    """Return the batch that begins with sample `first`; None if `first` is `end`."""
    count = batch_size * world_size
    if end is not None:
        count = min(count, end - first)
    if count <= 0:
        return None
    # A smaller last batch is divided evenly, so that no rank waits for missing rows.
    begin, stop = count * rank // world_size, count * (rank + 1) // world_size
    return Share(first, first + count, first + begin, stop - begin)


def make_state(dataset: SampleSource, *, order: Order, seed: int, samples: int) -> dict[str, Any]:
    """Return the state of a run after `samples` samples."""
    return {
        "version": STATE_VERSION,
        "samples": samples,
        "epoch": dataset.epoch_of(samples),
        "order": order,
        "seed": seed,
        "fingerprint": dataset.fingerprint,
    }


def check_version(state: Mapping[str, Any], version: int, names: Sequence[str]) -> None:
    """Refuse what no loader of this version gave as its state."""
    given: Any = state
    if not isinstance(given, Mapping):
        raise UsageError(f"a loader's state is a dict from state_dict(), not {given!r}")
    if state.get("version") != version:
        raise DataError(
            f"loader state of version {state.get('version')!r}, this lowtide reads {version}"
        )
    if missing := [name for name in names if name not in state]:
        raise DataError(f"a loader's state is without {', '.join(missing)}")


def check_state(state: Mapping[str, Any], dataset: SampleSource, *, order: Order, seed: int) -> int:
    """Return the samples of a state; refuse a state of other data, another order or seed."""
    check_version(state, STATE_VERSION, ("order", "seed", "fingerprint", "samples"))
    for name, here in (("order", order), ("seed", seed)):
        if state[name] != here:
            raise DataError(
                f"the loader's {name} was {state[name]!r} when its state was saved, "
                f"now it is {here!r}",
                next_step=f"give {name}={state[name]!r} to go on, or start a new run",
            )
    if state["fingerprint"] != dataset.fingerprint:
        raise DataError(
            "the data, or how it is cut into windows, changed since the loader's state was saved: "
            "its place in the data means nothing any more",
            next_step="bring back the data and settings of that run, or start a new run from its "
            "weights",
        )
    return read_count(state, "samples")


def read_count(state: Mapping[str, Any], name: str) -> int:
    """A count of a loader's state; a damaged one would give other batches, or end in a thread."""
    count = plain_number(state.get(name))
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 1 << 62:
        raise DataError(
            f"a loader's state has {count!r} as {name}, expected a whole number from 0 on",
            next_step="take the state of another checkpoint",
        )
    return count


def check_rank(rank: int, world_size: int) -> None:
    """Refuse a rank that does not exist."""
    require_counts(least=None, rank=rank, world_size=world_size)
    if world_size < 1 or not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} does not lie between 0 and {world_size - 1}")


class BatchLoader:
    """An iterator over batches, whose order depends only on the data, the order and the seed.

    Samples are numbered over the whole run. Batch after batch takes the next
    `batch_size * world_size` of them, and each rank its `batch_size` rows; so the batches of all
    ranks together are the same for any number of ranks, as long as that product is. A batch may
    reach across the end of an epoch. `state_dict()` counts what was delivered, never what was only
    prepared, and holds no more than a few numbers; loading it takes no time.

    `order` is "shuffle" (each window once per epoch), "shifted" (the same, cut elsewhere in every
    later epoch), "blocks" (blocks of windows shuffled, and windows within a few of them), "random"
    (with replacement) or "sequential".
    `num_epochs` ends the iteration (the last batch may be smaller); None repeats endlessly. With
    `segments` each batch is a TokenWindows, which knows where documents begin. Several threads may
    share a loader: each batch goes to one of them.
    """

    @takes_second_names
    def __init__(
        self,
        dataset: SampleSource,
        *,
        batch_size: int,
        order: Order = "shuffle",
        seed: int = 0,
        prefetch_batches: int = 4,
        num_workers: int = 2,
        rank: int = 0,
        world_size: int = 1,
        num_epochs: int | None = None,
        segments: bool = False,
        pin_memory: bool = False,
    ) -> None:
        if not hasattr(dataset, "plan_rows"):
            raise UsageError(
                f"dataset is {type(dataset).__name__}, expected a TokenDataset or a Mixture",
                next_step="give TokenDataset(path, seq_len=…)",
            )
        check_order(order)
        require_counts(batch_size=batch_size)
        require_counts(least=0, num_workers=num_workers, num_epochs=num_epochs)
        require_counts(least=0, prefetch_batches=prefetch_batches)
        require_counts(least=None, seed=seed)
        check_rank(rank, world_size)
        if segments:
            dataset.require_documents()
        self.dataset = dataset
        self.batch_size = batch_size
        self.order: Order = order
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.segments = segments
        self._samples = 0  # delivered, over all ranks
        self._planned = 0  # requested; those not delivered are in the queue
        self._end = None if num_epochs is None else num_epochs * len(dataset)
        self._prefetch_batches = prefetch_batches if num_workers else 0
        self._num_workers = num_workers
        self._maker = BatchMaker(
            dataset, order, seed, segments, _pinned_allocator() if pin_memory else empty_array
        )
        self._queue: deque[BatchRequest] = deque()
        self._failure: BaseException | None = None
        self._workers: BatchThreads | None = None
        self._finalizer: weakref.finalize[..., BatchLoader] | None = None
        self._pid = os.getpid()
        self._turn = threading.RLock()  # of threads that take batches from one loader

    @property
    def epoch(self) -> int:
        """The epoch of the next sample, from 0."""
        return self.dataset.epoch_of(self._samples)

    @property
    def samples(self) -> int:
        """How many samples all ranks together have been given."""
        return self._samples

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._pid != os.getpid():
            self._leave_to_parent()
        with self._turn:
            try:
                return self._take_batch()
            except BaseException as error:
                if self._failure is None and not isinstance(error, StopIteration):
                    self._drop_queue()  # interrupted: the batch in work is requested again
                raise

    def _take_batch(self) -> Any:
        if self._prefetch_batches and self._workers is None:
            self._start_workers()
        if self._prefetch_batches == 0:
            share = self._share(self._samples)
            if share is None:
                raise StopIteration
            batch = self._maker.make(share)
            self._samples = self._planned = share.end
            return batch
        if self._failure is not None:  # called again: the batch is still missing
            raise self._failure
        self._fill_queue()
        if not self._queue:
            raise StopIteration
        order = self._queue.popleft()
        batch, self._failure = order.outcome.get()
        if self._failure is not None:
            raise self._failure
        self._fill_queue()
        self._samples = order.share.end
        return batch

    def _leave_to_parent(self) -> None:
        """Begin anew in a forked process: threads do not survive, nor what they had locked."""
        self._turn = threading.RLock()
        self._workers, self._finalizer, self._pid = None, None, os.getpid()
        self._drop_queue()

    def _start_workers(self) -> None:
        workers = BatchThreads(self._maker, min(self._num_workers, self._prefetch_batches))
        if len(workers):
            self._workers, self._finalizer = workers, weakref.finalize(self, workers.stop)
        else:  # no thread can be started: the calling one makes the batches
            self._prefetch_batches = 0

    def _fill_queue(self) -> None:
        assert self._workers is not None
        while len(self._queue) < self._prefetch_batches:
            share = self._share(self._planned)
            if share is None:
                return
            self._planned = share.end
            self._queue.append(self._workers.ask(share))

    def _share(self, first: int) -> Share | None:
        return rank_share(
            first,
            batch_size=self.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            end=self._end,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state needed to resume after the last delivered batch."""
        return make_state(self.dataset, order=self.order, seed=self.seed, samples=self._samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where `state` was taken; ranks, threads, batch size may differ, data may not."""
        samples = check_state(state, self.dataset, order=self.order, seed=self.seed)
        if self._pid != os.getpid():
            self._leave_to_parent()
        with self._turn:
            self._drop_queue()
            self._samples = self._planned = samples

    def _drop_queue(self) -> None:
        if self._workers is not None:
            self._workers.drop()
        self._queue.clear()
        self._failure = None
        self._planned = self._samples

    def close(self) -> None:
        """Stop the threads; the loader can be used again, and continues where it stopped."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        with self._turn:
            self._drop_queue()
            if self._finalizer is not None:
                self._finalizer()
            self._workers = self._finalizer = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy makes its own threads and batches, and goes on after the last delivered one."""
        own = {"_queue": deque[BatchRequest](), "_planned": self._samples, "_failure": None}
        state = {**self.__dict__, **own, "_workers": None, "_finalizer": None}
        del state["_turn"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _turn=threading.RLock())

    def __enter__(self) -> BatchLoader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _pinned_allocator() -> Allocate:
    with naming_missing_packages("pinned memory"):  # the only import of torch, on request
        from lowtide.loader.torchloaders import empty_pinned

    return empty_pinned
