"""What the files of a pretokenize command share, and how many workers a budget allows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.dataset import pretokenizingplan
from lowtide.dataset.npywriting import WORKER_BYTES
from lowtide.dataset.pretokenizingplan import (
    SLACK_BYTES,
    SharedFiles,
    character_bytes,
    fixed_bytes,
    plan_workers,
    stream_bytes,
)
from lowtide.dataset.settings import PretokenizeSettings
from lowtide.errors import BudgetError
from lowtide.memory import MemoryBudget, smallest_budget
from lowtide.tokenizer.scanning import CHARACTER_BYTES
from lowtide.tokenizer.stretches import Stretch, unseen_words

MIB = 1 << 20


def sources(count: int) -> list[Any]:
    return [
        SimpleNamespace(index=number, format=SimpleNamespace(reader_bytes=None))
        for number in range(count)
    ]


def shared(**options: Any) -> SharedFiles:
    settings = PretokenizeSettings(file=("a.txt",), **options)
    return SharedFiles(settings, sources(3))


def test_the_most_characters_of_the_files_from_here_on_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int]] = []
    found = {0: (50, 1), 1: (7, 20), 2: (9, 300)}

    def count(rows: Any, *, options: Any) -> tuple[int, int]:
        asked.append((rows[0].index, options.reader_bytes))
        return found[rows[0].index]

    monkeypatch.setattr(pretokenizingplan, "count_characters", count)
    made = shared(tokenization="char")
    assert made.count_characters(made._sources[1], 50 * MIB) == (9, 320)
    assert asked == [(1, 50 * MIB), (2, 50 * MIB)]
    asked.clear()
    assert made.count_characters(made._sources[0], -5) == (50, 321)
    assert {room for _, room in asked} == {10 * MIB}  # the minimum for reading
    asked.clear()
    assert shared(tokenization="gpt2").count_characters(made._sources[0], 0) == (0, 0)
    assert asked == []


def test_text_is_looked_through_only_for_tokenizers_that_cut_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def find(rows: Any, reading: Any, last_cut: Any, *, streams: bool) -> Stretch:
        asked.append(([row.index for row in rows], last_cut, streams))
        return Stretch(5)

    monkeypatch.setattr(pretokenizingplan, "find_stretch", find)
    for kind, normalizer, wanted, normalizes in (
        ("bpe", "none", Stretch(5), False),
        ("bpe", "nfc", Stretch(5), True),
        ("package", "none", Stretch(), False),
    ):
        made = shared(tokenization="mine")
        made.__dict__["named_tokenizer"] = SimpleNamespace(
            kind=kind, last_cut="cut", data=SimpleNamespace(normalizer=normalizer)
        )
        assert made.find_stretch(made._sources[1]) == wanted
        assert made.named_normalizes is normalizes
    characters = shared(tokenization="char")
    assert characters.find_stretch(characters._sources[0]) == Stretch()
    assert characters.named_normalizes is False
    assert asked == [([1, 2], "cut", False)] * 2


def test_workers_are_those_asked_for_or_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretokenizingplan, "usable_cores", lambda: 6)
    assert shared().most_workers == 6
    assert shared(num_workers=2).most_workers == 2


def test_the_program_is_measured_with_what_reading_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[int] = []
    monkeypatch.setattr(
        pretokenizingplan, "reader_bytes", lambda rows, reading: imported.append(rows[0].index)
    )
    made = shared(memory="1GiB")
    for row, size in zip(made._sources, (None, 5, 5), strict=True):
        row.format.reader_bytes = size
    assert made.program_bytes > MIB
    assert imported == [1]  # once
    budget = made.make_budget()
    assert (budget.total_bytes, budget.shares) == (1 << 30, {"program": made.program_bytes})


def test_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    half = SLACK_BYTES // 2
    assert character_bytes(0) == 0
    assert character_bytes(half // CHARACTER_BYTES + 1) == (
        (half // CHARACTER_BYTES + 1) * CHARACTER_BYTES - half
    )
    for by_package, is_plain, streams in (
        (False, True, 0),
        (False, False, 44 * MIB + 7),
        (True, True, 44 * MIB + 7),
    ):
        needs = SimpleNamespace(by_package=by_package, table_bytes=100, thread_bytes=30)
        monkeypatch.setattr(pretokenizingplan, "tokenizer_needs", lambda name, needs=needs: needs)
        found = stream_bytes("mine", is_plain=is_plain, reading=7)
        assert found == streams + 130
        assert fixed_bytes("mine", 3, is_plain=is_plain, reading=7) == (
            found + 3 * WORKER_BYTES + SLACK_BYTES
        )


_NONE = Stretch()


class Shared:
    """A stand-in for what files share: their needs as given."""

    most_workers = 4
    named_normalizes = False

    def __init__(self, stretch: Stretch = _NONE, count: tuple[int, int] = (0, 0)) -> None:
        self.stretch, self.count = stretch, count
        self.asked: list[int] = []

    def find_stretch(self, source: Any) -> Stretch:
        return self.stretch

    def count_characters(self, source: Any, room: int) -> tuple[int, int]:
        self.asked.append(room)
        return self.count


@pytest.mark.parametrize(
    ("room", "workers"),
    [
        (WORKER_BYTES, 1),
        (2 * WORKER_BYTES - 1, 1),
        (2 * WORKER_BYTES, 2),
        (40 * WORKER_BYTES, 4),
    ],
)
def test_workers_that_a_budget_has_room_for(room: int, workers: int) -> None:
    budget = MemoryBudget(10 * MIB + 5 * MIB + SLACK_BYTES + room, used_bytes=10 * MIB)
    found: Any = Shared()
    assert plan_workers(found, None, budget, stream_bytes=5 * MIB) == workers  # pyright: ignore
    assert budget.shares == {
        "program": 10 * MIB, "windows and caches": workers * WORKER_BYTES, "reading": 5 * MIB,
        "slack": SLACK_BYTES,
    }  # fmt: skip
    assert found.asked == []


@pytest.mark.parametrize(
    ("stretch", "count", "workers", "text", "unseen"),
    [
        (Stretch(), (0, 0), 1, 0, 0),
        (Stretch(50 * MIB), (0, 0), 4, 52 * MIB, 0),  # a larger budget is one for more workers
        (Stretch(50 * MIB, unseen_bytes=7 << 20), (0, 5 << 20), 4, 52 * MIB, 7 << 20),
        (Stretch(), (1 << 20, 9 << 20), 4, character_bytes(1 << 20), 9 << 20),
    ],
)
def test_a_budget_too_small_is_refused_with_what_the_text_needs(
    stretch: Stretch, count: tuple[int, int], workers: int, text: int, unseen: int
) -> None:
    total = 10 * MIB + 5 * MIB + SLACK_BYTES + WORKER_BYTES - 1
    budget = MemoryBudget(total, used_bytes=10 * MIB)
    found: Any = Shared(stretch, count)
    with pytest.raises(BudgetError) as caught:
        plan_workers(found, None, budget, stream_bytes=5 * MIB)  # pyright: ignore
    needed = 15 * MIB + SLACK_BYTES + workers * WORKER_BYTES + text
    assert caught.value.next_step == smallest_budget(needed) + unseen_words(unseen)
    assert found.asked == [total - 10 * MIB]
