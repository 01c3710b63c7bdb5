"""Tables as text: columns as wide as their widest cell, separated by two spaces."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["table_lines"]


def table_lines(rows: Sequence[Sequence[str]], *, align: str) -> list[str]:
    """Rows as lines; `align` has `<` or `>` for each column.

    >>> table_lines([("stage", "time"), ("prepare", "9 s")], align="<>")
    ['stage    time', 'prepare   9 s']
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(align))]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
