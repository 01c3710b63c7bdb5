"""Which way merges are learned, and in how much memory; test_merging has what comes out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lowtide import _native
from lowtide.errors import BudgetError
from lowtide.memory import MemoryBudget
from lowtide.progress import Progress
from lowtide.tokenizer import learning, reference
from lowtide.tokenizer.learning import compact_bytes, planned_bytes

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
            MemoryBudget(total_bytes, used_bytes=0),
            progress,
            tmp_path,
        )
        return learner, list(notes)


def test_the_fastest_way_that_fits_is_taken(tmp_path: Path) -> None:
    learner, notes = picked(400 * MIB, tmp_path)
    assert (type(learner), notes) == (_native.MergeLearner, [])
    learner, notes = picked(120 * MIB, tmp_path)
    assert type(learner) is _native.CompactLearner
    assert "at full speed needs about" in notes[0]
    learner, _ = picked(120 * MIB, tmp_path, target=100_000)
    assert type(learner) is _native.WideCompactLearner
    learner, notes = picked(20 * MIB, tmp_path)
    assert type(learner) is _native.MergeLearner
    assert "kept in files" in notes[0]


def test_no_room_in_memory_nor_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "free_disk_bytes", lambda path: 1000)
    with pytest.raises(BudgetError, match="more than the disk has free"):
        picked(20 * MIB, tmp_path)


def test_planned_bytes_hold(make_text: Callable[[int, int], bytes]) -> None:
    counts = reference.count_pieces([make_text(3, 60_000)], pattern="gpt2", specials=[])
    learner = _native.MergeLearner("huggingface", file_dir="", resident_limit=0)
    learner.take_items(list(counts.items()))
    learner.build()
    learner.learn(3000, 1 << 40, 1)
    floor = 5 * 28 * (1 << 14)  # arrays grow by so many items at least
    assert learner.bytes <= planned_bytes(sum(map(len, counts)), len(counts)) + floor


def test_little_memory_is_a_fraction() -> None:
    assert 6 * compact_bytes(45 * MIB, 5 * MIB, num_tokens=32_000) < planned_bytes(
        45 * MIB, 5 * MIB
    )
    assert compact_bytes(45 * MIB, 5 * MIB, num_tokens=200_000) < 2 * compact_bytes(
        45 * MIB, 5 * MIB, num_tokens=32_000
    )
