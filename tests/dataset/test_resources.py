"""Shares of a budget, and what is planned of them before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.dataset import resources
from lowtide.dataset.settings import PrepareSettings
from lowtide.errors import BudgetError
from lowtide.memory import MemoryBudget

MIB = 1 << 20


def shares(total_bytes: int, processes: int) -> resources.Shares:
    settings = PrepareSettings(
        input_files=("a.txt",), out_dir=Path("out"), tokenization="char", processes=processes
    )
    budget = MemoryBudget(total_bytes, used_bytes=resources._PROGRAM_BYTES)
    return resources.plan_shares(settings, budget)


@pytest.mark.parametrize("processes", [1, 2, 7])
@pytest.mark.parametrize("total_mib", [800, 1024, 4096])
def test_the_planned_table_is_the_table_that_is_given(processes: int, total_mib: int) -> None:
    given = shares(total_mib * MIB, processes)
    assert given.num_workers == processes
    planned = resources.planned_table_bytes(num_workers=processes, budget_bytes=total_mib * MIB)
    assert planned == given.one_pass_bytes
    assert given.table_bytes == planned // processes


def test_the_smallest_budget_is_the_smallest_that_is_taken() -> None:
    smallest = resources.smallest_budget_bytes()
    assert shares(smallest, processes=8).num_workers == 1
    with pytest.raises(BudgetError, match="too small"):
        shares(smallest - 1, processes=8)


def test_a_small_budget_means_fewer_workers_and_the_smallest_table() -> None:
    block = resources.BLOCK_BYTES * resources.BLOCK_BYTES_HELD
    total = resources.smallest_budget_bytes() + 2 * block
    assert shares(total, processes=8).num_workers == 3
    assert shares(total - 1, processes=8).num_workers == 2
    assert shares(total, processes=2).num_workers == 2
