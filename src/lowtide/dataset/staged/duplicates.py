"""The stages that find duplicates: a tally of all parts, then one task per partition of hashes.

In:      the hash stage's records and files; with `append` also those of the dataset's own text
Out:     tally: the position of each part's blocks in the corpus, and the document that continues at
         its start; duplicates: one file per partition, the positions of duplicate lines, by part
Memory:  `table_bytes`; hashes that do not fit are compared in several passes, with the same result;
         `places_bytes` for the duplicate lines of a part, more are sorted on disk
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from lowtide import _native
from lowtide.corpus.blocktable import Identity
from lowtide.corpus.cleaning import HASH_ROW_BYTES
from lowtide.corpus.deduplication import TABLE_ROW_BYTES, LeaveOut
from lowtide.dataset.removed import leave_out_with
from lowtide.dataset.staged.hashing import HASH_SECTIONS
from lowtide.dataset.staged.job import EXISTING_STAGE, HASH_STAGE, StagedJob
from lowtide.engine.onetask import OneTask
from lowtide.engine.outputs import Output, OutputWriter
from lowtide.engine.partitions import PartitionReader, RowStretch, iter_rows
from lowtide.engine.tasks import Task, Uncommitted
from lowtide.engine.taskscratch import TaskScratch

__all__ = [
    "DUPLICATE_STAGE",
    "TALLY_STAGE",
    "DuplicateStage",
    "PartDuplicates",
    "Search",
    "Tally",
    "count_passes",
    "open_duplicates",
    "tally_stage",
]

TALLY_STAGE = "tally"
DUPLICATE_STAGE = "duplicates"
PLACE_BYTES = 8


class Tally(NamedTuple):
    """The state that a part needs of all earlier parts."""

    first_blocks: Sequence[int]
    """The index of each part's first block in the corpus, and the number of all blocks."""
    open_documents: dict[int, Identity]
    """The document that continues from the block before a part."""

    @classmethod
    def load(cls, job: StagedJob) -> Tally:
        """Read the result of the tally stage."""
        output = job.records.open(Task(TALLY_STAGE, 0))
        rows = {int(part): tuple(row) for part, row in output.header["open_documents"].items()}
        return cls(output.read("first_blocks").cast("q"), rows)  # type: ignore[arg-type]


def tally_stage(job: StagedJob) -> OneTask:
    """One task: sums up the parts' records."""
    return OneTask(TALLY_STAGE, job.records, partial(_write_tally, job))


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
        """`num_existing` tasks have hashed the existing dataset."""
        self._job = job
        self._num_existing = num_existing

    def count_tasks(self) -> int:
        """One for each partition; none if duplicates are kept."""
        return self._job.sizes.num_partitions if self._job.settings.dedup else 0

    def _read(self, stage: str, num_tasks: int, partition: int) -> PartitionReader:
        return PartitionReader(
            self._job.records, stage, HASH_SECTIONS, num_tasks=num_tasks, partition=partition
        )

    def run(self, index: int) -> Uncommitted:
        """Find the duplicate lines of a partition."""
        job, task = self._job, Task(self.name, index)
        search = Search(
            self._read(EXISTING_STAGE, self._num_existing, index),
            self._read(HASH_STAGE, len(job.parts), index),
            leave_out_with(job.finders),
            job.sizes.shared_bits,
        )
        num_passes = count_passes(search.num_rows, job.table_bytes)
        if num_passes == 1:
            return job.records.write(task, search.write)
        with job.records.scratch_folder() as folder:
            found = [search.find_into(folder, number, num_passes) for number in range(num_passes)]
            buffer_bytes = job.limits.places_bytes
            return job.records.write(
                task, lambda output: _write_merged(output, found, buffer_bytes)
            )


