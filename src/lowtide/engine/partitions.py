"""Rows of a task by partition, and one partition's rows of all tasks of a stage.

In:      rows of blocks, each block's sorted by the first byte of what they are told apart by
Out:     two sections of a task's result: all rows of the first partition, block by block, then
         those of the next; and where each block's end
Memory:  a few numbers per block; its rows wait until the task is done, on disk beyond the room they
         have; a reader keeps some thousand numbers

Each task writes one file, of which other tasks read parts: a file for each pair of tasks would be
millions of files.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lowtide.engine.outputs import Output, OutputWriter
from lowtide.engine.records import Records
from lowtide.engine.tasks import Task
from lowtide.engine.taskscratch import HeldBytes

__all__ = ["PartitionReader", "PartitionSections", "PartitionedRows"]

_COPY_BYTES = 1 << 20
_ENDS_KEPT = 1 << 14


@dataclass(frozen=True)
class PartitionSections:
    """What the two sections are called, and how long a row is."""

    rows: str
    ends: str
    row_bytes: int


class PartitionedRows:
    """The rows of one task: they wait by block, and are by partition in the result."""

    def __init__(
        self,
        sections: PartitionSections,
        borders: Sequence[tuple[int, int]],
        waiting: HeldBytes,
        *,
        copy_bytes: int = _COPY_BYTES,
    ) -> None:
        self._copy_bytes = copy_bytes
        self._sections = sections
        self._borders = borders
        self._waiting = waiting
        self._starts = array("q")  # of each block's rows
        self._radix_ends: list[memoryview] = []

    def add(self, rows: memoryview, radix_ends: memoryview) -> None:
        """Take the rows of the next block, and where those of each first byte end."""
        self._starts.append(self._waiting.size)
        self._radix_ends.append(memoryview(bytes(radix_ends)).cast("q"))
        self._waiting.write(rows)

    def write(self, output: OutputWriter) -> None:
        """Write both sections."""
        output.begin(self._sections.rows)
        ends, total, row_bytes = array("q"), 0, self._sections.row_bytes
        for first, last in self._borders:
            for start, radix_ends in zip(self._starts, self._radix_ends, strict=True):
                begin = radix_ends[first - 1] if first else 0
                total += radix_ends[last - 1] - begin
                ends.append(total)
                end = start + radix_ends[last - 1] * row_bytes
                for at in range(start + begin * row_bytes, end, self._copy_bytes):
                    output.write(self._waiting.read(at, min(at + self._copy_bytes, end)))
        output.section(self._sections.ends, memoryview(ends).cast("B"))


class PartitionReader:
    """One partition's rows of all tasks of a stage."""

    def __init__(
        self,
        records: Records,
        stage: str,
        sections: PartitionSections,
        *,
        num_tasks: int,
        num_partitions: int,
        partition: int,
        ends_kept: int = _ENDS_KEPT,
        copy_bytes: int = _COPY_BYTES,
    ) -> None:
        self._records = records
        self._stage = stage
        self._sections = sections
        self._num_tasks = num_tasks
        self._num_partitions = num_partitions
        self._partition = partition
        self._copy_bytes = copy_bytes
        self.num_blocks = array("q")  # of each task
        self.num_rows = 0
        self._kept: list[tuple[Output, memoryview]] = []
        num_ends = 0
        for output, ends in self._iter_ends():
            self.num_blocks.append(len(ends) - 1)
            self.num_rows += ends[-1] - ends[0]
            num_ends += len(ends)
            if num_ends <= ends_kept:
                self._kept.append((output, memoryview(bytes(ends)).cast("q")))

    def _iter_ends(self) -> Iterator[tuple[Output, memoryview]]:
        """Each task's file, and where the rows of its blocks end, the first block's begin first.

        What the first look kept is not read again.
        """
        yield from self._kept
        for number in range(len(self._kept), self._num_tasks):
            names = (self._sections.rows, self._sections.ends)
            output = self._records.open_sections(Task(self._stage, number), names)
            name = self._sections.ends
            count = output.size(name) // 8 // self._num_partitions
            first = self._partition * count
            ends = output.read(name, begin=8 * max(first - 1, 0), end=8 * (first + count))
            if not first:
                ends = memoryview(bytes(8) + ends)
            yield output, ends.cast("q")

    def iter_blocks(self) -> Iterator[memoryview]:
        """The rows of each block, in the order of the tasks."""
        row_bytes, name = self._sections.row_bytes, self._sections.rows
        for output, ends in self._iter_ends():
            with output.path.open("rb", buffering=0) as file:
                for places in _join_stretches(ends, self._copy_bytes // row_bytes):
                    begin, end = places[0], places[-1]
                    rows = output.read_from(
                        file, name, begin=begin * row_bytes, end=end * row_bytes
                    )
                    for first, last in pairwise(places):
                        yield rows[(first - begin) * row_bytes : (last - begin) * row_bytes]


def _join_stretches(ends: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """Borders of blocks that are read together: `most` rows, or one block.

    >>> [list(places) for places in _join_stretches([0, 2, 3, 9, 9], 4)]
    [[0, 2, 3], [3, 9], [9, 9]]
    """
    first = 0
    for place in range(1, len(ends)):
        is_last = place + 1 == len(ends)
        if is_last or ends[place + 1] - ends[first] > most:
            yield ends[first : place + 1]
            first = place
