"""The help of a verb, made from its settings: their names, types, defaults and docstrings.

In:      a settings dataclass
Out:     text for a terminal

A comment above a field becomes the heading of the flags that follow. `flag_words` of the class
names flags that differ from their setting's name. If the class has `common_flags`, --help shows
only these, so that it fits a screen, and --help-all shows the rest too.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import shutil
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin

from lowtide.flags import flag_name, positional_names
from lowtide.flatsettings import group_classes, setting_fields, setting_types
from lowtide.quickclasses import dataclass

__all__ = ["Flag", "describe_verb", "field_texts", "flags_of", "has_more"]

_WIDEST = 100
_INDENT = 26
_METAVARS = {str: "TEXT", Path: "PATH", int: "INT", float: "FLOAT"}


@dataclass(frozen=True)
class Flag:
    """One setting as the help shows it."""

    name: str
    group: str
    help: str
    metavar: str
    """The form of its value; empty for a switch."""
    choices: tuple[str, ...] = ()
    positional: bool = False
    repeated: bool = False
    default: str = ""
    """The default as text; empty if not worth showing."""

    @property
    def usage(self) -> str:
        """The flag and the form of its value."""
        if self.positional:
            return self.name.upper().replace("_", "-") + (" …" if self.repeated else "")
        if not self.metavar:
            return f"--no-{flag_name(self.name)[2:]}" if self.default else flag_name(self.name)
        return f"{flag_name(self.name)} {self.metavar}{' …' if self.repeated else ''}"


def has_more(cls: type[Any]) -> bool:
    """True if plain --help leaves flags out."""
    return hasattr(cls, "common_flags")


def describe_verb(
    cls: type[Any], *, program: str, summary: str, examples: Sequence[str], also: str, whole: bool
) -> str:
    """Return the help of a verb; with `whole`, including the flags that most users never need."""
    flags = list(flags_of(cls))
    common: Sequence[str] = getattr(cls, "common_flags", ())
    shown = [flag for flag in flags if whole or not common or flag.name in common]
    first = [flag.usage for flag in flags if flag.positional]
    lines = [" ".join(["usage:", program, *first, "[flags]"]), ""]
    if summary:
        lines += [*_wrap(f"{summary}.", _width()), ""]
    lines += [f"  {example}" for example in examples]
    group = None
    for flag in shown:
        if flag.group != group:
            lines += ["", *_wrap(flag.group, _width())]
            group = flag.group
        lines += _rows(flag, whole=whole or not common)
    left = len(flags) - len(shown)
    lines += ["", *_wrap(f"Also: {also}", _width())]
    if left:
        lines.append(f"{program} --help-all shows the other {left} flags.")
    return "\n".join(lines)


def _width() -> int:
    return min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)  # flags have hyphens


def _rows(flag: Flag, *, whole: bool) -> list[str]:
    """The lines of one flag: its usage, then its meaning, or the first part of that."""
    text = flag.help if whole else flag.help.partition("; ")[0]
    notes = ["On unless this flag is given:"] if flag.default and not flag.metavar else []
    notes.append(text.rstrip("."))
    if flag.default and flag.metavar and "(" not in flag.help[-8:]:
        notes.append(f"({flag.default})")
    rows = _wrap(" ".join(notes), max(_width() - _INDENT, 30)) or [""]
    head = f"  {flag.usage}"
    if len(head) > _INDENT - 2:
        return [head, *(" " * _INDENT + row for row in rows)]
    return [f"{head:<{_INDENT}}{rows[0]}", *(" " * _INDENT + row for row in rows[1:])]


def field_texts(cls: type[Any]) -> dict[str, str]:
    """The docstring of every setting of the class, by name."""
    return _read_sources(cls)[0]


def _read_sources(cls: type[Any]) -> tuple[dict[str, str], dict[str, str]]:
    texts: dict[str, str] = {}
    groups: dict[str, str] = {}
    for part in group_classes(cls):
        more = _read_source(part)
        texts, groups = texts | more[0], groups | more[1]
    return texts, groups


def flags_of(cls: type[Any]) -> Iterator[Flag]:
    """Every setting of the class, in its order."""
    texts, groups = _read_sources(cls)
    hints, marked = setting_types(cls), setting_types(cls, marked=True)
    positional = positional_names(cls)
    words: Mapping[str, str] = getattr(cls, "flag_words", {})
    group = ""
    for field in setting_fields(cls).values():
        group = groups.get(field.name, group)
        metavar, choices, repeated = _describe_type(hints[field.name])
        default = field.default
        if default is None or default is dataclasses.MISSING or default in (False, (), ""):
            default = ""
        if isinstance(default, tuple):
            default = " ".join(map(str, cast("tuple[Any, ...]", default)))
        yield Flag(
            name=_given_name(marked[field.name]) or words.get(field.name, field.name),
            group="Arguments" if field.name in positional else group or "Flags",
            help=texts.get(field.name, ""),
            metavar=metavar,
            choices=choices,
            positional=field.name in positional,
            repeated=repeated,
            default=str(default).encode("unicode_escape").decode() if default != "" else "",
        )


def _given_name(kind: Any) -> str | None:
    """The name of a flag that cannot be a setting's name, such as `from`, a Python keyword."""
    marks = (getattr(mark, "name", None) for mark in getattr(kind, "__metadata__", ()))
    return next((name for name in marks if isinstance(name, str)), None)


def _describe_type(kind: Any) -> tuple[str, tuple[str, ...], bool]:
    """The form of a value, its choices, and whether several values are allowed."""
    if get_origin(kind) in (Union, types.UnionType):
        kinds = [one for one in get_args(kind) if one is not type(None)]
        kind = str if str in kinds else kinds[0]
    if get_origin(kind) is tuple:
        metavar, choices, _ = _describe_type(get_args(kind)[0])
        return metavar, choices, True
    if get_origin(kind) is Literal:
        choices = tuple(map(str, get_args(kind)))
        return "|".join(choices), choices, False
    return ("" if kind is bool else _METAVARS.get(kind, "VALUE")), (), False


def _read_source(cls: type[Any]) -> tuple[dict[str, str], dict[str, str]]:
    """The docstrings of fields, and the headings of groups by their first field's name."""
    texts: dict[str, str] = {}
    groups: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # a class without a source file
            continue
        lines = source.splitlines()
        body = ast.parse(source).body[0]
        assert isinstance(body, ast.ClassDef)
        name = ""
        for node in body.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
                if above := _comment_above(lines, node.lineno - 1):
                    groups[name] = above.rstrip(".")
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
                texts[name] = " ".join(str(node.value.value).split())
    return texts, groups


def _comment_above(lines: list[str], number: int) -> str:
    """The comment that ends right above a line, its lines joined; empty if there is none."""
    above: list[str] = []
    while number > 0 and (line := lines[number - 1].strip()).startswith("# "):
        above.insert(0, line[2:])
        number -= 1
    return " ".join(above)
