"""The stages that write shards: cut computes their borders, gather writes a group of them.

In:      the encode stage's records and files
Out:     cut: one file, the range of shuffled documents of each shard; gather: shards in the
         dataset's folder, and a record with their rows for each group
Memory:  the rows of one range of documents (`range_bytes` of the plan), one buffer of ids
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from lowtide import _native
from lowtide.corpus.inputhashes import InputHashes
from lowtide.dataset import layout
from lowtide.dataset.encoding import ENCODED_ROW_BYTES
from lowtide.dataset.finishing import find_shard_tag, has_too_few, too_few_tokens
from lowtide.dataset.openfiles import MAX_OPEN_FILES, ask_for_open_files
from lowtide.dataset.sharding import (
    ENCODED_ROW_BYTES_HELD,
    LAST_KEY,
    PlannedShard,
    ShardJob,
    ShardPlan,
    number_shards,
    write_shard,
)
from lowtide.dataset.staged.destination import Destination
from lowtide.dataset.staged.duplicates import Tally
from lowtide.dataset.staged.encoding import ENCODE_STAGE
from lowtide.dataset.staged.hashing import CONTENT_ROW
from lowtide.dataset.staged.job import HASH_STAGE, StagedJob
from lowtide.dataset.staged.keyranges import ChosenKeys, RowRange, find_rows
from lowtide.dataset.tokenfiles.shards import ShardInfo, shard_from_row, shard_name, shard_row
from lowtide.engine.localcopies import LocalCopies
from lowtide.engine.outputs import PAGE_BYTES, Output, OutputWriter
from lowtide.engine.tasks import Task, Uncommitted
from lowtide.publishing import keep_unfinished
from lowtide.stores.paths import is_stored
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.vocabulary import id_bytes

__all__ = ["CutStage", "GatherStage", "add_contents", "load_cut"]

CUT_STAGE = "cut"
GATHER_STAGE = "gather"
_READ_SECTIONS = ("ids", "index", "row_ends", "token_ends")
_PARTS_AT_ONCE = 1024
"""Parts that native code processes in one call, without the interpreter."""


def add_contents(job: StagedJob) -> InputHashes:
    """The hash of every input, from the files of the parts."""
    contents = InputHashes()
    for part in range(len(job.parts)):
        rows = job.records.open(Task(HASH_STAGE, part)).read("contents")
        contents.add([(number, digest.hex()) for number, digest in CONTENT_ROW.iter_unpack(rows)])
    return contents.finish()


def make_shard_job(job: StagedJob, root: Path, tokenizer: Tokenizer, tag: str = "") -> ShardJob:
    """The settings of shards, which are written into `root`."""
    settings, grown = job.settings, job.grown
    return ShardJob(
        root=root,
        encoded=[],
        shuffle=settings.shuffle,
        val_fraction=settings.val_fraction,
        tokens_per_shard=settings.tokens_per_shard,
        vocab_size=tokenizer.vocab_size,
        tag=tag,
        first_number=0 if grown is None else grown.first_number,
        split_mode=None if grown is None else grown.split_mode,
    )


class CutStage:
    """One task: adds up the tokens of all parts and numbers the shards."""

    name = CUT_STAGE

    def __init__(self, job: StagedJob, load_tokenizer: Callable[[], Tokenizer]) -> None:
        self._job = job
        self._load_tokenizer = load_tokenizer

    def count_tasks(self) -> int:
        """One."""
        return 1

    def run(self, index: int) -> None:
        """Commit the begin and end of every shard."""
        job, tokenizer = self._job, self._load_tokenizer()
        tag = _find_tag(job, tokenizer)
        group_tokens = job.sizes.group_bytes // id_bytes(tokenizer.vocab_size)
        bounds, tokens, documents = _count_ranges(job, group_tokens)
        total = sum(map(sum, tokens))
        if job.grown is None and has_too_few(job.settings, total):
            raise too_few_tokens(job.settings, total)
        shard_job = make_shard_job(job, job.settings.out_dir, tokenizer)
        plan = number_shards(shard_job, bounds, tokens, documents)
        groups = _group(plan, group_tokens)

        def write(output: OutputWriter) -> dict[str, Any]:
            output.section("bounds", memoryview(array("Q", plan.bounds)).cast("B"))
            for split in layout.SPLITS:
                starts = array("q", plan.range_tokens[split])
                output.section(f"{split}_starts", memoryview(starts).cast("B"))
            return {
                "tag": tag,
                "split_mode": plan.split_mode,
                "shards": plan.shards,
                "groups": groups,
            }

        job.records.commit(Task(self.name, index), write)


def _find_tag(job: StagedJob, tokenizer: Tokenizer) -> str:
    contents = add_contents(job)
    if job.grown is not None:
        return job.grown.shard_tag(job.inputs, contents)
    return find_shard_tag(job.settings, job.inputs, tokenizer, contents)


def _group(plan: ShardPlan, group_tokens: int) -> list[int]:
    """The end of each group of shards."""
    ends: list[int] = []
    held = 0
    for number, shard in enumerate(plan.shards, 1):
        held += shard.num_tokens
        if held >= group_tokens or number == len(plan.shards):
            ends.append(number)
            held = 0
    return ends


def _count_ranges(
    job: StagedJob, group_tokens: int
) -> tuple[array[int], list[list[int]], list[int]]:
    """First keys of ranges, tokens (train, val) of each, and documents in both splits.

    A task checks all ids of every range that it writes a part of, so a range is at most about as
    large as a group of shards, however long documents are.
    """
    documents = [0, 0]
    by_part: list[Sequence[int]] = []
    packed, width = 0, 8 * job.sizes.num_buckets
    for part in range(len(job.parts)):
        output = job.records.open(Task(ENCODE_STAGE, part))
        documents = [a + b for a, b in zip(documents, output.header["documents"], strict=True)]
        tokens = output.read("split_tokens")
        if job.settings.shuffle:
            # All counts at once, as digits of one number, each far below 2^64.
            packed += int.from_bytes(tokens, "little")
        else:
            by_part.append(tokens.cast("q"))
    if not job.settings.shuffle:
        first_blocks = Tally.load(job).first_blocks[:-1]
        return (
            array("Q", (block << 32 for block in first_blocks)),
            [[row[split] for row in by_part] for split in (0, 1)],
            documents,
        )
    total = memoryview(packed.to_bytes(2 * width, "little"))
    by_split = [total[:width].cast("q"), total[width:].cast("q")]
    buckets = job.sizes.num_buckets
    by_rows = -(-sum(documents) * ENCODED_ROW_BYTES_HELD // job.limits.cut_range_bytes)
    by_tokens = -(-sum(map(sum, by_split)) // max(group_tokens, 1))
    borders = _bucket_borders(buckets, min(max(by_rows, by_tokens, 1), buckets))
    bucket_width = (1 << 64) // buckets
    return (
        array("Q", (border * bucket_width for border in borders[:-1])),
        [[sum(counts[a:b]) for a, b in pairwise(borders)] for counts in by_split],
        documents,
    )


def _bucket_borders(num_buckets: int, num_ranges: int) -> list[int]:
    return [num_buckets * number // num_ranges for number in range(num_ranges + 1)]


class Cut(NamedTuple):
    """The cut stage's result."""

    tag: str
    groups: Sequence[int]
    plan: ShardPlan

    def group(self, index: int) -> Iterator[PlannedShard]:
        """The shards of a group."""
        first = self.groups[index - 1] if index else 0
        yield from self.plan.shards[first : self.groups[index]]


