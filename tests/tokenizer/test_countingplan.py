"""The memory of counting: what is fixed, what threads and tables get, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from lowtide.corpus.inputs import InputList, expand_inputs
from lowtide.errors import BudgetError
from lowtide.memory import MemoryBudget
from lowtide.tokenizer import countingplan
from lowtide.tokenizer.countingplan import (
    looking_options,
    needed_bytes,
    plan_counting,
    reading_options,
    smallest_budget_bytes,
    tell_unseen,
)
from lowtide.tokenizer.settings import TokenizerTrainingSettings

MIB = 1 << 20


class Notes:
    """Progress that notes what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(params=["a.txt", "a.txt.gz"])
def inputs(request: pytest.FixtureRequest, tmp_path: Path) -> InputList:
    text = b"some words of a text\n" * 100
    path = tmp_path / request.param
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return expand_inputs([path])


def settings_of(inputs: InputList, **more: Any) -> TokenizerTrainingSettings:
    given: dict[str, Any] = {
        "input": tuple(str(row.path) for row in inputs), "out_dir": Path("out"), "vocab_size": 300,
        "special_tokens": ("<|endoftext|>", "<|x|>"), "num_workers": 4, "max_token_bytes": 16,
    }  # fmt: skip
    return TokenizerTrainingSettings(**{**given, **more})


def test_the_smallest_budgets() -> None:
    """Of a thread 6 MiB, a batch of 8 (four times where it is not plain), 12 and tables of 8."""
    assert smallest_budget_bytes(1) == (40 + 6 + 8 + 12 + 8) * MIB
    assert smallest_budget_bytes(3) == (40 + 18 + 8 + 12 + 8) * MIB
    for plain, batch in ((True, 8), (False, 32)):
        needed = needed_bytes(2, is_plain=plain, reading=5, held_bytes=0)
        assert needed == (12 + batch + 12 + 8) * MIB + 5
        assert needed_bytes(2, is_plain=plain, reading=0, held_bytes=8 * MIB + 1) == (
            (12 + batch + 12 + 8) * MIB + 1
        )


