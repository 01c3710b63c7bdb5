"""The stage of `append` that hashes the text of a dataset, to compare new text with it.

In:      shards of a dataset, consecutive ones for each task; the document hashes it stores
Out:     one file per task: hashes by partition, in the format of the hash stage
Memory:  a few MiB of decoded text; hashes are on disk until the task is done

A document belongs to the task in whose shards it begins, wherever it ends.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lowtide import _native
from lowtide.corpus.cleaning import clean_block
from lowtide.corpus.reading import Stream, TextBlock
from lowtide.corpus.textblocks import StreamPaths
from lowtide.dataset.grown import GrownDataset
from lowtide.dataset.rehashing import (
    TokenStretch,
    as_it_is,
    block_of_documents,
    block_of_lines,
    count_documents,
    find_start,
    in_order,
    iter_texts,
)
from lowtide.dataset.seen import ROW_BYTES, read_seen, sort_seen
from lowtide.dataset.staged.hashing import HASH_SECTIONS
from lowtide.dataset.staged.job import EXISTING_STAGE, StagedJob
from lowtide.dataset.tokenfiles.shards import ShardInfo
from lowtide.engine.partitions import PartitionedRows
from lowtide.engine.tasks import Task, Uncommitted
from lowtide.quickclasses import dataclass

if TYPE_CHECKING:
    from lowtide.dataset.near.job import BlockText

__all__ = ["DocumentRuns", "ExistingStage", "ShardRuns"]


@dataclass(frozen=True)
class ShardRuns:
    """Shards in order, divided into runs of about `run_tokens`."""

    grown: GrownDataset
    shards: Sequence[ShardInfo]
    run_tokens: int
    block_bytes: int

    @cached_property
    def firsts(self) -> Sequence[int]:
        """The first shard of each run, and the number of shards."""
        firsts, held = array("q", [0]), 0
        for number, shard in enumerate(self.shards):
            if held >= self.run_tokens:
                firsts.append(number)
                held = 0
            held += shard.num_tokens
        if self.shards:
            firsts.append(len(self.shards))
        return firsts

    def __len__(self) -> int:
        return len(self.firsts) - 1

    def find_start(self, run: int) -> tuple[int, int]:
        """The beginning of a run's first document: a shard, and a token in it."""
        shard = self.firsts[run]
        if shard == len(self.shards):
            return shard, 0
        return find_start(self.shards, shard, self.grown.info.dtype, self.grown.tokenizer)

    def stretches(self, run: int) -> list[TokenStretch]:
        """All tokens of the documents that begin in a run."""
        (first, begin), (last, end) = self.find_start(run), self.find_start(run + 1)
        found: list[TokenStretch] = []
        for number in range(first, min(last + 1, len(self.shards))):
            shard = self.shards[number]
            stop = end if number == last else shard.num_tokens
            start = begin if number == first else 0
            if start < stop:
                found.append(TokenStretch(shard, start, stop))
        return found

    def iter_texts(self, run: int, *, cut_long: bool) -> Iterator[tuple[list[bytes], int]]:
        """The texts of a run."""
        dtype, tokenizer = self.grown.info.dtype, self.grown.tokenizer
        return iter_texts(
            self.stretches(run),
            dtype,
            tokenizer,
            block_bytes=self.block_bytes,
            cut_long=cut_long,
        )


@dataclass(frozen=True)
class _CleanExisting:
    """Cleans blocks of the dataset's own text, which is kept unchanged."""

    job: StagedJob
    dedup: bool
    paths: StreamPaths = field(
        default_factory=lambda: StreamPaths([Stream(0, (), random_access=True, num_blocks=0)])
    )

    def clean(self, block: TextBlock) -> _native.CleanedBlock:
        cleaning = as_it_is(self.job.settings.cleaning, dedup=self.dedup)
        return clean_block(block, self.job.reading, cleaning, paths=self.paths)


