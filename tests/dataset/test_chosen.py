"""Inputs that a preparation finds, and its notices before it begins."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.corpus.usersteps import STEP_NOTICE
from lowtide.dataset import chosen
from lowtide.dataset.chosen import FoundInputs, choose_inputs, find_inputs
from lowtide.dataset.resources import Shares
from lowtide.dataset.settings import PrepareSettings


def settings(**options: Any) -> PrepareSettings:
    return PrepareSettings(input_files=("a.txt",), out_dir=Path("out"), **options)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stand-ins that record their calls; every result is a word."""
    found: list[Any] = []

    def expand(files: Any, *, on_notice: Any) -> str:
        on_notice("an odd name")
        found.append(("expand", files))
        return "inputs"

    def note(name: str, answer: Any = None) -> Any:
        return lambda *given, **more: found.append((name, *given)) or answer

    monkeypatch.setattr(chosen, "expand_inputs", expand)
    monkeypatch.setattr(chosen, "require_rereadable", note("rereadable"))
    monkeypatch.setattr(chosen, "Inputs", SimpleNamespace(of=note("needs", "needs")))
    monkeypatch.setattr(
        chosen, "MemoryBudget", SimpleNamespace(from_setting=note("budget", "budget"))
    )
    monkeypatch.setattr(chosen, "plan_shares", note("shares", "shares"))
    return found


@pytest.mark.parametrize(
    ("options", "more", "notices"),
    [
        ({}, [], ["an odd name"]),
        ({"keep_top": 0.5, "score": "model.bin"}, ["rereadable"], ["an odd name"]),
        ({"step": "mine.py:clean"}, [], ["an odd name", STEP_NOTICE]),
    ],
)
def test_inputs_are_looked_at_before_the_budget_is_measured(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], more: list[str],
    notices: list[str],
) -> None:  # fmt: skip
    given: Any = SimpleNamespace(
        **{"input_files": ("a.txt",), "keep_top": None, "step": "", "memory": "1GiB", **options}
    )
    found = find_inputs(given)
    assert found == FoundInputs("inputs", "budget", "shares", notices)  # type: ignore[arg-type]
    assert [name for name, *_ in asked] == ["expand", *more, "needs", "budget", "shares"]
    assert ("budget", "1GiB") in asked
    assert ("needs", "inputs", given) in asked and ("shares", given, "budget", "needs") in asked


@pytest.mark.parametrize("dedup", [True, False])
def test_copies_are_left_out_where_duplicates_are(
    monkeypatch: pytest.MonkeyPatch, dedup: bool
) -> None:
    told: list[str] = []
    progress: Any = SimpleNamespace(note=told.append)
    sampled: list[Any] = []

    def drop(inputs: Any, reading: Any, *, on_notice: Any) -> str:
        on_notice("b.txt is a.txt")
        return "fewer"

    monkeypatch.setattr(chosen, "drop_copies", drop)
    monkeypatch.setattr(
        chosen, "require_some_kept",
        lambda given, inputs, reading, *, on_notice: sampled.append((inputs, on_notice)),
    )  # fmt: skip
    shares = Shares(1, 0, 0, 0, reader_bytes=123, reader_cost=4, more_reader_bytes=5)
    budget: Any = SimpleNamespace(total_bytes=1 << 30)
    found = FoundInputs("all", budget, shares, ["first", "second"])  # type: ignore[arg-type]
    inputs, reading = choose_inputs(found, settings(dedup=dedup), progress)
    expected = "fewer" if dedup else "all"
    assert inputs == expected
    assert reading == settings(dedup=dedup).reading(
        reader_bytes=123, budget_bytes=(1 << 30) + 5, reader_cost=4
    )
    assert told == ["first", "second", *(["b.txt is a.txt"] if dedup else [])]
    assert sampled == [(expected, progress.note)]
