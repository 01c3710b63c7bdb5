"""Draw peaks as bars, in SVG that is legible on light and dark pages.

In:      names and bytes
Out:     SVG text
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from lowtide.memory import format_size

__all__ = ["draw_bars"]

_ROW, _HEAD, _LABEL, _BAR, _VALUE, _TOP = 26, 30, 230, 400, 90, 36
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.t{font-weight:bold}"
    ".o{fill:#b5533c}.s{fill:#2f7f86}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.o{fill:#d97a63}.s{fill:#58b0b7}}"
)


def draw_bars(title: str, groups: Sequence[tuple[str, Sequence[tuple[str, int]]]]) -> str:
    """Draw groups of bars, one below the other: the usual way, then the memory-saving one.

    >>> draw_bars("peaks", [("loading", [("plain", 2048), ("sparing", 1024)])]).count("<rect")
    2
    """
    largest = max((size for _, bars in groups for _, size in bars), default=1)
    width = _LABEL + _BAR + _VALUE
    lines: list[str] = []
    top = _TOP
    for name, bars in groups:
        lines.append(f'<text x="8" y="{top + 18}">{escape(name)}</text>')
        top += _HEAD
        for number, (way, size) in enumerate(bars):
            length = max(1, round(_BAR * size / largest))
            kind, place = "os"[number % 2], f'x="{_LABEL}" y="{top}"'
            lines += [
                f'<text x="{_LABEL - 8}" y="{top + 15}" text-anchor="end">{escape(way)}</text>',
                f'<rect class="{kind}" {place} width="{length}" height="20" rx="2"/>',
                f'<text x="{_LABEL + length + 6}" y="{top + 15}">{format_size(size)}</text>',
            ]
            top += _ROW
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + 8}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text x="8" y="22" class="t">{escape(title)}</text>',
    ]
    return "\n".join([*head, *lines, "</svg>\n"])
