"""NFC of any text is that of unicodedata, and takes time in proportion to the text."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from unicodedata import combining, decomposition, normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.corpus import normalforms
from lowtide.corpus.normalforms import to_nfc

MARKS = [chr(code) for code in range(sys.maxunicode + 1) if combining(chr(code))]
DOUBLE = "\u0f73\u0f75\u0f81"


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(
        st.text(st.sampled_from(MARKS), max_size=90)
        | st.text(st.sampled_from([*MARKS[:40], *DOUBLE, "\u0f71", "\u0344", "\u0340", "a", " "]))
        | st.sampled_from(["e", "\u00e9", "\u1100\u1161", "\uac00\u11a8", "\U0001d15e", "x" * 70]),
        max_size=12,
    )
)
def test_nfc_is_that_of_unicodedata(parts: list[str]) -> None:
    text = "".join(parts)
    assert to_nfc(text) == normalize("NFC", text)


@pytest.mark.parametrize(
    "run", ["\u0323\u0301", "\u0301\u0323\u0345\u05b4", "\u0f73", "\u0f72\u0f71"]
)
def test_unicodedata_gets_long_runs_in_order(run: str) -> None:
    """Ordering marks one by one, as it does, takes minutes for these."""
    text = "e" + run * 150_000 + " e\u0301"
    ordered = "".join(normalforms._iter_sorted(text))
    classes = [combining(mark) for mark in ordered[1:-3]]
    assert classes == sorted(classes) and len(classes) >= 300_000
    found = to_nfc(text)
    assert found.endswith(" \u00e9") and len(found) >= 300_000
    short = "e" + run * 500
    assert to_nfc(short) == normalize("NFC", short)


def test_text_with_short_runs_is_left_as_it_is() -> None:
    """As in decomposed Vietnamese, where every third character is a mark."""
    text = "Ta\u0302\u0301t ca\u0309 mo\u0323i ngu\u031bo\u031b\u0300i sinh ra " * 20_000
    assert list(normalforms._iter_sorted(text)) == [text]
    assert to_nfc(text).startswith("T\u1ea5t c\u1ea3 m\u1ecdi")


def test_memory_is_in_proportion_to_the_text() -> None:
    peaks: list[float] = []
    for text in ("e\u0323\u0302 " * 100_000, "\u0323\u0301\u05b4" * 100_000):
        tracemalloc.start()
        to_nfc(text)
        peaks.append(tracemalloc.get_traced_memory()[1] / len(text.encode()))
        tracemalloc.stop()
    assert max(peaks) < 8


def marks_of_more() -> Iterator[str]:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        parts = normalize("NFD", character) if decomposition(character) else character
        if combining(character) or all(map(combining, parts)):
            yield character


def test_marks_keep_their_class_when_they_are_decomposed() -> None:
    """Only so may runs of them be ordered before they are."""
    for character in marks_of_more():
        classes = {combining(part) for part in normalize("NFD", character)}
        if character in normalforms._DOUBLE:
            assert len(classes) == 2
        else:
            assert classes == {combining(character)}
    assert set(normalforms._DOUBLE) == set(DOUBLE)
