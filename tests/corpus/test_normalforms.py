"""NFC of any text is that of unicodedata, and takes time in proportion to the text."""

from __future__ import annotations

import sys
import time
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
def test_a_long_run_of_marks_takes_time_in_proportion(run: str) -> None:
    """Ordering marks one by one, as unicodedata does, takes minutes for these."""
    begin = time.process_time()
    found = to_nfc("e" + run * 150_000 + " e\u0301")
    assert time.process_time() - begin < 5
    assert found.endswith(" \u00e9") and len(found) >= 300_000
    short = "e" + run * 500
    assert to_nfc(short) == normalize("NFC", short)


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