class ExistingStage:
    """A task for each run of shards, then one for each range of the stored hashes."""

    name = EXISTING_STAGE

    def __init__(self, job: StagedJob, grown: GrownDataset, run_tokens: int) -> None:
        self._job = job
        self._cleaning = _CleanExisting(job, dedup=True)
        shards = in_order(itertools.chain(*grown.shards.values()))
        ours = [shard for shard in shards if shard.checksum is not None]
        moved = shards[len(ours) :]
        total = sum(shard.num_tokens for shard in moved)
        # The ends of documents may be unknown in shards that a user moved in: one task.
        self._runs = [
            ShardRuns(grown, shards, tokens, job.reading.block_bytes)
            for shards, tokens in ((ours, run_tokens), (moved, total + 1))
        ]
        self._whole = [not grown.seen, True]
        self._grown = grown

    @cached_property
    def _seen(self) -> list[tuple[dict[str, Any], int]]:
        """Each range of the stored hashes: its row of metadata, and its beginning there."""
        step = self._job.limits.seen_rows
        return [(row, begin) for row in self._grown.seen for begin in range(0, row["rows"], step)]

    def count_tasks(self) -> int:
        """As many as the dataset has runs and ranges of hashes; none if duplicates are kept."""
        if not self._job.settings.dedup:
            return 0
        return sum(map(len, self._runs)) + len(self._seen)

    def run(self, index: int) -> Uncommitted:
        """Hash a run of shards, or copy a range of stored hashes."""
        records = self._job.records
        with records.scratch() as scratch:
            borders = self._job.sizes.partition_borders()
            rows = PartitionedRows(HASH_SECTIONS, borders, scratch.hold())
            for hashes, radix_ends in self._iter_hashes(index):
                rows.add(hashes, radix_ends)

            def write(output: Any) -> dict[str, Any]:
                rows.write(output)
                return {}

            return records.write(Task(self.name, index), write)

    def _iter_hashes(self, index: int) -> Iterator[tuple[memoryview, memoryview]]:
        """The hashes of each block, sorted by first byte, and the end of each first byte's."""
        for runs, whole in zip(self._runs, self._whole, strict=True):
            if index < len(runs):
                make = block_of_documents if whole else block_of_lines
                texts = runs.iter_texts(index, cut_long=True)
                for number, (found, _) in enumerate(texts):
                    cleaned = self._cleaning.clean(make(found, number))
                    yield cleaned.hashes, cleaned.radix_ends
                return
            index -= len(runs)
        row, first = self._seen[index]
        limits = self._job.limits
        last = min(first + limits.seen_rows, row["rows"])
        for begin in range(first, last, limits.seen_step):
            end = min(begin + limits.seen_step, last)
            data = read_seen(self._grown.root, row, begin * ROW_BYTES, end * ROW_BYTES)
            yield sort_seen(data)


class DocumentRuns:
    """The dataset's documents as parts of a corpus, for the search for near copies."""

    def __init__(self, job: StagedJob, grown: GrownDataset, run_tokens: int) -> None:
        self._cleaning = _CleanExisting(job, dedup=False)
        shards = in_order(itertools.chain(*grown.shards.values()))
        self._runs = ShardRuns(grown, shards, run_tokens, job.reading.block_bytes)

    def __len__(self) -> int:
        return len(self._runs)

    @cached_property
    def _counts(self) -> Sequence[int]:
        """The number of documents that end before each shard."""
        grown = self._runs.grown
        ends = (
            count_documents(shard, grown.info.dtype, grown.tokenizer) for shard in self._runs.shards
        )
        return array("q", itertools.accumulate(ends, initial=0))

    def iter_part(self, part: int) -> Iterator[Callable[[], BlockText]]:
        """The blocks of a run; each document has its number in the dataset."""
        # A run begins right after a document's end: in the shard before, or in its own first shard.
        number, token = self._runs.find_start(part)
        first = self._counts[number] + (1 if token else 0)
        for block, (texts, _) in enumerate(self._runs.iter_texts(part, cut_long=False)):
            yield lambda block=block, texts=texts, first=first: self._load(block, texts, first)
            first += len(texts)

    def _load(self, block: int, texts: list[bytes], first: int) -> BlockText:
        cleaned = self._cleaning.clean(block_of_documents(texts, block, first=first))
        return cleaned.text, cleaned.documents
