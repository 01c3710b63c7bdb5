"""Which way merges are learned, and in how much memory; test_merging has what comes out."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowtide import _native
from lowtide.errors import BudgetError
from lowtide.memory import MemoryBudget, format_size, smallest_budget
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
    learner, notes = picked(400 * MIB, tmp_path, target=100_000)
    assert (type(learner), notes) == (_native.WideMergeLearner, [])
    learner, notes = picked(20 * MIB, tmp_path)
    assert type(learner) is _native.RoundLearner
    assert "at full speed needs about" in notes[0]
    assert "in rounds over a file of 19.1 MiB" in notes[0]
    learner, _ = picked(20 * MIB, tmp_path, target=100_000)
    assert type(learner) is _native.WideRoundLearner


@pytest.mark.parametrize(("symbols", "kind"), [(-1, "MergeLearner"), (0, "RoundLearner")])
def test_more_symbols_than_full_speed_can_number_are_learned_in_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, symbols: int, kind: str
) -> None:
    monkeypatch.setattr(Sizes, "distinct", 1 << 20)
    monkeypatch.setattr(Sizes, "distinct_bytes", (1 << 32) - (4 << 20) + symbols)
    monkeypatch.setattr(learning, "free_disk_bytes", lambda path: 1 << 40)
    learner, _ = picked(1 << 40, tmp_path)
    assert type(learner).__name__ == kind


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


@pytest.mark.parametrize(
    ("workers", "spare", "threads"),
    [(8, 100, 8), (9, 100, 8), (4, 100, 4), (3, 100, 1), (8, 16, 4), (8, 15, 1), (8, 20, 5)],
)  # fmt: skip
def test_threads_of_full_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, spare: int, threads: int
) -> None:
    """Four to eight, 4 MiB each beside what one takes; fewer gain little."""
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(
        learning._native, "MergeLearner", lambda tie_break, **more: given.append(more)
    )
    needed = planned_bytes(Sizes.distinct_bytes, Sizes.distinct)
    needed += Sizes.distinct_bytes + 16 * Sizes.distinct  # there twice, at the beginning
    counter: Any = Sizes()
    progress: Any = None
    learning._pick_learner(
        counter, 1000, "huggingface", {"longest_token": 7},
        MemoryBudget(needed + spare * MIB, used_bytes=0), progress, tmp_path, workers,
    )  # fmt: skip
    assert given == [{"num_threads": threads, "longest_token": 7}]


def test_sizes_of_files_and_tables() -> None:
    assert planned_bytes(1000, 10) == 28_240
    border = learning._SHORT_SYMBOLS
    assert file_bytes(5, 1, num_tokens=border - 1) == 14
    assert file_bytes(5, 1, num_tokens=border) == 28


@pytest.mark.parametrize(
    ("target", "kind"),
    [(-257, "RoundLearner"), (-256, "WideRoundLearner"), (0, "WideRoundLearner")],
)
def test_symbols_are_short_while_they_fit(tmp_path: Path, target: int, kind: str) -> None:
    learner, notes = picked(20 * MIB, tmp_path, target=learning._SHORT_SYMBOLS + target)
    assert type(learner).__name__ == kind
    on_disk = file_bytes(
        Sizes.distinct_bytes, Sizes.distinct, num_tokens=256 + learning._SHORT_SYMBOLS + target
    )
    assert notes == [
        f"learning at full speed needs about {format_size(planned_bytes(8_000_000, 1_000_000))}: "
        f"done in 20.0 MiB, in rounds over a file of {format_size(on_disk)}, same result"
    ]


def test_the_disk_must_hold_the_file_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk = file_bytes(Sizes.distinct_bytes, Sizes.distinct, num_tokens=1256)
    monkeypatch.setattr(learning, "free_disk_bytes", lambda path: on_disk)
    picked(20 * MIB, tmp_path)
    monkeypatch.setattr(learning, "free_disk_bytes", lambda path: on_disk - 1)
    with pytest.raises(BudgetError) as caught:
        picked(20 * MIB, tmp_path)
    assert caught.value.path == tmp_path
    needed = planned_bytes(Sizes.distinct_bytes, Sizes.distinct)
    learner, _ = picked(needed, tmp_path)
    assert type(learner) is _native.MergeLearner


@pytest.mark.parametrize("longest", [0, learning._LONG_PIECE, learning._LONG_PIECE + 1])
def test_one_long_piece_gets_half_of_what_full_speed_takes_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    given: list[int] = []
    monkeypatch.setattr(
        learning._native, "RoundLearner",
        lambda tie_break, *, file_dir, memory_bytes: given.append(memory_bytes),
    )  # fmt: skip
    monkeypatch.setattr(Sizes, "longest_piece", longest)
    needed = planned_bytes(Sizes.distinct_bytes, Sizes.distinct)
    picked(needed - 1, tmp_path)
    whole = needed - 1 - (needed - 1) // 8
    assert given == [needed // 2 if longest > learning._LONG_PIECE else whole]


@pytest.mark.parametrize(
    ("byte_bytes", "used", "refused"),
    [(1000, 0, False), (40_000, 0, False), (40_000, 90 * MIB, True), (20_000, 99 * MIB, False)],
)
def test_tokens_that_cannot_be_written_are_refused(
    byte_bytes: int, used: int, refused: bool
) -> None:
    """Of 256 bytes and tokens of 2, 4 and 6 letters; what takes under 8 MiB is never refused."""
    merges = memoryview(array("I", [97, 97, 256, 256, 256, 257, 257, 256, 258]))
    written = byte_bytes * (256 + 2 + 4 + 6)
    budget = MemoryBudget(100 * MIB, used_bytes=used)
    if not refused:
        learning._require_room(merges, budget, byte_bytes)
        return
    with pytest.raises(BudgetError) as caught:
        learning._require_room(merges, budget, byte_bytes)
    assert caught.value.message == (
        "the text repeats itself without a place to cut: a token has 6 B, and writing all of them "
        f"takes {format_size(written)}"
    )
    least = smallest_budget(used + written + written // 8)
    assert caught.value.next_step == f"{least}, or put blanks or line ends into the text"


def test_a_budget_that_is_just_enough_to_write() -> None:
    merges = memoryview(array("I", []))
    written = 40_000 * 256
    learning._require_room(merges, MemoryBudget(written, used_bytes=0), 40_000)
    with pytest.raises(BudgetError):
        learning._require_room(merges, MemoryBudget(written - 1, used_bytes=0), 40_000)
    little = 8 * MIB // 256
    learning._require_room(merges, MemoryBudget(0, used_bytes=0), little - 1)
    with pytest.raises(BudgetError):
        learning._require_room(merges, MemoryBudget(0, used_bytes=0), little)
