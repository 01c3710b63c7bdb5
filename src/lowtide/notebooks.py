"""Results as notebooks show them: a small table instead of a long line.

In:      results, which are dataclasses
Out:     HTML for `_repr_html_`
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from lowtide.errors import printable
from lowtide.memory import format_size

__all__ = ["ResultDict", "ResultList", "preformatted", "shown_in_notebooks", "table_of"]

ClassT = TypeVar("ClassT", bound=type)
ResultT = TypeVar("ResultT")

_MOST_ROWS = 12
_MOST_LETTERS = 300


def shown_in_notebooks(
    facts: Callable[[Any], Mapping[str, Any]] | None = None,
) -> Callable[[ClassT], ClassT]:
    """Make notebooks show a class of results as HTML: its `facts`, or else its fields.

    >>> @shown_in_notebooks()
    ... @dataclasses.dataclass
    ... class Written:
    ...     num_tokens: int
    >>> Written(1234)._repr_html_()
    '<table><tr><th style="text-align:left">num_tokens</th><td>1,234</td></tr></table>'
    """

    def decorate(cls: ClassT) -> ClassT:
        def _repr_html_(self: Any) -> str:
            return table_of(_fields(self) if facts is None else facts(self))

        cls._repr_html_ = _repr_html_  # pyright: ignore[reportAttributeAccessIssue]
        return cls

    return decorate


class ResultList(list[ResultT]):
    """Several results; notebooks show them below each other."""

    def _repr_html_(self) -> str:
        return "".join(table_of(_fields(result)) for result in self)


class ResultDict(dict[str, ResultT]):
    """Results by name."""

    def _repr_html_(self) -> str:
        return table_of(self)


def table_of(rows: Mapping[str, Any], *, depth: int = 0) -> str:
    """A table of names and values, without values that are None or empty."""
    cells: list[str] = []
    for name, value in rows.items():
        if value is None or value == () or value == [] or value == {}:
            continue
        if len(cells) == _MOST_ROWS:
            cells.append(f"<tr><td colspan=2>… {len(rows) - _MOST_ROWS} more</td></tr>")
            break
        shown = _cell(name, value, depth=depth)
        cells.append(f'<tr><th style="text-align:left">{_text(name)}</th><td>{shown}</td></tr>')
    return f"<table>{''.join(cells)}</table>"


def preformatted(text: str) -> str:
    """Text as a terminal shows it."""
    return f"<pre>{_escape(printable(text))}</pre>"


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _cell(name: str, value: Any, *, depth: int) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return format_size(value) if name.endswith("_bytes") else f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Path):
        return f"<code>{_text(str(value))}</code>"
    own = getattr(value, "_repr_html_", None)
    if callable(own) and depth < 2:
        return str(own())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = _fields(value)
    if isinstance(value, Mapping) and depth < 2:
        return table_of(cast("Mapping[str, Any]", value), depth=depth + 1)
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = cast("Sequence[Any]", value)
        first = "<br>".join(_cell("", item, depth=depth + 1) for item in items[:_MOST_ROWS])
        more = len(items) - _MOST_ROWS
        return first + (f"<br>… {more:,} more" if more > 0 else "")
    return _text(str(value))


def _text(text: str) -> str:
    text = printable(text)
    return _escape(text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…")


def _escape(text: str) -> str:
    from html import escape  # its table of names is large, and commands show nothing so

    return escape(text)
