"""Put encoded documents in their global order and cut them into shards.

In:      work files of encoded blocks, each sorted by key
Out:     train/ and val/ shards of exactly `tokens_per_shard`
Memory:  per worker one range of document rows (`range_bytes`) and one buffer of 8 MiB

The keys are divided into ranges, the rows of a range are read from every block and sorted, and each
shard is a consecutive part of the whole order. So any worker can write any shard, in any order.
"""

from __future__ import annotations

import contextlib
import os
import threading
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Protocol

from lowtide import _native
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import open_work_file, write_work_file
from lowtide.dataset import layout
from lowtide.dataset.encoding import ENCODED_ROW_BYTES
from lowtide.dataset.openfiles import MAX_OPEN_FILES, ask_for_open_files
from lowtide.dataset.tokenfiles.shards import (
    ShardInfo,
    documents_path,
    shard_from_row,
    shard_name,
    shard_number,
    shard_row,
    write_shard_stream,
)
from lowtide.errors import DataError
from lowtide.files import Publisher
from lowtide.publishing import PublishThreads, most_unpublished
from lowtide.quickclasses import dataclass
from lowtide.tokenizer.vocabulary import id_bytes

__all__ = [
    "ENCODED_ROW_BYTES_HELD",
    "LAST_KEY",
    "PlannedShard",
    "Ranges",
    "ShardJob",
    "ShardPlan",
    "number_shards",
    "plan_shards",
    "remove_other_shards",
    "val_limit",
    "write_shard",
    "write_shards",
]

LAST_KEY = (1 << 64) - 1
ENCODED_ROW_BYTES_HELD = 4 * ENCODED_ROW_BYTES
"""Bytes for each document while the rows of a range are read and sorted."""
_MIN_SPLIT_DOCUMENTS = 100
_PATHS_AT_ONCE = 1024
_WRITEBACK_BYTES = 1 << 18  # less than this is on its way as soon when its file is flushed


def val_limit(val_fraction: float) -> int:
    """Return the content hash below which a document is in val."""
    return min(int(val_fraction * 2.0**64), LAST_KEY)


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
    num_documents: int = 0
    """Documents of all blocks, to plan shuffled shards."""
    tag: str = ""
    """The tag of origin in the shards' names (`shards.shard_tag`)."""
    first_number: int = 0
    split_mode: str | None = None
    """content or tail; None decides by the documents."""
    range_bytes: int = 16 << 20
    done_folder: Path | None = None
    """Folder for the rows of finished shards, so that they are not written again."""
    first_block: int = 0
    """The index of the first work file's block; without the shuffle, keys begin with it."""
    chunk_bytes: int = 8 << 20
    """Bytes of tokens that are written at a time."""
    max_open_files: int = MAX_OPEN_FILES
    num_workers: int = 1
    """Threads that read a range's rows, while all workers wait for them."""

    @property
    def val_limit(self) -> int:
        """Documents whose content hash is below it are in val."""
        return val_limit(self.val_fraction)


class PlannedShard(NamedTuple):
    """A shard to write: tokens `first` to `last` of a split."""

    split: str
    number: int
    first: int
    last: int

    @property
    def num_tokens(self) -> int:
        """Its number of tokens."""
        return self.last - self.first


@dataclass(frozen=True)
class ShardPlan:
    """The token range and split of each shard."""

    split_mode: str
    bounds: Sequence[int]
    """First key of every range."""
    range_tokens: dict[str, Sequence[int]]
    """The start of each range's tokens within its split (one more than there are ranges)."""
    shards: tuple[PlannedShard, ...]


def plan_shards(job: ShardJob) -> ShardPlan:
    """Count the tokens of every range, decide how to split, and number the shards."""
    bounds = _cut_keys(job)
    counter = _native.RangeCounter(bounds, job.val_limit)
    for paths in _iter_paths(job.encoded):
        with _naming_damage(paths):
            counter.add_files(paths, job.num_workers)
    return number_shards(job, bounds, counter.tokens, counter.documents)


def _iter_paths(paths: Sequence[Path]) -> Iterator[list[bytes]]:
    """Paths for native code, some at a time."""
    for begin in range(0, len(paths), _PATHS_AT_ONCE):
        yield [os.fsencode(path) for path in paths[begin : begin + _PATHS_AT_ONCE]]


@contextlib.contextmanager
def _naming_damage(paths: Sequence[bytes]) -> Generator[None]:
    """Convert a native error about a damaged work file to an error that names the file."""
    try:
        yield
    except ValueError:
        for path in paths:
            open_work_file(Path(os.fsdecode(path)))  # raises the error that names it
        raise


