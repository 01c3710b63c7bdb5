"""Which scalings of rotary positions there are, at the borders of every field."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lowtide.errors import UsageError
from lowtide.model.rope import RopeScaling

FIELDS = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow")


def make(**changes: Any) -> RopeScaling:
    known: dict[str, Any] = {"rope_type": "yarn", "factor": 2.0}
    return RopeScaling(**{**known, "original_max_position_embeddings": 8, **changes})


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_factors_are_more_than_zero_and_finite(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value}, expected more than 0, and finite"):
        make(**{name: value})
    assert getattr(make(**{name: 0.5}), name) == 0.5


@pytest.mark.parametrize("value", [-0.1, math.inf, math.nan])
def test_the_factor_of_attention_may_be_left_to_the_rule(value: float) -> None:
    with pytest.raises(UsageError, match=f"attention_factor is {value}, expected 0 or more"):
        make(attention_factor=value)
    assert make(attention_factor=0.0).attention_factor == 0.0


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_the_context_before_is_known_where_it_counts(kind: Any) -> None:
    for tokens in (0, (1 << 24) + 1):
        with pytest.raises(UsageError, match="original_max_position_embeddings is"):
            make(rope_type=kind, original_max_position_embeddings=tokens)
    for tokens in (1, 1 << 24):
        made = make(rope_type=kind, original_max_position_embeddings=tokens)
        assert made.original_max_position_embeddings == tokens
    linear = make(rope_type="linear", original_max_position_embeddings=0)
    assert linear.rope_type == "linear"
    with pytest.raises(UsageError, match="rope_type is 'other', expected linear or llama3 or yarn"):
        make(rope_type="other")


@pytest.mark.parametrize(("low", "high", "fits"), [(1.0, 1.0, False), (1.0, 1.5, True)])
def test_waves_that_stay_are_shorter_than_those_that_are_stretched(
    low: float, high: float, fits: bool
) -> None:
    given: Any = {"rope_type": "llama3", "low_freq_factor": low, "high_freq_factor": high}
    if fits:
        assert make(**given).high_freq_factor == high
        return
    with pytest.raises(UsageError, match=r"high_freq_factor is 1\.0, expected more than low_freq"):
        make(**given)
    assert make(**{**given, "rope_type": "yarn"}).low_freq_factor == low
