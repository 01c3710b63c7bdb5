"""Parse and format whole numbers, such as 1.5M and 1,000.

In:      a word: 1000000, 1_000_000, 1e6, 1M; a number of NumPy; or a number of things
Out:     the number; or a text: 1 file, 1,000 files
"""

from __future__ import annotations

from typing import Any

__all__ = ["LARGEST_INT", "counted", "plain_number", "read_int"]

LARGEST_INT = 1 << 63
"""The largest count that is accepted; native code takes no larger one."""

_UNITS = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def read_int(word: str) -> int:
    """Return a whole number, also in the usual notations for large ones: 1_000_000, 1e6, 32k, 1.5B.

    >>> read_int("32k"), read_int("1.5B"), read_int("1e6")
    (32000, 1500000000, 1000000)
    """
    try:
        number = int(word)
    except ValueError:
        number = _read_large(word)
    if number is None:
        raise ValueError(f"{word!r} is not a whole number")
    if abs(number) >= LARGEST_INT:
        raise ValueError(f"{word!r} is too large")
    return number


def _read_large(word: str) -> int | None:
    unit = _UNITS.get(word[-1:].lower())
    try:
        number = float(word if unit is None else word[:-1]) * (unit or 1)
        nearest = round(number)
    except (ValueError, OverflowError):  # not a number, or infinite
        return None
    # 1.1M times a million is 1100000.0000000002 in floating point.
    exact = number == nearest if unit is None else abs(number - nearest) <= 1e-9 * abs(number)
    return nearest if exact else None


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "file"), counted(1000, "file")
    ('1 file', '1,000 files')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def plain_number(value: Any) -> Any:
    """A number of NumPy or torch as one of Python; anything else as it is.

    The others overflow at their own width, and cannot be written as JSON.
    """
    has_one = hasattr(value, "dtype") and getattr(value, "ndim", None) == 0
    return value.item() if has_one else value
