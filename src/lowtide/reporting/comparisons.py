"""The page of several runs: curves over each other, a table to sort, the settings that differ.

In:      folders of runs
Out:     page data (pages.py makes HTML of it)
Memory:  a few hundred points per curve and run
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lowtide.errors import LowtideError, UsageError
from lowtide.memory import format_size
from lowtide.progress import format_count, format_seconds
from lowtide.reporting.factstable import Column, facts_table
from lowtide.reporting.runfacts import RunFacts, run_facts
from lowtide.reporting.runs import RunReader
from lowtide.reporting.series import Series, round_number

__all__ = ["MOST_RUNS", "ComparisonReader", "runs_below"]

MOST_RUNS = 32
# Settings of where a run is, which do not change how it trains.
_NAMES_OF_RUNS = {"model_name", "checkpoints_dir", "resume", "overwrite", "history", "identity"}
_AXES = [
    {"key": "step", "label": "step", "format": "count"},
    {"key": "tokens", "label": "tokens", "format": "count"},
    {"key": "time", "label": "time", "format": "seconds"},
    {"key": "compute", "label": "compute (FLOP)", "format": "count"},
]

_COLUMNS: list[Column[RunFacts]] = [
    ("run", lambda facts: facts.name, str),
    ("parameters", lambda facts: facts.parameters, format_count),
    ("steps", lambda facts: facts.steps, "{:,}".format),
    ("tokens", lambda facts: facts.tokens, format_count),
    ("compute", lambda facts: facts.flops, lambda flops: f"{flops:.2e}"),
    ("training loss", lambda facts: facts.loss, "{:.4f}".format),
    ("best val loss", lambda facts: facts.best_val_loss, "{:.4f}".format),
    ("at step", lambda facts: facts.best_step, "{:,}".format),
    ("bits/byte", lambda facts: facts.bits_per_byte, "{:.4f}".format),
    ("tokens/s", lambda facts: facts.tokens_per_second, format_count),
    ("MFU", lambda facts: facts.mfu, "{:.1%}".format),
    ("time", lambda facts: facts.seconds, format_seconds),
    ("not training", lambda facts: facts.aside_share, "{:.1%}".format),
    ("peak memory", lambda facts: facts.peak_bytes or None, format_size),
    ("hardware", lambda facts: facts.hardware or None, str),
]


def runs_below(folder: Path) -> list[Path]:
    """The runs in a folder of runs, by name; empty for any other folder."""
    if not folder.is_dir():
        return []
    return sorted(
        path.parent for path in folder.glob("*/settings.json") if (path.parent / "steps").is_dir()
    )


class ComparisonReader:
    """Reads the folders of several runs, and later only what was added."""

    def __init__(self, roots: Sequence[Path], *, most: int = MOST_RUNS) -> None:
        if len(roots) > most:
            raise UsageError(
                f"{len(roots)} runs, expected {most} at most on one page",
                next_step="name the runs to compare",
            )
        self._readers = [RunReader(root) for root in roots]

    def read(self) -> bool:
        """Read new rows; True if there were any."""
        news = [reader.read() for reader in self._readers]  # all of them, not only until the first
        return any(news)

    def page(self) -> dict[str, Any]:
        """Return the page's data."""
        facts = self._facts()
        sections = [
            self._chart("val_loss", "Validation loss", "nats per token", _val_curve, facts),
            self._chart("loss", "Training loss", "nats per token", _curve_of("loss"), facts),
            facts_table(
                facts,
                _COLUMNS,
                id="runs",
                title="Runs",
                note="a click on a column sorts by it",
            ),
            self._differences(facts),
            self._chart(
                "tokens_per_second",
                "Throughput",
                "tokens per second, without evaluation, samples and saving",
                _curve_of("tokens_per_second"),
                facts,
            ),
            self._chart("learning_rate", "Learning rate", "", _curve_of("learning_rate"), facts),
        ]
        return {
            "kind": "comparison",
            "title": f"{len(facts)} runs",
            "subtitle": " · ".join(one.name for one in facts),
            "badge": None,
            "tiles": _tiles(facts),
            "sections": sections,
        }

    def _facts(self) -> list[RunFacts]:
        found = [run_facts(each.root, each.record, each.settings) for each in self._readers]
        names = [one.name for one in found]
        if len(set(names)) == len(names):
            return found
        return [  # of two folders: told apart by the whole path
            run_facts(each.root, each.record, each.settings, name=str(each.root))
            for each in self._readers
        ]

    def _chart(
        self,
        key: str,
        title: str,
        note: str,
        curve_of: Callable[[RunReader], Series | None],
        facts: list[RunFacts],
    ) -> dict[str, Any]:
        series: list[dict[str, Any]] = []
        for reader, one in zip(self._readers, facts, strict=True):
            curve = curve_of(reader)
            if curve:
                dots = {"dots": True} if key == "val_loss" else {}
                series.append({"name": one.name, **_columns(curve, one), **dots})
        is_loss = key.endswith("loss")
        return {
            "type": "chart",
            "id": key,
            "title": title,
            "note": note,
            "height": 340 if is_loss else 240,
            "width": "wide" if is_loss else "half",
            "axes": _AXES,
            "format": "count" if key == "tokens_per_second" else "number",
            "from_zero": not is_loss,
            "series": series,
            "choose_axis": is_loss,
            "smooth": key == "loss",
            "log": is_loss,
            "empty": "None of the runs has logged this yet.",
        }

    def _differences(self, facts: list[RunFacts]) -> dict[str, Any]:
        settings = [_as_used(each) for each in self._readers]
        names = dict.fromkeys(name for one in settings for name in one)
        rows = [
            [name, *(_setting_text(one.get(name)) for one in settings)]
            for name in names
            if name not in _NAMES_OF_RUNS and any(one.get(name) != settings[0].get(name)
                                                  for one in settings)
        ]  # fmt: skip
        return {
            "type": "table",
            "id": "differences",
            "title": "Settings that differ",
            "width": "wide",
            "columns": ["setting", *(one.name for one in facts)],
            "rows": rows,
            "empty": "All settings are the same.",
        }