def load_cut(job: StagedJob) -> Cut:
    """Read the result of the cut stage."""
    output = job.records.open(Task(CUT_STAGE, 0))
    header = output.header
    starts: dict[str, Sequence[int]] = {
        split: output.read(f"{split}_starts").cast("q") for split in layout.SPLITS
    }
    shards = tuple(PlannedShard(*row) for row in header["shards"])
    plan = ShardPlan(header["split_mode"], output.read("bounds").cast("Q"), starts, shards)
    return Cut(header["tag"], header["groups"], plan)


class GatherStage:
    """A task for each group of shards."""

    name = GATHER_STAGE

    def __init__(self, job: StagedJob, load_tokenizer: Callable[[], Tokenizer]) -> None:
        self._job = job
        self._load_tokenizer = load_tokenizer

    @cached_property
    def _cut(self) -> Cut:
        return load_cut(self._job)

    def count_tasks(self) -> int:
        """One for each group."""
        return len(self._cut.groups)

    def run(self, index: int) -> Uncommitted:
        """Write the shards of a group; their names, and the group's record, follow in `commit`."""
        cut, job = self._cut, self._job
        rows: list[dict[str, Any]] = []
        ask_for_open_files(MAX_OPEN_FILES)
        with contextlib.ExitStack() as stack:
            root = stack.enter_context(job.destination.stage())
            for split in layout.SPLITS:
                (root / split).mkdir(parents=True, exist_ok=True)
            shard_job = make_shard_job(job, root, self._load_tokenizer(), cut.tag)
            unnamed = stack.enter_context(contextlib.closing(_Unnamed(job.destination, root)))
            with job.records.scratch_folder() as folder:
                ranges = _PartRanges(job, shard_job, cut.plan, LocalCopies(folder))
                for wanted in cut.group(index):
                    if unnamed.count_shards() >= job.limits.unnamed_shards:
                        unnamed.publish()
                    with ranges.naming_damage():
                        shard = write_shard(
                            shard_job, cut.plan, ranges, wanted, publisher=unnamed.keep
                        )
                    rows.append({"split": wanted.split, **shard_row(root, shard)})
                    if job.destination.takes_one:
                        unnamed.publish()
            record = partial(job.records.commit_record, Task(self.name, index))
            steps = [unnamed.publish, partial(record, facts={"shards": rows})]
            return Uncommitted(steps, stack.pop_all())

    def list_names(self) -> list[Path]:
        """The names of all shards, also of those that are not written yet."""
        cut = self._cut
        return [Path(row.split, shard_name(row.number, cut.tag)) for row in cut.plan.shards]

    def list_shards(self, root: Path) -> dict[str, list[ShardInfo]]:
        """All shards, from the records of all groups, with paths in `root`."""
        shards: dict[str, list[ShardInfo]] = {split: [] for split in layout.SPLITS}
        for index in range(self.count_tasks()):
            for row in self._job.records.read(Task(self.name, index))["facts"]["shards"]:
                shards[row["split"]].append(shard_from_row(root, row))
        return shards


