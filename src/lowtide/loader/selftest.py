"""Test the loading of a dataset: shapes, overlap, resume, speed and memory, in a few seconds.

In:      a path that TokenDataset opens
Out:     LoadingReport: checks and measurements; `str` returns it as text
Memory:  a few batches, and one bit per window of an epoch (at most 64 MiB)
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.errors import DataError
from lowtide.loader.batches import BatchLoader
from lowtide.loader.sources import Split
from lowtide.loader.windows import TokenDataset
from lowtide.memory import format_size, tree_resident_bytes
from lowtide.progress import format_count, format_seconds
from lowtide.quickclasses import dataclass

__all__ = ["LoadingReport", "check_loading", "describe_tokens"]

_MAX_CHECKED_WINDOWS = 64 << 20 << 3
_CHUNK_WINDOWS = 1 << 16


@dataclass(frozen=True)
class LoadingReport:
    """Results of the self-test; a failed check raises instead."""

    description: str
    num_tokens: int
    num_windows: int
    batch_shape: tuple[int, int]
    first_batch_seconds: float
    tokens_per_second: float
    checked_windows: int
    """Windows of an epoch that were each read exactly once."""
    read_tokens: int
    read_seconds: float
    memory_growth_bytes: int

    def __str__(self) -> str:
        rows, length = self.batch_shape
        return "\n".join(
            [
                self.description,
                f"first batch    {1000 * self.first_batch_seconds:.1f} ms, inputs and targets "
                f"{rows} x {length}, targets one token further",
                f"order          {self.checked_windows:,} of {self.num_windows:,} windows come "
                "exactly once per epoch, two ranks share them without overlap",
                "resume         a loader set to a saved state gives the same batches",
                f"speed          {format_count(self.tokens_per_second)} tokens/s shuffled, "
                f"{format_count(self.read_tokens)} tokens in {format_seconds(self.read_seconds)}",
                f"memory         grew by {format_size(max(0, self.memory_growth_bytes))} meanwhile",
            ]
        )


def check_loading(
    path: str | Path,
    *,
    split: Split = "train",
    seq_len: int = 1024,
    batch_size: int = 32,
    seconds: float = 2.0,
    **options: Any,
) -> LoadingReport:
    """Load from `path` as training would, for about `seconds`, and report.

    Windows are shortened if the data has less than one of them.
    """
    started = time.perf_counter()
    data = _open(path, split, seq_len, options)
    with BatchLoader(data, batch_size=batch_size) as loader:
        first = next(loader)
        first_seconds = time.perf_counter() - started
        _check_batch(data, first, batch_size)
        checked = _check_order(data)
        _check_ranks_and_resume(data, batch_size)
        read, elapsed, growth = _measure(loader, batch_size * data.seq_len, seconds)
    return LoadingReport(
        description=data.describe(),
        num_tokens=data.num_tokens,
        num_windows=len(data),
        batch_shape=(batch_size, data.seq_len),
        first_batch_seconds=first_seconds,
        tokens_per_second=read / elapsed,
        checked_windows=checked,
        read_tokens=read,
        read_seconds=elapsed,
        memory_growth_bytes=growth,
    )


def describe_tokens(
    path: str | Path, *, split: Split = "train", first: int = 0, count: int = 100, **options: Any
) -> str:
    """Describe a file of tokens, with `count` ids of a split from `first` on."""
    data = TokenDataset(path, split=split, seq_len=1, **options)
    lines = data.describe().splitlines()[:-1]  # without the windows, which the user did not choose
    first = min(max(0, first), data.num_tokens)
    ids = data.read_tokens(first, min(max(0, count), data.num_tokens - first))
    if len(ids):
        lines += [f"{split} tokens {first:,} to {first + len(ids):,}:", " ".join(map(str, ids))]
    return "\n".join(lines)


def _open(path: str | Path, split: Split, seq_len: int, options: dict[str, Any]) -> TokenDataset:
    shortest = TokenDataset(path, split=split, seq_len=1, **options)
    length = min(seq_len, shortest.num_tokens - 1)
    return TokenDataset(path, split=split, seq_len=length, **options)


def _check_batch(data: TokenDataset, batch: Any, batch_size: int) -> None:
    inputs, targets = batch
    expected = (batch_size, data.seq_len)
    if inputs.shape != expected or targets.shape != expected:
        raise DataError(f"batches are {inputs.shape} and {targets.shape}, expected {expected}")
    if not np.array_equal(inputs[:, 1:], targets[:, :-1]):
        raise DataError("targets are not the inputs moved by one token", path=data.source.path)


def _check_order(
    data: TokenDataset,
    *,
    chunk_windows: int = _CHUNK_WINDOWS,
    most_windows: int = _MAX_CHECKED_WINDOWS,
) -> int:
    """Check that an epoch has every window once, by marking each one."""
    if len(data) > most_windows:
        return 0
    seen = np.zeros(-(-len(data) // 8), dtype=np.uint8)
    for first in range(0, len(data), chunk_windows):
        count = min(chunk_windows, len(data) - first)
        (plan,) = data.plan_rows("shuffle", seed=0, first=first, count=count)
        indices = -(-plan.starts.astype(np.int64) // data.stride)  # the last one may overlap
        bits = (1 << (indices & 7)).astype(np.uint8)
        if np.any(seen[indices >> 3] & bits) or len(np.unique(indices)) != count:
            raise DataError("a window came twice in one epoch", path=data.source.path)
        np.bitwise_or.at(seen, indices >> 3, bits)
    return len(data)


def _check_ranks_and_resume(data: TokenDataset, batch_size: int) -> None:
    """Check that two ranks, started from a saved state, give the batches of one loader."""
    with BatchLoader(data, batch_size=2 * batch_size) as whole:
        next(whole)
        state = whole.state_dict()
        expected, _ = next(whole)
    parts: list[Any] = []
    for rank in range(2):
        with BatchLoader(data, batch_size=batch_size, rank=rank, world_size=2) as part:
            part.load_state_dict(state)
            parts.append(next(part)[0])
    if not np.array_equal(np.concatenate(parts), expected):
        raise DataError("two ranks do not share the batch of one", path=data.source.path)


def _measure(loader: BatchLoader, batch_tokens: int, seconds: float) -> tuple[int, float, int]:
    """Read shuffled batches for some time: tokens, seconds, growth of memory."""
    for _ in range(3):
        next(loader)
    before = tree_resident_bytes()
    started = time.perf_counter()
    batches = 0
    while (elapsed := time.perf_counter() - started) < seconds or batches == 0:
        next(loader)
        batches += 1
    return batches * batch_tokens, elapsed, tree_resident_bytes() - before
