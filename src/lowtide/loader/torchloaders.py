"""The loader for torch users: datasets, a data module, data loaders; torch is imported here alone.

In:      .npy files, .bin files or prepared datasets
Out:     (inputs, targets) tensors [B, T] of int64
Memory:  `prefetch_factor` batches per worker, and the workers' interpreters; the tokens themselves
         stay on disk, so nothing is copied into workers or grows in them
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from lowtide.aliases import takes_second_names
from lowtide.errors import UsageError
from lowtide.loader.batches import check_rank, check_state, make_state, rank_share
from lowtide.loader.ordering import Order, check_order
from lowtide.loader.passes import Passes
from lowtide.loader.sources import Split
from lowtide.loader.windows import TokenDataset, Tokens
from lowtide.settings import require_counts

__all__ = [
    "LocalTokenizedDataset",
    "LocalTokenizedDatasetFixed",
    "TokenDataLoader",
    "create_dataloaders",
    "empty_pinned",
]

Batch = tuple[torch.Tensor, torch.Tensor]
PathLike = str | os.PathLike[str]

_TORCH_TYPES = {"int64": torch.int64, "int32": torch.int32, "uint16": torch.uint16}
_MAX_WORKERS = 1024
_READ_AHEAD_WINDOWS = 64


def empty_pinned(shape: tuple[int, int], dtype: np.dtype[Any]) -> Tokens:
    """Make an array in page-locked memory, for asynchronous copies by CUDA.

    `torch.from_numpy(array)` is pinned too. Without CUDA the memory is ordinary.
    """
    pinned = torch.cuda.is_available()
    return torch.empty(shape, dtype=_TORCH_TYPES[dtype.name], pin_memory=pinned).numpy()


def _as_tensors(inputs: Tokens, targets: Tokens) -> Batch:
    return torch.from_numpy(inputs), torch.from_numpy(targets)


class LocalTokenizedDatasetFixed(Dataset[Batch]):
    """A map-style dataset: item i is window i, as two tensors [T]."""

    @takes_second_names
    def __init__(
        self,
        data_path: PathLike,
        seq_len: int = 1024,
        *,
        split: Split = "all",
        stride: int | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        self.data = TokenDataset(
            data_path, split=split, seq_len=seq_len, stride=stride, dtype=dtype
        )

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Batch:
        return _as_tensors(*self.data[index])

    def __getitems__(self, indices: Sequence[int]) -> list[Batch]:
        """Read a whole batch in one call; torch's DataLoader uses this if it exists."""
        inputs, targets = _as_tensors(*self.data.get_batch(indices))
        return list(zip(inputs, targets, strict=True))


