"""The page of a run: loss curves, forgetting, learning rate, throughput, memory, samples.

In:      a run's folder: metrics.jsonl, settings.json, config.json
Out:     page data (dictionaries that pages.py turns into HTML)
Memory:  a few hundred points per curve, whatever the length of the run
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lowtide.errors import DataError
from lowtide.files import read_json
from lowtide.memory import format_size
from lowtide.progress import METRICS_NAME, format_count, format_seconds
from lowtide.reporting.jobs import describe_state, device_chart, memory_chart, phase_table
from lowtide.reporting.metrics import JobMetrics, MetricsFile
from lowtide.reporting.series import Series, SpacedItems, round_number

__all__ = ["RunReader"]

_AXES = ("step", "time")
_MAX_EVALUATIONS = 24  # named datasets; each is a curve
_MAX_MARKS = 60
_MAX_SAMPLES = 16
_SAMPLE_CHARACTERS = 800


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


@dataclass
class _Evaluation:
    """What is known of one evaluation dataset."""

    curve: Series = field(default_factory=Series)
    bits: Series = field(default_factory=Series)
    best_step: int = 0
    marks: SpacedItems = field(default_factory=lambda: SpacedItems(_MAX_MARKS))
    """Where its loss had risen beyond the tolerance: forgetting."""


@dataclass
class _Record:
    """Everything read of a run so far."""

    job: JobMetrics = field(default_factory=JobMetrics)
    curves: dict[str, Series] = field(
        default_factory=lambda: {name: Series() for name in _CURVE_KEYS}
    )
    evaluations: dict[str, _Evaluation] = field(default_factory=dict)
    samples: SpacedItems = field(default_factory=lambda: SpacedItems(_MAX_SAMPLES))
    step: int = 0
    total_steps: float | None = None
    elapsed_seconds: float = 0.0
    skipped_steps: int = 0
    micro_batches: list[tuple[int, int]] = field(default_factory=list)


_CURVE_KEYS = ("loss", "learning_rate", "gradient_norm", "tokens_per_second")


class RunReader:
    """Reads a run's folder, and again what was added to it since."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._file = MetricsFile(root / METRICS_NAME)
        self._record = _Record()
        self._settings = _read_object(root / "settings.json")

    def read(self) -> bool:
        """Read what is new; tell whether there was anything."""
        if not self._file.is_same():
            self._file = MetricsFile(self._file.path)
            self._record = _Record()
        if not self._settings:
            self._settings = _read_object(self.root / "settings.json")
        return self._record.job.read(self._file, self._take) > 0

    def _take(self, row: dict[str, Any]) -> None:
        record = self._record
        if row.get("job", "train") != "train":
            return
        record.job.add(row)
        if row.get("phase") == "training":
            record.total_steps = _number(row.get("total"))
        step = _number(row.get("step"))
        if step is None:
            return
        places = (step, record.job.seconds)
        if row.get("event") == "eval":
            self._take_evaluation(row, places)
            return
        record.step = max(record.step, int(step))
        for name, series in record.curves.items():
            series.add(row.get(name), places=places)
        record.elapsed_seconds = _number(row.get("elapsed_seconds")) or record.elapsed_seconds
        record.skipped_steps = int(_number(row.get("skipped_steps")) or record.skipped_steps)
        rows = _number(row.get("micro_batch"))
        changed = not record.micro_batches or record.micro_batches[-1][1] != rows
        if rows is not None and changed and len(record.micro_batches) < _MAX_MARKS:
            record.micro_batches.append((int(step), int(rows)))

    def _take_evaluation(self, row: dict[str, Any], places: tuple[float, float]) -> None:
        record = self._record
        record.step = max(record.step, int(places[0]))
        for key, value in row.items():
            loss = _number(value)
            if not key.endswith("_loss") or loss is None:
                continue
            source = key.removesuffix("_loss")
            name = source.removeprefix("eval_")
            if name not in record.evaluations and len(record.evaluations) >= _MAX_EVALUATIONS:
                continue
            evaluation = record.evaluations.setdefault(name, _Evaluation())
            if loss < evaluation.curve.low:
                evaluation.best_step = int(places[0])
            evaluation.curve.add(loss, places=places)
            evaluation.bits.add(row.get(f"{source}_bits_per_byte"), places=places)
            self._mark_forgetting(row, source, evaluation, loss, places)
        if isinstance(row.get("sample"), str):
            record.samples.add(
                {"step": int(places[0]), "text": _shorten(row["sample"].strip("\n"))}
            )

    def _mark_forgetting(
        self,
        row: dict[str, Any],
        source: str,
        evaluation: _Evaluation,
        loss: float,
        places: tuple[float, float],
    ) -> None:
        first = evaluation.curve.first
        tolerance = _number(self._settings.get("forgetting_tolerance")) or 0.0
        if source == "val" or not row.get("forgetting") or first is None:
            return
        if loss > first + tolerance:
            name = source.removeprefix("eval_")
            evaluation.marks.add(
                {
                    "step": places[0],
                    "time": round_number(places[1]),
                    "y": round_number(loss),
                    "text": f"forgetting: {name} is {loss - first:.2f} above its first loss",
                }
            )

    # -- the page ------------------------------------------------------------------------------

    def page(self, *, now: float | None = None) -> dict[str, Any]:
        """Give the page's data."""
        if not self._record.job.num_rows and not self._settings:
            raise DataError(
                "there is no run here: neither settings.json nor metrics.jsonl",
                path=self.root,
                next_step="name a folder that lowtide train made, such as checkpoints/NAME",
            )
        sections = [
            self._loss_chart(),
            self._evaluation_table(),
            self._curve_chart("learning_rate", "Learning rate", "", "number"),
            self._curve_chart("tokens_per_second", "Throughput", "tokens per second", "count"),
            self._curve_chart("gradient_norm", "Norm of the gradient", "before clipping", "number"),
            memory_chart(self._record.job),
            device_chart(self._record.job),
            self._samples(),
            phase_table(self._record.job),
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
        config = _read_object(self.root / "config.json")
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
            parts.append(f"trained on {source}")
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
        speed = record.curves["tokens_per_second"]
        if speed.last is not None:
            tiles.append(_tile("tokens per second", format_count(speed.last), "last logged"))
        if job.peak_bytes:
            tiles.append(_memory_tile("peak memory", job.peak_bytes, job.budget_bytes, "budget"))
        if job.device_peak_bytes:
            tiles.append(
                _memory_tile("peak GPU memory", job.device_peak_bytes, job.device_total_bytes, "it")
            )
        seconds = record.elapsed_seconds or job.seconds
        left = _number(job.last_row.get("seconds_left")) if job.last_event is None else None
        note = f"about {format_seconds(left)} left" if left else ""
        tiles.append(_tile("time", format_seconds(seconds), note))
        if record.skipped_steps:
            tiles.append(
                _tile("skipped steps", f"{record.skipped_steps:,}", "not finite", tone="warn")
            )
        return tiles

    def _tokens_seen(self) -> str:
        names = ("batch_size", "gradient_accumulation_steps", "seq_len")
        sizes = [_number(self._settings.get(name)) for name in names]
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
            "empty": "No step has been logged yet.",
        }

    def _curve_chart(self, key: str, title: str, note: str, form: str) -> dict[str, Any]:
        curve = _curve(title.lower(), self._record.curves[key])
        return {
            "type": "chart",
            "id": key,
            "title": title,
            "note": note,
            "width": "third",
            "axes": _axes(),
            "format": form,
            "from_zero": key != "gradient_norm",
            "log": key == "gradient_norm",
            "series": [curve] if curve["y"] else [],
            "empty": "No step has been logged yet.",
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

    def _samples(self) -> dict[str, Any]:
        return {
            "type": "samples",
            "id": "samples",
            "title": "Samples over time",
            "note": f"{self._record.samples.count:,} written"
            if self._record.samples.count > _MAX_SAMPLES
            else "",
            "width": "wide",
            "items": self._record.samples.items[::-1],
            "empty": "No samples yet: they are written at each evaluation (--sample-tokens).",
        }

    def _settings_table(self) -> dict[str, Any] | None:
        shown = [
            [key, str(value)]
            for key, value in self._settings.items()
            if value not in (None, (), [], {})
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


def _shorten(text: str) -> str:
    return text if len(text) <= _SAMPLE_CHARACTERS else text[:_SAMPLE_CHARACTERS] + " …"


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty where there is none, for a run that has only begun."""
    if not path.is_file():
        return {}
    value = read_json(path)
    return value if isinstance(value, dict) else {}
