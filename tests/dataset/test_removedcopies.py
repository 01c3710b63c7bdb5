"""Removed near copies: which rows of a block, which hashes, and their log."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xxhash

from lowtide import _native
from lowtide.dataset.near import removedcopies
from lowtide.dataset.near.likeness import Likeness
from lowtide.dataset.near.removedcopies import NearRemovals

HEADER = {
    "signed": 9, "skipped": 2, "pairs": 5, "compared": 4, "unlike": 1, "removed": 3, "capped": 0,
    "largest": 7,
}  # fmt: skip


def make(rows: list[list[float]], starts: list[int], *, first: int = 0, **header: int) -> Any:
    """Removals with these rows and starts of blocks, and a record of what is read."""
    table = np.zeros(len(rows), np.dtype(removedcopies._LOG_ROW))
    for number, row in enumerate(rows):
        table[number] = tuple(row)
    sections = {"starts": np.array(starts, "<i8").tobytes(), "removed": table.tobytes()}
    read: list[Any] = []

    def read_section(name: str, *, begin: int = 0, end: int | None = None) -> memoryview:
        read.append((name, begin, end))
        return memoryview(sections[name][begin:end])

    output = SimpleNamespace(read=read_section, header={**HEADER, **header})
    opened: list[Any] = []
    records: Any = SimpleNamespace(open=lambda task: opened.append(task) or output)
    made: Any = NearRemovals(records, Likeness(0.8, 5), first_block=first)
    made.opened, made.read_sections = opened, read
    return made


# place, kept, similarity, lines (number << 32 | lines), input, ordinal, kept input, kept ordinal
ROWS: list[list[float]] = [
    [4, (1 << 32) + 9, 0.9, (7 << 32) + 3, 0, 4, 1, 8],
    [6, (3 << 32) + 2, 0.8123456789, (8 << 32) + 1, 2, 6, 3, 0],
    [2, 5, 1.0, 0, 5, 2, 4, 1],
]


def test_documents_that_go_are_those_of_their_block() -> None:
    for first in (0, 2):
        found = make(ROWS, [0] * first + [0, 2, 2, 3], first=first)
        marks = [np.frombuffer(found.marks(block), "<u4").tolist() for block in range(3)]
        mark = _native.NEAR_COPY_MARK
        assert marks == [[4 | mark, 6 | mark], [], [2 | mark]]
        assert found.opened[0].index == 0 and len(found.opened) == 1
        size = 64
        assert [one for one in found.read_sections if one[0] == "removed"] == [
            ("removed", 0, 2 * size), ("removed", 2 * size, 3 * size)
        ]  # fmt: skip


def test_hashes_of_documents_that_go_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        removedcopies._native, "leave_out",
        lambda hashes, rows: asked.append((bytes(hashes), np.frombuffer(rows, "<u4").tolist()))
        or memoryview(b"left"),
    )  # fmt: skip
    found = make(ROWS, [0, 2, 2, 3])
    assert found.leave_out(0, memoryview(b"hash")) == b"left"
    assert asked == [(b"hash", [4, 7, 3, 6, 8, 1])]
    same = memoryview(b"hash")
    assert found.leave_out(1, same) is same  # nothing is removed there
    empty = memoryview(b"")
    assert found.leave_out(0, empty) is empty
    assert len(asked) == 1


def test_the_log_says_which_went_for_which(tmp_path: Path) -> None:
    found = make(ROWS, [0, 2, 2, 3], first=2)
    described = found.write_log(tmp_path, "log.jsonl")
    text = (tmp_path / "log.jsonl").read_bytes()
    assert [json.loads(line) for line in text.splitlines()] == [
        {"kept": [None, 8], "removed": [0, 4], "similarity": 0.9},  # of the dataset itself
        {"kept": [3, 0], "removed": [2, 6], "similarity": 0.812346},
        {"kept": [None, 1], "removed": [5, 2], "similarity": 1.0},
    ]
    assert described == {
        "threshold": 0.8, "ngram": 5, "bands": 13, "rows": 6, "documents": 9, "not_compared": 2,
        "pairs": 5, "compared": 4, "unlike": 1, "removed": 3, "capped_buckets": 0,
        "largest_bucket": 7, "file": "log.jsonl", "xxh3_128": xxhash.xxh3_128_hexdigest(text),
    }  # fmt: skip
    assert json.loads(removedcopies._log_line(tuple(ROWS[0]), 1))["kept"] == [1, 8]


def test_the_log_is_written_in_steps(tmp_path: Path) -> None:
    count = removedcopies._STEP_ROWS + 5
    rows = [[n, 0, 0.5, 0, 0, n, 0, 0] for n in range(count)]
    found = make(rows, [0, count])
    found.write_log(tmp_path)
    lines = (tmp_path / "near_duplicates.jsonl").read_text().splitlines()
    assert [json.loads(line)["removed"][1] for line in lines] == list(range(count))
    steps = [one[1:] for one in found.read_sections if one[0] == "removed"]
    assert steps == [(0, 64 * 4096), (64 * 4096, 64 * count)]


def test_large_buckets_are_told(tmp_path: Path) -> None:
    assert make([], [0]).notices() == []
    assert make([], [0], capped=2, largest=1234).notices() == [
        "near copies: 2 buckets of many different documents, the largest of 1,234: each was "
        "compared with some of them, not with all"
    ]
    make([], [0]).write_log(tmp_path)
    assert (tmp_path / "near_duplicates.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    ("threshold", "rows", "bands"),
    [(0.5, 2, 14), (0.7, 4, 15), (0.8, 6, 13), (0.9, 8, 7), (0.99, 8, 2), (1.0, 8, 1)],
)
def test_bands_of_a_threshold(threshold: float, rows: int, bands: int) -> None:
    options = Likeness(threshold, 5)
    assert (options.rows, options.bands) == (rows, bands)
    for similarity in (0.0, 0.5, threshold, 1.0):
        missed = (1 - similarity**rows) ** bands
        assert options.recall(similarity) == pytest.approx(1 - missed)
    assert options.recall(threshold) >= 0.98
