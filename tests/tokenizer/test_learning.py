"""Which way merges are learned, and in how much memory; test_merging has what comes out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowtide import _native
from lowtide.errors import BudgetError
from lowtide.memory import MemoryBudget
from lowtide.progress import Progress
from lowtide.tokenizer import learning, reference
from lowtide.tokenizer.learning import file_bytes, planned_bytes

MIB = 1 << 20


class Sizes:
    """A counter of which only the sizes are asked."""

    distinct = 1_000_000
    distinct_bytes = 8_000_000
    longest_piece = 0


def picked(
    total_bytes: int, tmp_path: Path, *, target: int = 1000
) -> tuple[learning.Learner, list[str]]:
    notes: list[str] = []
    with Progress("test", budget_bytes=total_bytes) as progress:
        progress.note = notes.append  # type: ignore[method-assign]
        learner = learning._pick_learner(
            Sizes(),  # type: ignore[arg-type]
            target,
            "huggingface",
            {},  # no limit of tokens
            MemoryBudget(total_bytes, used_bytes=0),
            progress,
            tmp_path,
        )
        return learner, list(notes)


def test_the_fastest_way_that_fits_is_taken(tmp_path: Path) -> None:
    learner, notes = picked(400 * MIB, tmp_path)
    assert (type(learner), notes) == (_native.MergeLearner, [])
    learner, notes = picked(20 * MIB, tmp_path)
    assert type(learner) is _native.RoundLearner
    assert "at full speed needs about" in notes[0]
    assert "in rounds over a file of 19.1 MiB" in notes[0]
    learner, _ = picked(20 * MIB, tmp_path, target=100_000)
    assert type(learner) is _native.WideRoundLearner


def test_no_room_in_memory_nor_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "free_disk_bytes", lambda path: 1000)
    with pytest.raises(BudgetError, match="more than the disk has free"):
        picked(20 * MIB, tmp_path)


def test_planned_bytes_hold(make_text: Callable[[int, int], bytes]) -> None:
    counts = reference.count_pieces([make_text(3, 60_000)], pattern="gpt2", specials=[])
    learner = _native.MergeLearner("huggingface")
    learner.take_items(list(counts.items()))
    learner.build()
    learner.learn(3000, 1 << 40, 1)
    floor = 5 * 28 * (1 << 14)  # arrays grow by so many items at least
    assert learner.bytes <= planned_bytes(sum(map(len, counts)), len(counts)) + floor


@pytest.mark.parametrize(
    ("kind", "num_tokens"), [("RoundLearner", 900), ("WideRoundLearner", 65000)]
)
def test_the_file_takes_what_was_said(
    kind: str, num_tokens: int, tmp_path: Path, make_text: Callable[[int, int], bytes]
) -> None:
    counts = reference.count_pieces([make_text(3, 60_000)], pattern="gpt2", specials=[])
    counts = Counter({piece: count for piece, count in counts.items() if len(piece) > 1})
    learner = getattr(_native, kind)("huggingface", file_dir=str(tmp_path), memory_bytes=MIB)
    learner.take_items(list(counts.items()))
    said = file_bytes(sum(map(len, counts)), len(counts), num_tokens=num_tokens)
    assert learner.file_bytes == said


def test_a_piece_that_no_round_can_hold_is_refused_with_a_budget_that_does(tmp_path: Path) -> None:
    counter = _native.PieceCounter(
        "gpt2", [], num_threads=1, table_bytes=MIB, window_bytes=MIB, spill_dir=str(tmp_path)
    )
    counter.count_texts([b"a" * (3 * MIB)])
    with (
        Progress("test", budget_bytes=40 * MIB) as progress,
        pytest.raises(BudgetError, match="the longest has 3") as caught,
    ):
        learning.learn_merges(
            counter,
            target=50,
            tie_break="huggingface",
            min_frequency=1,
            budget=MemoryBudget(40 * MIB, used_bytes=0),
            progress=progress,
            work_dir=tmp_path,
        )
    assert "--memory 88MiB" in str(caught.value.next_step)


@pytest.mark.parametrize("share", [0.3, 0.62, 0.8])
def test_more_memory_never_learns_less_of_one_long_piece(share: float, tmp_path: Path) -> None:
    """Letters without a place to cut, in any part of the memory that full speed would take."""
    text = "".join(random.Random(3).choices("acgt", k=3 * MIB)).encode()
    counter = _native.PieceCounter(
        "gpt2", [], num_threads=1, table_bytes=64 * MIB, window_bytes=4 * MIB,
        spill_dir=str(tmp_path),
    )  # fmt: skip
    counter.count_texts([text])
    total_bytes = int(planned_bytes(len(text), 1) * share)
    with Progress("test", budget_bytes=total_bytes) as progress:
        merges = learning.learn_merges(
            counter,
            target=24,
            tie_break="huggingface",
            min_frequency=1,
            budget=MemoryBudget(total_bytes, used_bytes=0),
            progress=progress,
            work_dir=tmp_path,
        )
    assert len(merges) == 24


@pytest.mark.parametrize(("longest", "share"), [(0, 7 / 8), (10**9, 0.5)])
def test_rounds_get_most_of_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int, share: float
) -> None:
    given: list[int] = []

    def learner(tie_break: str, *, file_dir: str, memory_bytes: int) -> Any:
        given.append(memory_bytes)

    needed = planned_bytes(Sizes.distinct_bytes, Sizes.distinct)
    monkeypatch.setattr(learning._native, "RoundLearner", learner)
    monkeypatch.setattr(Sizes, "longest_piece", longest)
    total = needed if share < 0.6 else 20 * MIB  # half of full speed's is less there
    picked(total - 8, tmp_path)
    assert given == [needed // 2 if longest else 20 * MIB - 8 - (20 * MIB - 8) // 8]