def _as_used(reader: RunReader) -> dict[str, Any]:
    """A run's settings with the optimizer chosen by `auto`, read from its checkpoint."""
    settings = reader.settings
    if settings.get("optimizer") != "auto":
        return settings
    from lowtide.training.checkpoints import RunFolder
    from lowtide.training.runidentity import optimizer_of

    run, known = RunFolder(reader.root), None
    with contextlib.suppress(OSError, LowtideError):  # the checkpoint may be damaged
        known = optimizer_of(run.load_numbers()) if run.exists() else None
    return {**settings, "optimizer": known or "auto"}


def _columns(curve: Series, facts: RunFacts) -> dict[str, list[float]]:
    """A curve with its position on every axis."""
    columns = curve.as_json(("step", "time"))
    # A run of unknown tokens is left out of that axis; it must not be at 0 there.
    if (per_step := facts.tokens_per_step) is not None:
        columns["tokens"] = [round_number(step * per_step) for step in columns["step"]]
        if facts.flops_per_token is not None:
            flops = per_step * facts.flops_per_token
            columns["compute"] = [round_number(step * flops) for step in columns["step"]]
    return columns


def _curve_of(name: str) -> Callable[[RunReader], Series | None]:
    return lambda reader: reader.record.curves[name]


def _val_curve(reader: RunReader) -> Series | None:
    val = reader.record.evaluations.get("val")
    return None if val is None else val.curve


def _setting_text(value: Any) -> str:
    return "" if value is None or value == [] else str(value)


def _tiles(facts: list[RunFacts]) -> list[dict[str, Any]]:
    tiles: list[dict[str, Any]] = []
    by_loss = [one for one in facts if one.best_val_loss is not None]
    if by_loss:
        best = min(by_loss, key=lambda one: one.best_val_loss or 0)
        tiles.append(_tile("lowest validation loss", f"{best.best_val_loss:.4f}", best.name))
    by_speed = [one for one in facts if one.tokens_per_second]
    if by_speed:
        fastest = max(by_speed, key=lambda one: one.tokens_per_second or 0)
        speed = format_count(fastest.tokens_per_second or 0)
        tiles.append(_tile("most tokens per second", speed, fastest.name))
    tiles.append(_tile("time", format_seconds(sum(one.seconds for one in facts)), "of all runs"))
    return tiles


def _tile(label: str, value: str, note: str) -> dict[str, Any]:
    return {"label": label, "value": value, "note": note, "tone": ""}
