"""Put encoded documents in their global order and cut them into shards.

In:      work files of encoded blocks, each sorted by key
Out:     train/ and val/ shards of exactly `tokens_per_shard`
Memory:  per worker one range of document rows (`range_bytes`) and one buffer of 8 MiB

All keys are cut into ranges, a range's rows are read from every block and sorted, and each shard
takes its stretch of the whole. So shards can be written by any worker, in any order.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide import _native
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import WorkFile, open_work_file, write_work_file
from lowtide.dataset import layout
from lowtide.dataset.encoding import ENCODED_ROW
from lowtide.errors import DataError

__all__ = ["ShardJob", "ShardPlan", "plan_shards", "remove_other_shards", "write_shards"]

_CHUNK_BYTES = 8 << 20
MAX_OPEN_FILES = 200  # for each worker; 1024 is a common limit for a process
_MIN_SPLIT_DOCUMENTS = 100


@dataclass(frozen=True)
class ShardJob:
    """Everything the shards depend on."""

    root: Path
    encoded: list[Path]
    """Work files of all blocks."""
    shuffle: bool
    val_fraction: float
    tokens_per_shard: int
    vocab_size: int
    first_number: int = 0
    split_mode: str | None = None
    """content or tail; None decides by what is there."""
    range_bytes: int = 16 << 20
    done_folder: Path | None = None
    """Where a finished shard's row is noted, so that it is not written again."""
    first_block: int = 0
    """The number of the first work file's block; without the shuffle keys begin with it."""


@dataclass(frozen=True)
class ShardPlan:
    """Which stretch of which split becomes which shard."""

    split_mode: str
    bounds: npt.NDArray[np.uint64]
    """First key of every range."""
    range_tokens: dict[str, npt.NDArray[np.int64]]
    """Where each range's tokens begin within its split (one more than there are ranges)."""
    shards: tuple[tuple[str, int, int, int], ...]
    """(split, number, first token, last token)."""


def _open(path: Path) -> tuple[WorkFile, npt.NDArray[Any]]:
    work = open_work_file(path)
    return work, work.read("index").view(ENCODED_ROW)


def _in_val(rows: npt.NDArray[Any], fraction: float) -> npt.NDArray[np.bool_]:
    return rows["split"] < np.uint64(min(int(fraction * 2.0**64), 2**64 - 1))


def plan_shards(job: ShardJob) -> ShardPlan:
    """Count the tokens of every range, decide how to split, and number the shards."""
    bounds = _cut_keys(job)
    totals = np.zeros((2, len(bounds)), dtype=np.int64)
    documents = [0, 0]
    for path in job.encoded:
        _, rows = _open(path)
        if not len(rows):
            continue
        val = _in_val(rows, job.val_fraction)
        places = np.searchsorted(bounds, rows["key"], side="right") - 1
        for split in (0, 1):
            chosen = val == bool(split)
            tokens = rows["tokens"][chosen].astype(np.int64)
            totals[split] += np.bincount(
                places[chosen], weights=tokens, minlength=len(bounds)
            ).astype(np.int64)
            documents[split] += int(chosen.sum())
    mode = job.split_mode or _choose_mode(job, totals.sum(axis=1), documents)
    if mode == "tail":
        return _plan_tail(job, bounds, totals.sum(axis=0))
    starts = {
        "train": np.concatenate([[0], np.cumsum(totals[0])]),
        "val": np.concatenate([[0], np.cumsum(totals[1])]),
    }
    shards: list[tuple[str, int, int, int]] = []
    for split in layout.SPLITS:
        _number_shards(shards, job, split, 0, int(starts[split][-1]))
    return ShardPlan("content", bounds, starts, tuple(shards))


def _plan_tail(
    job: ShardJob, bounds: npt.NDArray[np.uint64], totals: npt.NDArray[np.int64]
) -> ShardPlan:
    starts = np.concatenate([[0], np.cumsum(totals)])
    total = int(starts[-1])
    wanted = max(round(total * job.val_fraction), 1) if job.val_fraction else 0
    val_tokens = max(min(wanted, total - 1), 0)
    shards: list[tuple[str, int, int, int]] = []
    _number_shards(shards, job, "train", 0, total - val_tokens)
    _number_shards(shards, job, "val", total - val_tokens, total)
    return ShardPlan("tail", bounds, {"train": starts, "val": starts}, tuple(shards))


