"""The content of a run's metrics: curves, evaluations, forgetting, samples, in bounded memory.

In:      rows of metrics.jsonl, in order
Out:     RunRecord
Memory:  a few hundred points per curve, whatever the length of the run
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from lowtide.quickclasses import dataclass
from lowtide.reporting.metrics import JobMetrics
from lowtide.reporting.series import Series, SpacedItems, finite_number, round_number

__all__ = ["MAX_SAMPLES", "Evaluation", "RunRecord"]

MAX_SAMPLES = 200
_ASIDE = ("evaluation", "sample", "saving")  # as training names them in its rows
_MAX_EVALUATIONS = 24  # named datasets; each is a curve
_MAX_MARKS = 60
_SAMPLE_CHARACTERS = 800
_CURVE_KEYS = ("loss", "learning_rate", "gradient_norm", "tokens_per_second")


@dataclass
class Evaluation:
    """The losses on one evaluation dataset."""

    curve: Series = field(default_factory=Series)
    bits: Series = field(default_factory=Series)
    best_step: int = 0
    marks: SpacedItems = field(default_factory=lambda: SpacedItems(_MAX_MARKS))
    """The points where its loss had risen beyond the tolerance (forgetting)."""


@dataclass
class RunRecord:
    """Everything read from a run so far."""

    forgetting_tolerance: float = 0.0
    """Rise of a loss that counts as forgetting, from the run's settings."""
    job: JobMetrics = field(default_factory=JobMetrics)
    curves: dict[str, Series] = field(
        default_factory=lambda: {name: Series() for name in _CURVE_KEYS}
    )
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    tasks: dict[str, dict[str, float]] = field(default_factory=dict)
    """Numbers of the newest evaluation on each task."""
    samples: SpacedItems = field(default_factory=lambda: SpacedItems(MAX_SAMPLES))
    step: int = 0
    total_steps: float | None = None
    elapsed_seconds: float = 0.0
    skipped_steps: int = 0
    micro_batches: list[tuple[int, int]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    """Versions, machine and command, as the newest start wrote them."""
    aside_seconds: dict[str, float] = field(default_factory=dict)
    """Time spent on other work than training, by kind."""

    def take(self, row: dict[str, Any]) -> None:
        """Add one row."""
        if row.get("event") == "task":
            self._take_task(row)
            return
        if row.get("job", "train") != "train":
            return
        self.job.add(row)
        if row.get("event") == "environment":
            self.environment = row
            return
        if row.get("phase") == "training":
            self.total_steps = finite_number(row.get("total"))
        step = finite_number(row.get("step"))
        if step is None:
            return
        places = (step, self.job.seconds)
        if row.get("event") == "eval":
            self._take_evaluation(row, places)
            return
        self.step = max(self.step, int(step))
        for name, series in self.curves.items():
            series.add(row.get(name), places=places)
        self.elapsed_seconds = finite_number(row.get("elapsed_seconds")) or self.elapsed_seconds
        for work in _ASIDE:
            spent = finite_number(row.get(f"{work}_seconds")) or 0.0
            if spent > 0:
                self.aside_seconds[work] = self.aside_seconds.get(work, 0.0) + spent
        self.skipped_steps = int(finite_number(row.get("skipped_steps")) or self.skipped_steps)
        rows = finite_number(row.get("micro_batch"))
        changed = not self.micro_batches or self.micro_batches[-1][1] != rows
        if rows is not None and changed and len(self.micro_batches) < _MAX_MARKS:
            self.micro_batches.append((int(step), int(rows)))

    def _take_task(self, row: dict[str, Any]) -> None:
        """Keep the newest answers to each task."""
        name = row.get("task")
        known = name in self.tasks or len(self.tasks) < _MAX_EVALUATIONS
        if isinstance(name, str) and known:
            self.tasks[_shorten(name)] = {
                key: number
                for key, value in row.items()
                if (number := finite_number(value)) is not None
            }

    def _take_evaluation(self, row: dict[str, Any], places: tuple[float, float]) -> None:
        self.step = max(self.step, int(places[0]))
        for key, value in row.items():
            loss = finite_number(value)
            if not key.endswith("_loss") or loss is None:
                continue
            source = key.removesuffix("_loss")
            name = source.removeprefix("eval_")
            if name not in self.evaluations and len(self.evaluations) >= _MAX_EVALUATIONS:
                continue
            evaluation = self.evaluations.setdefault(name, Evaluation())
            if loss < evaluation.curve.low:
                evaluation.best_step = int(places[0])
            evaluation.curve.add(loss, places=places)
            evaluation.bits.add(row.get(f"{source}_bits_per_byte"), places=places)
            self._mark_forgetting(row, source, evaluation, loss, places)
        if isinstance(row.get("sample"), str):
            self.samples.add({"step": int(places[0]), "text": _shorten(row["sample"].strip("\n"))})

    def _mark_forgetting(
        self,
        row: dict[str, Any],
        source: str,
        evaluation: Evaluation,
        loss: float,
        places: tuple[float, float],
    ) -> None:
        first = evaluation.curve.first
        tolerance = self.forgetting_tolerance
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


def _shorten(text: str) -> str:
    return text if len(text) <= _SAMPLE_CHARACTERS else text[:_SAMPLE_CHARACTERS] + " …"
