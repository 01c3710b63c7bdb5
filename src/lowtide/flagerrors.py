"""Explain what is wrong with the flags of a command, in the form of all other errors.

In:      a settings dataclass, and words that could not be read as its flags
Out:     a UsageError with the value seen, what is expected, and the next step; None if the words
         have none of the usual faults
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import shlex
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from lowtide.counts import LARGEST_INT, read_int
from lowtide.errors import UsageError
from lowtide.flags import flag_name, read_path
from lowtide.flatsettings import setting_fields
from lowtide.helptext import Flag, flags_of, has_more
from lowtide.quickclasses import dataclass
from lowtide.settings import nearest_name

__all__ = ["explain_flags"]

_READERS = {"INT": read_int, "FLOAT": float, "PATH": read_path}
_EXPECTED = {
    "INT": ("a whole number", "such as 10000, 10k or 1.5M"),
    "FLOAT": ("a number", "such as 0.001 or 1e-3"),
    "PATH": ("a path", "is a variable of the shell empty?"),
    "TEXT": ("text", None),
}
_MOST_WORDS = 8  # of a command that are repeated in a next step; a pattern may be many files
_TRUTHS = ("True", "False", "None")  # what a switch that may be left open takes as its value


@dataclass(frozen=True)
class _Given:
    """A flag with dashes for underscores, the values after it, and the word as it was typed."""

    flag: str
    values: tuple[str, ...]
    word: str


def explain_flags(
    cls: type[Any], words: Sequence[str], options: Collection[str] = (), *, program: str
) -> UsageError | None:
    """The error for words that are no flags of the class, or lack a value or a required flag.

    `options` are the settings that a preset or a config file gives.
    """
    known = dict(zip(setting_fields(cls), flags_of(cls), strict=True))
    by_flag = {flag_name(name): flag for name, flag in known.items()}
    by_flag |= {flag_name(flag.name): flag for flag in known.values()}
    positional, given = _split(words)
    all_flags = f"{program} {'--help-all' if has_more(cls) else '--help'} lists all flags"
    for one, after in itertools.zip_longest(given, given[1:]):
        error = _explain_flag(one, by_flag, all_flags=all_flags)
        if error is not None and not one.values and after and after.flag not in by_flag:
            text = shlex.quote(after.word)  # a text that begins with a dash was taken for a flag
            error.next_step = f"{one.flag}={text}" if one.flag in by_flag else error.next_step
        if error is not None:
            return error
    for flag, value in zip((f for f in known.values() if f.positional), positional, strict=False):
        if error := _explain_value(flag.usage.rstrip(" …"), flag, value):
            return error
    return _explain_missing(cls, known, given, positional, options, program)


def _split(words: Iterable[str]) -> tuple[list[str], list[_Given]]:
    """The words before any flag, and the flags with theirs; a negative number is a value."""
    before: list[str] = []
    given: list[_Given] = []
    for word in words:
        if word.startswith("-") and not _is_number(word):
            flag, equals, value = word.partition("=")
            given.append(_Given(flag.replace("_", "-"), (value,) if equals else (), word))
        elif given:
            last = given[-1]
            given[-1] = _Given(last.flag, (*last.values, word), last.word)
        else:
            before.append(word)
    return before, given


def _is_number(word: str) -> bool:
    with contextlib.suppress(ValueError):
        float(word)
        return True
    return False


def _explain_flag(one: _Given, by_flag: dict[str, Flag], *, all_flags: str) -> UsageError | None:
    switch = by_flag.get("--" + one.flag.removeprefix("--no-"))
    flag = by_flag.get(one.flag)
    if flag is None and switch is not None and switch.metavar and one.flag != "--":
        return UsageError(
            f"there is no flag {one.flag}", next_step=f"leave {flag_name(switch.name)} out"
        )
    flag = flag or switch
    if flag is None:
        offs = ["--no-" + name[2:] for name, known in by_flag.items() if not known.metavar]
        nearest = nearest_name(one.flag, [*by_flag, *offs], likeness=0.75)
        step = f"did you mean {nearest}?" if nearest else all_flags
        return UsageError(f"there is no flag {one.flag}", next_step=step)
    name = flag_name(flag.name)
    if not flag.metavar:
        if not one.values or (flag is by_flag.get(one.flag) and one.values[0] in _TRUTHS):
            return None
        return UsageError(
            f"{one.flag} takes no value, and {' '.join(one.values)!r} is given",
            next_step=f"{name} switches it on, --no-{name[2:]} off",
        )
    return _explain_values(name, flag, one.values)


def _explain_values(name: str, flag: Flag, values: tuple[str, ...]) -> UsageError | None:
    """The error for a flag with no value, with too many, or with one of another kind."""
    if not values:
        return UsageError(
            f"{name} has no value, expected {_expected(flag)[0]}", next_step=_usage(flag)
        )
    if len(values) > 1 and not flag.repeated:
        return UsageError(
            f"{name} takes one value, and {len(values)} are given: {' '.join(values)}",
            next_step="give one of them, in quotes if it has spaces",
        )
    errors = (_explain_value(name, flag, value) for value in values)
    return next((error for error in errors if error is not None), None)


def _usage(flag: Flag) -> str:
    """The flag with its form, and with its default, which is an example of a value."""
    if flag.default:
        return f"{flag_name(flag.name)} {flag.default} (the default)"
    return flag.usage


def _expected(flag: Flag) -> tuple[str, str | None]:
    """What a flag takes, and what helps to write it."""
    if flag.choices:
        *others, last = flag.choices
        return " or ".join(filter(None, [", ".join(others), last])), None
    return _EXPECTED.get(flag.metavar, ("a value", None))


def _explain_value(name: str, flag: Flag, value: str) -> UsageError | None:
    expected, step = _expected(flag)
    if flag.choices:
        if value in flag.choices:
            return None
        nearest = nearest_name(value, flag.choices, likeness=0.6)
        step = f"did you mean {nearest}?" if nearest else None
    elif flag.metavar not in _READERS:
        return None
    else:
        try:
            _READERS[flag.metavar](value)
        except ValueError as error:
            if str(error).endswith("is too large"):
                expected, step = f"a number below {LARGEST_INT:,}", None
        else:
            return None
    return UsageError(f"{name} is {value!r}, expected {expected}", next_step=step)


def _explain_missing(
    cls: type[Any],
    known: dict[str, Flag],
    given: Sequence[_Given],
    positional: Sequence[str],
    options: Collection[str],
    program: str,
) -> UsageError | None:
    """The error for settings without a default that nothing gives."""
    flags = [one.flag for one in given]
    places = [name for name, flag in known.items() if flag.positional]
    there = {*options, *places[: len(positional)]}
    missing = [
        known[name]
        for name, field in setting_fields(cls).items()
        if field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        and name not in there
        and flag_name(name) not in flags
        and flag_name(known[name].name) not in flags
    ]
    if not missing:
        return None
    names = [flag.usage if flag.positional else flag_name(flag.name) for flag in missing]
    verb = "is" if len(names) == 1 else "are"
    words: list[str] = []
    for one in given:
        words += [one.word, *(one.values if "=" not in one.word else ())]
    form = " ".join(
        [
            program,
            *map(shlex.quote, positional),
            *(flag.usage for flag in missing if flag.positional),
            *(map(shlex.quote, words) if len(words) <= _MOST_WORDS else ["…"]),
            *(flag.usage for flag in missing if not flag.positional),
        ]
    )
    return UsageError(
        f"{' and '.join(names)} {verb} missing",
        next_step=f"{form} ({program} --help has examples)",
    )
