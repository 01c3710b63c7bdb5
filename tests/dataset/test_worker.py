"""The memory freed by stages that a worker keeps."""

from __future__ import annotations

import pytest

from lowtide.dataset.staged import worker


@pytest.mark.parametrize(
    ("budget", "resident", "given_back"), [(100, 50, 0), (100, 51, 1), (None, 51, 0)]
)
def test_freed_memory_is_given_back_where_it_is_much(
    monkeypatch: pytest.MonkeyPatch, budget: int | None, resident: int, given_back: int
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(worker, "resident_bytes", lambda: resident)
    monkeypatch.setattr(worker._native, "keep_freed_memory", told.append)
    worker._give_back(budget)
    assert told == [True] * given_back