@pytest.mark.parametrize(
    ("spare", "workers"),
    [(0, 1), (6 * MIB - 1, 1), (6 * MIB, 2), (17 * MIB, 3), (18 * MIB, 4), (99 * MIB, 4)],
)
def test_the_budget_is_divided(
    inputs: InputList, spare: int, workers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Threads as far as there is room, then three quarters of the rest for tables."""
    is_plain = inputs[0].compression is None
    reading = 3 * MIB
    batch = 8 * MIB if is_plain else 32 * MIB
    fixed = 6 * MIB + batch + reading + 12 * MIB
    total = 10 * MIB + fixed + 8 * MIB + spare
    budget = MemoryBudget(total, used_bytes=10 * MIB)
    progress: Any = Notes()
    made: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(
        countingplan._native, "PieceCounter", lambda *given, **more: made.append((given, more))
    )
    settings = settings_of(inputs)
    monkeypatch.setattr(  # no text is looked at where the budget is enough
        countingplan.CountingNeeds, "find_stretch", lambda *_: pytest.fail("looked at")
    )
    plan = plan_counting(settings, inputs, budget, progress, reading)
    rest = 8 * MIB + spare - (workers - 1) * 6 * MIB
    assert budget.shares == {
        "program": 10 * MIB, "threads": workers * 6 * MIB, "batch of text": batch,
        "reading": reading, "slack": 12 * MIB, "counting tables": rest * 3 // 4,
    }  # fmt: skip
    plan.make_counter(tmp_path)
    assert made == [
        (
            (settings.pattern, [b"<|endoftext|>", b"<|x|>"]),
            {
                "num_threads": workers, "table_bytes": rest * 3 // 4, "window_bytes": MIB,
                "spill_dir": str(tmp_path),
            },
        )
    ]  # fmt: skip
    assert plan.options.reader_bytes == reading + rest - rest * 3 // 4
    assert plan.options.budget_bytes == total
    plan.options.on_notice("told")
    assert progress.said == ["told"]
    all_threads = 4 * 6 * MIB + batch + reading + 12 * MIB
    assert plan.needs.other_bytes == 10 * MIB + all_threads
    assert plan.needs.max_token_bytes == 16


def test_a_budget_that_is_too_small_names_what_is_missing(inputs: InputList) -> None:
    is_plain = inputs[0].compression is None
    batch = 8 if is_plain else 32
    budget = MemoryBudget((6 + batch + 12 + 8) * MIB - 1, used_bytes=0)
    progress: Any = Notes()
    with pytest.raises(BudgetError) as caught:
        plan_counting(settings_of(inputs), inputs, budget, progress, 0)
    assert f"threads 6.0 MiB, batch of text {batch}.0 MiB, slack 12.0 MiB" in caught.value.message
    assert "counting tables 8.0 MiB" in caught.value.message
    assert progress.said == []


@pytest.mark.parametrize(("vocab_size", "text_bytes", "more"), [
    (60_000, 90_000, 0), (100_000, 200_000, 12_934), (100_000, 90_000, 9_334),
])  # fmt: skip
def test_a_large_vocabulary_needs_room_when_it_is_written(
    tmp_path: Path, vocab_size: int, text_bytes: int, more: int
) -> None:
    """As many tokens as the text can have; what counting held is free by then."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc " * (text_bytes // 4))
    inputs = expand_inputs([path])
    counting = (6 + 8 + 8) * MIB
    vocabulary = max(0, 360 * min(vocab_size, text_bytes) + 2 * 1600 - counting)  # two special
    assert vocabulary // 1000 == more
    settings = settings_of(inputs, vocab_size=vocab_size)
    progress: Any = Notes()
    enough = counting + 12 * MIB + vocabulary
    plan_counting(settings, inputs, MemoryBudget(enough, used_bytes=0), progress, 0)
    with pytest.raises(BudgetError, match="too small"):
        plan_counting(settings, inputs, MemoryBudget(enough - 1, used_bytes=0), progress, 0)


def test_text_without_a_place_to_cut_is_counted_for_all_threads(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"ACGT" * (3 * MIB))
    inputs = expand_inputs([path])
    budget = MemoryBudget(20 * MIB, used_bytes=0)
    progress: Any = Notes()
    with pytest.raises(BudgetError) as caught:
        plan_counting(settings_of(inputs), inputs, budget, progress, 0)
    assert "threads 24.0 MiB" in caught.value.message
    assert "counting tables 8.0 MiB" not in caught.value.message


def test_what_was_not_looked_at_is_told() -> None:
    progress: Any = Notes()
    tell_unseen(0, progress)
    assert progress.said == []
    tell_unseen(712_000, progress)
    assert len(progress.said) == 1
    assert progress.said[0].startswith("the budget named is a first one")
    assert "695.3 KiB" in progress.said[0]


def test_text_is_read_as_the_settings_say(inputs: InputList) -> None:
    settings = settings_of(inputs, text_field="body", encoding="latin-1", skip_bad_inputs=True)
    options = reading_options(settings)
    assert (options.text_field, options.encoding, options.skip_bad) == ("body", "latin-1", True)
    for left, room in ((3 * MIB, 10 * MIB), (10 * MIB, 10 * MIB), (11 * MIB, 11 * MIB)):
        looked = looking_options(settings, MemoryBudget(left, used_bytes=0))
        assert (looked.reader_bytes, looked.text_field) == (room, "body")


def test_a_refusal_says_what_was_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(b"no gzip at all")
    inputs = expand_inputs([path])
    progress: Any = Notes()
    with pytest.raises(BudgetError):
        plan_counting(settings_of(inputs), inputs, MemoryBudget(MIB, used_bytes=0), progress, 0)
    assert len(progress.said) == 1 and "14 B" in progress.said[0]
