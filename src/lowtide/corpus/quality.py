"""Text quality rules and masks by name, and the thresholds of rules.

In:      `--rules gopher,c4`, `--rule-limit fineweb.max-newlines=0.5` and `--mask email`, as text
Out:     the same in one canonical form; arguments for the native core
Memory:  a few numbers

Presets and limits are declared in native/quality/limits.inc.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from lowtide import _native
from lowtide.errors import UsageError
from lowtide.quickclasses import dataclass
from lowtide.settings import nearest_name

__all__ = [
    "LIMITS",
    "MASKS",
    "PRESETS",
    "RuleLimit",
    "canonical_limits",
    "canonical_masks",
    "canonical_rules",
    "native_masks",
    "native_rules",
]

PRESETS = dict(_native.RULE_PRESETS)
"""A description of each preset, by its name."""
MASKS = ("email", "ip", "phone", "iban", "card")
"""Kinds of personal data that can be masked, in the order of the native core."""
_ALIASES = {"gopher": ("gopher-repetition", "gopher-quality")}


@dataclass(frozen=True)
class RuleLimit:
    """A threshold of a preset; 0 switches its rule off."""

    preset: str
    name: str
    value: float
    """Its default."""
    text: str

    @property
    def full_name(self) -> str:
        """As users write it.

        >>> RuleLimit("c4", "policy", 1, "").full_name
        'c4.policy'
        """
        return f"{self.preset}.{self.name}"


_PRESET_NAMES = tuple(PRESETS)
LIMITS = tuple(
    RuleLimit(_PRESET_NAMES[preset], name, value, text)
    for preset, name, value, text in _native.RULE_LIMITS
)
"""In the order of the native core."""
_BY_NAME = {limit.full_name: place for place, limit in enumerate(LIMITS)}


def canonical_rules(rules: str) -> str:
    """The presets of a list such as `gopher,c4`, each by its own name, in the order given.

    >>> canonical_rules("gopher, c4")
    'gopher-repetition,gopher-quality,c4'
    """
    names: list[str] = []
    for word in filter(None, (part.strip() for part in rules.split(","))):
        for name in _ALIASES.get(word, (word,)):
            if name not in PRESETS:
                raise UsageError(
                    f"--rules {word!r} is not one of {', '.join([*_ALIASES, *PRESETS])}",
                    next_step=_closest(word, [*_ALIASES, *PRESETS]),
                )
            if name in names:
                raise UsageError(f"--rules names {name} twice", next_step="name it once")
            names.append(name)
    return ",".join(names)


def canonical_limits(limits: Iterable[str], rules: str) -> tuple[str, ...]:
    """Limits as `PRESET.NAME=NUMBER`, in the order of the presets; only of presets in `rules`.

    >>> canonical_limits(["fineweb.max-newlines=.50"], "fineweb")
    ('fineweb.max-newlines=0.5',)
    """
    found: dict[int, str] = {}
    for text in limits:
        name, equals, number = (part.strip() for part in text.partition("="))
        place = _BY_NAME.get(name)
        if not equals or place is None:
            raise UsageError(
                f"--rule-limit {text!r} is not PRESET.NAME=NUMBER with a name there is",
                next_step=_closest(name, _BY_NAME),
            )
        if place in found:
            raise UsageError(f"--rule-limit names {name} twice", next_step="name it once")
        if LIMITS[place].preset not in rules.split(","):
            raise UsageError(
                f"--rule-limit {name} is for rules that are not applied",
                next_step=f"add {LIMITS[place].preset} to --rules, or leave the limit out",
            )
        found[place] = f"{name}={_read_number(text, number):g}"
    return tuple(found[place] for place in sorted(found))


def native_rules(rules: str, limits: Sequence[str]) -> tuple[list[int], list[float]]:
    """Indices of the presets, and the value of every limit, for the native core."""
    values = [limit.value for limit in LIMITS]
    for text in limits:
        name, _, number = text.partition("=")
        values[_BY_NAME[name]] = float(number)
    return [_PRESET_NAMES.index(name) for name in rules.split(",") if name], values


def canonical_masks(masks: str) -> str:
    """The kinds of a list such as `card,email`, in a fixed order, since none depends on another.

    >>> canonical_masks("card, email")
    'email,card'
    """
    words = [word for word in (part.strip() for part in masks.split(",")) if word]
    for word in words:
        if word not in MASKS:
            raise UsageError(
                f"--mask {word!r} is not one of {', '.join(MASKS)}",
                next_step=_closest(word, MASKS),
            )
    return ",".join(name for name in MASKS if name in words)


def native_masks(masks: str) -> int:
    """A bit for each kind, for the native core."""
    return sum(1 << MASKS.index(name) for name in masks.split(",") if name)


def _read_number(text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(
            f"--rule-limit {text!r} has no number of 0 or more",
            next_step="a number such as 0.5; 0 switches the rule off",
        )
    return value


def _closest(word: str, names: Iterable[str]) -> str:
    close = nearest_name(word, names, likeness=0.4)
    return f"did you mean {close}?" if close else "docs/quality.md lists all names"
