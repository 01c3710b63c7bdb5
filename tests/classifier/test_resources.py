"""A classifier's budget: fewer workers before a refusal, and shares that add up to it."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lowtide.classifier.resources import plan_shares
from lowtide.classifier.settings import ClassifierSettings
from lowtide.corpus.blockcleaning import BLOCK_BYTES_HELD
from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.inputs import InputList, expand_inputs
from lowtide.corpus.reading import BLOCK_BYTES
from lowtide.errors import BudgetError
from lowtide.memory import MemoryBudget

BLOCK = BLOCK_BYTES * BLOCK_BYTES_HELD


@pytest.fixture
def inputs(tmp_path: Path) -> InputList:
    (tmp_path / "a.txt").write_text("words of a court " * 100)
    return expand_inputs([tmp_path / "a.txt"])


def settings(workers: int) -> ClassifierSettings:
    return ClassifierSettings(
        good=("a.txt",), other=("b.txt",), out_dir=Path("out"), num_workers=workers, buckets=1000
    )


@pytest.mark.parametrize("room", [3, 4, 5, 6, 9, 12])
def test_as_many_workers_as_have_room_beside_a_block(inputs: InputList, room: int) -> None:
    given = settings(workers=8)
    reading = reader_bytes(inputs, given.reading())
    ample = MemoryBudget(1 << 40)
    plan_shares(given, ample, inputs)  # which counts what is held beside
    budget = MemoryBudget((1 << 40) - ample.remaining_bytes + room * BLOCK + reading)
    shares = plan_shares(given, budget, inputs)
    assert shares.num_workers == min(room - 1, 8)
    for more in (1, 7 << 20, 100 << 20):  # as a refused file finds out that it needs
        now = shares.reading(given, budget.total_bytes)
        assert now.budget_bytes is not None
        advised = MemoryBudget(now.budget_bytes + now.reader_cost * more)
        assert plan_shares(given, advised, inputs).reader_bytes >= shares.reader_bytes + more - 1
    left = budget.remaining_bytes - BLOCK * (shares.num_workers + 1) - reading
    assert left >= 0
    assert shares.reader_bytes == reading + left // 2
    words = inputs.total_bytes // 4 + 1
    tables = max((budget.remaining_bytes - words * 90) // (2 * shares.num_workers), 4 << 20)
    assert shares.table_bytes == tables


def test_a_budget_without_room_for_two_blocks_is_refused(inputs: InputList) -> None:
    with pytest.raises(BudgetError):
        plan_shares(settings(workers=1), MemoryBudget(BLOCK), inputs)


class Asked:
    """A budget that notes what it is asked for, and has this much left."""

    spread_bytes = 0

    def __init__(self, remaining_bytes: int) -> None:
        self.remaining_bytes = remaining_bytes
        self.counted: dict[str, int] = {}
        self.required: dict[str, int] = {}

    def count(self, name: str, held_bytes: int) -> None:
        self.counted[name] = held_bytes

    def require(self, minimums: Mapping[str, int]) -> None:
        self.required.update(minimums)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", [1999, 2000, 10_000_000])
@pytest.mark.parametrize("buckets", [1, 10_000_000])
@pytest.mark.parametrize("most", [10, 5_000_000])
def test_what_is_counted_and_required(
    tmp_path: Path, packed: bool, size: int, buckets: int, most: int
) -> None:
    """Of text whose size is known there are no more examples and words than fit into it."""
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(b"x" * size) if packed else b"x" * size)
    inputs = expand_inputs([path])
    given = replace(settings(2), buckets=buckets, max_examples=most, min_count=3, max_words=100_000)
    budget: Any = Asked(1 << 30)
    shares = plan_shares(given, budget, inputs)
    reading = reader_bytes(inputs, given.reading())
    examples, words = 2 * most, 100_000
    if not packed:
        examples, words = min(examples, size // 20 + 1), min(words, size // 6 + 1)
    assert budget.counted == {"list of files": 250, "examples": 40 * examples}
    needs = {
        "choosing examples": 160 * examples,
        "model and a batch": 90 * words + 28 * (words + buckets) + 256 * 8192 * 20,
        "blocks in work": 2 * BLOCK + reading + 40 * examples,
    }
    name = max(needs, key=lambda name: needs[name])
    assert budget.required == {name: needs[name]}
    assert shares.num_workers == 2
    assert shares.table_bytes == max(((1 << 30) - 90 * words) // 4, 4 << 20)
    assert shares.reader_bytes == reading + ((1 << 30) - 3 * BLOCK - reading) // 2


def test_a_budget_that_is_just_enough(inputs: InputList) -> None:
    """Nothing is left for readers beyond what they need, and tables are small."""
    budget: Any = Asked(0)
    shares = plan_shares(settings(3), budget, inputs)
    assert (shares.num_workers, shares.table_bytes) == (1, 4 << 20)
    assert shares.reader_bytes == reader_bytes(inputs, settings(3).reading())
