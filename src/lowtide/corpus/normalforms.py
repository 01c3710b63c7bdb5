"""Unicode's normal form NFC, in time proportional to the text.

In:      text
Out:     the same in NFC
Memory:  a few times the text

`unicodedata` moves each combining mark before those of higher classes one place at a time: 300,000
marks in the wrong order take a minute. So long runs of marks are sorted before it sees them.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["to_nfc"]

_LONG = 64  # a run of so many marks is found by looking at every 64th character
# These are no marks themselves, but consist of two, of different classes.
_DOUBLE = {"\u0f73": "\u0f71\u0f72", "\u0f75": "\u0f71\u0f74", "\u0f81": "\u0f71\u0f80"}


def to_nfc(text: str) -> str:
    """Return text in NFC.

    >>> to_nfc("cafe\\u0301")
    'café'
    """
    from unicodedata import normalize  # few texts need it

    return normalize("NFC", "".join(_iter_sorted(text)) if len(text) > _LONG else text)


def _iter_sorted(text: str) -> Iterator[str]:
    """The parts of a text, with its long runs of marks in canonical order.

    That changes nothing about their NFC: all marks but _DOUBLE keep their class when they are
    decomposed (a test goes through all characters).
    """
    from unicodedata import combining

    def is_mark(character: str) -> bool:
        return combining(character) > 0 or character in _DOUBLE

    done = 0
    for number, character in enumerate(text[::_LONG]):
        begin = number * _LONG
        end = begin + 1
        if begin < done or not is_mark(character):
            continue
        while begin > done and is_mark(text[begin - 1]):
            begin -= 1
        while end < len(text) and is_mark(text[end]):
            end += 1
        if end - begin >= _LONG:
            yield text[done:begin]
            yield from _iter_classes(text[begin:end])
            done = end
    yield text[done:]


def _iter_classes(marks: str) -> Iterator[str]:
    """The marks of each class, from the lowest on, in the order in which they come.

    As a list of characters they would take 40 times their bytes.
    """
    from unicodedata import combining

    for double, both in _DOUBLE.items():  # translate() would grow its result piece by piece
        marks = marks.replace(double, both)
    classes = {mark: combining(mark) for mark in set(marks)}
    for wanted in sorted(set(classes.values())):
        yield marks.translate({ord(mark): None for mark in classes if classes[mark] != wanted})