class LocalTokenizedDataset(IterableDataset[Batch]):
    """An iterable dataset: each pass has every window once, reshuffled, divided among the workers.

    Without `batch_size` items are windows, and workers take turns window by window. With it items
    are whole batches and workers take turns batch by batch, so that `DataLoader(dataset,
    batch_size=None, num_workers=n)` gives the same batches for any n. Passes are counted
    automatically, with and without persistent workers; `set_epoch` sets the next one.
    """

    @takes_second_names
    def __init__(
        self,
        data_path: PathLike,
        seq_len: int = 1024,
        *,
        shuffle: bool = True,
        seed: int = 42,
        batch_size: int | None = None,
        split: Split = "all",
        stride: int | None = None,
        dtype: npt.DTypeLike | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        check_rank(rank, world_size)
        require_counts(batch_size=batch_size)
        require_counts(least=None, seed=seed)
        self.data = TokenDataset(
            data_path, split=split, seq_len=seq_len, stride=stride, dtype=dtype
        )
        self.order: Order = "shuffle" if shuffle else "sequential"
        self.seed = seed
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        table = torch.zeros((Passes.rows, _MAX_WORKERS + 1), dtype=torch.int64)
        self._passes = Passes(table.share_memory_())

    @property
    def num_windows(self) -> int:
        """Windows of one pass, over all ranks and workers."""
        return len(self.data)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`."""
        require_counts(least=0, epoch=epoch)
        self._passes.set_next(epoch)

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        worker_id, num_workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        if num_workers > _MAX_WORKERS:
            raise UsageError(f"{num_workers} workers, at most {_MAX_WORKERS} can share a dataset")
        first = self._passes.begin(worker) * len(self.data)
        if self.batch_size is None:
            return self._iter_windows(first, worker_id, num_workers)
        return self._iter_batches(first, worker_id, num_workers, self.batch_size)

    def _iter_windows(self, first: int, worker_id: int, num_workers: int) -> Iterator[Batch]:
        """Return every n-th window, where n counts the workers of all ranks."""
        every = num_workers * self.world_size
        mine = worker_id * self.world_size + self.rank
        for begin in range(0, len(self.data), _READ_AHEAD_WINDOWS * every):
            count = min(_READ_AHEAD_WINDOWS * every, len(self.data) - begin)
            (plan,) = self.data.plan_rows(
                self.order, seed=self.seed, first=first + begin, count=count
            )
            inputs, targets = self.data.gather(plan.starts[mine::every].copy())
            yield from zip(*_as_tensors(inputs, targets), strict=True)

    def _iter_batches(
        self, first: int, worker_id: int, num_workers: int, batch_size: int
    ) -> Iterator[Batch]:
        end = first + len(self.data)
        step = batch_size * self.world_size
        for begin in range(first + worker_id * step, end, num_workers * step):
            share = rank_share(
                begin,
                batch_size=batch_size,
                rank=self.rank,
                world_size=self.world_size,
                end=end,
            )
            if share is not None:
                yield _read_range(
                    self.data, self.order, self.seed, share.rank_first, share.rank_count
                )


def _read_range(data: TokenDataset, order: Order, seed: int, first: int, count: int) -> Batch:
    (plan,) = data.plan_rows(order, seed=seed, first=first, count=count)
    return _as_tensors(*data.gather(plan.starts))


@contextlib.contextmanager
def _many_workers_allowed() -> Generator[None, None, None]:
    """Suppress the warning about more workers than cores, which the user requested."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


class _RangeDataset(Dataset[Batch]):
    """The dataset in workers of a TokenDataLoader: reads a range of samples as a batch."""

    def __init__(self, data: TokenDataset, order: Order, seed: int) -> None:
        self.data = data
        self.order: Order = order
        self.seed = seed

    def __getitem__(self, samples: tuple[int, int]) -> Batch:
        return _read_range(self.data, self.order, self.seed, *samples)


class _RangeSampler(Sampler[tuple[int, int]]):
    """The sample ranges of the remaining batches of the epoch; used in the main process only."""

    def __init__(self, size: int, *, batch_size: int, rank: int, world_size: int) -> None:
        self.size = size
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.first = 0

    def __len__(self) -> int:
        return -(-self.size // (self.batch_size * self.world_size))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        first = self.first
        end = (first // self.size + 1) * self.size
        while (
            share := rank_share(
                first,
                batch_size=self.batch_size,
                rank=self.rank,
                world_size=self.world_size,
                end=end,
            )
        ) is not None:
            yield share.rank_first, share.rank_count
            first = share.end


class TokenDataLoader(DataLoader[Batch]):
    """A torch DataLoader over a TokenDataset; each `for` is an epoch, resumable after any batch.

    The order is that of BatchLoader: it depends on the seed and the data alone, so batches are the
    same for any number of workers. `state_dict()` counts the batches that were delivered. A `for`
    loop that was left early is not continued: the next one is the next epoch, unless a state was
    loaded in between.
    """

    @takes_second_names
    def __init__(
        self,
        data: TokenDataset,
        *,
        batch_size: int,
        order: Order = "shuffle",
        seed: int = 42,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not hasattr(data, "window_starts"):
            raise UsageError(
                f"data is of type {type(data).__name__}, expected a TokenDataset",
                next_step="give TokenDataset(path, seq_len=…); BatchLoader takes a Mixture too",
            )
        check_order(order)
        check_rank(rank, world_size)
        require_counts(batch_size=batch_size, prefetch_factor=prefetch_factor)
        require_counts(least=0, num_workers=num_workers)
        require_counts(least=None, seed=seed)
        self._data = data
        self._order: Order = order
        self._seed = seed
        self._samples = 0
        self._resumed = False
        self._loops = 0
        self._rows_per_batch = batch_size * world_size
        self._ranges = _RangeSampler(
            len(data), batch_size=batch_size, rank=rank, world_size=world_size
        )
        with _many_workers_allowed():
            super().__init__(
                _RangeDataset(data, order, seed),
                sampler=self._ranges,
                batch_size=None,
                num_workers=num_workers,
                prefetch_factor=prefetch_factor if num_workers > 0 else None,
                persistent_workers=num_workers > 0,
                pin_memory=pin_memory,
            )

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self._samples // len(self._data)

    def __iter__(self) -> Iterator[Batch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self._samples % len(self._data) and not self._resumed:
            self._samples = (self.epoch + 1) * len(self._data)
        self._resumed = False
        self._ranges.first = self._samples
        end = (self.epoch + 1) * len(self._data)
        samples = self._samples  # of this loop: another one may be open, and have its own
        self._loops += 1
        loop = self._loops
        with _many_workers_allowed():
            batches = super().__iter__()
        for batch in batches:
            samples = min(samples + self._rows_per_batch, end)
            self._samples = samples
            yield batch
            if loop != self._loops and self.num_workers > 0:  # they work for the newest loop
                raise UsageError(
                    "another loop over this loader has begun, and its workers prepare the batches "
                    "of that one",
                    next_step="make a loader for each of two loops, or give num_workers=0",
                )

    def state_dict(self) -> dict[str, Any]:
        """Return the state needed to resume after the last delivered batch."""
        return make_state(self._data, order=self._order, seed=self._seed, samples=self._samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next `for` loop resume where `state` was taken, with any number of workers."""
        self._samples = check_state(state, self._data, order=self._order, seed=self._seed)
        self._resumed = True


@takes_second_names
def create_dataloaders(
    train_data_path: PathLike,
    val_data_path: PathLike | None = None,
    *,
    batch_size: int = 32,
    seq_len: int = 1024,
    num_workers: int = 4,
    prefetch_factor: int = 4,
    seed: int = 42,
    stride: int | None = None,
    dtype: npt.DTypeLike | None = None,
    val_fraction: float = 0.1,
    pin_memory: bool | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> tuple[TokenDataLoader, TokenDataLoader]:
    """Make a shuffled loader of the training tokens and a sequential one of the validation tokens.

    Two files are each used whole; of one file or a prepared dataset, its two splits. `pin_memory`
    defaults to whether CUDA is available.
    """

    def make(path: PathLike, split: Split, order: Order) -> TokenDataLoader:
        data = TokenDataset(
            path,
            split=split,
            seq_len=seq_len,
            stride=stride,
            dtype=dtype,
            val_fraction=val_fraction,
        )
        return TokenDataLoader(
            data,
            batch_size=batch_size,
            order=order,
            seed=seed,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            rank=rank,
            world_size=world_size,
        )

    def part(path: PathLike, split: Split) -> Split:
        return split if val_data_path is None or Path(path).is_dir() else "all"

    val_path = train_data_path if val_data_path is None else val_data_path
    return (
        make(train_data_path, part(train_data_path, "train"), "shuffle"),
        make(val_path, part(val_path, "val"), "sequential"),
    )


def __getattr__(name: str) -> Any:
    """Load LocalDataModule on access, because importing Lightning takes seconds."""
    if name == "LocalDataModule":
        from lowtide.loader.datamodule import LocalDataModule

        return LocalDataModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
