"""Range checks shared by many settings of training; each error names the setting."""

from __future__ import annotations

import math
from collections.abc import Iterable
from os import fsencode
from pathlib import PurePath
from typing import Any

from lowtide.flags import write_flags
from lowtide.settings import require

__all__ = [
    "at_least_one",
    "below_one",
    "more_than_zero",
    "require_folder_name",
    "switched_off",
    "zero_or_more",
]

_LONGEST_NAME = 255  # bytes, on the disks there are


def at_least_one(group: Any, *names: str) -> None:
    """Refuse numbers below 1; None is allowed."""
    for name in names:
        value = getattr(group, name)
        require(value is None or value >= 1, name, value, "at least 1")


def more_than_zero(group: Any, *names: str) -> None:
    """Refuse 0, negative numbers, infinity and NaN; None is allowed."""
    for name in names:
        value = getattr(group, name)
        require(value is None or 0 < value < math.inf, name, value, "more than 0, and finite")


def zero_or_more(group: Any, *names: str) -> None:
    """Refuse negative numbers, infinity and NaN; None is allowed."""
    for name in names:
        value = getattr(group, name)
        require(value is None or 0 <= value < math.inf, name, value, "0 or more, and finite")


def below_one(group: Any, *names: str) -> None:
    """Refuse shares below 0, or 1 and more."""
    for name in names:
        value = getattr(group, name)
        require(value is None or 0 <= value < 1, name, value, "from 0 to below 1")


def switched_off(names: Iterable[str]) -> str:
    """The flags that do without settings that are on, such as those of a preset.

    >>> switched_off(["float8_head", "compile"])
    '--no-float8-head --no-compile'
    """
    return " ".join(write_flags(dict.fromkeys(names, False)))


def require_folder_name(group: Any, name: str, expected: str) -> None:
    """Refuse a name that no folder can have, or that leads out of the one it is for."""
    value: str = getattr(group, name)
    parts = PurePath(value).parts
    inside = bool(parts) and ".." not in parts and parts[0] != "/"
    usable = "\0" not in value and all(len(fsencode(part)) <= _LONGEST_NAME for part in parts)
    require(inside and usable, name, value, expected)
