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
