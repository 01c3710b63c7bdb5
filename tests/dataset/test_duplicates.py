"""Duplicate lines by partition: how they are counted, stored and read."""

from __future__ import annotations

import contextlib
import io
import struct
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.corpus.deduplication import TABLE_ROW_BYTES
from lowtide.dataset.staged import duplicates
from lowtide.dataset.staged.duplicates import (
    DuplicateStage,
    PartDuplicates,
    PartitionDuplicates,
    Tally,
    count_passes,
    open_duplicates,
)
from lowtide.engine.outputs import Output
from lowtide.engine.partitions import RowStretch
from lowtide.engine.tasks import Task
from lowtide.engine.taskscratch import TaskScratch


class Sections:
    """A stand-in for a writer and an output: sections by name."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self.name = ""

    def begin(self, name: str) -> None:
        self.name, self.found[name] = name, b""

    def write(self, data: Any) -> None:
        self.found[self.name] += bytes(data)

    def section(self, name: str, data: Any) -> None:
        self.found[name] = bytes(data)

    def read(self, name: str, *, begin: int = 0, end: int | None = None) -> memoryview:
        return memoryview(self.found[name][begin:end])


@pytest.mark.parametrize(
    ("rows", "tables", "passes"),
    [(0, 0, 1), (8, 8, 1), (9, 8, 2), (12, 8, 2), (13, 8, 3), (2, 1, 2), (3, 0, 3)],
)
def test_hashes_are_gone_through_until_a_table_has_all(rows: int, tables: int, passes: int) -> None:
    """With several passes, a table is filled to three quarters: 6 of 8 rows."""
    assert count_passes(rows, tables * TABLE_ROW_BYTES) == passes


def test_parts_are_numbered_and_documents_go_on() -> None:
    facts = [
        {"blocks": 2, "open_document": None}, {"blocks": 0, "open_document": [1, 5]},
        {"blocks": 3, "open_document": None}, {"blocks": 1, "open_document": [2, 7]},
    ]  # fmt: skip
    output: Any = Sections()
    job: Any = SimpleNamespace(
        parts=facts, records=SimpleNamespace(read=lambda task: {"facts": facts[task.index]})
    )
    header = duplicates._write_tally(job, output)
    assert header == {"open_documents": {2: [1, 5], 3: [1, 5]}}
    output.header = {"open_documents": {"2": [1, 5]}}
    job.records.open = lambda task: output
    tally = Tally.load(job)
    assert list(tally.first_blocks) == [0, 2, 2, 5, 6]
    assert tally.open_documents == {2: (1, 5)}


def places_of(*places: tuple[int, int]) -> bytes:
    """Blocks and lines as results have them."""
    return np.array([block << 32 | line for block, line in places], "<u8").tobytes()


@pytest.mark.parametrize("buffer_bytes", [8, 1 << 20])
def test_places_of_all_passes_are_laid_out_by_part(tmp_path: Path, buffer_bytes: int) -> None:
    """Two passes, three parts; the second has nothing."""
    output: Any = Sections()
    passes = [[(0, 5), (1, 1), (0, 9)], [(0, 3), (1, 4), (1, 6)]]
    found: list[duplicates._Found] = []
    for number, (places, sizes) in enumerate(zip(passes, ([16, 0, 8], [24, 0, 0]), strict=True)):
        (tmp_path / str(number)).write_bytes(places_of(*places))
        found.append(duplicates._Found(tmp_path / str(number), array("q", sizes)))
    assert duplicates._write_merged(output, found, buffer_bytes) == {"parts": 3}
    assert np.frombuffer(output.found["starts"], "<i8").tolist() == [0, 40, 40, 48]
    assert output.found["places"] == places_of((0, 3), (0, 5), (1, 1), (1, 4), (1, 6), (0, 9))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("room_bytes", [8, 16, 24, 1 << 20])
def test_lines_of_a_part_are_found_again_block_by_block(
    tmp_path: Path, room_bytes: int, kept: bool
) -> None:
    """In memory, or in runs on disk that are merged as blocks are requested."""
    partitions: list[PartitionDuplicates] = []
    for places, ends in (
        ([(0, 3), (1, 1 << 31), (3, 5), (2, 9)], [0, 24, 24, 32]),
        ([(0, 1), (0, 2), (0, 4), (3, 1), (2, 8)], [0, 32, 32, 40]),
        ([], [0, 0, 0, 0]),
    ):
        stored: Any = Sections()
        starts = np.array(ends, "<i8").tobytes()
        stored.found = {"starts": starts, "places": places_of(*places)}
        known = memoryview(starts).cast("q") if kept else None
        partitions.append(PartitionDuplicates(stored, known))
    assert [partitions[0].find(part) for part in range(3)] == [(0, 24), (24, 24), (24, 32)]
    wanted = [[[1, 2, 3, 4], [1 << 31], [], [1, 5], []], [[], []], [[], [], [8, 9]]]
    for part, blocks in enumerate(wanted):
        folder = tmp_path / str(part)
        folder.mkdir()
        with TaskScratch(lambda folder=folder: contextlib.nullcontext(folder)) as scratch:
            found = PartDuplicates(partitions, part, scratch, room_bytes=room_bytes)
            asked = [found.load(number) for number in range(len(blocks))]
        assert [np.frombuffer(lines, "<u4").tolist() for lines in asked] == blocks
        assert any(folder.iterdir()) == (part != 1 and 8 * sum(map(len, blocks)) >= room_bytes)


def test_starts_are_kept_where_they_are_few() -> None:
    starts = np.array([0, 4, 8], "<i8").tobytes()

    class Opened(Output):
        def read(self, name: str, **place: Any) -> memoryview:  # type: ignore[override]
            return memoryview(starts)

    for limit, kept in ((2 * 3 * 8, True), (2 * 3 * 8 - 1, False)):
        job: Any = SimpleNamespace(
            parts=[1, 2], settings=SimpleNamespace(dedup=True),
            sizes=SimpleNamespace(num_partitions=2), limits=SimpleNamespace(starts_bytes=limit),
            records=SimpleNamespace(
                open=lambda task: Opened(Path("a"), {"parts": 2}, {"starts": (0, 24)}, 24)
            ),
        )  # fmt: skip
        opened = open_duplicates(job)
        assert len(opened) == 2
        assert all((one.starts is not None) is kept for one in opened)
        assert opened[0].output.header == {}
    job.settings.dedup = False
    assert DuplicateStage(job).count_tasks() == 0 and open_duplicates(job) == []


def hash_rows(*rows: tuple[int, int]) -> memoryview:
    """Hashes that differ in their first bytes, and their lines."""
    return memoryview(b"".join(struct.pack("<QII", high << 50, high, line) for high, line in rows))


def reader_of(tasks: list[list[list[tuple[int, int]]]]) -> Any:
    """A stand-in for a reader: tasks of blocks of rows, one range each."""
    stretches = [
        RowStretch(
            task,
            0,
            array("I", map(len, blocks)),
            hash_rows(*(row for rows in blocks for row in rows)),
        )
        for task, blocks in enumerate(tasks)
        if blocks
    ]
    return SimpleNamespace(
        num_tasks=len(tasks),
        num_rows=sum(len(rows) for blocks in tasks for rows in blocks),
        iter_stretches=lambda: iter(stretches),
    )


EXISTING = [[[(1, 0)]], [[], [(2, 0), (3, 0)]]]
HASHED = [[[(1, 7), (4, 8)], [(4, 1), (5, 3), (2, 2)]], [], [[(5, 0), (6, 1)]]]


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_a_pass_knows_the_dataset_before_the_text(passes: int) -> None:
    search = duplicates.Search(reader_of(EXISTING), reader_of(HASHED), None, 0)
    assert search.num_rows == 10
    found: list[int] = []
    parts = [0] * 3
    for number in range(passes):
        data = io.BytesIO()
        sizes = search.find(number, passes, data.write)
        parts = [before + size for before, size in zip(parts, sizes, strict=True)]
        places = np.frombuffer(data.getvalue(), "<u8").tolist()
        assert sum(sizes) == 8 * len(places)
        found += places
    assert sorted(found) == sorted([0 << 32 | 7, 1 << 32 | 1, 1 << 32 | 2, 0])
    assert parts == [24, 0, 8]


def test_hashes_of_documents_that_go_are_not_compared() -> None:
    """Blocks are counted over all parts: the third is the first of the last part."""
    asked: list[int] = []

    def leave_out(block: int, rows: memoryview) -> memoryview:
        asked.append(block)
        return rows[16:] if block < 2 else rows

    search = duplicates.Search(reader_of([]), reader_of(HASHED), leave_out, 3)
    output: Any = Sections()
    assert search.write(output) == {"parts": 3}
    assert asked == [0, 1, 2]
    assert output.found["places"] == places_of((0, 0))  # 5 is a duplicate; the first 4 was removed
    assert np.frombuffer(output.found["starts"], "<i8").tolist() == [0, 0, 0, 8]


@pytest.mark.parametrize("existing", [True, False])
def test_more_rows_than_were_counted_are_an_error(existing: bool) -> None:
    rows = reader_of([[[(number, number) for number in range(9)]]])
    rows.num_rows = 2
    search = duplicates.Search(*(rows, reader_of([]))[:: 1 if existing else -1], None, 0)  # type: ignore[arg-type]
    with pytest.raises(MemoryError, match="more different lines"):
        search.find(0, 1, io.BytesIO().write)


@pytest.mark.parametrize("passes", [1, 3])
def test_a_partition_is_gone_through_and_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: int
) -> None:
    """The result does not depend on the number of passes."""
    readers: list[Any] = []

    def reader(records: Any, stage: str, sections: Any, **more: Any) -> Any:
        readers.append((stage, more))
        return reader_of(EXISTING if stage == "existing" else HASHED)

    output: Any = Sections()
    committed: list[Any] = []
    job: Any = SimpleNamespace(
        records=SimpleNamespace(
            scratch_folder=lambda: contextlib.nullcontext(tmp_path),
            write=lambda task, write: committed.append((task, write(output))),
        ),
        sizes=SimpleNamespace(num_partitions=4, shared_bits=2),
        limits=SimpleNamespace(places_bytes=16),
        settings=SimpleNamespace(dedup=True), parts=[1, 2, 3], finders=[],
        table_bytes=(10 if passes == 1 else 6) * TABLE_ROW_BYTES,
    )  # fmt: skip
    monkeypatch.setattr(duplicates, "PartitionReader", reader)
    DuplicateStage(job, num_existing=5).run(3)
    assert readers == [
        ("existing", {"num_tasks": 5, "partition": 3}), ("hash", {"num_tasks": 3, "partition": 3})
    ]  # fmt: skip
    assert committed == [(Task("duplicates", 3), {"parts": 3})]
    assert output.found["places"] == places_of((0, 7), (1, 1), (1, 2), (0, 0))
    assert len(list(tmp_path.iterdir())) == (0 if passes == 1 else passes)