def _cut_keys(job: ShardJob) -> npt.NDArray[np.uint64]:
    """Give the first key of each range; a range's rows, read twice, stay below `range_bytes`."""
    if not job.shuffle:
        blocks = np.arange(job.first_block, job.first_block + max(len(job.encoded), 1))
        return blocks.astype(np.uint64) << np.uint64(32)
    documents = sum(open_work_file(path).header["documents"] for path in job.encoded)
    num_ranges = max(1, -(-documents * ENCODED_ROW.itemsize * 4 // job.range_bytes))
    width = (1 << 64) // num_ranges
    return np.array([number * width for number in range(num_ranges)], dtype=np.uint64)


def _choose_mode(job: ShardJob, tokens: npt.NDArray[np.int64], documents: list[int]) -> str:
    """Split by content hash, unless too few documents would make that lopsided."""
    if job.val_fraction == 0:
        return "tail"
    total = int(tokens.sum())
    share = int(tokens[1]) / total if total else 0.0
    fair = job.val_fraction / 2 <= share <= (1 + job.val_fraction) / 2 and share <= (
        3 * job.val_fraction
    )
    return (
        "content" if sum(documents) >= _MIN_SPLIT_DOCUMENTS and min(documents) and fair else "tail"
    )


def _number_shards(
    shards: list[tuple[str, int, int, int]], job: ShardJob, split: str, first: int, last: int
) -> None:
    for begin in range(first, last, job.tokens_per_shard):
        number = job.first_number + len(shards)
        shards.append((split, number, begin, min(begin + job.tokens_per_shard, last)))


def write_shards(
    job: ShardJob,
    plan: ShardPlan,
    pool: WorkerPool,
    *,
    on_done: Callable[[int], None],
) -> dict[str, list[layout.ShardInfo]]:
    """Write every shard that is not there yet."""
    for split in layout.SPLITS:
        (job.root / split).mkdir(parents=True, exist_ok=True)
    if job.done_folder is not None:
        job.done_folder.mkdir(parents=True, exist_ok=True)

    ranges = _RangeCache(job, plan, capacity=pool.num_workers + 1)

    def tasks() -> Iterator[Callable[[], tuple[str, layout.ShardInfo]]]:
        for row in plan.shards:
            yield lambda row=row: (row[0], _write_once(job, plan, ranges, *row))

    shards: dict[str, list[layout.ShardInfo]] = {split: [] for split in layout.SPLITS}
    for split, shard in pool.run(tasks()):
        shards[split].append(shard)
        on_done(shard.num_tokens)
    return shards


def remove_other_shards(root: Path, known: Iterable[Path], *, first_number: int = 0) -> None:
    """Remove shards that a command which was then given up left in a dataset."""
    kept = {path.with_suffix("") for path in known}
    for split in layout.SPLITS:
        for path in [*(root / split).glob("shard_*"), *(root / split).glob(".shard_*.partial")]:
            number = layout.shard_number(path.name.removeprefix(".").removesuffix(".partial"))
            if number is not None and number >= first_number and path.with_suffix("") not in kept:
                path.unlink()


def _write_once(
    job: ShardJob,
    plan: ShardPlan,
    ranges: _RangeCache,
    split: str,
    number: int,
    first: int,
    last: int,
) -> layout.ShardInfo:
    path = job.root / split / layout.shard_name(number)
    note = job.done_folder / f"{number:05d}.shard" if job.done_folder else None
    if note is not None and note.exists() and path.exists():
        return layout.shard_from_row(job.root, open_work_file(note).header)
    shard = _write_shard(job, plan, ranges, split, number, first, last)
    if note is not None:
        write_work_file(note, layout.shard_row(job.root, shard), {})
    return shard


def _write_shard(
    job: ShardJob,
    plan: ShardPlan,
    ranges: _RangeCache,
    split: str,
    number: int,
    first: int,
    last: int,
) -> layout.ShardInfo:
    dtype = layout.pick_dtype(job.vocab_size)
    path = job.root / split / layout.shard_name(number)
    chunks = _iter_chunks(plan, ranges, split, first, last, dtype)
    shard = layout.write_shard_stream(path, chunks, vocab_size=job.vocab_size)
    if shard.num_tokens != last - first:
        raise DataError(
            f"work files gave {shard.num_tokens} tokens, expected {last - first}",
            path=path,
            next_step="the same command with --restart",
        )
    return shard


def _iter_chunks(
    plan: ShardPlan,
    ranges: _RangeCache,
    split: str,
    first: int,
    last: int,
    dtype: np.dtype[Any],
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.uint64]]]:
    """Give tokens `first` to `last` of a split, a few MiB at a time, with the ends in each."""
    starts = plan.range_tokens[split]
    for number in range(len(plan.bounds)):
        begin, end = int(starts[number]), int(starts[number + 1])
        if end <= first or begin >= last or begin == end:
            continue
        rows = ranges.load(split, number)
        yield from _iter_range(rows, max(first - begin, 0), min(last, end) - begin, dtype)


@dataclass(frozen=True)
class _RangeRows:
    """A range's documents in their order: where their ids are."""

    paths: list[Path]
    blocks: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.uint64]
    token_ends: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.uint64]


