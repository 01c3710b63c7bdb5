"""Bars: where each is, how long, and in which colour."""

from __future__ import annotations

import re

from lowtide.planning.picture import draw_bars


def test_a_picture_is_drawn_exactly() -> None:
    groups = [("a & b", [("plain", 4096), ("sparing", 1024)]), ("c", [("one", 1)])]
    picture = draw_bars("peaks <1>", groups)
    bars = re.findall(
        r'<rect class="(.)" x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"', picture
    )
    assert bars == [
        ("o", "230", "66", "400", "20"),
        ("s", "230", "92", "100", "20"),
        ("o", "230", "148", "1", "20"),
    ]
    texts = re.findall(r'<text x="(\d+)" y="(\d+)"[^>]*>([^<]*)<', picture)
    assert texts == [
        ("8", "22", "peaks &lt;1&gt;"),
        ("8", "54", "a &amp; b"),
        ("222", "81", "plain"),
        ("636", "81", "4.0 KiB"),
        ("222", "107", "sparing"),
        ("336", "107", "1.0 KiB"),
        ("8", "136", "c"),
        ("222", "163", "one"),
        ("237", "163", "1 B"),
    ]
    assert 'viewBox="0 0 720 182"' in picture and picture.endswith("</svg>\n")
    assert draw_bars("none", []).count("<rect") == 0
