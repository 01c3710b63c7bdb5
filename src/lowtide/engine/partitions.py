"""Partition the rows of a task by key, and read the rows of one partition from all tasks.

In:      rows of blocks, each block's sorted by the first byte of their keys
Out:     three sections of a task's result: the rows of the first partition, block by block, then
         those of the next; the number of rows of each block in each partition; partition offsets
Memory:  2 KiB per block of a task, `join_bytes` or a block of rows; rows and counts are kept until
         the task is done, and spilled to disk beyond their limit; a reader keeps 40 bytes per task

Each task writes one file, from which other tasks read parts: a file for each pair of tasks would be
millions of files.

With 100 TB a block has about four rows in each of 3,000 partitions, so the data for each block and
partition has to be small: a count, of one byte if no block of a partition has more than 255 rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lowtide import _native
from lowtide.engine.outputs import Output, OutputWriter
from lowtide.engine.records import Records
from lowtide.engine.tasks import Task
from lowtide.engine.taskscratch import HeldBytes

__all__ = [
    "PartitionReader",
    "PartitionSections",
    "PartitionedRows",
    "RowStretch",
    "count_blocks",
    "iter_rows",
]

_COPY_BYTES = 1 << 20
_JOIN_BYTES = 8 << 20
"""Buffer for rows of one first byte: of a petabyte, a task has 5 MiB of them."""
_PLACE_NUMBERS = 5


class PartitionSections(NamedTuple):
    """The names of the sections, and the size of a row."""

    rows: str
    ends: str
    row_bytes: int

    @property
    def counts(self) -> str:
        """The section with the number of rows of each block in each partition."""
        return f"{self.rows}_counts"

    @property
    def names(self) -> tuple[str, str, str]:
        """All sections."""
        return self.rows, self.counts, self.ends


class _Place(NamedTuple):
    """The location of a partition in a task's result: rows, bytes of counts, and blocks."""

    first_row: int
    row_end: int
    first_count: int
    count_end: int
    num_blocks: int


class RowStretch(NamedTuple):
    """Rows of consecutive blocks of a task."""

    task: int
    first_block: int
    """Its index in the task."""
    counts: array[int]
    """The number of rows of each block."""
    rows: memoryview


