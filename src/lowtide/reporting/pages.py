"""Turn page data into one HTML file that needs nothing else: no network, no server, no fonts.

In:      page data (runs, datasets, tokenizers)
Out:     HTML with its style, its script and its data inside
Memory:  the page, a few hundred kilobytes
"""

from __future__ import annotations

import html
import json
import re
import time
from pathlib import Path
from typing import Any

from lowtide import __version__
from lowtide.errors import printable

__all__ = ["GENERATOR", "data_as_json", "is_same_page", "render_page"]

GENERATOR = '<meta name="generator" content="lowtide">'
_FOLDER = Path(__file__).parent
_MADE = re.compile(rb"made \d+-\d+-\d+ \d+:\d+")
_SCRIPTS = ("axes.js", "chart.js", "columns.js", "saving.js", "page.js")

# Everything is inside the page, and nothing else may be loaded, whatever a sample's text says.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'"
)


def data_as_json(data: dict[str, Any]) -> str:
    """Return page data as JSON that is safe inside a script element."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def render_page(data: dict[str, Any], *, live_seconds: float | None = None) -> str:
    """Return the HTML; with `live_seconds` it polls its server at that interval."""
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    scripts = [(_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    live = "" if live_seconds is None else f' data-live="{live_seconds:g}"'
    made = time.strftime("%Y-%m-%d %H:%M")
    title = html.escape(printable(f"{data['title']} · lowtide {data['kind']}"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{GENERATOR}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body{live}>
<header id="head"></header>
<main id="main"></main>
<noscript>This page draws its pictures with the script inside it; please allow scripts.</noscript>
<footer>lowtide {__version__} · made {made} · everything is inside this file</footer>
<script type="application/json" id="data">{data_as_json(data)}</script>
<script>
{"".join(scripts)}</script>
</body>
</html>
"""


def is_same_page(one: bytes, other: bytes) -> bool:
    """True for pages that differ in nothing but the minute they were made."""
    return _MADE.sub(b"", one) == _MADE.sub(b"", other)
