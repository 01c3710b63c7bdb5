"""The stages that find duplicates: a tally of all parts, then each partition of the hashes.

In:      the hash stage's records and files; with `append` those of the dataset's own text
Out:     tally: where each part's blocks begin in the corpus, and the document it begins inside of;
         duplicates: one file per partition, the lines to leave out, by part and block
Memory:  `table_bytes`; what does not fit is compared in several passes, with the same result
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, NamedTuple

from lowtide import _native
from lowtide.corpus.blocktable import Identity
from lowtide.corpus.deduplication import TABLE_ROW_BYTES, LeaveOut
from lowtide.dataset.removed import leave_out_with
from lowtide.dataset.staged.hashing import HASH_SECTIONS, HASH_STAGE
from lowtide.dataset.staged.job import EXISTING_STAGE, StagedJob
from lowtide.engine.localcopies import LocalCopies
from lowtide.engine.onetask import OneTask
from lowtide.engine.outputs import Output, OutputWriter
from lowtide.engine.partitions import PartitionReader
from lowtide.engine.tasks import Task

__all__ = [
    "DUPLICATE_STAGE",
    "DuplicateStage",
    "PartDuplicates",
    "Tally",
    "count_passes",
    "open_duplicates",
    "tally_stage",
]

TALLY_STAGE = "tally"
DUPLICATE_STAGE = "duplicates"


@dataclass(frozen=True)
class Tally:
    """What a part has to know of all parts before it."""

    first_blocks: Sequence[int]
    """The number of each part's first block in the corpus, and the number of all blocks."""
    open_documents: dict[int, Identity]
    """The document that was last cut at the end of a block before a part."""

    @classmethod
    def load(cls, job: StagedJob) -> Tally:
        """Read it, once that stage is done."""
        output = job.records.open(Task(TALLY_STAGE, 0))
        rows = {int(part): tuple(row) for part, row in output.header["open_documents"].items()}
        return cls(output.read("first_blocks").cast("q"), rows)  # type: ignore[arg-type]


def tally_stage(job: StagedJob) -> OneTask:
    """One task: adds up what the parts' records say."""
    return OneTask(TALLY_STAGE, job.records, lambda output: _write_tally(job, output))


def _write_tally(job: StagedJob, output: OutputWriter) -> dict[str, Any]:
    starts, identities = array("q", [0]), {}
    document: Identity | None = None
    for part in range(len(job.parts)):
        facts = job.records.read(Task(HASH_STAGE, part))["facts"]
        if document is not None:
            identities[part] = document
        starts.append(starts[-1] + facts["blocks"])
        document = facts["open_document"] or document
    output.section("first_blocks", memoryview(starts).cast("B"))
    return {"open_documents": identities}


class DuplicateStage:
    """A task for each partition of the hashes."""

    name = DUPLICATE_STAGE

    def __init__(self, job: StagedJob, num_existing: int = 0) -> None:
        """`num_existing` tasks have hashed the dataset that the text is added to."""
        self._job = job
        self._num_existing = num_existing

    def count_tasks(self) -> int:
        """One for each partition, none where duplicates stay."""
        return self._job.sizes.num_partitions if self._job.settings.dedup else 0

    def _read(self, stage: str, num_tasks: int, partition: int) -> PartitionReader:
        return PartitionReader(
            self._job.records,
            stage,
            HASH_SECTIONS,
            num_tasks=num_tasks,
            num_partitions=self._job.sizes.num_partitions,
            partition=partition,
            ends_kept=self._job.limits.ends_kept,
        )

    def run(self, index: int) -> None:
        """Find the lines of a partition that came before, and commit them."""
        job = self._job
        existing = self._read(EXISTING_STAGE, self._num_existing, index)
        hashed = self._read(HASH_STAGE, len(job.parts), index)
        num_passes = count_passes(existing.num_rows + hashed.num_rows, job.table_bytes)
        with (
            job.records.scratch_folder() as folder,
            contextlib.ExitStack() as stack,
        ):
            found = [
                stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(num_passes)
            ]
            counts = [
                _find(
                    existing,
                    hashed,
                    found[number],
                    number,
                    num_passes,
                    leave_out_with(job.finders),
                )
                for number in range(num_passes)
            ]
            job.records.commit(
                Task(self.name, index), lambda output: _write(output, hashed, found, counts)
            )


