"""Rows of all tasks by partition: those of every block, in their order, kept or joined."""

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

SECTIONS = PartitionSections("rows", "ends", row_bytes=8)
BORDERS = [(0, 100), (100, 101), (101, 256)]


class Result:
    """Writes and reads the sections of one task, the rows in a file of their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sections: dict[str, bytes] = {}
        self.reads = 0
        self.stretches: list[int] = []

    def begin(self, name: str) -> None:
        self.sections[name] = b""

    def write(self, data: bytes) -> None:
        assert len(data) <= partitions._COPY_BYTES
        self.sections["rows"] += data

    def section(self, name: str, data: memoryview) -> None:
        self.sections[name] = bytes(data)
        self.path.write_bytes(self.sections["rows"])

    def size(self, name: str) -> int:
        return len(self.sections[name])

    def read(self, name: str, *, begin: int, end: int) -> memoryview:
        self.reads += 1
        return memoryview(self.sections[name][begin:end])

    def read_from(self, file: Any, name: str, *, begin: int, end: int) -> memoryview:
        assert file.name == str(self.path)
        self.stretches.append(end - begin)
        return memoryview(self.sections[name][begin:end])


def make_blocks(seed: int, count: int) -> list[list[bytes]]:
    """Blocks of rows that are sorted by their first byte, some of them empty."""
    rng = random.Random(seed)
    sizes = [rng.choice((0, 1, 5, 30)) for _ in range(count)]
    return [sorted(rng.randbytes(8) for _ in range(size)) for size in sizes]


def write_task(folder: Path, number: int, blocks: list[list[bytes]], *, copy_bytes: int) -> Result:
    made = Result(folder / f"{number}.rows")
    writer: Any = made
    # In memory, on disk, and both.
    room = (1 << 20, 0, 200)[number % 3]
    with TaskScratch(lambda: scratch_folder("test", inside=folder)) as scratch:
        rows = PartitionedRows(SECTIONS, BORDERS, scratch.hold(room), copy_bytes=copy_bytes)
        for block in blocks:
            firsts = np.array([row[0] for row in block], np.int64)
            ends = np.searchsorted(firsts, np.arange(256), side="right").astype("<i8")
            rows.add(memoryview(b"".join(block)), memoryview(ends.tobytes()))
        rows.write(writer)
    return made


@pytest.mark.parametrize("kept", [0, 7, 1 << 14])
@pytest.mark.parametrize("copied", [8, 64, 1 << 20])
def test_each_partition_has_the_rows_of_its_first_bytes(
    tmp_path: Path, kept: int, copied: int
) -> None:
    tasks = [make_blocks(number, count) for number, count in enumerate((3, 1, 5))]
    results = [write_task(tmp_path, *task, copy_bytes=copied) for task in enumerate(tasks)]

    class Records:
        def open_sections(self, task: Task, names: tuple[str, str]) -> Result:
            assert task.stage == "hash" and names == ("rows", "ends")
            return results[task.index]

    records: Any = Records()
    for number, (first, last) in enumerate(BORDERS):
        before = [result.reads for result in results]
        reader = PartitionReader(
            records, "hash", SECTIONS, num_tasks=3, num_partitions=3, partition=number,
            ends_kept=kept, copy_bytes=copied,
        )  # fmt: skip
        wanted = [
            b"".join(row for row in block if first <= row[0] < last)
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
        assert reader.num_rows == sum(map(len, wanted)) // 8
        assert reader.num_blocks.tolist() == [3, 1, 5]
        again = [result.reads - old for result, old in zip(results, before, strict=True)]
        # Borders of three, one and five blocks, one more of each: 4, 6 and 12 in all.
        assert again == {0: [2, 2, 2], 7: [1, 1, 2], 1 << 14: [1, 1, 1]}[kept]


def test_stretches_are_as_long_as_may_be_and_at_least_a_block() -> None:
    def joined(ends: list[int], most: int) -> list[list[int]]:
        return [list(places) for places in partitions._join_stretches(ends, most)]

    assert joined([0, 2, 4], 4) == [[0, 2, 4]]
    assert joined([0, 2, 5], 4) == [[0, 2], [2, 5]]
    assert joined([3, 9], 1) == [[3, 9]]
    assert joined([3], 1) == []
    assert joined([0, 0, 0], 1) == [[0, 0, 0]]
