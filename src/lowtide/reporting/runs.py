"""The page of a run: loss curves, forgetting, learning rate, throughput, memory, samples.

In:      a run's folder: metrics.jsonl, settings.json, config.json
Out:     page data (dictionaries that pages.py turns into HTML)
Memory:  a few hundred points per curve, whatever the length of the run
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from lowtide.errors import DataError
from lowtide.filenames import CONFIG_NAME, METRICS_NAME, SETTINGS_NAME
from lowtide.files import read_json
from lowtide.memory import format_size
from lowtide.progress import format_count, format_seconds
from lowtide.reporting.jobs import describe_state, device_chart, memory_chart, phase_table
from lowtide.reporting.metrics import MetricsFile
from lowtide.reporting.runcurves import MAX_SAMPLES, RunRecord
from lowtide.reporting.runfacts import made_with, run_facts
from lowtide.reporting.series import Series, finite_number
from lowtide.stores.urls import show_path

__all__ = ["RunReader"]

_AXES = ("step", "time")


class RunReader:
    """Reads a run's folder, and later only what was added."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._file = MetricsFile(root / METRICS_NAME)
        self._record = RunRecord()
        self._settings = _read_object(root / SETTINGS_NAME)

    @property
    def record(self) -> RunRecord:
        """Everything read so far."""
        return self._record

    @property
    def settings(self) -> dict[str, Any]:
        """The run's settings, from its folder."""
        return self._settings

    def read(self) -> bool:
        """Read new rows; True if there were any."""
        if not self._file.is_same():
            self._file = MetricsFile(self._file.path)
            self._record = RunRecord()
        if not self._settings:
            self._settings = _read_object(self.root / SETTINGS_NAME)
        tolerance = finite_number(self._settings.get("forgetting_tolerance"))
        self._record.forgetting_tolerance = tolerance or 0.0
        return self._record.job.read(self._file, self._record.take) > 0

    def page(self, *, now: float | None = None) -> dict[str, Any]:
        """Return the page's data."""
        if not self._record.job.num_rows and not self._settings:
            raise DataError(
                "there is no run here: neither settings.json nor metrics.jsonl",
                path=self.root,
                next_step="name a folder that lowtide train made, such as checkpoints/NAME",
            )
        sections = [
            self._loss_chart(),
            self._evaluation_table(),
            self._task_table(),
            self._curve_chart("learning_rate", "Learning rate", "", "number"),
            self._curve_chart("tokens_per_second", "Throughput", "tokens per second", "count"),
            self._curve_chart("gradient_norm", "Gradient norm", "before clipping", "number"),
            memory_chart(self._record.job),
            device_chart(self._record.job),
            self._samples(),
            phase_table(self._record.job),
            self._made_with_table(),
            self._settings_table(),
        ]
        return {
            "kind": "run",
            "title": self.root.resolve().name,
            "subtitle": self._describe_model(),
            "badge": describe_state(self._record.job, time.time() if now is None else now),
            "tiles": self._tiles(),
            "sections": [section for section in sections if section is not None],
        }

    def _describe_model(self) -> str:
        config = _read_object(self.root / CONFIG_NAME)
        parts: list[str] = []
        for key, word in (
            ("num_hidden_layers", "layers"),
            ("n_layer", "layers"),
            ("hidden_size", "wide"),
            ("n_embd", "wide"),
        ):
            if key in config:
                parts.append(f"{config[key]} {word}")
        if "vocab_size" in config:
            parts.append(f"vocabulary {config['vocab_size']:,}")
        source = self._settings.get("dataset_dir") or self._settings.get("input_file")
        source = source or self._settings.get("train_data_path") or self._settings.get("dataset_id")
        if source:
            parts.append(f"trained on {show_path(str(source))}")
        return " · ".join(parts)

    def _tiles(self) -> list[dict[str, Any]]:
        record, job = self._record, self._record.job
        total = f" of {record.total_steps:,.0f}" if record.total_steps else ""
        tiles = [_tile("steps", f"{record.step:,}{total}", self._tokens_seen())]
        loss = record.curves["loss"]
        if loss.last is not None:
            tiles.append(_tile("training loss", f"{loss.last:.3f}", "of the last steps"))
        val = record.evaluations.get("val")
        if val is not None and val.curve:
            tiles.append(
                _tile("best validation loss", f"{val.curve.low:.3f}", f"at step {val.best_step:,}")
            )
        tiles += self._forgetting_tiles()
        facts = run_facts(self.root, record, self._settings)
        speed = record.curves["tokens_per_second"]
        if speed.last is not None:
            tiles.append(_tile("tokens per second", format_count(speed.last), "last logged"))
        if facts.parameters is not None:
            tiles.append(_tile("parameters", format_count(facts.parameters)))
        if facts.mfu is not None:
            tiles.append(_tile("MFU", f"{facts.mfu:.1%}", "of published bfloat16 peak"))
        if facts.aside_seconds:
            note = ", ".join(
                f"{work} {format_seconds(s)}" for work, s in facts.aside_seconds.items()
            )
            tiles.append(_tile("not training", f"{facts.aside_share:.1%}", note))
        if job.peak_bytes:
            tiles.append(_memory_tile("peak memory", job.peak_bytes, job.budget_bytes, "budget"))
        if job.device_peak_bytes:
            tiles.append(
                _memory_tile("peak GPU memory", job.device_peak_bytes, job.device_total_bytes, "it")
            )
        seconds = record.elapsed_seconds or job.seconds
        left = finite_number(job.last_row.get("seconds_left")) if job.last_event is None else None
        note = f"about {format_seconds(left)} left" if left else ""
        tiles.append(_tile("time", format_seconds(seconds), note))
        if len(record.micro_batches) > 1:
            (_, before), (step, now) = record.micro_batches[-2:]
            note = f"{before:,} until step {step:,}"
            tiles.append(_tile("micro-batch", f"{now:,} rows", note, tone="warn"))
        if record.skipped_steps:
            tiles.append(
                _tile("skipped steps", f"{record.skipped_steps:,}", "not finite", tone="warn")
            )
        return tiles

    def _tokens_seen(self) -> str:
        names = ("batch_size", "gradient_accumulation_steps", "seq_len")
        sizes = [finite_number(self._settings.get(name)) for name in names]
        known = [size for size in sizes if size is not None]
        if len(known) < len(names):
            return ""
        return f"{format_count(self._record.step * math.prod(known))} tokens seen"

    def _forgetting_tiles(self) -> list[dict[str, Any]]:
        tiles: list[dict[str, Any]] = []
        for name, evaluation in self._record.evaluations.items():
            first, last = evaluation.curve.first, evaluation.curve.last
            if not evaluation.marks.count or first is None or last is None:
                continue
            change = f"{last - first:+.2f} nats since the start"
            tiles.append(_tile("forgetting", name, change, tone="bad"))
        return tiles[:3]

    def _loss_chart(self) -> dict[str, Any]:
        record = self._record
        series = [_curve("train", record.curves["loss"])]
        marks: list[dict[str, Any]] = []
        for name, evaluation in record.evaluations.items():
            series.append({**_curve(name, evaluation.curve), "dots": True})
            marks += [{**mark, "series": name} for mark in evaluation.marks.items]
        note = "nats per token"
        if any("low" in entry for entry in series):
            note += "; bands show the range behind each point"
        if marks:
            note += "; rings mark forgetting"
        return {
            "type": "chart",
            "id": "loss",
            "title": "Loss",
            "note": note,
            "height": 340,
            "width": "wide",
            "axes": _axes(),
            "format": "number",
            "series": [entry for entry in series if entry["y"]],
            "marks": marks,
            "choose_axis": True,
            "smooth": True,
            "log": True,
            "empty": self._why_no_curve(),
        }

    def _why_no_curve(self) -> str:
        if not self._record.step:
            return "No step has been logged yet."
        return "No step has had a finite value yet: see troubleshooting, the loss is not a number."

    def _curve_chart(self, key: str, title: str, note: str, form: str) -> dict[str, Any]:
        curve = _curve(title.lower(), self._record.curves[key])
        return {
            "type": "chart",
            "id": key,
            "title": title,
            "note": note,
            "width": "third last" if key == "gradient_norm" else "third",
            "axes": _axes(),
            "format": form,
            "from_zero": key != "gradient_norm",
            "log": key == "gradient_norm",
            "series": [curve] if curve["y"] else [],
            "empty": self._why_no_curve(),
        }

    def _evaluation_table(self) -> dict[str, Any]:
        rows: list[list[str]] = []
        for name, evaluation in self._record.evaluations.items():
            curve, bits = evaluation.curve, evaluation.bits.last
            if curve.first is None or curve.last is None:
                continue
            rows.append(
                [
                    name,
                    f"{curve.first:.3f}",
                    f"{curve.low:.3f}",
                    f"{evaluation.best_step:,}",
                    f"{curve.last:.3f}",
                    f"{math.exp(min(curve.last, 700.0)):,.1f}",
                    "" if bits is None else f"{bits:.3f}",
                    "forgetting" if evaluation.marks.count else "",
                ]
            )
        return {
            "type": "table",
            "id": "evaluations",
            "title": "Evaluations",
            "width": "wide",
            "columns": [
                "dataset",
                "first",
                "best",
                "at step",
                "last",
                "perplexity",
                "bits/byte",
                "",
            ],
            "rows": rows,
            "empty": "No evaluation yet: the first comes after the first --eval-interval, "
            "if there is validation data.",
        }

    def _task_table(self) -> dict[str, Any] | None:
        """The accuracy on tasks (questions); None without any."""

        def share(row: dict[str, float], name: str) -> str:
            if name not in row:
                return ""
            return f"{row[name]:.3f} ± {row.get(f'{name}_stderr', 0.0):.3f}"

        rows = [
            [
                name,
                f"{row.get('num_questions', 0):,.0f}",
                share(row, "accuracy"),
                share(row, "accuracy_chars"),
                share(row, "accuracy_bytes"),
                f"{row['perplexity']:,.1f}" if "perplexity" in row else "",
            ]
            for name, row in self._record.tasks.items()
        ]
        columns = ["task", "questions", "accuracy", "by character", "by byte", "perplexity"]
        table = {"type": "table", "id": "tasks", "title": "Tasks", "width": "wide"}
        return {**table, "columns": columns, "rows": rows} if rows else None

    def _samples(self) -> dict[str, Any]:
        return {
            "type": "samples",
            "id": "samples",
            "title": "Samples over time",
            "note": f"{self._record.samples.count:,} written"
            if self._record.samples.count > MAX_SAMPLES
            else "",
            "width": "wide",
            "items": self._record.samples.items[::-1],
            "empty": "No samples yet: they are written at each evaluation (--sample-tokens).",
        }

    def _made_with_table(self) -> dict[str, Any] | None:
        rows = made_with(self._record)
        table = {"type": "table", "id": "made_with", "title": "Made with", "width": "wide"}
        return {**table, "columns": ["", ""], "rows": rows, "empty": ""} if rows else None

    def _settings_table(self) -> dict[str, Any] | None:
        shown = [
            [key, str(value)]
            for key, value in self._settings.items()
            if value not in (None, (), [], {}) and key not in ("history", "identity")
        ]
        if not shown:
            return None
        return {
            "type": "table",
            "id": "settings",
            "title": "Settings",
            "width": "wide",
            "folded": True,
            "columns": ["setting", "value"],
            "rows": shown,
            "empty": "",
        }


def _axes() -> list[dict[str, str]]:
    return [
        {"key": "step", "label": "step", "format": "count"},
        {"key": "time", "label": "time", "format": "seconds"},
    ]


def _curve(name: str, series: Series) -> dict[str, Any]:
    return {"name": name, **series.as_json(_AXES)}


def _tile(label: str, value: str, note: str = "", *, tone: str = "") -> dict[str, Any]:
    return {"label": label, "value": value, "note": note, "tone": tone}


def _memory_tile(label: str, peak: int, limit: int | None, word: str) -> dict[str, Any]:
    if not limit:
        return _tile(label, format_size(peak))
    share = peak / limit
    note = f"{100 * share:.0f} % of {format_size(limit)}" + (" budget" if word == "budget" else "")
    return _tile(label, format_size(peak), note, tone="bad" if share > 1 else "")


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is none, as in a run that has just begun."""
    if not path.is_file():
        return {}
    value = read_json(path)
    return value if isinstance(value, dict) else {}
