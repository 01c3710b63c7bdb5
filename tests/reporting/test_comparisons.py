"""Several runs on one page: curves over each other, a table to sort, the settings that differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lowtide
from lowtide.errors import DataError, UsageError
from lowtide.files import read_json, write_json
from lowtide.reporting.comparisons import ComparisonReader, runs_below
from lowtide.reporting.reports import open_reader
from lowtide.reporting.settings import ReportSettings

from .conftest import eval_row, metrics_row, step_row, write_run

ENVIRONMENT = {
    "event": "environment",
    "command": "lowtide train --width 32",
    "hardware": "1 x NVIDIA H200",
    "versions": {"python": "3.11", "torch": "2.9"},
    "num_parameters": 1_500_000,
    "tokens_per_step": 1000,
    "flops_per_token": 9e6,
    "peak_flops": 989.4e12,
}


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    made: list[Path] = []
    for number, name in enumerate(("a", "b", "c")):
        rows = [metrics_row(0, **ENVIRONMENT), eval_row(0, 5.0, 5.0, sample="x")]
        rows += [
            step_row(step, loss=5 - step / 100 - number, evaluation_seconds=0.5)
            for step in range(10, 110, 10)
        ]
        rows.append(eval_row(100, 3.0 - number, 5.0, sample="y"))
        root = write_run(tmp_path / "checkpoints" / name, rows)
        settings = json.loads((root / "settings.json").read_text())
        write_json(root / "settings.json", {**settings, "model_name": name, "width": 32 << number})
        made.append(root)
    return made


def page_of(roots: list[Path]) -> dict[str, Any]:
    reader = ComparisonReader(roots)
    assert reader.read()
    return reader.page()


def section(page: dict[str, Any], name: str) -> dict[str, Any]:
    return next(part for part in page["sections"] if part["id"] == name)


def test_curves_have_every_axis(runs: list[Path]) -> None:
    chart = section(page_of(runs), "val_loss")
    assert [axis["key"] for axis in chart["axes"]] == ["step", "tokens", "time", "compute"]
    assert [curve["name"] for curve in chart["series"]] == ["a", "b", "c"]
    curve = chart["series"][2]
    assert curve["y"] == [5, 1]
    assert curve["step"] == [0, 100] and curve["tokens"] == [0, 100_000]
    assert curve["compute"] == [0, 900_000_000_000] and len(curve["time"]) == 2


def test_the_table_sorts_by_values_and_the_settings_that_differ_are_there(runs: list[Path]) -> None:
    page = page_of(runs)
    table = section(page, "runs")
    shown = dict(zip(table["columns"], table["rows"][0], strict=True))
    assert shown["run"] == "a" and shown["parameters"] == "1.5M" and shown["tokens"] == "100k"
    assert shown["best val loss"] == "3.0000" and shown["hardware"] == "1 x NVIDIA H200"
    assert shown["not training"] == "10.0%"  # 5 of 50 seconds
    assert shown["tokens/s"] == "2.22k" and shown["MFU"] == "0.0%"
    values = dict(zip(table["columns"], table["sort_by"][0], strict=True))
    assert values["best val loss"] == 3.0 and values["steps"] == 100
    assert section(page, "differences")["rows"] == [["width", "32", "64", "128"]]
    assert page["tiles"][0]["note"] == "c"


def test_what_auto_chose_is_no_difference_to_a_run_that_says_it(tmp_path: Path) -> None:
    """A run that went on has the name of its optimizer in its settings."""
    roots = [write_run(tmp_path / name, [step_row(5)]) for name in ("went-on", "new", "no-steps")]
    for root, optimizer in zip(roots, ("muon", "auto", "auto"), strict=True):
        settings = read_json(root / "settings.json")
        write_json(root / "settings.json", {**settings, "optimizer": optimizer})
    step = roots[1] / "steps" / "step_00000005"
    step.mkdir()
    rows = [{"kind": "AdamW", "values": {}}, {"kind": "Muon", "values": {}}]
    write_json(step / "state.json", {"step": 5, "optimizers": rows})
    assert section(page_of(roots[:2]), "differences")["rows"] == []
    assert section(page_of(roots), "differences")["rows"] == [["optimizer", "muon", "muon", "auto"]]


def test_runs_of_the_same_name_are_told_apart(runs: list[Path], tmp_path: Path) -> None:
    other = write_run(tmp_path / "other" / "a", [step_row(5)])
    names = [curve["name"] for curve in section(page_of([runs[0], other]), "loss")["series"]]
    assert names == [str(runs[0]), str(other)]
    same = page_of([runs[0], runs[0]])
    assert section(same, "differences")["rows"] == []


def test_a_run_that_says_little_is_compared_too(runs: list[Path], tmp_path: Path) -> None:
    """Of an earlier version, without a row about its machine; and one that has not begun."""
    old = write_run(tmp_path / "old", [step_row(5)])
    empty = write_run(tmp_path / "empty", [])
    table = section(page_of([runs[0], old, empty]), "runs")
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert rows[1]["parameters"] == "" and rows[1]["tokens"] == "2.56k"
    assert rows[2]["training loss"] == ""


def test_what_is_compared(runs: list[Path], tmp_path: Path, monkeypatch: Any) -> None:
    folder = tmp_path / "checkpoints"
    assert runs_below(folder) == runs and runs_below(tmp_path / "none") == []
    made = lowtide.report(folder, progress=False)
    assert (made.path, made.kind) == (folder / "report.html", "comparison")
    monkeypatch.chdir(tmp_path)
    made = lowtide.report(["a", "b"], progress=False)  # by their names
    assert made.path == Path("comparison.html") and made.path.is_file()
    (tmp_path / "text").mkdir()
    with pytest.raises(DataError, match="if all of them are runs"):
        open_reader(ReportSettings(target=("a", "text")))
    with pytest.raises(UsageError, match="nothing to report on is given"):
        ReportSettings(target=())
    with pytest.raises(UsageError, match="3 runs, expected 2 at most"):
        ComparisonReader([Path("a"), Path("b"), Path("c")], most=2)
    with pytest.raises(UsageError, match="33 runs, expected 32 at most"):
        open_reader(ReportSettings(target=("a",) * 33))


ACT = """
<script>
window.saved = [];
saveLink = (name, address) => window.saved.push(name + " " + address.slice(0, 60));
const press = (id, key) => document.querySelector(`#${id} [data-key="${key}"]`).click();
press("runs", "sort-6"); press("runs", "csv");
press("val_loss", "axis-compute"); press("val_loss", "csv"); press("val_loss", "png");
setTimeout(() => {
  document.title = [...document.querySelectorAll("#runs tbody tr")]
    .map((row) => row.firstChild.textContent).join("") + "|" + window.saved.join("|");
}, 500);
</script>
"""


def test_a_browser_sorts_and_saves(
    runs: list[Path], tmp_path: Path, open_page: Callable[[Path], tuple[str, list[str]]]
) -> None:
    page = lowtide.report(runs[0].parent, progress=False).path
    acting = tmp_path / "acting.html"
    acting.write_text(page.read_text().replace("</body>", f"{ACT}</body>"))
    document, complaints = open_page(acting)
    assert complaints == []
    title = document.partition("<title>")[2].partition("</title>")[0].split("|")
    assert title[0] == "cba"  # by best validation loss: 1, 2, 3
    assert title[1].startswith("runs.csv data:text/csv") and "run%2Cparameters" in title[1]
    assert title[2].startswith("val_loss.csv data:text/csv;charset=utf-8,series%2Cstep%2C")
    assert title[3].startswith("val_loss.png data:image/png;base64,iVBOR")


def test_losses_are_large_and_logarithmic_and_the_rest_begins_at_zero(runs: list[Path]) -> None:
    charts = [part for part in page_of(runs)["sections"] if part["type"] == "chart"]
    assert {chart["id"] for chart in charts} > {"loss", "val_loss", "tokens_per_second"}
    for chart in charts:
        is_loss = chart["id"] in ("loss", "val_loss")
        assert (chart["width"], chart["height"]) == (("wide", 340) if is_loss else ("half", 240))
        assert (chart["log"], chart["choose_axis"], chart["from_zero"]) == (
            is_loss, is_loss, not is_loss)  # fmt: skip
        assert chart["smooth"] == (chart["id"] == "loss")
