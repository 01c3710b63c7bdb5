"""Pages hold everything they need, and open in a browser without a complaint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowtide.reporting.pages import render_page
from lowtide.reporting.runs import RunReader

from .conftest import eval_row, metrics_row, step_row, write_run

OpenPage = Callable[[Path | str], tuple[str, list[str]]]


def page_of(root: Path) -> str:
    reader = RunReader(root)
    reader.read()
    return render_page(reader.page())


def full_run(num_steps: int) -> list[dict[str, Any]]:
    rows = [eval_row(0, 6.0, 5.0)]
    rows += [step_row(step) for step in range(1, num_steps + 1)]
    rows += [
        eval_row(step, 4.5, 5.2, forgetting=True, sample="</script><script>alert(1)</script>")
        for step in range(num_steps // 2, num_steps, max(num_steps // 5, 1))
    ]
    return [*rows, metrics_row(num_steps, event="end")]


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    text = page_of(write_run(tmp_path / "run", full_run(20)))
    # The one address is the name of SVG's elements, which no browser looks up.
    assert set(re.findall(r"\w+://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "src=" not in text.replace("default-src", "").replace("script-src", "")
    assert "@import" not in text


def test_text_of_samples_cannot_end_the_script(tmp_path: Path) -> None:
    text = page_of(write_run(tmp_path / "run", full_run(20)))
    assert "<script>alert" not in text
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    samples = json.loads(data.group(1))["sections"]
    assert any("<script>alert(1)" in json.dumps(section) for section in samples)


def test_a_long_run_gives_a_small_page(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", full_run(20_000)))
    assert len(page) < 200_000


@pytest.mark.parametrize("num_steps", [0, 1, 2000])
def test_a_browser_draws_the_curves_without_a_complaint(
    tmp_path: Path, open_page: OpenPage, num_steps: int
) -> None:
    rows = full_run(num_steps) if num_steps > 1 else [step_row(1)] * num_steps
    path = tmp_path / "page.html"
    path.write_text(page_of(write_run(tmp_path / "run", rows)), encoding="utf-8")
    document, console = open_page(path)
    assert console == []
    assert document.count("<section") >= 7
    curves = set(re.findall(r'<(path|circle)[^>]* ?data-series="([^"]+)"', document))
    names = {name for _, name in curves}
    if num_steps == 0:
        assert not names
        assert "No step has been logged yet." in document
    elif num_steps == 1:
        assert ("circle", "train") in curves
    else:
        assert names >= {"train", "val", "general", "learning rate", "throughput", "process tree"}
        assert document.count('class="ring"') > 0
        assert "NaN" not in document.split('id="data"')[0]


def test_one_step_gone_wrong_does_not_press_the_curve_flat(
    tmp_path: Path, open_page: OpenPage
) -> None:
    rows = full_run(2000)
    rows[900]["loss"] = 1e8
    path = tmp_path / "page.html"
    path.write_text(page_of(write_run(tmp_path / "run", rows)), encoding="utf-8")
    document, console = open_page(path)
    assert console == []
    assert "up to 100M, above the picture" in document
    assert ">20M<" not in document  # no tick of the axis is far above the curve


def test_the_browser_shows_errors_of_scripts(tmp_path: Path, open_page: OpenPage) -> None:
    path = tmp_path / "broken.html"
    path.write_text("<!doctype html><title>x</title><script>nothing.here()</script>")
    _, console = open_page(path)
    assert any("nothing is not defined" in line for line in console)


AXES = """<script>
const axis = (low, high, format) => labelsOf(ticksOf(makeScale([low, high], [0, 1]), 8, format),
  format).join(" ");
document.body.dataset.axes = [axis(0, 0.5, "seconds"), axis(0, 0.02, "seconds"),
  axis(0, 90, "seconds"), axis(0, 40000, "seconds"), axis(0, 604800, "seconds"),
  axis(0, 9e6, "seconds"), axis(10000, 10040, "count"), axis(2.30001, 2.30004, "number"),
  FORMATS.seconds(200000), FORMATS.bytes(1023 * 1024)].join("|");
</script></body>"""


def test_axes_read_well_from_milliseconds_to_months(tmp_path: Path, open_page: OpenPage) -> None:
    path = tmp_path / "page.html"
    page = page_of(write_run(tmp_path / "run", full_run(2)))
    path.write_text(page.replace("</body>", AXES), encoding="utf-8")
    document, console = open_page(path)
    assert console == []
    found = re.search(r'data-axes="([^"]*)"', document)
    assert found is not None
    assert found.group(1).split("|") == [
        "0 s 0.1 s 0.2 s 0.3 s 0.4 s 0.5 s",
        "0 s 0.0025 s 0.005 s 0.0075 s 0.01 s 0.0125 s 0.015 s 0.0175 s 0.02 s",
        "0 s 15 s 30 s 45 s 1:00 1:15 1:30",
        "0 s 2:00:00 4:00:00 6:00:00 8:00:00 10:00:00",
        "0 s 1 d 2 d 3 d 4 d 5 d 6 d 7 d",
        "0 s 20 d 40 d 60 d 80 d 100 d",
        "10k 10.005k 10.01k 10.015k 10.02k 10.025k 10.03k 10.035k 10.04k",
        "2.30001 2.300015 2.30002 2.300025 2.30003 2.300035 2.30004",
        "2 d 7:33",
        "1023 KiB",
    ]


# What a reader does: reads values out with the mouse and the keyboard, zooms, presses everything.
READER = """<script>
const seen = [];
const plot = () => document.querySelector("#loss .plot > svg");
const point = (name, x) => plot().dispatchEvent(new PointerEvent(name,
  { clientX: x, clientY: 200, pointerType: "mouse", button: 0, bubbles: true }));
point("pointermove", 400);
seen.push(document.querySelector("#loss .tip").textContent);
plot().dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
point("pointerdown", 300); point("pointermove", 400); point("pointerup", 400);
seen.push(document.querySelector("#loss [data-key=reset]") ? "zoomed" : "not zoomed");
plot().dispatchEvent(new MouseEvent("dblclick"));
seen.push(document.querySelector("#loss [data-key=reset]") ? "zoomed" : "whole");
const keys = [...document.querySelectorAll("section button")].map((b) => b.dataset.key);
for (const key of [...keys, ...keys]) document.querySelector(`[data-key="${key}"]`)?.click();
document.querySelector("#loss [data-key=series-val]").click();
seen.push(document.querySelector('#loss path[data-series="val"]') ? "shown" : "hidden");
window.dispatchEvent(new Event("resize"));
document.body.dataset.seen = seen.join(" | ");
</script></body>"""


def test_everything_a_reader_does_works(tmp_path: Path, open_page: OpenPage) -> None:
    page = page_of(write_run(tmp_path / "run", full_run(2000)))
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", READER), encoding="utf-8")
    document, console = open_page(path)
    assert console == []
    found = re.search(r'data-seen="([^"]*)"', document)
    assert found is not None
    readout, *rest = found.group(1).split(" | ")
    assert re.match(r"step [\d,]+train[\d.]+", readout)
    assert rest == ["zoomed", "whole", "hidden"]
