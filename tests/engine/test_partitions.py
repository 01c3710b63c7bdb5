"""Rows of all tasks by partition: those of every block, in order, kept or joined."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.engine import partitions
from lowtide.engine.partitions import PartitionedRows, PartitionReader, PartitionSections
from lowtide.engine.tasks import Task
from lowtide.engine.taskscratch import TaskScratch
from lowtide.scratch import scratch_folder

SECTIONS = PartitionSections("rows", "ends", row_bytes=16)
BYTES = [(0, 100 << 8), (100 << 8, 101 << 8), (101 << 8, 1 << 16)]
BITS = [(0, 0x6401), (0x6401, 0x64F0), (0x64F0, 0x6500), (0x6500, 0x65F0), (0x65F0, 1 << 16)]


class Result:
    """Writes and reads the sections of one task, with the rows in a separate file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sections: dict[str, bytes] = {}
        self.reads = 0
        self.stretches: list[int] = []

    def begin(self, name: str) -> None:
        self.sections[name] = b""

    def write(self, data: bytes) -> None:
        assert len(data) <= partitions._COPY_BYTES
        name = list(self.sections)[-1]
        self.sections[name] += data

    def section(self, name: str, data: memoryview) -> None:
        self.sections[name] = bytes(data)
        self.path.write_bytes(self.sections["rows"])

    def read(self, name: str, *, begin: int = 0, end: int) -> memoryview:
        self.reads += 1
        return memoryview(self.sections[name][begin:end])

    def read_from(self, file: Any, name: str, *, begin: int, end: int) -> memoryview:
        assert file.name == str(self.path)
        if name == "rows":
            self.stretches.append(end - begin)
        return memoryview(self.sections[name][begin:end])


def make_blocks(seed: int, count: int) -> list[list[bytes]]:
    """Blocks of rows that are sorted by the first byte of their keys, some of them empty.

    One first byte has more rows than others, with more than 255 of one block.
    """
    rng = random.Random(seed)
    sizes = [rng.choice((0, 1, 5, 30, 600)) for _ in range(count)]

    def make_row() -> bytes:
        return rng.randbytes(7) + bytes([rng.choice((0x64, rng.randrange(256)))]) + rng.randbytes(8)

    return [sorted((make_row() for _ in range(size)), key=lambda row: row[7]) for size in sizes]


def write_task(
    folder: Path,
    number: int,
    blocks: list[list[bytes]],
    borders: list[tuple[int, int]],
    *,
    copy_bytes: int,
) -> Result:
    made = Result(folder / f"{number}.rows")
    writer: Any = made
    # In memory, on disk, and both.
    room = (1 << 20, 0, 200)[number % 3]
    with TaskScratch(lambda: scratch_folder("test", inside=folder)) as scratch:
        rows = PartitionedRows(
            SECTIONS, borders, scratch.hold(room), copy_bytes=copy_bytes, join_bytes=copy_bytes
        )
        for block in blocks:
            firsts = np.array([row[7] for row in block], np.int64)
            ends = np.searchsorted(firsts, np.arange(256), side="right").astype("<i8")
            rows.add(memoryview(b"".join(block)), memoryview(ends.tobytes()))
        rows.write(writer)
    return made


@pytest.mark.parametrize("copied", [16, 128, 1 << 20])
@pytest.mark.parametrize("borders", [BYTES, BITS], ids=["bytes", "bits"])
def test_each_partition_has_the_rows_of_its_first_bits(
    tmp_path: Path, borders: list[tuple[int, int]], copied: int
) -> None:
    tasks = [make_blocks(number, count) for number, count in enumerate((3, 1, 5))]
    results = [write_task(tmp_path, *task, borders, copy_bytes=copied) for task in enumerate(tasks)]

    class Records:
        def open_sections(self, task: Task, names: tuple[str, ...]) -> Result:
            assert task.stage == "hash" and names == ("rows", "rows_counts", "ends")
            return results[task.index]

    records: Any = Records()
    assert [partitions.count_blocks(result, SECTIONS) for result in results] == [3, 1, 5]  # type: ignore[arg-type]
    for number, (first, last) in enumerate(borders):
        before = [result.reads for result in results]
        reader = PartitionReader(
            records, "hash", SECTIONS, num_tasks=3, partition=number, copy_bytes=copied
        )
        wanted = [
            b"".join(row for row in block if first <= row[7] << 8 | row[6] < last)
            for blocks in tasks
            for block in blocks
        ]
        for result in results:
            result.stretches.clear()
        assert list(map(bytes, reader.iter_blocks())) == wanted
        read = [size for result in results for size in result.stretches]
        assert sum(read) == sum(map(len, wanted))
        assert max(read) <= max(copied, *map(len, wanted))  # so much at once, or one block
        assert len(read) == 3 or copied < 1 << 20
        assert reader.num_rows == sum(map(len, wanted)) // 16
        assert [result.reads - old for result, old in zip(results, before, strict=True)] == [1] * 3
        stretches = list(reader.iter_stretches())
        assert [(one.task, one.first_block + place) for one in stretches
                for place in range(len(one.counts))] == [
            (task, place) for task, blocks in enumerate(tasks) for place in range(len(blocks))
        ]  # fmt: skip


def test_counts_take_a_byte_each_where_that_is_enough(tmp_path: Path) -> None:
    """With 100 TB, one for each of 24 million blocks in each of 3,000 partitions."""
    row = bytes(16)
    for most, width in ((255, 1), (256, 2), (65_536, 4)):
        made = write_task(tmp_path, 0, [[row] * most, [], [row]], BITS, copy_bytes=1 << 20)
        of_others = 3 * (len(BITS) - 1)
        assert len(made.sections["rows_counts"]) == 3 * width + of_others


def test_rows_are_joined_once_for_all_partitions_of_a_first_byte(tmp_path: Path) -> None:
    reads: list[tuple[int, int]] = []

    class Waiting:
        size = 0

        def write(self, data: bytes) -> None:
            self.size += len(data)

        def read(self, begin: int, end: int) -> memoryview:
            reads.append((begin, end))
            return memoryview(bytes(end - begin))

    waiting: Any = Waiting()
    rows = PartitionedRows(SECTIONS, [(64 * n, 64 * n + 64) for n in range(1 << 10)], waiting)
    ends = np.full(256, 2, "<i8")
    ends[0] = 1
    rows.add(memoryview(bytes(32)), memoryview(ends.tobytes()))
    writer: Any = Result(tmp_path / "rows")
    rows.write(writer)
    assert [end - begin for begin, end in reads if begin < 32] == [16, 16]


def test_blocks_are_read_together_as_far_as_may_be() -> None:
    def joined(counts: list[int], most: int) -> list[tuple[int, int]]:
        return list(partitions._join_blocks(counts, most))

    assert joined([2, 2], 4) == [(0, 2)]
    assert joined([2, 3], 4) == [(0, 1), (1, 2)]
    assert joined([6], 1) == [(0, 1)]
    assert joined([], 1) == []
    assert joined([0, 0], 1) == [(0, 2)]
    assert joined([1, 9, 0, 1, 0], 1) == [(0, 1), (1, 2), (2, 5)]
