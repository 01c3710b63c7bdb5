"""Shares of a budget, and what is planned of them before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.dataset import resources, sharding
from lowtide.dataset.settings import PrepareSettings
from lowtide.errors import BudgetError
from lowtide.memory import MemoryBudget

MIB = 1 << 20


def shares(total_bytes: int, processes: int, rules: str = "") -> resources.Shares:
    settings = PrepareSettings(
        input_files=("a.txt",),
        out_dir=Path("out"),
        tokenization="char",
        num_workers=processes,
        rules=rules,
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


def test_rules_take_more_of_every_block() -> None:
    plain = shares(800 * MIB, processes=4).one_pass_bytes
    ruled = shares(800 * MIB, processes=4, rules="c4").one_pass_bytes
    # As many blocks as there are workers, and one that is read; the table has half of the rest.
    assert 2 * (plain - ruled) == 5 * resources.BLOCK_BYTES * resources.RULES_BYTES_HELD


def test_workers_beyond_the_blocks_take_nothing() -> None:
    """Without lines there is no table: only the program and the workers are left."""

    def planned(blocks: float, workers: int) -> int:
        return resources.planned_bytes(
            int(blocks * resources.BLOCK_BYTES),
            num_workers=workers,
            budget_bytes=1 << 40,
            line_bytes=float("inf"),
        )

    assert planned(3, 8) == planned(3, 3) == (28 + 3 * 31) * MIB
    assert planned(100, 3) == planned(3, 3)
    assert planned(6, 8) == (28 + 4 * 31 + 2 * 30) * MIB
    assert planned(0.25, 8) == int((28 + 0.5 * 31) * MIB)


def test_rows_that_are_sorted_are_held_four_times() -> None:
    assert sharding.ENCODED_ROW_BYTES_HELD == 4 * sharding.ENCODED_ROW_BYTES


def test_a_refusal_says_how_much_of_the_text_it_has_not_looked_at() -> None:
    settings = PrepareSettings(input_files=("a.txt",), out_dir=Path("out"), tokenization="char")
    inputs = resources.Inputs(count_characters=lambda: (70, 712_000))
    with pytest.raises(BudgetError) as refused:
        resources.plan_shares(settings, MemoryBudget(MIB, used_bytes=MIB), inputs)
    assert refused.value.next_step is not None
    assert refused.value.next_step.startswith("give at least --memory ")
    assert "695.3 KiB of the input were not looked at" in refused.value.next_step
