"""Draw peaks as bars, in SVG that is legible on light and dark pages.

In:      names and bytes
Out:     SVG text
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from lowtide.memory import format_size

__all__ = ["draw_bars"]

_ROW, _LABEL, _BAR, _VALUE, _TOP = 26, 330, 330, 90, 40
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.o{fill:#b5533c}.s{fill:#2f7f86}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.o{fill:#d97a63}.s{fill:#58b0b7}}"
)


def draw_bars(title: str, bars: Sequence[tuple[str, int]]) -> str:
    """Draw pairs of bars, one below the other: the ordinary way, then the sparing one.

    >>> draw_bars("peaks", [("plain", 2048), ("sparing", 1024)]).count("<rect")
    2
    """
    largest = max((size for _, size in bars), default=1)
    gaps = (len(bars) + 1) // 2
    height = _TOP + len(bars) * _ROW + gaps * 10
    width = _LABEL + _BAR + _VALUE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text x="8" y="22" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (name, size) in enumerate(bars):
        top = _TOP + number * _ROW + number // 2 * 10
        length = max(1, round(_BAR * size / largest))
        kind = "os"[number % 2]
        lines += [
            f'<text x="{_LABEL - 8}" y="{top + 15}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{kind}" x="{_LABEL}" y="{top}" width="{length}" height="20" rx="2"/>',
            f'<text x="{_LABEL + length + 6}" y="{top + 15}">{format_size(size)}</text>',
        ]
    return "\n".join([*lines, "</svg>\n"])
