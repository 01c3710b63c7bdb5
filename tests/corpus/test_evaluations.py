"""Evaluation items: read once, counted before they are read, damage named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide import _native
from lowtide.corpus import evaluations
from lowtide.corpus.evaluations import load_items
from lowtide.errors import BudgetError, DataError
from lowtide.memory import smallest_budget

ROWS = b"".join(
    json.dumps({"question": f"what does item {n} of all say about tides and other things"}).encode()
    + b"\n"
    for n in range(50)
)


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl.gz"
    whole = gzip.compress(ROWS)
    damaged = bytearray(whole)
    damaged[20:60] = bytes(40)  # within the stream: zlib itself fails
    for data in (bytes(damaged), whole[:-20], b"no gzip at all"):
        path.write_bytes(data)
        with pytest.raises(DataError, match="this file cannot be read") as failed:
            load_items([str(path)])
        assert str(path) in str(failed.value)


def test_packed_items_are_counted_as_they_are_unpacked(tmp_path: Path) -> None:
    plain, packed = tmp_path / "items.jsonl", tmp_path / "items.jsonl.gz"
    plain.write_bytes(ROWS)
    packed.write_bytes(ROWS)  # its size alone counts here, before anything is read
    needed = len(ROWS) // 6 * 32
    budget = 3 * needed + 3 * 32
    assert load_items([str(plain)], budget_bytes=budget).first_items == (0, 50)
    with pytest.raises(BudgetError, match="more than a third of the budget") as refused:
        load_items([str(packed)], budget_bytes=4 * budget, least_bytes=200 << 20)
    assert f"{smallest_budget(200 << 20)}, or fewer files" in str(refused.value)
    packed.write_bytes(gzip.compress(ROWS))
    assert load_items([str(packed)], budget_bytes=budget).first_items == (0, 50)


def test_one_table_at_a_time(tmp_path: Path) -> None:
    """A process that prepares many datasets holds the items of the last, read once."""
    paths = [tmp_path / f"{n}.jsonl" for n in range(3)]
    for path in paths:
        path.write_bytes(ROWS)
        items = load_items([str(path)])
        assert load_items([str(path)]) is items
        assert list(evaluations._loaded.values()) == [items]
    paths[2].write_bytes(ROWS + ROWS)
    assert load_items([str(paths[2])]).first_items == (0, 100)  # a file that changed is read again


def test_words_far_into_a_document_are_looked_at() -> None:
    """Beyond a million words, and where one part of a document ends and the next begins."""
    item = "low tide uncovers the mussels that the turnstones eat along the northern shore again"
    table = _native.EvalGrams()
    num_grams = table.add(item.encode(), 0)
    table.finish()
    for before in ((1 << 19) - 6, (3 << 19) + 5):  # words of two bytes: the first ends in a MiB
        text = ("\n".join(["x"] * before) + "\n" + item + "\n").encode()
        row = np.array([0, 0, 0, len(text), 0, 0, 0, 3], np.uint64)
        found = np.frombuffer(table.scan(text, row.view(np.uint8)), np.uint32).reshape(-1, 7)
        assert len(found) == num_grams == 2
        assert found[:, 1].tolist() != found[::-1, 1].tolist()
        assert found[:, 2].tolist() == [before] * 2


def test_an_item_is_named_by_its_file_and_its_row_there() -> None:
    table: Any = None
    items = evaluations.EvaluationItems(("a", "b", "c"), (0, 3, 4, 9), table, 0)
    assert [items.name(item) for item in (0, 2, 3, 4, 8)] == [
        ("a", 0), ("a", 2), ("b", 0), ("c", 0), ("c", 4),
    ]  # fmt: skip
