"""Shares of a budget, and the work planned with them before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.corpus.inputformats import COMPRESSIONS
from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.reading import ReadingSettings
from lowtide.dataset import resources, sharding
from lowtide.dataset.settings import PrepareSettings
from lowtide.errors import BudgetError
from lowtide.memory import MemoryBudget, smallest_budget
from lowtide.progress import Progress
from lowtide.tokenizer.needs import TokenizerNeeds
from lowtide.tokenizer.stretches import unseen_words

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
    # As many blocks as workers, and one that is read; the table has half of the rest.
    assert 2 * (plain - ruled) == 5 * resources.BLOCK_BYTES * resources.RULES_BYTES_HELD


def test_workers_beyond_the_blocks_take_nothing() -> None:
    """Without deduplicating lines there is no table: only the program and the workers are left."""

    def planned(blocks: float, workers: int, vocabulary: int = 0) -> int:
        return resources.planned_bytes(
            int(blocks * resources.BLOCK_BYTES),
            num_workers=workers,
            budget_bytes=1 << 40,
            line_bytes=float("inf"),
            vocab_size=vocabulary,
        )

    assert planned(3, 8) == planned(3, 3) == (32 + 40 + 2 * 36) * MIB
    assert planned(100, 3) == planned(3, 3)
    assert planned(6, 8) == (32 + 40 + 5 * 36) * MIB
    assert planned(0.25, 8) == int((32 + 0.25**0.4 * 40) * MIB)
    assert planned(1.5, 8) == (32 + 40 + 18) * MIB
    assert planned(1, 8) == (32 + 40) * MIB
    assert planned(1, 8, 1000) == planned(1, 8) + 240_000


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


def divided(total_bytes: int, inputs: resources.Inputs, out_dir: str = "out") -> resources.Shares:
    settings = PrepareSettings(
        input_files=("a.txt",),
        out_dir=out_dir,  # pyright: ignore[reportArgumentType]
        tokenization="gpt2",
        num_workers=3,
        engine="files",
    )
    budget = MemoryBudget(total_bytes, used_bytes=resources._PROGRAM_BYTES)
    return resources.plan_shares(settings, budget, inputs)


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({"num_files": 7000}, 700_000),
        ({"count_bytes": 5 * MIB}, 5 * MIB),
        ({"tokenizer": TokenizerNeeds(table_bytes=9 * MIB)}, 9 * MIB),
        (
            {"tokenizer": TokenizerNeeds(thread_bytes=3 * MIB)},
            4 * 3 * MIB,
        ),  # a worker each, and one
        ({"step_bytes": 2 * MIB}, 4 * 2 * MIB),
        ({"reader_bytes": 6 * MIB}, 6 * MIB),
        ({"reader_bytes": 6 * MIB, "num_in_order": 2}, 12 * MIB),
        ({"reader_bytes": 6 * MIB, "num_in_order": 9}, 18 * MIB),  # as many as there are workers
    ],
)
def test_what_inputs_take_is_not_there_for_the_table(options: dict[str, Any], taken: int) -> None:
    plain = divided(1024 * MIB, resources.Inputs())
    found = divided(1024 * MIB, resources.Inputs(**options))
    assert plain.one_pass_bytes - found.one_pass_bytes == taken // 2
    rest = found.one_pass_bytes  # as much again is left, of which readers have half
    readers = min(3, max(options.get("num_in_order", 0), 1))
    assert found.reader_bytes == options.get("reader_bytes", 0) + rest // 2 // readers
    assert found.held_bytes == rest // 2 // 3  # the other half, where workers hold text
    assert found.range_bytes == found.one_pass_bytes // 4
    assert found.character_bytes == resources._TOKENIZER_BYTES + found.one_pass_bytes
    assert found.more_worker_bytes == 0


def test_results_in_a_store_take_room_of_every_worker() -> None:
    plain = divided(1024 * MIB, resources.Inputs())
    stored = divided(1024 * MIB, resources.Inputs(), out_dir="s3://bucket/out")
    assert plain.one_pass_bytes - stored.one_pass_bytes == 4 * resources._STORED_BYTES // 2


def test_workers_that_have_no_room_are_counted() -> None:
    block = resources.BLOCK_BYTES * resources.BLOCK_BYTES_HELD
    found = divided(resources.smallest_budget_bytes() + block, resources.Inputs())
    assert (found.num_workers, found.more_worker_bytes) == (2, block)
    assert found.range_bytes == max(found.one_pass_bytes // 3, MIB)


def test_characters_take_the_room_of_the_table_and_no_more() -> None:
    room = 100 * resources.CHARACTER_BYTES
    given = resources.Shares(1, 0, 0, 0, 0, character_bytes=room, more_worker_bytes=3 * MIB)
    resources.check_characters(100, given, budget_bytes=200 * MIB)
    with pytest.raises(BudgetError, match=r"\b101\b"):
        resources.check_characters(101, given, budget_bytes=200 * MIB)
    with pytest.raises(BudgetError) as refused:
        resources.check_characters(1_000_100, given, budget_bytes=200 * MIB)
    # The table has half of the rest, after the memory of more workers.
    needed = 203 * MIB + 2 * 1_000_000 * resources.CHARACTER_BYTES
    assert refused.value.next_step == f"{smallest_budget(needed)}, or give another --tokenization"


def test_the_disk_that_preparing_takes() -> None:
    text, row = 100_000_000, resources.TABLE_ROW_BYTES
    ids = 2 * 2 * text / 3.5

    def planned(**options: Any) -> int:
        return resources.planned_disk_bytes(text, **{"one_pass_bytes": 1 << 40, **options})

    assert planned() == int(ids + 3e6 + 0.1 * text)  # all lines are in the table
    half = text // 2 // resources.LINE_BYTES * row
    assert planned(one_pass_bytes=half) == int(ids + 3e6 + 0.1 * text + text // 2)
    assert planned(keeps_text=True) == int(ids + 3e6 + 1.1 * text)
    near = int(ids + 3e6 + (1.1 + resources.NEAR_DISK_SHARE) * text)
    assert planned(near_copies=True) == pytest.approx(near, abs=1)
    assert planned(token_bytes=4) == int(2 * ids + 3e6 + 0.1 * text)
    assert planned(bytes_per_token=7.0) == int(ids / 2 + 3e6 + 0.1 * text)
    small = resources.planned_disk_bytes(1_000_000, one_pass_bytes=1 << 40)
    assert small == int(4_000_000 / 3.5 + 0.25 * 1_000_000)


@pytest.mark.parametrize(("num_packed", "existing"), [(0, 0), (1, 0), (2, 0), (0, 1000)])
def test_a_disk_that_is_just_enough(
    num_packed: int, existing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        suffix = ".gz" if number < num_packed else ""
        (tmp_path / f"{number}.txt{suffix}").write_bytes(b"x" * 100_000)
    inputs = expand_inputs([tmp_path])
    expansion = COMPRESSIONS["gzip"].expansion
    text = resources.estimate_text_bytes(inputs)
    assert text == int(100_000 * (3 - num_packed + num_packed * expansion))
    # Files that are read in parallel keep their clean text.
    needed = resources.planned_disk_bytes(text, one_pass_bytes=0 if num_packed > 1 else 1 << 30)
    needed += int(1.8 * existing)
    for free, is_enough in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(resources.files, "free_disk_bytes", lambda root, free=free: free)
        options = {"one_pass_bytes": 1 << 30, "existing_bytes": existing}
        with Progress("prepare") as progress:
            if is_enough:
                resources.check_disk(tmp_path, inputs, progress, **options)
                continue
            with pytest.raises(BudgetError, match="disk"):
                resources.check_disk(tmp_path, inputs, progress, **options)


@pytest.mark.parametrize(
    ("room", "in_order", "workers"),
    [(0, 0, 1), (1, 0, 2), (1, 1, 2), (1, 2, 1), (2, 2, 2), (2, 3, 2), (3, 3, 3), (3, 0, 3)],
)
def test_workers_that_read_side_by_side_need_readers(
    room: int, in_order: int, workers: int
) -> None:
    """Each worker takes a block, and each that reads in order also a reader as large as a block."""
    block = resources.BLOCK_BYTES * resources.BLOCK_BYTES_HELD
    inputs = resources.Inputs(reader_bytes=block, num_in_order=in_order)
    least = resources.smallest_budget_bytes() + block
    more = room if in_order < 2 else (0, 1, 2, 4)[room]
    assert divided(least + more * block, inputs).num_workers == workers


def test_without_room_for_a_table_nothing_is_left_to_hold() -> None:
    found = divided(resources.smallest_budget_bytes(), resources.Inputs())
    assert (found.num_workers, found.held_bytes, found.reader_bytes) == (1, 0, 0)
    assert found.one_pass_bytes == resources.MIN_TABLE_BYTES


@pytest.mark.parametrize(
    ("count", "workers", "unseen"), [(0, 3, 0), (10_000_000, 3, 0), (10_000_000, 1, 5 << 20)]
)
def test_a_refusal_counts_the_characters_twice_and_the_workers(
    count: int, workers: int, unseen: int
) -> None:
    settings = PrepareSettings(
        input_files=("a.txt",), out_dir=Path("out"), tokenization="char", num_workers=workers
    )
    inputs = resources.Inputs(count_characters=lambda: (count, unseen))
    with pytest.raises(BudgetError) as refused:
        resources.plan_shares(settings, MemoryBudget(MIB, used_bytes=MIB), inputs)
    block = resources.BLOCK_BYTES * resources.BLOCK_BYTES_HELD
    more = (
        count * resources.CHARACTER_BYTES - resources._TOKENIZER_BYTES - resources.MIN_TABLE_BYTES
    )
    least = resources.smallest_budget_bytes() - resources._PROGRAM_BYTES + MIB
    needed = least + (2 * more + block * (workers - 1) if more > 0 else 0)
    assert refused.value.next_step == smallest_budget(needed) + unseen_words(unseen)


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({"num_files": 7000}, 700_000),
        ({"count_bytes": 5 * MIB}, 5 * MIB),
        ({"tokenizer": TokenizerNeeds(table_bytes=9 * MIB)}, 9 * MIB),
        ({"tokenizer": TokenizerNeeds(thread_bytes=3 * MIB)}, 6 * MIB),  # of a worker and a reader
        ({"step_bytes": 2 * MIB}, 4 * MIB),
        ({"reader_bytes": 6 * MIB}, 6 * MIB),
    ],
)
def test_the_smallest_budget_holds_what_inputs_take(options: dict[str, Any], more: int) -> None:
    least = resources.smallest_budget_bytes() + more
    inputs = resources.Inputs(**options)
    assert divided(least, inputs).num_workers == 1
    with pytest.raises(BudgetError, match="too small") as refused:
        divided(least - 1, inputs)
    assert refused.value.next_step == smallest_budget(least)  # of everything that it needs
    assert "table of hashes" in refused.value.message


def test_ranges_have_a_mebibyte_at_least() -> None:
    block = resources.BLOCK_BYTES * resources.BLOCK_BYTES_HELD
    for workers in (1, 2, 8, 40):
        found = shares(resources.smallest_budget_bytes() + (workers - 1) * block, workers)
        assert found.num_workers == workers
        assert found.one_pass_bytes == resources.MIN_TABLE_BYTES
        assert found.table_bytes == resources.MIN_TABLE_BYTES // workers
        assert found.range_bytes == max(resources.MIN_TABLE_BYTES // (workers + 1), MIB)
    assert resources.MIN_TABLE_BYTES // 41 < MIB


@given(
    total_mib=st.integers(185, 900),
    processes=st.integers(1, 9),
    num_in_order=st.integers(0, 9),
    reader_mib=st.integers(0, 5),
    more_kib=st.integers(1, 200 << 10),
)
def test_a_budget_that_is_advised_for_a_reader_gives_it_what_it_needs(
    total_mib: int, processes: int, num_in_order: int, reader_mib: int, more_kib: int
) -> None:
    """For a page of a packed parquet file, known when it is read: seven were refused in a row."""
    settings = PrepareSettings(input_files=("a",), out_dir=Path("out"), num_workers=processes)
    inputs = resources.Inputs(num_in_order, num_in_order, reader_mib * MIB)

    def plan(total_bytes: int) -> ReadingSettings:
        budget = MemoryBudget(total_bytes, used_bytes=resources._PROGRAM_BYTES)
        return resources.plan_shares(settings, budget, inputs).reading(settings, total_bytes)

    before = plan(total_mib * MIB)
    assert before.budget_bytes is not None
    needed = before.reader_bytes + (more_kib << 10)
    advised = before.budget_bytes + before.reader_cost * (needed - before.reader_bytes)
    assert plan(advised).reader_bytes >= needed
    assert plan(advised + 7 * MIB).reader_bytes >= needed
