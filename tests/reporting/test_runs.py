"""A run's page says what happened, at any moment of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lowtide.errors import DataError
from lowtide.reporting.runs import RunReader, _memory_tile

from .conftest import eval_row, metrics_row, step_row, write_rows, write_run

NOW = 1_000_000.0


def page_of(root: Path, now: float = NOW + 1e6) -> dict[str, Any]:
    reader = RunReader(root)
    reader.read()
    return reader.page(now=now)


def section(page: dict[str, Any], id: str) -> dict[str, Any]:
    return next(section for section in page["sections"] if section["id"] == id)


def tiles(page: dict[str, Any]) -> dict[str, str]:
    return {tile["label"]: tile["value"] for tile in page["tiles"]}


def test_curves_tiles_and_samples(tmp_path: Path) -> None:
    rows = [eval_row(0, 6.0, 5.0), *(step_row(step) for step in range(10, 110, 10))]
    rows += [eval_row(100, 4.5, 4.9, sample="Once upon"), metrics_row(51, event="end")]
    rows.insert(3, metrics_row(15.2, phase="training", done=30, total=100, unit="steps"))
    page = page_of(write_run(tmp_path / "run", rows))
    loss = section(page, "loss")
    assert [series["name"] for series in loss["series"]] == ["train", "val", "general"]
    assert loss["series"][0]["step"] == list(range(10, 110, 10))
    assert loss["series"][1]["y"] == [6, 4.5]
    assert loss["marks"] == []
    assert page["badge"]["text"] == "finished"
    assert tiles(page)["steps"] == "100 of 100"
    assert tiles(page)["best validation loss"] == "4.500"
    assert section(page, "samples")["items"] == [{"step": 100, "text": "Once upon"}]
    assert section(page, "memory")["lines"][0]["text"] == "budget 1.0 GiB"


def test_forgetting_is_marked_where_it_happened(tmp_path: Path) -> None:
    rows = [eval_row(0, 6.0, 5.0), eval_row(10, 5.5, 5.05)]
    rows += [eval_row(20, 5.0, 5.4, forgetting=True), eval_row(30, 4.0, 5.6, forgetting=True)]
    page = page_of(write_run(tmp_path / "run", rows))
    marks = section(page, "loss")["marks"]
    assert [(mark["step"], mark["series"]) for mark in marks] == [(20, "general"), (30, "general")]
    assert "0.60 above" in marks[1]["text"]
    assert tiles(page)["forgetting"] == "general"
    assert section(page, "evaluations")["rows"][1][-1] == "forgetting"


@pytest.mark.parametrize(
    ("last", "now", "badge"),
    [
        (step_row(10), NOW + 6, "running"),
        (step_row(10), NOW + 600, "no news since"),
        (metrics_row(6, event="stopped"), NOW + 6, "stopped"),
        (metrics_row(6, event="end"), NOW + 6, "finished"),
    ],
)
def test_the_badge_says_how_the_run_is(
    tmp_path: Path, last: dict[str, Any], now: float, badge: str
) -> None:
    page = page_of(write_run(tmp_path / "run", [step_row(5), last]), now)
    assert page["badge"]["text"].startswith(badge)


def test_a_run_that_has_not_logged_yet_has_a_page(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", []))
    assert page["badge"]["text"] == "not started"
    assert section(page, "loss")["series"] == []
    assert section(page, "loss")["empty"]


def test_news_are_added_and_a_file_written_anew_starts_over(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", [step_row(10), step_row(20)])
    reader = RunReader(root)
    assert reader.read()
    assert not reader.read()
    write_rows(root / "metrics.jsonl", [step_row(30)])
    assert reader.read()
    assert section(reader.page(), "loss")["series"][0]["step"] == [10, 20, 30]
    (root / "new").write_text("")
    write_rows(root / "new", [step_row(10), step_row(15)])
    (root / "new").replace(root / "metrics.jsonl")
    assert reader.read()
    assert section(reader.page(), "loss")["series"][0]["step"] == [10, 15]


def test_rows_of_other_jobs_do_not_mix_in(tmp_path: Path) -> None:
    other = {**step_row(99), "job": "evaluate"}
    page = page_of(write_run(tmp_path / "run", [step_row(10), other]))
    assert section(page, "loss")["series"][0]["step"] == [10]


def test_strange_values_do_no_harm(tmp_path: Path) -> None:
    strange = {"loss": None, "learning_rate": "fast", "micro_batch": None}
    rows = [step_row(10), step_row(20, **strange), {"time": "late"}, {"time": None, "step": 5}]
    page = page_of(write_run(tmp_path / "run", rows))
    assert section(page, "loss")["series"][0]["step"] == [10]
    assert tiles(page)["steps"] == "20"


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run here"):
        page_of(tmp_path)


def test_memory_of_a_gpu_has_its_own_picture(tmp_path: Path) -> None:
    gpu = {"device_bytes": 3 << 30, "device_total_bytes": 8 << 30}
    page = page_of(write_run(tmp_path / "run", [step_row(1, **gpu), step_row(2, **gpu)]))
    assert section(page, "device")["series"][0]["y"] == [3 << 30, 3 << 30]
    assert section(page, "device")["lines"][0]["text"] == "GPU 8.0 GiB"
    assert tiles(page)["peak GPU memory"] == "3.0 GiB"
    assert not any(
        part["id"] == "device" for part in page_of(write_run(tmp_path / "cpu", []))["sections"]
    )


def test_a_run_without_a_finite_loss_says_so(tmp_path: Path) -> None:
    rows = [step_row(step, loss=None, skipped_steps=step) for step in range(1, 5)]
    reader = RunReader(write_run(tmp_path / "run", rows))
    reader.read()
    sections = {section["id"]: section for section in reader.page()["sections"]}
    assert "finite" in sections["loss"]["empty"]


def test_a_smaller_micro_batch_is_shown(tmp_path: Path) -> None:
    rows = [step_row(step, micro_batch=4 if step < 3 else 2) for step in range(1, 5)]
    reader = RunReader(write_run(tmp_path / "run", rows))
    reader.read()
    tiles = {tile["label"]: tile for tile in reader.page()["tiles"]}
    assert tiles["micro-batch"]["value"] == "2 rows"
    assert tiles["micro-batch"]["note"] == "4 until step 3"


def test_settings_that_come_later_are_read_later(tmp_path: Path) -> None:
    root = tmp_path / "run"
    (root / "steps").mkdir(parents=True)
    reader = RunReader(root)
    reader.read()
    with pytest.raises(DataError, match="there is no run here"):
        reader.page(now=NOW)
    write_run(root, [step_row(1)])
    reader.read()
    assert "trained on data/mine" in reader.page(now=NOW)["subtitle"]
    (root / "settings.json").write_text('{"dataset_dir": "other"}')
    reader.read()
    assert "trained on data/mine" in reader.page(now=NOW)["subtitle"]  # read once


def test_limits_of_tiles_and_tables(tmp_path: Path) -> None:
    rows = [step_row(1, peak_memory_bytes=1 << 30, budget_bytes=1 << 30)]
    rows += [step_row(n, micro_batch=8 >> (n - 2)) for n in (2, 3, 4)]
    forgetting = {f"eval_{name}_loss": 1.0 for name in "abcde"}
    rows += [metrics_row(5, event="eval", step=5, **forgetting)]
    risen = dict.fromkeys(forgetting, 9.0)
    rows += [metrics_row(6, event="eval", step=6, forgetting=True, **risen)]
    rows += [metrics_row(7 + n, event="eval", step=7 + n, sample=f"text {n}") for n in range(200)]
    root = write_run(tmp_path / "run", rows)
    page = page_of(root)
    found = {tile["label"]: tile for tile in page["tiles"]}
    assert found["peak memory"]["tone"] == ""  # all of the budget is no more than it
    assert (found["micro-batch"]["value"], found["micro-batch"]["note"]) == (
        "2 rows", "4 until step 4"
    )  # fmt: skip
    assert [tile["label"] for tile in page["tiles"]].count("forgetting") == 3
    assert section(page, "samples")["note"] == ""
    write_rows(root / "metrics.jsonl", [metrics_row(300, event="eval", step=300, sample="more")])
    assert section(page_of(root), "samples")["note"] == "201 written"


def test_memory_without_a_budget_has_no_share() -> None:
    tile = _memory_tile("peak memory", 1 << 30, None, "budget")
    assert tile == {"label": "peak memory", "value": "1.0 GiB", "note": "", "tone": ""}


def test_without_a_tolerance_any_higher_loss_is_marked(tmp_path: Path) -> None:
    root = write_run(
        tmp_path / "run", [eval_row(0, 3.0, 2.0), eval_row(5, 3.0, 2.5, forgetting=True)]
    )
    for tolerance, marks in ((None, 1), (0.4, 1), (0.5, 0), ("much", 1)):
        (root / "settings.json").write_text(json.dumps({"forgetting_tolerance": tolerance}))
        reader = RunReader(root)
        assert reader.read()
        assert len(reader.page()["sections"][0]["marks"]) == marks