def count_passes(num_rows: int, table_bytes: int) -> int:
    """How often hashes are gone through, so that a table holds its share of them.

    >>> count_passes(1000, 20_000), count_passes(10_000, 20_000)
    (1, 13)
    """
    if num_rows * TABLE_ROW_BYTES <= table_bytes:
        return 1
    share = max(table_bytes // TABLE_ROW_BYTES * 3 // 4, 1)
    return -(-num_rows // share)


def _find(
    existing: PartitionReader,
    hashed: PartitionReader,
    found: IO[bytes],
    number: int,
    num_passes: int,
    leave_out: LeaveOut | None,
) -> array[int]:
    """Write the lines of every block that came before; return how many of each block."""
    rows = -(-(existing.num_rows + hashed.num_rows) // num_passes)
    finder = _native.DuplicateFinder(max(rows * (1 if num_passes == 1 else 2), 1))
    for known in existing.iter_blocks():
        if not finder.add(known, number, num_passes):
            raise _too_many()
        finder.take()
    counts = array("q")
    for block, rows_of_block in enumerate(hashed.iter_blocks()):
        if leave_out is not None:
            rows_of_block = leave_out(block, rows_of_block)
        if not finder.add(rows_of_block, number, num_passes):
            raise _too_many()
        lines = finder.take()
        counts.append(len(lines) // 4)
        found.write(lines)
    found.seek(0)
    return counts


def _write(
    output: OutputWriter,
    hashed: PartitionReader,
    found: Sequence[IO[bytes]],
    counts: list[array[int]],
) -> dict[str, Any]:
    """Write for each part: where its blocks' lines end, and the lines themselves."""
    starts, block, position = array("q", [0]), 0, 0
    output.begin("lines")
    for num_blocks in hashed.num_blocks:
        of_blocks = [
            sum(row[number] for row in counts) for number in range(block, block + num_blocks)
        ]
        output.write(memoryview(array("I", accumulate(of_blocks))).cast("B"))
        for number in range(block, block + num_blocks):
            lines = [file.read(4 * row[number]) for file, row in zip(found, counts, strict=True)]
            output.write(_native.sort_lines(b"".join(lines)))
        block += num_blocks
        position += 4 * (num_blocks + sum(of_blocks))
        starts.append(position)
    output.section("starts", memoryview(starts).cast("B"))
    return {"parts": len(hashed.num_blocks)}


def _too_many() -> MemoryError:
    return MemoryError("more different lines in one partition than was planned for")


class PartitionDuplicates(NamedTuple):
    """The result of a partition, as a worker that reads a little of it for each part keeps it."""

    output: Output
    starts: memoryview | None
    """Where the lines of each part begin; None where there are too many parts to keep that."""

    def find(self, part: int) -> tuple[int, int]:
        """Where the lines of a part begin and end."""
        if self.starts is not None:
            return self.starts[part], self.starts[part + 1]
        begin, end = self.output.read("starts", begin=8 * part, end=8 * (part + 2)).cast("q")
        return begin, end


def open_duplicates(job: StagedJob) -> list[PartitionDuplicates]:
    """The results of all partitions; a worker opens them once, and not for each of its parts."""
    count = DuplicateStage(job).count_tasks()
    are_kept = 8 * (len(job.parts) + 1) * count <= job.limits.starts_bytes
    opened: list[PartitionDuplicates] = []
    for index in range(count):
        output = replace(job.records.open(Task(DUPLICATE_STAGE, index)), header={})
        starts = memoryview(bytes(output.read("starts"))).cast("q") if are_kept else None
        opened.append(PartitionDuplicates(output, starts))
    return opened


class PartDuplicates:
    """The lines to leave out of one part, asked for block by block."""

    def __init__(
        self,
        partitions: Sequence[PartitionDuplicates],
        part: int,
        num_blocks: int,
        copies: LocalCopies,
    ) -> None:
        self._files: list[tuple[Path, int, memoryview]] = []
        for partition in partitions:
            begin, end = partition.find(part)
            if end - begin == 4 * num_blocks:
                continue  # none of this part's lines is in it
            path, place = copies.find(partition.output, "lines", begin=begin, end=end)
            with path.open("rb", buffering=0) as file:
                ends = os.pread(file.fileno(), 4 * num_blocks, place)
            self._files.append((path, place + 4 * num_blocks, memoryview(ends).cast("I")))

    def load(self, number: int) -> memoryview:
        """Return the sorted lines (and marked documents) to leave out of a block, as uint32."""
        found: list[bytes] = []
        for path, lines_at, ends in self._files:
            begin, end = ends[number - 1] if number else 0, ends[number]
            if begin == end:
                continue
            with path.open("rb", buffering=0) as file:
                found.append(os.pread(file.fileno(), 4 * (end - begin), lines_at + 4 * begin))
        return _native.sort_lines(b"".join(found))
