"""Evaluation items that were found: counted over all blocks, judged, and left out of each."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xxhash

from lowtide import _native
from lowtide.dataset import contamination
from lowtide.dataset.contamination import (
    COMMON,
    Contamination,
    ContaminationJob,
    PartScanner,
    ScanStage,
    judge_stage,
    read_counts,
)
from lowtide.engine.records import Records
from lowtide.engine.tasks import run_task
from lowtide.errors import DataError, UsageError


class Table:
    """A stand-in for the native table: six n-grams of three items; finds what it is given."""

    OWNERS = np.array([0, 0, 1, 1, 2, 2], "<u4")

    def __len__(self) -> int:
        return 6

    def items(self) -> bytes:
        return self.OWNERS.tobytes()

    def scan(self, text: Any, documents: Any) -> bytes:
        return hits(*json.loads(bytes(text)))


def hits(*rows: tuple[int, int, int, int, int]) -> bytes:
    """(document, n-gram, first line, last line + 1, whether the document is whole)."""
    table = np.zeros(len(rows), contamination._HIT)
    for number, (row, gram, line, end, whole) in enumerate(rows):
        for name, value in (
            ("row", row), ("gram", gram), ("line", line), ("end", end), ("whole", whole),
            ("first", 100 + row), ("last", 200 + row),
        ):  # fmt: skip
            table[name][number] = value
    return table.tobytes()


ITEMS: Any = SimpleNamespace(
    table=Table(), first_items=[0, 2, 3], num_short=2, files=["a.jsonl", "b.jsonl"],
    name=lambda item: (("a.jsonl", item) if item < 2 else ("b.jsonl", item - 2)),
)  # fmt: skip
# Parts of two blocks, one and none.
PARTS: list[list[list[list[int]]]] = [
    [[[0, 0, 1, 3, 1], [0, 0, 5, 6, 1], [2, 4, 0, 2, 0]], []],
    [[[1, 1, 2, 4, 1], [1, 2, 3, 5, 1]]],
    [],
]


def make(
    tmp_path: Path, *, cuts: bool = False, parts: Any = PARTS, **more: Any
) -> ContaminationJob:
    records = Records(tmp_path / "work")
    job = ContaminationJob(ITEMS, cuts, records, "scan", len(parts), **more)

    def iter_part(index: int) -> Any:
        for block in PARTS[index]:
            text = memoryview(json.dumps(block).encode())
            yield lambda text=text: (text, memoryview(b""))

    stage = ScanStage(job, iter_part)
    for index in range(stage.count_tasks()):
        run_task(stage, index)
    run_task(judge_stage(job), 0)
    return job


def test_documents_of_each_ngram_and_item_are_counted(tmp_path: Path) -> None:
    job = make(tmp_path)
    output = job.records.open(contamination.Task(contamination.JUDGE_STAGE, 0))
    assert np.frombuffer(output.read("counts"), "<u4").tolist() == [1, 1, 1, 0, 1, 0]
    assert np.frombuffer(output.read("documents"), "<u4").tolist() == [2, 1, 1]
    assert output.header == {
        "ngrams": 6, "found": 4, "common": 0, "documents": 3, "items_hit": 3,
    }  # fmt: skip


def test_ngrams_that_many_documents_say_are_common(tmp_path: Path) -> None:
    """Also with the counts of documents in text that was scanned before."""
    before = tmp_path / "before"
    before.write_bytes(np.array([[0, COMMON - 1], [1, COMMON], [5, 3]], "<u4").tobytes())
    for step in (1, 2, 100):
        folder = tmp_path / str(step)
        job = make(folder, counts_before=before, step_grams=step)
        output = job.records.open(contamination.Task(contamination.JUDGE_STAGE, 0))
        counts = np.frombuffer(output.read("counts"), "<u4").tolist()
        assert counts == [COMMON, COMMON + 1, 1, 0, 1, 3]
        assert np.frombuffer(output.read("documents"), "<u4").tolist() == [1, 1, 1]
        assert (output.header["found"], output.header["common"]) == (4, 1)
        assert output.header["documents"] == 3
        marks = np.frombuffer(Contamination(job).marks(2), "<u4").tolist()
        assert marks == [1 | _native.CONTAMINATED_MARK]  # by another n-gram


@pytest.mark.parametrize("cuts", [False, True])
def test_documents_go_and_parts_of_them_lose_lines(tmp_path: Path, cuts: bool) -> None:
    found = Contamination(make(tmp_path, cuts=cuts))
    cut, gone = _native.CUT_MARK, _native.CONTAMINATED_MARK
    marks = [np.frombuffer(found.marks(block), "<u4").tolist() for block in range(3)]
    if cuts:
        lines = [[0, 1, 2, 5], [], [2, 3, 4]]
        assert marks == [[line | cut for line in block] for block in lines]
    else:
        assert marks == [[0 | cut, 1 | cut, 0 | gone], [], [1 | gone]]


def test_hashes_of_documents_that_go_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        contamination._native, "leave_out",
        lambda hashes, rows: asked.append(np.frombuffer(rows, "<u4").tolist()) or b"left",
    )  # fmt: skip
    found = Contamination(make(tmp_path / "a"))
    given, empty = memoryview(b"hash"), memoryview(b"")
    assert found.leave_out(0, given) == b"left"
    assert found.leave_out(2, given) == b"left"
    assert asked == [[0, 100, 200], [1, 101, 201]]  # each once, and only whole documents
    assert found.leave_out(1, given) is given
    assert found.leave_out(0, empty) is empty
    assert Contamination(make(tmp_path / "b", cuts=True)).leave_out(0, given) is given
    assert len(asked) == 2


@pytest.mark.parametrize("step", [1, 4, 100])
def test_the_report_names_items_and_keeps_counts(tmp_path: Path, step: int) -> None:
    found = Contamination(make(tmp_path, step_grams=step))
    row = found.write_report(tmp_path, "items.jsonl", "counts.bin")
    text = (tmp_path / "items.jsonl").read_bytes()
    assert [json.loads(line) for line in text.splitlines()] == [
        {"file": "a.jsonl", "row": 0, "documents": 2},
        {"file": "a.jsonl", "row": 1, "documents": 1},
        {"file": "b.jsonl", "row": 0, "documents": 1},
    ]
    counts = (tmp_path / "counts.bin").read_bytes()
    assert np.frombuffer(counts, "<u4").tolist() == [0, 1, 1, 1, 2, 1, 4, 1]
    table = xxhash.xxh3_128_hexdigest(ITEMS.table.items())
    assert row == {
        "files": ["a.jsonl", "b.jsonl"], "items": 3, "ngrams": 6, "found": 4, "common": 0,
        "documents": 3, "items_hit": 3, "file": "items.jsonl",
        "xxh3_128": xxhash.xxh3_128_hexdigest(text),
        "counts": {
            "file": "counts.bin", "xxh3_128": xxhash.xxh3_128_hexdigest(counts), "table": table,
        },
    }  # fmt: skip
    assert read_counts(tmp_path, row, ITEMS) == tmp_path / "counts.bin"
    (tmp_path / "counts.bin").write_bytes(counts[:-1])
    with pytest.raises(DataError, match="missing or damaged"):
        read_counts(tmp_path, row, ITEMS)
    (tmp_path / "counts.bin").unlink()
    with pytest.raises(DataError, match="missing or damaged"):
        read_counts(tmp_path, row, ITEMS)
    for other in ({}, {"counts": {**row["counts"], "table": "0"}}):
        with pytest.raises(UsageError, match="by another version"):
            read_counts(tmp_path, other, ITEMS)


def test_items_that_are_too_short_are_told(tmp_path: Path) -> None:
    assert Contamination(make(tmp_path)).notices() == [
        "decontamination: 2 items without eight words in a row left out"
    ]
    none: Any = SimpleNamespace(items=SimpleNamespace(num_short=0))
    assert Contamination(none).notices() == []


def test_what_was_found_waits_in_a_file_of_its_own(tmp_path: Path) -> None:
    scanner = PartScanner(ITEMS, tmp_path / "hits")
    with pytest.raises(FileExistsError):
        PartScanner(ITEMS, tmp_path / "hits")
    for block in ([[0, 1, 2, 3, 1]], [], [[4, 5, 6, 7, 0], [1, 1, 1, 1, 1]]):
        scanner.add(memoryview(json.dumps(block).encode()), memoryview(b""))
    sections: dict[str, bytes] = {}
    output: Any = SimpleNamespace(
        begin=lambda name: sections.update({name: b""}),
        write=lambda data: sections.update(eval_hits=sections["eval_hits"] + bytes(data)),
        section=lambda name, data: sections.update({name: bytes(data)}),
    )
    assert scanner.write(output) == {}
    assert sections["eval_hits"] == (tmp_path / "hits").read_bytes()
    assert np.frombuffer(sections["eval_ends"], "<i8").tolist() == [1, 1, 3]
