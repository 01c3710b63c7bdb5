"""Phases that several verbs share: their progress, messages and results."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.corpus.inputs import InputFile
from lowtide.dataset import phases
from lowtide.dataset.phases import RankedInputs, run_cleaning
from lowtide.errors import DataError


@pytest.mark.parametrize(
    ("consumer", "name", "shown"),
    [(None, "", "clean"), ("one pass", "", "clean, encode"), (None, "new text", "new text")],
)
@pytest.mark.parametrize("counts", [True, False])
def test_a_corpus_is_cleaned_as_one_phase(
    monkeypatch: pytest.MonkeyPatch, consumer: Any, name: str, shown: str, counts: bool
) -> None:
    told: list[Any] = []
    added: list[Any] = []

    class Shown:
        @contextlib.contextmanager
        def phase(self, name: str, *, total: int, unit: str) -> Any:
            told.append((name, total, unit))
            yield SimpleNamespace(advance=lambda count: told.append(count))

        def note(self, text: str) -> None:
            told.append(text)

    class Builder:
        def __init__(self, job: Any) -> None:
            self.rows: list[Any] = []

        def add(self, work: Any) -> None:
            self.rows.append(work)

        def finish(self) -> Any:
            return SimpleNamespace(rows=self.rows, notices=["first", "second"])

    def clean(job: Any, pool: Any, *, on_done: Any, on_block: Any) -> None:
        for number in range(2):
            on_block(SimpleNamespace(work=f"work {number}", made=f"made {number}"))
            on_done(5)

    monkeypatch.setattr(phases, "TableBuilder", Builder)
    monkeypatch.setattr(phases, "clean_corpus", clean)
    streams = [SimpleNamespace(size_bytes=3), SimpleNamespace(size_bytes=7)]
    job: Any = SimpleNamespace(streams=streams, consumer=consumer)
    totals: Any = SimpleNamespace(add=added.append) if counts else None
    progress: Any = Shown()
    options: Any = {"name": name} if name else {}
    table: Any = run_cleaning(job, None, progress, totals=totals, **options)  # type: ignore[arg-type]
    assert table.rows == ["work 0", "work 1"]
    assert added == (["made 0", "made 1"] if counts else [])
    assert told == [(shown, 10, "B"), 5, 5, "first", "second"]


def test_inputs_that_changed_since_they_were_ranked_are_refused() -> None:
    before: Any = {0: "a", 1: "b"}
    sources = [InputFile(n, Path(f"{n}.txt"), "text", None, 5) for n in range(2)]
    cut: Any = None
    ranked = RankedInputs(cut, before)
    same: Any = {0: "a", 1: "b"}
    ranked.require_same(sources, same)
    for changed in ({0: "x", 1: "b"}, {0: "a", 1: "x"}, {0: "a"}):
        other: Any = changed
        with pytest.raises(DataError):
            ranked.require_same(sources, other)