class PartitionedRows:
    """The rows of one task: kept by block until the end, then written by partition.

    `borders` are the first and the last + 1 of the first 16 bits of each partition's keys.
    """

    def __init__(
        self,
        sections: PartitionSections,
        borders: Sequence[tuple[int, int]],
        waiting: HeldBytes,
        *,
        copy_bytes: int = _COPY_BYTES,
        join_bytes: int = _JOIN_BYTES,
    ) -> None:
        self._copy_bytes = copy_bytes
        self._join_bytes = join_bytes
        self._sections = sections
        self._borders = borders
        self._waiting = waiting
        self._starts = array("q")  # of each block's rows
        self._radix_ends: list[memoryview] = []
        self._joined: tuple[tuple[int, int, int], array[int], memoryview] | None = None

    def add(self, rows: memoryview, radix_ends: memoryview) -> None:
        """Add the rows of the next block, and where those of each first byte end."""
        self._starts.append(self._waiting.size)
        self._radix_ends.append(memoryview(bytes(radix_ends)).cast("q"))
        self._waiting.write(rows)

    def write(self, output: OutputWriter) -> None:
        """Write all sections; counts are kept until all rows are written."""
        counts_at = self._waiting.size
        places, row, begin = array("q"), 0, 0
        output.begin(self._sections.rows)
        for first, last in self._borders:
            if first % 256 or last % 256:
                counts = self._pick(output, first, last)
            else:
                counts = self._copy(output, first // 256, last // 256)
            packed = _pack(counts)
            self._waiting.write(packed)
            place = _Place(row, row + sum(counts), begin, begin + len(packed), len(counts))
            places.extend(place)
            row, begin = place.row_end, place.count_end
        output.begin(self._sections.counts)
        for piece in self._iter_waiting(counts_at, counts_at + begin):
            output.write(piece)
        output.section(self._sections.ends, memoryview(places).cast("B"))

    def _iter_waiting(self, begin: int, end: int) -> Iterator[memoryview]:
        for at in range(begin, end, self._copy_bytes):
            yield self._waiting.read(at, min(at + self._copy_bytes, end))

    def _find(self, block: int, first: int, last: int) -> tuple[int, int]:
        """The range in the kept rows where first bytes of a block are `first` to `last` - 1."""
        ends, start = self._radix_ends[block], self._starts[block]
        row_bytes = self._sections.row_bytes
        begin = ends[first - 1] if first else 0
        return start + begin * row_bytes, start + ends[last - 1] * row_bytes

    def _copy(self, output: OutputWriter, first: int, last: int) -> array[int]:
        """Write the rows of a range of first bytes; return how many each block has."""
        counts = array("I")
        for block in range(len(self._starts)):
            begin, end = self._find(block, first, last)
            counts.append((end - begin) // self._sections.row_bytes)
            for piece in self._iter_waiting(begin, end):
                output.write(piece)
        return counts

    def _pick(self, output: OutputWriter, first: int, last: int) -> array[int]:
        """Write the rows of a partition that covers part of a first byte, and count them."""
        counts = array("I")
        while len(counts) < len(self._starts):
            joined, rows = self._join(len(counts), first // 256, -(-last // 256))
            picked, left = _native.pick_rows(rows, memoryview(joined).cast("B"), first, last)
            output.write(picked)
            counts.frombytes(left)
        return counts

    def _join(self, block: int, first: int, last: int) -> tuple[array[int], memoryview]:
        """The rows of blocks from `block` on, in a range of first bytes, and how many each has.

        The last result is cached, because the next partitions need the same rows.
        """
        key = (block, first, last)
        if self._joined is None or self._joined[0] != key:
            self._joined = None
            rows, counts = bytearray(), array("I")
            for number in range(block, len(self._starts)):
                begin, end = self._find(number, first, last)
                if counts and len(rows) + end - begin > self._join_bytes:
                    break
                counts.append((end - begin) // self._sections.row_bytes)
                rows += self._waiting.read(begin, end)
            self._joined = key, counts, memoryview(rows)
        return self._joined[1:]


def _pack(counts: array[int]) -> bytes:
    """Counts in the fewest bytes each that all of them fit in.

    >>> _pack(array("I", [1, 255])), _pack(array("I", [1, 256]))
    (b'\\x01\\xff', b'\\x01\\x00\\x00\\x01')
    """
    most = max(counts, default=0)
    return array("B" if most < 1 << 8 else "H" if most < 1 << 16 else "I", counts).tobytes()


def _unpack(data: memoryview, num_blocks: int) -> array[int]:
    width = len(data) // max(num_blocks, 1)
    if width > 2:
        return array("I", data.cast("I"))
    return array("I", data.cast("H") if width == 2 else data)


def count_blocks(output: Output, sections: PartitionSections) -> int:
    """The number of blocks of the task that wrote these sections."""
    place = output.read(sections.ends, end=8 * _PLACE_NUMBERS)
    return _Place(*place.cast("q")).num_blocks


class PartitionReader:
    """One partition's rows of all tasks of a stage."""

    def __init__(
        self,
        records: Records,
        stage: str,
        sections: PartitionSections,
        *,
        num_tasks: int,
        partition: int,
        copy_bytes: int = _COPY_BYTES,
    ) -> None:
        self._records = records
        self._stage = stage
        self._sections = sections
        self._copy_bytes = copy_bytes
        self._places = array("q")
        begin = 8 * _PLACE_NUMBERS * partition
        for task in range(num_tasks):
            place = self._open(task).read(
                sections.ends, begin=begin, end=begin + 8 * _PLACE_NUMBERS
            )
            self._places.frombytes(place)
        self.num_tasks = num_tasks
        self.num_rows = sum(self._places[1::_PLACE_NUMBERS]) - sum(self._places[::_PLACE_NUMBERS])

    def _open(self, task: int) -> Output:
        return self._records.open_sections(Task(self._stage, task), self._sections.names)

    def iter_stretches(self) -> Iterator[RowStretch]:
        """All rows in the order of the tasks, with their blocks; some MiB or one block at once."""
        row_bytes = self._sections.row_bytes
        for task in range(self.num_tasks):
            at = _PLACE_NUMBERS * task
            place = _Place(*self._places[at : at + _PLACE_NUMBERS])
            output = self._open(task)
            with output.path.open("rb", buffering=0) as file:
                packed = output.read_from(
                    file, self._sections.counts, begin=place.first_count, end=place.count_end
                )
                counts, row = _unpack(packed, place.num_blocks), place.first_row
                for first, last in _join_blocks(counts, self._copy_bytes // row_bytes):
                    some = counts[first:last]
                    begin, row = row, row + sum(some)
                    rows = output.read_from(
                        file, self._sections.rows, begin=begin * row_bytes, end=row * row_bytes
                    )
                    yield RowStretch(task, first, some, rows)

    def iter_blocks(self) -> Iterator[memoryview]:
        """The rows of each block, in the order of the tasks."""
        for stretch in self.iter_stretches():
            yield from iter_rows(stretch, self._sections.row_bytes)


def iter_rows(stretch: RowStretch, row_bytes: int) -> Iterator[memoryview]:
    """The rows of each block of a stretch."""
    begin = 0
    for count in stretch.counts:
        end = begin + count * row_bytes
        yield stretch.rows[begin:end]
        begin = end


def _join_blocks(counts: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """First and last + 1 of blocks that are read together: `most` rows, or one block.

    >>> list(_join_blocks([2, 1, 6, 0], 4)), list(_join_blocks([], 4))
    ([(0, 2), (2, 3), (3, 4)], [])
    """
    if sum(counts) <= most and counts:
        yield 0, len(counts)
        return
    first, held = 0, 0
    for place, count in enumerate(counts):
        if place > first and held + count > most:
            yield first, place
            first, held = place, 0
        held += count
    if counts:
        yield first, len(counts)