def number_shards(
    job: ShardJob,
    bounds: Sequence[int],
    tokens: Sequence[Sequence[int]],
    documents: Sequence[int],
) -> ShardPlan:
    """Decide how to split and number the shards, from tokens (train, val) by range of keys."""
    train, val = tokens
    mode = job.split_mode or _choose_mode(job, sum(train), sum(val), documents)
    if mode == "tail":
        both = [a + b for a, b in zip(train, val, strict=True)]
        return _plan_tail(job, bounds, _starts(both))
    starts = {"train": _starts(train), "val": _starts(val)}
    shards: list[PlannedShard] = []
    for split in layout.SPLITS:
        _number_shards(shards, job, split, 0, starts[split][-1])
    return ShardPlan("content", bounds, starts, tuple(shards))


def _starts(counts: Sequence[int]) -> Sequence[int]:
    return array("q", accumulate(counts, initial=0))


def _plan_tail(job: ShardJob, bounds: Sequence[int], starts: Sequence[int]) -> ShardPlan:
    total = starts[-1]
    wanted = max(round(total * job.val_fraction), 1) if job.val_fraction else 0
    val_tokens = max(min(wanted, total - 1), 0)
    shards: list[PlannedShard] = []
    _number_shards(shards, job, "train", 0, total - val_tokens)
    _number_shards(shards, job, "val", total - val_tokens, total)
    return ShardPlan("tail", bounds, {"train": starts, "val": starts}, tuple(shards))


