"""Unicode's normal form NFC, in time proportional to the text.

In:      text
Out:     the same in NFC
Memory:  a few times the text

`unicodedata` moves each combining mark before those of higher classes one place at a time: 300,000
marks in the wrong order take a minute. So long runs of marks are sorted before it sees them.
"""

from __future__ import annotations

from itertools import groupby

__all__ = ["to_nfc"]

_LONG = 64  # a run of twice as many marks is found by looking at every 64th character
# These are no marks themselves, but consist of two, of different classes.
_DOUBLE = {"\u0f73": "\u0f71\u0f72", "\u0f75": "\u0f71\u0f74", "\u0f81": "\u0f71\u0f80"}


def to_nfc(text: str) -> str:
    """Return text in NFC.

    >>> to_nfc("cafe\\u0301")
    'café'
    """
    from unicodedata import normalize  # few texts need it

    if len(text) > _LONG and any(map(_is_mark, text[::_LONG])):
        text = _sort_marks(text)
    return normalize("NFC", text)


def _is_mark(character: str) -> bool:
    from unicodedata import combining

    return combining(character) > 0 or character in _DOUBLE


def _sort_marks(text: str) -> str:
    """Put all runs of marks in canonical order, which changes nothing about their NFC.

    All other marks keep their class when they are decomposed (a test goes through all characters).
    """
    from unicodedata import combining

    parts: list[str] = []
    for are_marks, run in groupby(text, _is_mark):
        if are_marks:
            marks = "".join(_DOUBLE.get(mark, mark) for mark in run)
            parts += sorted(marks, key=combining)
        else:
            parts += run
    return "".join(parts)