def count_passes(num_rows: int, table_bytes: int) -> int:
    """The number of passes over the hashes so that the table holds the share of each pass.

    >>> count_passes(1000, 20_000), count_passes(10_000, 20_000)
    (1, 13)
    """
    if num_rows * TABLE_ROW_BYTES <= table_bytes:
        return 1
    share = max(table_bytes // TABLE_ROW_BYTES * 3 // 4, 1)
    return -(-num_rows // share)


class _Found(NamedTuple):
    """The result of a pass."""

    path: Path
    num_bytes: array[int]
    """Bytes of the positions in each part."""


class Search(NamedTuple):
    """Searches the hashes of a partition: those of the dataset first, then those of the text.

    A position is a block of its part, in the high half, and a line or marked document in it.
    """

    existing: PartitionReader
    hashed: PartitionReader
    leave_out: LeaveOut | None
    shared_bits: int

    @property
    def num_rows(self) -> int:
        return self.existing.num_rows + self.hashed.num_rows

    def find(
        self, number: int, num_passes: int, write: Callable[[memoryview], object]
    ) -> array[int]:
        """Write the positions of one pass in the order of the text; return bytes by part."""
        rows = -(-self.num_rows // num_passes)
        capacity = max(rows * (1 if num_passes == 1 else 2), 1)
        finder = _native.DuplicateFinder(capacity, self.shared_bits)
        for known in self.existing.iter_stretches():
            if not finder.add(known.rows, number, num_passes):
                raise _too_many()
            finder.take()
        sizes, block = array("q", bytes(8 * self.hashed.num_tasks)), 0
        for stretch in self.hashed.iter_stretches():
            if self.leave_out is not None:
                stretch = _without(stretch, block, self.leave_out)
            block += len(stretch.counts)
            counts = memoryview(stretch.counts).cast("B")
            places = finder.add_blocks(
                stretch.rows, counts, stretch.first_block, number, num_passes
            )
            if places is None:
                raise _too_many()
            sizes[stretch.task] += len(places)
            write(places)
        return sizes

    def find_into(self, folder: Path, number: int, num_passes: int) -> _Found:
        """Write the positions of one of several passes into a file."""
        path = folder / str(number)
        with path.open("xb") as file:
            return _Found(path, self.find(number, num_passes, file.write))

    def write(self, output: OutputWriter) -> dict[str, Any]:
        """Write the positions of all parts, and the offsets of each part."""
        output.begin("places")
        return _write_starts(output, self.find(0, 1, output.write))


def _without(stretch: RowStretch, block: int, leave_out: LeaveOut) -> RowStretch:
    """A range from a block of the corpus on, without hashes of removed documents."""
    blocks = [
        leave_out(number, rows)
        for number, rows in enumerate(iter_rows(stretch, HASH_ROW_BYTES), block)
    ]
    counts = array("I", (len(rows) // HASH_ROW_BYTES for rows in blocks))
    return stretch._replace(counts=counts, rows=memoryview(b"".join(blocks)))


def _write_merged(
    output: OutputWriter, found: Sequence[_Found], buffer_bytes: int
) -> dict[str, Any]:
    """Merge the positions of several passes, so that those of each part are sorted."""
    output.begin("places")
    total = array("q")
    begins = [0] * len(found)
    for sizes in zip(*(row.num_bytes for row in found), strict=True):
        merger = _native.PlaceMerger(
            [
                (row.path, begin, size // PLACE_BYTES)
                for row, begin, size in zip(found, begins, sizes, strict=True)
                if size
            ],
            buffer_bytes,
        )
        while len(places := merger.read(buffer_bytes // PLACE_BYTES)):
            output.write(places)
        begins = [begin + size for begin, size in zip(begins, sizes, strict=True)]
        total.append(sum(sizes))
    return _write_starts(output, total)


def _write_starts(output: OutputWriter, num_bytes: array[int]) -> dict[str, Any]:
    starts = array("q", accumulate(num_bytes, initial=0))
    output.section("starts", memoryview(starts).cast("B"))
    return {"parts": len(num_bytes)}


def _too_many() -> MemoryError:
    return MemoryError("more different lines in one partition than was planned for")


class PartitionDuplicates(NamedTuple):
    """The result of a partition; a worker reads a little of it for each part."""

    output: Output
    starts: memoryview | None
    """The offset of each part's positions; None if there are too many parts to keep that."""

    def find(self, part: int) -> tuple[int, int]:
        """The begin and end of the positions of a part."""
        if self.starts is not None:
            return self.starts[part], self.starts[part + 1]
        begin, end = self.output.read("starts", begin=8 * part, end=8 * (part + 2)).cast("q")
        return begin, end


def open_duplicates(job: StagedJob) -> list[PartitionDuplicates]:
    """The results of all partitions; a worker opens them once, not for each of its parts."""
    count = DuplicateStage(job).count_tasks()
    are_kept = 8 * (len(job.parts) + 1) * count <= job.limits.starts_bytes
    opened: list[PartitionDuplicates] = []
    for index in range(count):
        output = replace(job.records.open(Task(DUPLICATE_STAGE, index)), header={})
        starts = memoryview(bytes(output.read("starts"))).cast("q") if are_kept else None
        opened.append(PartitionDuplicates(output, starts))
    return opened


class PartDuplicates:
    """The lines to remove from one part; blocks must be requested in order."""

    def __init__(
        self,
        partitions: Iterable[PartitionDuplicates],
        part: int,
        scratch: TaskScratch,
        *,
        room_bytes: int,
    ) -> None:
        self._runs: list[tuple[Path, int, int]] = []
        self._scratch = scratch
        self._room_bytes = room_bytes
        self._merger: _native.PlaceMerger | None = None
        held = bytearray()
        for partition in partitions:
            begin, end = partition.find(part)
            for at in range(begin, end, room_bytes):
                held += partition.output.read("places", begin=at, end=min(at + room_bytes, end))
                if len(held) >= room_bytes:
                    self._spill(held)
                    held.clear()
        if self._runs:
            self._spill(held)
            held.clear()
            self._merger = _native.PlaceMerger(self._runs, room_bytes)
        self._held = _native.sort_places(memoryview(held)).cast("Q")

    def _spill(self, held: bytearray) -> None:
        """Append sorted positions to the scratch file."""
        path = self._scratch.folder / "places"
        with path.open("ab") as file:
            self._runs.append((path, file.tell(), len(held) // PLACE_BYTES))
            file.write(_native.sort_places(memoryview(held)))

    def load(self, number: int) -> memoryview:
        """The sorted lines (and marked documents) to remove from a block, as uint32."""
        low, high = number << 32, (number + 1) << 32
        while self._merger is not None and not (self._held and self._held[-1] >= high):
            more = self._merger.read(self._room_bytes // PLACE_BYTES)
            if not len(more):
                self._merger = None
                break
            left = self._held[bisect_left(self._held, low) :]
            self._held = memoryview(left.tobytes() + more).cast("Q")
        begin, end = bisect_left(self._held, low), bisect_left(self._held, high)
        return memoryview(self._held.cast("B").cast("I")[2 * begin : 2 * end : 2].tobytes())
