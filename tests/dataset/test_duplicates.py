"""Lines that came before, by partition: how they are counted, laid out and found again."""

from __future__ import annotations

import contextlib
import io
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
from lowtide.engine.tasks import Task


class Sections:
    """Stands for a writer and an output: sections by name."""

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
    """A table is filled to three quarters where there are several passes: 6 of 8 rows."""
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


def test_lines_of_all_passes_are_laid_out_by_part() -> None:
    """Two passes, parts of two, none and one blocks."""
    output: Any = Sections()
    lines = [[[5, 1], [], [9]], [[3], [4], []]]
    counts = [array("q", map(len, rows)) for rows in lines]
    found = [
        io.BytesIO(np.array([one for block in rows for one in block], "<u4").tobytes())
        for rows in lines
    ]
    hashed: Any = SimpleNamespace(num_blocks=[2, 0, 1])
    assert duplicates._write(output, hashed, found, counts) == {"parts": 3}
    assert np.frombuffer(output.found["starts"], "<i8").tolist() == [0, 24, 24, 32]
    assert np.frombuffer(output.found["lines"], "<u4").tolist() == [3, 4, 1, 3, 5, 4, 1, 9]


@pytest.mark.parametrize("kept", [True, False])
def test_lines_of_a_part_are_found_again_block_by_block(tmp_path: Path, kept: bool) -> None:
    starts = np.array([0, 24, 24, 32], "<i8").tobytes()
    rows = np.array([3, 4, 1, 3, 5, 4, 1, 9], "<u4").tobytes()
    (tmp_path / "a").write_bytes(b"head" + rows)
    asked: list[Any] = []

    class Copies:
        def find(self, output: Any, name: str, *, begin: int, end: int) -> tuple[Path, int]:
            asked.append((name, begin, end))
            return tmp_path / "a", 4 + begin

    stored: Any = Sections()
    stored.found = {"starts": starts}
    partition = PartitionDuplicates(stored, memoryview(starts).cast("q") if kept else None)
    assert [partition.find(part) for part in range(3)] == [(0, 24), (24, 24), (24, 32)]
    copies: Any = Copies()
    first = PartDuplicates([partition, partition], 0, 2, copies)
    blocks = [np.frombuffer(first.load(number), "<u4").tolist() for number in range(2)]
    assert blocks == [[1, 1, 3, 3, 5, 5], [4, 4]]  # of both partitions, sorted
    last = PartDuplicates([partition], 2, 1, copies)
    assert np.frombuffer(last.load(0), "<u4").tolist() == [9]
    assert asked == [("lines", 0, 24)] * 2 + [("lines", 24, 32)]


def test_a_partition_without_lines_of_a_part_is_not_read() -> None:
    starts = memoryview(np.array([0, 8], "<i8").tobytes()).cast("q")
    none: Any = None
    assert bytes(PartDuplicates([PartitionDuplicates(none, starts)], 0, 2, none).load(1)) == b""


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


class Finder:
    """Stands for the native table: notes what it is given."""

    def __init__(self, rows: int) -> None:
        NOTED.append(("rows", rows))
        self.held = b""

    def add(self, rows: Any, number: int, passes: int) -> bool:
        NOTED.append((bytes(rows), number, passes))
        self.held = bytes(rows)
        return bytes(rows) != b"full"

    def take(self) -> bytes:
        return self.held * 4


NOTED: list[Any] = []


@pytest.mark.parametrize(("passes", "rows"), [(1, 7), (2, 8), (3, 6)])
def test_a_pass_knows_the_dataset_before_the_text(
    monkeypatch: pytest.MonkeyPatch, passes: int, rows: int
) -> None:
    monkeypatch.setattr(duplicates._native, "DuplicateFinder", Finder)
    NOTED.clear()

    def reader(num_rows: int, *blocks: bytes) -> Any:
        return SimpleNamespace(num_rows=num_rows, iter_blocks=lambda: iter(map(memoryview, blocks)))

    found = io.BytesIO()
    counts = duplicates._find(
        reader(3, b"x"), reader(4, b"a", b"bb"), found, 0, passes,
        lambda block, data: memoryview(bytes(data) + str(block).encode()),
    )  # fmt: skip
    assert [("rows", rows), (b"x", 0, passes), (b"a0", 0, passes), (b"bb1", 0, passes)] == NOTED
    assert list(counts) == [2, 3]
    assert found.tell() == 0 and found.read() == b"a0" * 4 + b"bb1" * 4
    NOTED.clear()
    assert list(duplicates._find(reader(0), reader(0), found, 0, 1, None)) == []
    assert NOTED == [("rows", 1)]
    for full in ((reader(1, b"full"), reader(1)), (reader(0), reader(1, b"full"))):
        with pytest.raises(MemoryError, match="more different lines"):
            duplicates._find(*full, found, 0, 1, None)


def test_a_partition_is_gone_through_and_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[Any] = []

    def reader(records: Any, stage: str, sections: Any, **more: Any) -> Any:
        readers.append((stage, more))
        return SimpleNamespace(num_rows=len(readers) * TABLE_ROW_BYTES)

    found: list[Any] = []

    def find(one: Any, other: Any, file: Any, number: int, passes: int, leave_out: Any) -> Any:
        found.append((number, passes, leave_out, file.closed))
        return [number]

    committed: list[Any] = []
    job: Any = SimpleNamespace(
        records=SimpleNamespace(
            scratch_folder=lambda: contextlib.nullcontext(tmp_path),
            commit=lambda task, write: committed.append((task, write("output"))),
        ),
        sizes=SimpleNamespace(num_partitions=4), limits=SimpleNamespace(ends_kept=9),
        settings=SimpleNamespace(dedup=True), parts=[1, 2, 3], table_bytes=10, finders=["finder"],
    )  # fmt: skip
    monkeypatch.setattr(duplicates, "PartitionReader", reader)
    monkeypatch.setattr(duplicates, "count_passes", lambda rows, table: 2 if table == 10 else 1)
    monkeypatch.setattr(duplicates, "_find", find)
    monkeypatch.setattr(duplicates, "leave_out_with", lambda finders: finders)
    monkeypatch.setattr(duplicates, "_write", lambda output, hashed, files, counts: counts)
    DuplicateStage(job, num_existing=5).run(3)
    common = {"num_partitions": 4, "partition": 3, "ends_kept": 9}
    assert readers == [
        ("existing", {"num_tasks": 5, **common}), ("hash", {"num_tasks": 3, **common})
    ]  # fmt: skip
    assert found == [(number, 2, ["finder"], False) for number in range(2)]
    assert committed == [(Task("duplicates", 3), [[0], [1]])]