class _Unnamed:
    """Finished files of shards that wait for their names; `close` removes those without one."""

    def __init__(self, destination: Destination, root: Path) -> None:
        self._destination = destination
        self._root = root
        self._rows: list[tuple[Path, Path]] = []
        self._held = contextlib.ExitStack()

    def keep(self, unnamed: Path, path: Path) -> None:
        """Take a finished file."""
        self._held.enter_context(keep_unfinished(unnamed))
        self._rows.append((unnamed, path))

    def count_shards(self) -> int:
        """How many shards wait; each has two files."""
        return len(self._rows) // 2

    def publish(self) -> None:
        """Give all files their names."""
        rows, self._rows = self._rows, []
        # Afterwards nothing holds the files, so that a disk gets its room back.
        with self._held.pop_all():
            self._destination.publish(self._root, rows)

    def close(self) -> None:
        """Remove the files that have no names."""
        self._held.close()


class _PartRanges:
    """Ranges of documents, read from the files of all parts; the last range is cached."""

    def __init__(
        self, job: StagedJob, shard_job: ShardJob, plan: ShardPlan, copies: LocalCopies
    ) -> None:
        self._job = job
        self._copies = copies
        self._shard_job = shard_job
        self._plan = plan
        self._key: tuple[str, int] | None = None
        self._rows: _native.RangeRows | None = None

    def load(self, split: str, number: int) -> _native.RangeRows:
        """Return a range's rows, in order."""
        key = (split if self._plan.split_mode == "content" else "all", number)
        if self._rows is None or key != self._key:
            self._rows = None
            self._copies.clear()
            self._rows, self._key = self._read(split, number), key
        return self._rows

    @contextlib.contextmanager
    def naming_damage(self) -> Generator[None]:
        """Turn native code's error for a damaged page into one that names the page."""
        try:
            yield
        except ValueError:
            damaged = None if self._rows is None else self._rows.damaged
            for part in range(len(self._job.parts)) if damaged else ():
                output = self._open(part)
                if damaged and os.fsencode(output.path) == damaged[0]:
                    raise output.damaged_page(damaged[1]) from None
            raise

    def _open(self, part: int) -> Output:
        return self._job.records.open_sections(Task(ENCODE_STAGE, part), _READ_SECTIONS)

    def _read(self, split: str, number: int) -> _native.RangeRows:
        bounds = self._plan.bounds
        chosen = ChosenKeys(
            low=bounds[number],
            high=bounds[number + 1] - 1 if number + 1 < len(bounds) else LAST_KEY,
            id_bytes=id_bytes(self._shard_job.vocab_size),
            val=split == "val" if self._plan.split_mode == "content" else None,
            val_limit=self._shard_job.val_limit,
        )
        rows = _native.RangeRows()
        if not self._shard_job.shuffle:  # then a range is a part
            output = self._open(number)
            num_rows = output.size("index") // ENCODED_ROW_BYTES
            self._add(rows, output, RowRange(0, num_rows, 0, None), chosen)
        elif is_stored(self._job.records.folder):
            for part in range(len(self._job.parts)):
                output = self._open(part)
                found = find_rows(output, chosen, self._job.sizes.num_buckets)
                self._add(rows, output, found, chosen)
        else:
            for first in range(0, len(self._job.parts), _PARTS_AT_ONCE):
                parts = range(len(self._job.parts))[first : first + _PARTS_AT_ONCE]
                self._add_outputs(rows, [self._open(part) for part in parts], chosen)
        rows.finish()
        return rows

    def _add(
        self, rows: _native.RangeRows, output: Output, found: RowRange, chosen: ChosenKeys
    ) -> None:
        """Add a range of rows of a part."""
        begin, end, token, last_token = found
        if begin == end:
            return
        path, ids_at = self._copies.find(
            output,
            "ids",
            begin=token * chosen.id_bytes,
            end=None if last_token is None else last_token * chosen.id_bytes,
        )
        index = output.read("index", begin=begin * ENCODED_ROW_BYTES, end=end * ENCODED_ROW_BYTES)
        rows.add(os.fsencode(path), index, ids_at=ids_at, **chosen._asdict())

    def _add_outputs(
        self, rows: _native.RangeRows, outputs: Sequence[Output], chosen: ChosenKeys
    ) -> None:
        """Add the buckets of a range of some parts that are on a disk."""
        num_buckets = self._job.sizes.num_buckets
        first, last = chosen.find_buckets(num_buckets)
        damaged = rows.add_outputs(
            [_describe(output) for output in outputs],
            page_bytes=PAGE_BYTES,
            num_buckets=num_buckets,
            first=first,
            last=last,
            **chosen._asdict(),
        )
        if damaged is not None:
            number, page = damaged
            raise outputs[number].damaged_page(page)


def _describe(output: Output) -> tuple[bytes, int, int, int, int, int]:
    """The location of an output and its sections, for native code."""
    ids, index, row_ends, token_ends = map(output.find, _READ_SECTIONS)
    return os.fsencode(output.path), output.num_bytes, ids, index, row_ends, token_ends
