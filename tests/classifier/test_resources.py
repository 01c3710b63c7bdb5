"""A classifier's budget: fewer workers before a refusal, and shares that add up to it."""

from __future__ import annotations

from pathlib import Path

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
    left = budget.remaining_bytes - BLOCK * (shares.num_workers + 1) - reading
    assert left >= 0
    assert shares.reader_bytes == reading + left // 2
    words = inputs.total_bytes // 4 + 1
    tables = max((budget.remaining_bytes - words * 90) // (2 * shares.num_workers), 4 << 20)
    assert shares.table_bytes == tables


def test_a_budget_without_room_for_two_blocks_is_refused(inputs: InputList) -> None:
    with pytest.raises(BudgetError):
        plan_shares(settings(workers=1), MemoryBudget(BLOCK), inputs)
