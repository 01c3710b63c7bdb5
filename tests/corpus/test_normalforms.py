"""NFC of any text is that of unicodedata, and takes time in proportion to the text."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
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
def test_a_long_run_of_marks_takes_time_in_proportion(run: str) -> None:
    """Ordering marks one by one, as unicodedata does, takes minutes for these."""
    begin = time.process_time()
    found = to_nfc("e" + run * 150_000 + " e\u0301")
    assert time.process_time() - begin < 5
    assert found.endswith(" \u00e9") and len(found) >= 300_000
    short = "e" + run * 500
    assert to_nfc(short) == normalize("NFC", short)


def test_short_runs_cost_little() -> None:
    """As in decomposed Vietnamese, where every third character is a mark."""
    text = "Ta\u0302\u0301t ca\u0309 mo\u0323i ngu\u031bo\u031b\u0300i sinh ra " * 20_000

    def seconds(compose: Callable[[str], str]) -> float:
        begin = time.process_time()
        assert compose(text).startswith("T\u1ea5t c\u1ea3 m\u1ecdi")
        return time.process_time() - begin

    def plain(text: str) -> str:
        return normalize("NFC", text)

    assert min(seconds(to_nfc) for _ in range(3)) < 10 * min(seconds(plain) for _ in range(3))


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
