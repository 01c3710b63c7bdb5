"""How long to train: borders of advice, sizes by day and by text."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from lowtide.planning import compute
from lowtide.planning.compute import plan_compute, size_for_a_day, size_for_tokens


def plan(**options: Any) -> compute.ComputePlan:
    given = {"flops_per_token": 6.0, "tokens_per_step": 100, "train_tokens": 1000}
    return plan_compute(10, **{**given, **options})


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, 2),  # 20 tokens a parameter
        ({"train_tokens": None}, 2),
        ({"train_tokens": 5}, 1),  # 16 epochs at most
        ({"train_tokens": 10}, 2),
        ({"train_tokens": 5, "tokens_per_param": 50.0}, 5),
        ({"max_iters": 7}, 7),
        ({"epochs": 0.25}, 3),
        ({"epochs": 2, "train_tokens": None}, 2),
        ({"epochs": 0.0001}, 1),
    ],
)
def test_steps_as_asked_for_or_by_the_rule(options: dict[str, Any], steps: int) -> None:
    found = plan(**options)
    assert (found.steps, found.planned_tokens) == (steps, 100 * steps)
    assert (found.parameters, found.optimal_tokens) == (10, 200)
    assert found.flops == 600.0 * steps


def test_epochs_and_seconds() -> None:
    found = plan(max_iters=20, tokens_per_second=50.0)
    assert (found.epochs, found.seconds) == (2.0, 40.0)
    unknown = plan(train_tokens=None)
    assert (unknown.epochs, unknown.seconds) == (None, None)
    assert unknown.describe_epochs() == "no data is named"
    assert unknown.describe_best_size() is None
    once, more = plan(max_iters=10), plan(max_iters=11)
    assert (once.epochs, once.describe_epochs()) == (1.0, "no token is seen twice")
    assert more.describe_epochs() == "up to 4 times counts nearly as new text"
    assert "should have 50 parameters (20 tokens for each)" in str(found.describe_best_size())


def test_sizes_by_day_and_by_text() -> None:
    assert size_for_a_day(1, has_gpu=False) == 3_800_000
    assert size_for_a_day(1, has_gpu=True) == size_for_a_day(64, has_gpu=True) == 150_000_000
    assert size_for_tokens(None) == sys.maxsize
    assert size_for_tokens(123_456_789) == 25_000_000
    assert size_for_tokens(0) == 1_000_000
