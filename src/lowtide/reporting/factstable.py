"""The table of a comparison: a row for each run or dataset; empty columns are left out.

In:      facts of several runs or datasets, columns
Out:     page data of a table that sorts by number, not by text
Memory:  a few values per row
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

__all__ = ["Column", "facts_table"]

Facts = TypeVar("Facts")
Column = tuple[str, Callable[[Facts], Any], Callable[[Any], str]]
"""A title, a function that gives the value (None if unknown), and one that formats it."""


def facts_table(
    facts: Sequence[Facts],
    columns: Sequence[Column[Facts]],
    *,
    id: str,
    title: str,
    note: str,
) -> dict[str, Any]:
    """Return the table of `facts`."""
    values = [[column[1](one) for column in columns] for one in facts]
    shown = [i for i in range(len(columns)) if any(row[i] is not None for row in values)]
    return {
        "type": "table",
        "id": id,
        "title": title,
        "note": note,
        "width": "wide",
        "columns": [columns[i][0] for i in shown],
        "rows": [
            ["" if row[i] is None else columns[i][2](row[i]) for i in shown] for row in values
        ],
        "sort_by": [[row[i] for i in shown] for row in values],
        "empty": "",
    }
