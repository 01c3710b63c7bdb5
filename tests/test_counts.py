"""Whole numbers as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.counts import LARGEST_INT, counted, read_int


@given(st.integers(-(LARGEST_INT - 1), LARGEST_INT - 1))
def test_every_plain_number_is_itself(number):
    assert read_int(str(number)) == read_int(f"{number:_}") == number


@given(st.integers(0, 9_000_000), st.sampled_from(["k", "K", "m", "M", "B", "g"]))
def test_units_multiply_exactly(thousandths, unit):
    scale = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}[unit.lower()]
    assert read_int(f"{thousandths / 1000}{unit}") == thousandths * scale // 1000


@pytest.mark.parametrize(
    "word", ["", "k", "1.5", "1.0005k", "nan", "inf", "1e400", "1 000", "0x10"]
)
def test_what_is_no_whole_number_is_refused(word):
    with pytest.raises(ValueError, match="is not a whole number"):
        read_int(word)


@pytest.mark.parametrize("word", [str(LARGEST_INT), f"-{LARGEST_INT}", "1e19", "10000000t"])
def test_what_native_code_cannot_hold_is_refused(word):
    with pytest.raises(ValueError, match="is too large"):
        read_int(word)


def test_things_are_counted_in_words():
    assert (counted(0, "file"), counted(1, "file")) == ("0 files", "1 file")
    assert counted(1_234_567, "token") == "1,234,567 tokens"