class _RangeCache:
    """The ranges that shards in work share: each is read and sorted once, the last few are kept."""

    def __init__(self, job: ShardJob, plan: ShardPlan, *, capacity: int) -> None:
        self._job = job
        self._plan = plan
        self._capacity = capacity
        self._lock = threading.Lock()
        self._ranges: dict[tuple[str, int], _RangeRows] = {}

    def load(self, split: str, number: int) -> _RangeRows:
        """Give a range's rows."""
        key = (split if self._plan.split_mode == "content" else "all", number)
        with self._lock:
            rows = self._ranges.pop(key, None)
            if rows is None:
                itemsize = layout.pick_dtype(self._job.vocab_size).itemsize
                rows = _load_range(self._job, self._plan, split, number, itemsize)
            self._ranges[key] = rows  # the newest is last
            while len(self._ranges) > self._capacity:
                del self._ranges[next(iter(self._ranges))]
        return rows


def _load_range(
    job: ShardJob, plan: ShardPlan, split: str, number: int, itemsize: int
) -> _RangeRows:
    low = plan.bounds[number]
    high = plan.bounds[number + 1] if number + 1 < len(plan.bounds) else None
    parts: list[npt.NDArray[Any]] = []
    offsets: list[npt.NDArray[np.uint64]] = []
    blocks: list[npt.NDArray[np.int32]] = []
    paths: list[Path] = []
    # Without the shuffle a range is a block.
    for path in job.encoded if job.shuffle else [job.encoded[number]]:
        work, rows = _open(path)
        begin = int(np.searchsorted(rows["key"], low))
        end = len(rows) if high is None else int(np.searchsorted(rows["key"], high))
        if begin == end:
            continue
        sizes = rows["tokens"] * np.uint64(itemsize)
        places = np.cumsum(sizes) - sizes + np.uint64(work.sections["ids"][0])
        chosen = np.ones(end - begin, dtype=np.bool_)
        if plan.split_mode == "content":
            chosen = _in_val(rows[begin:end], job.val_fraction) == (split == "val")
        parts.append(rows[begin:end][chosen])
        offsets.append(places[begin:end][chosen])
        blocks.append(np.full(len(parts[-1]), len(paths), dtype=np.int32))
        paths.append(path)
    rows = np.concatenate(parts)
    order = np.argsort(rows["key"], kind="stable")
    return _RangeRows(
        paths=paths,
        blocks=np.concatenate(blocks)[order],
        offsets=np.concatenate(offsets)[order],
        token_ends=np.cumsum(rows["tokens"][order]),
        ends=rows["ends"][order],
    )


def _iter_range(
    rows: _RangeRows, first: int, last: int, dtype: np.dtype[Any]
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.uint64]]]:
    opened = _OpenFiles(rows.paths)
    try:
        step = _CHUNK_BYTES // dtype.itemsize
        for begin in range(first, last, step):
            yield _read_chunk(rows, opened, begin, min(begin + step, last), dtype)
    finally:
        opened.close()


class _OpenFiles:
    """Files opened when they are first needed; never more than a limit at a time."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._descriptors: dict[int, int] = {}

    def fetch(self, blocks: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Give the descriptors of files; at most `MAX_OPEN_FILES` different ones at a time."""
        wanted = np.unique(blocks).tolist()
        if len(self._descriptors) + len(wanted) > MAX_OPEN_FILES:
            self.close()
        for block in wanted:
            if block not in self._descriptors:
                self._descriptors[block] = os.open(self._paths[block], os.O_RDONLY)
        table = np.zeros(len(self._paths), dtype=np.int32)
        table[wanted] = [self._descriptors[block] for block in wanted]
        return table[blocks]

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


def _read_chunk(
    rows: _RangeRows,
    opened: _OpenFiles,
    first: int,
    last: int,
    dtype: np.dtype[Any],
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint64]]:
    row_begin = int(np.searchsorted(rows.token_ends, np.uint64(first), side="right"))
    row_end = int(np.searchsorted(rows.token_ends, np.uint64(last), side="left")) + 1
    token_ends = rows.token_ends[row_begin:row_end].astype(np.int64)
    token_begins = np.concatenate(
        [[int(rows.token_ends[row_begin - 1]) if row_begin else 0], token_ends[:-1]]
    )
    skipped = np.maximum(first - token_begins, 0)
    counts = np.minimum(token_ends, last) - token_begins - skipped
    out = np.empty(last - first, dtype=dtype)
    blocks = rows.blocks[row_begin:row_end]
    offsets = rows.offsets[row_begin:row_end] + (skipped * dtype.itemsize).astype(np.uint64)
    done = 0
    for start in range(0, len(blocks), MAX_OPEN_FILES):
        some = slice(start, start + MAX_OPEN_FILES)
        size = int(counts[some].sum())
        error = _native.gather_bytes(
            opened.fetch(blocks[some]),
            offsets[some],
            (counts[some] * dtype.itemsize).astype(np.uint64),
            out[done : done + size].view(np.uint8),
        )
        if error:
            raise OSError(error, os.strerror(error), str(rows.paths[0].parent))
        done += size
    ending = (rows.ends[row_begin:row_end] != 0) & (token_ends <= last) & (counts > 0)
    return out, (token_ends[ending] - first).astype(np.uint64)
