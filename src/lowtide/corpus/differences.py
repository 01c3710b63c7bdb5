"""Describe how a command differs from the one in a record.

In:      current settings and inputs; those of a record
Out:     the first difference as a clause for a message, None if there is none
Memory:  names of inputs, only if they differ
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from lowtide.corpus.inputs import InputFile
from lowtide.flags import flag_name

__all__ = ["find_changed_input", "find_changed_name", "find_changed_setting"]

RowT = TypeVar("RowT")


def find_changed_setting(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Describe the first setting of `now` that differs from `before`.

    >>> find_changed_setting({"seed": 0, "memory": "1GiB"}, {"seed": 3})
    'it was made with --seed 0, now it is 3'
    """
    for name, value in now.items():
        if before.get(name) != value:
            return f"it was made with {flag_name(name)} {before.get(name)}, now it is {value}"
    return None


def find_changed_name(before: Iterable[str], now: Iterable[str]) -> str | None:
    """Describe the first name that is not in both lists, or their different order.

    >>> find_changed_name(["a.txt"], ["a.txt", "b.txt"])
    'b.txt was not among its inputs'
    >>> find_changed_name(["b.txt", "a.txt"], ["a.txt", "b.txt"])
    'its inputs came in another order'
    """
    known, given = set(before), set(now)
    other = min(known ^ given, default=None)
    if other is None:
        return "its inputs came in another order"
    return f"{other} was {'not ' if other in given else ''}among its inputs"


def find_changed_input(
    inputs: Sequence[InputFile],
    rows: Sequence[RowT],
    *,
    name_of: Callable[[RowT], str],
    explain: Callable[[InputFile, RowT], str | None],
) -> str | None:
    """Describe the first input that differs from its row; `explain` returns the difference."""
    for source, row in itertools.zip_longest(inputs, rows):
        if source is None or row is None or str(source.path) != name_of(row):
            return find_changed_name(map(name_of, rows), (str(source.path) for source in inputs))
    differences = itertools.starmap(explain, zip(inputs, rows, strict=True))
    return next((text for text in differences if text is not None), None)
