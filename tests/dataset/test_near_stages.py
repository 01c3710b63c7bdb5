"""Stages that find near copies: what each reads of earlier results, and writes."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide import _native
from lowtide.dataset.near import deciding, pairs
from lowtide.dataset.near.deciding import DecideStage, SetStage
from lowtide.errors import DataError


class Sections:
    """A stand-in for a writer and for a finished output."""

    def __init__(self, header: Any = None, **found: bytes) -> None:
        self.found: dict[str, bytes] = dict(found)
        self.header = header
        self.name = ""

    def begin(self, name: str) -> None:
        self.name, self.found[name] = name, b""

    def write(self, data: Any) -> None:
        self.found[self.name] += bytes(data)

    def section(self, name: str, data: Any) -> None:
        self.found[name] = bytes(data)

    def size(self, name: str) -> int:
        return len(self.found[name])

    def read(self, name: str, *, begin: int = 0, end: int | None = None) -> memoryview:
        return memoryview(self.found[name][begin:end])


def pair_rows(*rows: tuple[int, int]) -> bytes:
    return np.array(rows, "<u8").tobytes()


def test_pairs_of_all_partitions_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    size = _native.PLACE_PAIR_BYTES
    block = 1 << 32
    outputs = [
        Sections({"capped": 1, "largest": 9}, pairs=bytes(2 * size), wanted=bytes(size)),
        Sections({"capped": 2, "largest": 5}, pairs=b"", wanted=bytes(3 * size)),
    ]
    merged: list[Any] = []

    def merge(job: Any, runs: Any, buffer: int) -> Any:
        merged.append((runs, buffer))
        if len(merged) == 1:
            yield memoryview(pair_rows((1, 2), (3, 4)))
            yield memoryview(pair_rows((5, 6)))
        else:
            yield memoryview(pair_rows((0, 1), (block - 1, 1), (block, 1)))
            yield memoryview(pair_rows((3 * block - 1, 1), (3 * block, 1)))

    monkeypatch.setattr(pairs, "_merge", merge)
    asked: list[int] = []
    job: Any = SimpleNamespace(
        num_partitions=2, table_bytes=100, first_blocks=[0, 1, 3, 4],
        records=SimpleNamespace(open=lambda task: asked.append(task.index) or outputs[task.index]),
    )  # fmt: skip
    places = iter([("a", 0), ("a", 50), ("b", 7), ("b", 9)])
    copies: Any = SimpleNamespace(find=lambda output, name: next(places))
    output: Any = Sections()
    assert pairs._write_pairs(job, output, copies) == {"capped": 3, "largest": 9, "pairs": 3}
    assert asked == [0, 1]
    assert merged == [
        ([("a", 0, 2), ("b", 7, 0)], 50), ([("a", 50, 1), ("b", 9, 3)], 50)
    ]  # fmt: skip
    assert output.found["pairs"] == pair_rows((1, 2), (3, 4), (5, 6))
    assert np.frombuffer(output.found["starts"], "<i8").tolist() == [0, 2, 4, 5]


def test_a_file_of_runs_knows_where_each_begins(tmp_path: Path) -> None:
    runs = pairs._RunFile(tmp_path / "runs", 4)
    for data in (b"abcdefgh", b"", b"ijkl"):
        runs.add(memoryview(data))
    assert runs.runs == [(tmp_path / "runs", 0, 2), (tmp_path / "runs", 8, 1)]
    assert (tmp_path / "runs").read_bytes() == b"abcdefghijkl"
    with pytest.raises(FileExistsError):
        pairs._RunFile(tmp_path / "runs", 4)


def test_rows_are_read_in_steps_until_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Merger:
        def __init__(self, runs: Any, buffer: int) -> None:
            asked.append((runs, buffer))
            self.left = [b"ab", b"c", b""]

        def read(self, rows: int) -> bytes:
            asked.append(rows)
            return self.left.pop(0)

    monkeypatch.setattr(pairs._native, "PairMerger", Merger)
    job: Any = SimpleNamespace(limits=SimpleNamespace(step_rows=7))
    assert list(pairs._merge(job, ["run"], 33)) == [b"ab", b"c"]  # type: ignore[list-item]
    assert asked == [(["run"], 33), 7, 7, 7]


def near_job(**changes: Any) -> Any:
    usual: dict[str, Any] = {
        "num_parts": 3, "first_blocks": [0, 2, 2, 5], "first_block": 2, "leave_copies": True,
        "limits": SimpleNamespace(step_bytes=16), "sign_stage": "sign",
        "options": SimpleNamespace(ngram=5, threshold=0.8),
    }  # fmt: skip
    return SimpleNamespace(**(usual | changes))


def test_copies_are_left_to_deduplication_from_the_new_text_on() -> None:
    assert DecideStage(near_job())._copies_left_from() == 2 << 32
    assert DecideStage(near_job(leave_copies=False))._copies_left_from() == deciding._NO_PLACE


def test_documents_that_were_signed_are_counted_over_all_parts() -> None:
    near = [{"signed": 4, "skipped": 1}, {"signed": 0, "skipped": 2}, {"signed": 3, "skipped": 0}]
    opened: list[str] = []
    records = SimpleNamespace(
        open=lambda task: opened.append(task.stage) or Sections({"near": near[task.index]})
    )
    stage = DecideStage(near_job(records=records))
    assert stage._count_documents() == {"signed": 7, "skipped": 3}
    assert opened == ["sign"] * 3
    assert stage.count_tasks() == 1 and SetStage(near_job()).count_tasks() == 3


def test_sets_of_parts_that_have_any_are_found() -> None:
    row = _native.GRAM_SET_ROW_BYTES
    outputs = [Sections(index=bytes(2 * row)), Sections(index=b""), Sections(index=bytes(row))]
    records = SimpleNamespace(open=lambda task: outputs[task.index])
    stage = DecideStage(near_job(records=records))
    copies: Any = SimpleNamespace(
        find=lambda output, name: ("path", {"index": 10, "grams": 20}[name])
    )
    assert list(stage._iter_sets(copies)) == [
        (0, "path", 10, 2, 20), (2 << 32, "path", 10, 1, 20)
    ]  # fmt: skip


def test_rows_that_go_are_counted_by_block() -> None:
    width = deciding._ROW_BYTES
    blocks = [0, 0, 3, 4, 4, 4]
    table = np.zeros((len(blocks), width // 8), "<u8")
    table[:, 0] = [(block << 32) + number for number, block in enumerate(blocks)]
    job = near_job(limits=SimpleNamespace(step_bytes=2 * width))
    stage = DecideStage(job)
    stage._count_documents = lambda: {"signed": 9}  # type: ignore[method-assign]
    decider: Any = SimpleNamespace(num_compared=4, num_unlike=1, num_removed=6)
    output: Any = Sections()
    removed = io.BytesIO(table.tobytes())
    removed.seek(5)
    header = stage._write(output, removed, decider, {"pairs": 8})
    assert header == {"pairs": 8, "signed": 9, "compared": 4, "unlike": 1, "removed": 6}
    assert output.found["removed"] == table.tobytes()
    assert np.frombuffer(output.found["starts"], "<i8").tolist() == [0, 2, 2, 2, 3, 6]


def test_sets_are_made_of_the_documents_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Sets:
        def __init__(self, ngram: int) -> None:
            made.append(ngram)

        def make(self, text: str, documents: str, block: int, places: Any, position: int) -> None:
            made.append((text, documents, block, places, position))
            if text == "changed":
                raise ValueError
            self.grams, self.index = bytes(8 * block), b"index%d" % block

    monkeypatch.setattr(deciding._native, "GramSets", Sets)
    loaded: list[str] = []

    def load(name: str) -> Any:
        return lambda: loaded.append(name) or (name, "docs")

    job = near_job(iter_part=lambda index: [load("a"), load("b"), load("c")])
    wanted: Any = SimpleNamespace(take=lambda block: {2: "two", 4: "four"}.get(block))
    output: Any = Sections()
    output.begin("grams")
    rows = io.BytesIO()
    SetStage(job)._write_sets(output, 1, wanted, rows)
    assert made == [5, ("a", "docs", 2, "two", 0), ("c", "docs", 4, "four", 2)]
    assert loaded == ["a", "c"]  # the part without any is not read
    assert output.found["grams"] == bytes(48) and rows.getvalue() == b"index2index4"
    job.iter_part = lambda index: [load("changed")]
    with pytest.raises(DataError, match="the text changed while it was read"):
        SetStage(job)._write_sets(output, 1, wanted, rows)