def _cut_keys(job: ShardJob) -> Sequence[int]:
    """Return the first key of each range; two copies of a range's rows fit into `range_bytes`."""
    if not job.shuffle:
        last_block = job.first_block + max(len(job.encoded), 1)
        return array("Q", (block << 32 for block in range(job.first_block, last_block)))
    num_ranges = max(1, -(-job.num_documents * ENCODED_ROW_BYTES_HELD // job.range_bytes))
    width = (1 << 64) // num_ranges
    return array("Q", (number * width for number in range(num_ranges)))


def _choose_mode(job: ShardJob, train: int, val: int, documents: Sequence[int]) -> str:
    """Split by content hash, unless too few documents would make the shares uneven."""
    if job.val_fraction == 0:
        return "tail"
    share = val / (train + val) if train + val else 0.0
    fair = job.val_fraction / 2 <= share <= (1 + job.val_fraction) / 2 and share <= (
        3 * job.val_fraction
    )
    return (
        "content" if sum(documents) >= _MIN_SPLIT_DOCUMENTS and min(documents) and fair else "tail"
    )


def _number_shards(
    shards: list[PlannedShard], job: ShardJob, split: str, first: int, last: int
) -> None:
    for begin in range(first, last, job.tokens_per_shard):
        number, end = job.first_number + len(shards), min(begin + job.tokens_per_shard, last)
        shards.append(PlannedShard(split, number, begin, end))


def write_shards(
    job: ShardJob,
    plan: ShardPlan,
    pool: WorkerPool,
    *,
    on_done: Callable[[int], None],
) -> dict[str, list[ShardInfo]]:
    """Write every shard that does not exist yet; `on_done` gets the tokens of each chunk."""
    ask_for_open_files(2 * min(len(job.encoded), job.max_open_files))
    for split in layout.SPLITS:
        (job.root / split).mkdir(parents=True, exist_ok=True)
    if job.done_folder is not None:
        job.done_folder.mkdir(parents=True, exist_ok=True)

    ranges = _RangeCache(job, plan, capacity=pool.num_workers + 1)
    waiting: deque[Future[ShardInfo]] = deque()
    shards: dict[str, list[ShardInfo]] = {split: [] for split in layout.SPLITS}
    counting = threading.Lock()
    most_waiting = most_unpublished(
        pool.num_workers, job.tokens_per_shard * id_bytes(job.vocab_size)
    )

    def count(num_tokens: int) -> None:
        with counting:
            on_done(num_tokens)

    def take() -> None:
        if not waiting[0].done():
            threads.begin()
        shard = waiting.popleft().result()
        shards[shard.path.parent.name].append(shard)

    with PublishThreads(pool.num_workers) as threads:

        def tasks() -> Iterator[Callable[[], Future[ShardInfo]]]:
            for wanted in plan.shards:
                yield lambda wanted=wanted: _write_once(job, plan, ranges, wanted, threads, count)

        for published in pool.run(tasks()):
            waiting.append(published)
            while waiting and (waiting[0].done() or len(waiting) > most_waiting):
                take()
        while waiting:
            take()
    return shards


def remove_other_shards(root: Path, known: Iterable[Path]) -> None:
    """Remove shards that an abandoned command left in a dataset."""
    kept = {path.with_suffix("") for path in known}
    for split in layout.SPLITS:
        for path in (root / split).glob("shard_*"):  # unfinished ones went with the lock
            if shard_number(path) is not None and path.with_suffix("") not in kept:
                path.unlink()


def _write_once(
    job: ShardJob,
    plan: ShardPlan,
    ranges: _RangeCache,
    wanted: PlannedShard,
    threads: PublishThreads,
    count: Callable[[int], None],
) -> Future[ShardInfo]:
    """Write a shard, unless it exists; the result is available when it is flushed and renamed."""
    path = _shard_path(job, wanted)
    note = job.done_folder / f"{wanted.number:05d}.shard" if job.done_folder else None
    whole = path.exists() and documents_path(path).exists()  # a kill may leave only one
    if note is not None and note.exists() and whole:
        known = Future[ShardInfo]()
        known.set_result(shard_from_row(job.root, open_work_file(note).header))
        count(wanted.num_tokens)
        return known
    finished: list[tuple[Path, Path]] = []
    item_bytes = id_bytes(job.vocab_size)

    def keep(partial: Path, name: Path) -> None:
        finished.append((partial, name))

    def note_chunk(descriptor: int, offset: int, size: int) -> None:
        if size >= _WRITEBACK_BYTES:
            threads.start_writeback(descriptor, offset, size)
        count(size // item_bytes)

    shard = write_shard(job, plan, ranges, wanted, publisher=keep, on_written=note_chunk)

    def note_down() -> ShardInfo:
        if note is not None:
            write_work_file(note, shard_row(job.root, shard), {})
        return shard

    return threads.publish(finished, note_down, num_bytes=wanted.num_tokens * item_bytes)


def _shard_path(job: ShardJob, wanted: PlannedShard) -> Path:
    return job.root / wanted.split / shard_name(wanted.number, job.tag)


class Ranges(Protocol):
    """The source of the rows of a plan's ranges."""

    def load(self, split: str, number: int) -> _native.RangeRows:
        """Return a range's rows, in order."""
        ...


def write_shard(
    job: ShardJob,
    plan: ShardPlan,
    ranges: Ranges,
    wanted: PlannedShard,
    *,
    publisher: Publisher | None = None,
    on_written: Callable[[int, int, int], None] = _native.start_writeback,
) -> ShardInfo:
    """Write one shard of a plan; for the callbacks see `write_shard_stream`."""
    path = _shard_path(job, wanted)
    chunks = _iter_chunks(job, plan, ranges, wanted)
    shard = write_shard_stream(
        path, chunks, vocab_size=job.vocab_size, publisher=publisher, on_written=on_written
    )
    if shard.num_tokens != wanted.num_tokens:
        raise DataError(
            f"work files gave {shard.num_tokens} tokens, expected {wanted.num_tokens}",
            path=path,
            next_step="the same command with --restart",
        )
    return shard


def _iter_chunks(
    job: ShardJob, plan: ShardPlan, ranges: Ranges, wanted: PlannedShard
) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield the ids of a shard, a few MiB at a time, with the document ends in each chunk."""
    split, _, first, last = wanted
    starts = plan.range_tokens[split]
    item_bytes = id_bytes(job.vocab_size)
    step = job.chunk_bytes // item_bytes
    for number in range(len(plan.bounds)):
        begin, end = starts[number], starts[number + 1]
        if end <= first or begin >= last or begin == end:
            continue
        reader = _native.RangeReader(ranges.load(split, number), item_bytes, job.max_open_files)
        stop = min(last, end) - begin
        for at in range(max(first - begin, 0), stop, step):
            yield reader.read(at, min(at + step, stop), item_bytes)


class _RangeCache:
    """Ranges shared by concurrent shards: each is read and sorted once, the last few are kept."""

    def __init__(self, job: ShardJob, plan: ShardPlan, *, capacity: int) -> None:
        self._job = job
        self._plan = plan
        self._capacity = capacity
        self._lock = threading.Lock()
        self._ranges: dict[tuple[str, int], Future[_native.RangeRows]] = {}

    def load(self, split: str, number: int) -> _native.RangeRows:
        """Return a range's rows; the first caller reads them, and others wait for them."""
        key = (split if self._plan.split_mode == "content" else "all", number)
        with self._lock:
            rows = self._ranges.pop(key, None)
            is_first = rows is None
            if rows is None:
                rows = Future[_native.RangeRows]()
            self._ranges[key] = rows  # the newest is last
            while len(self._ranges) > self._capacity:
                del self._ranges[next(iter(self._ranges))]
        if is_first:
            try:
                rows.set_result(_load_range(self._job, self._plan, split, number))
            except BaseException as error:
                rows.set_exception(error)
        return rows.result()


def _load_range(job: ShardJob, plan: ShardPlan, split: str, number: int) -> _native.RangeRows:
    """Read the locations of a range's documents, and sort them."""
    low = plan.bounds[number]
    high = plan.bounds[number + 1] - 1 if number + 1 < len(plan.bounds) else LAST_KEY
    rows = _native.RangeRows()
    # Without the shuffle a range is a block.
    for paths in _iter_paths(job.encoded if job.shuffle else [job.encoded[number]]):
        with _naming_damage(paths):
            rows.add_files(
                paths,
                id_bytes=id_bytes(job.vocab_size),
                low=low,
                high=high,
                val=split == "val" if plan.split_mode == "content" else None,
                val_limit=job.val_limit,
                num_threads=job.num_workers,
            )
    rows.finish(job.num_workers)
    return rows
