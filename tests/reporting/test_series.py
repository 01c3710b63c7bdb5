"""Curves keep their ends, their extremes and their mean in a fixed number of points."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.reporting.series import Series, SpacedItems, round_number

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


def columns_of(values: list[float], limit: int) -> dict[str, list[float]]:
    series = Series(limit=limit)
    for step, value in enumerate(values):
        series.add(value, places=(step,))
    return series.as_json(["step"])


@given(st.lists(NUMBERS, min_size=1, max_size=300), st.sampled_from([2, 4, 10, 64]))
def test_a_curve_of_any_length_keeps_its_extremes_and_its_end(
    values: list[float], limit: int
) -> None:
    columns = columns_of(values, limit)
    assert len(columns["y"]) <= limit
    assert columns["step"] == sorted(set(columns["step"]))
    assert columns["step"][-1] == round_number(len(values) - 1)
    assert min(columns.get("low", columns["y"])) == round_number(min(values))
    assert max(columns.get("high", columns["y"])) == round_number(max(values))


def test_buckets_are_means_of_equally_many_points() -> None:
    columns = columns_of([float(step) for step in range(1024)], limit=8)
    assert columns["step"] == [127, 255, 383, 511, 639, 767, 895, 1023]
    assert columns["y"] == [63.5 + 128 * bucket for bucket in range(8)]


def test_a_short_curve_stays_as_it_is_and_has_no_band() -> None:
    assert columns_of([3.0, 1.0, 2.0], limit=8) == {"step": [0, 1, 2], "y": [3, 1, 2]}


@pytest.mark.parametrize("value", [None, math.nan, -math.inf, "5", True, [1], -(10**400)])
def test_what_is_no_finite_number_is_left_out(value: object) -> None:
    series = Series()
    series.add(value, places=(0,))
    assert not series
    assert series.last is None


@given(st.integers(1, 500), st.integers(2, 20))
def test_spaced_items_keep_the_first_and_the_last(count: int, limit: int) -> None:
    items = SpacedItems(limit)
    for number in range(count):
        items.add(number)
    assert items.items[0] == 0
    assert items.items[-1] == count - 1
    assert len(items.items) <= limit
    assert items.items == sorted(set(items.items))


@given(NUMBERS)
def test_rounding_keeps_six_digits(value: float) -> None:
    assert round_number(value) == pytest.approx(value, rel=1e-5)


def test_borders_of_rounding_and_of_keeping() -> None:
    assert round_number(99_999.96) == 100_000
    assert round_number(100_000.5) == 100_000
    assert round_number(-123_456.7) == -123_457
    assert round_number(10_000.25) == 10_000.2  # six digits in all
    assert (round_number(math.inf), round_number(math.nan), round_number(0.0)) == (0, 0, 0)
    assert round_number(1.23456789, digits=3) == 1.23
    items = SpacedItems(limit=5)
    for number in range(9):
        items.add(number)
    assert items.items == [0, 4, 8]
    for number in range(9, 14):
        items.add(number)
    assert items.items == [0, 4, 8, 12, 13]
    series = Series()
    for number in range(481):
        series.add(number if number % 2 else -number, places=(number,))
    assert (series.first, series.last, series.low, series.high) == (0, -480, -480, 479)
    assert len(series.as_json(["step"])["y"]) == 241


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (123_456.7, 123_457), (999_999.4, 999_999), (999_999.6, 1_000_000),
        (1_000_000.4, 1_000_000), (1_234_567.8, 1_234_568), (-1_700_001.2, -1_700_001),
        (0.000123456789, 0.000123457),
    ],
)  # fmt: skip
def test_whole_numbers_keep_all_their_digits(value: float, expected: float) -> None:
    found = round_number(value)
    assert found == expected and type(found) is type(expected)
