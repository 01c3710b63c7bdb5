"""The page of any job: memory against its budget over time, and the duration of phases.

In:      JobMetrics
Out:     page data
Memory:  as JobMetrics
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from lowtide.memory import format_size
from lowtide.progress import format_count, format_seconds
from lowtide.reporting.metrics import JobMetrics, MetricsFile, PhaseTime
from lowtide.reporting.series import Series

__all__ = ["JobReader", "describe_state", "device_chart", "memory_chart", "phase_table"]

_ALIVE_SECONDS = 15.0


class JobReader:
    """Reads the metrics of a job that has no other results yet."""

    def __init__(self, metrics_path: Path, *, title: str) -> None:
        self._title = title
        self._file = MetricsFile(metrics_path)
        self._job = JobMetrics()

    def read(self) -> bool:
        """Read new rows; True if there were any."""
        if not self._file.is_same():
            self._file, self._job = MetricsFile(self._file.path), JobMetrics()
        return self._job.read(self._file) > 0

    def page(self) -> dict[str, Any]:
        """Return the page's data."""
        job = self._job
        tiles = [("time", format_seconds(job.seconds), "")]
        if job.phases:
            row = job.last_row
            phase = job.phases[-1]
            total = _amount(row["total"], phase.unit) if row.get("total") else ""
            tiles.append((phase.name, _amount(phase.done, phase.unit), total and f"of {total}"))
        if job.peak_bytes:
            budget = f"of {format_size(job.budget_bytes)} budget" if job.budget_bytes else ""
            tiles.append(("peak memory", format_size(job.peak_bytes), budget))
        sections = [memory_chart(job), phase_table(job)]
        return {
            "kind": job.phases[-1].job if job.phases else "job",
            "title": self._title,
            "badge": describe_state(job, time.time()),
            "tiles": [{"label": a, "value": b, "note": c, "tone": ""} for a, b, c in tiles],
            "sections": [section for section in sections if section is not None],
        }


def describe_state(job: JobMetrics, now: float) -> dict[str, str]:
    """The state of a job, from the last row it wrote."""
    if job.last_time is None:
        return {"text": "not started", "tone": "idle"}
    if job.last_event == "end" and job.is_over_budget:
        return {"text": "finished, over its budget", "tone": "warn"}
    if job.last_event == "end":
        return {"text": "finished", "tone": "good"}
    if job.last_event == "stopped":
        return {"text": "stopped", "tone": "warn"}
    if now - job.last_time <= _ALIVE_SECONDS:
        return {"text": "running", "tone": "live"}
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.last_time))
    return {"text": f"no news since {when}", "tone": "warn"}


def memory_chart(job: JobMetrics) -> dict[str, Any]:
    """Return the curve of the process tree's memory, with the budget as a line."""
    return {
        **_over_time(job, "memory", "Memory over time", "process tree", job.memory),
        "note": _describe_peak(job.peak_bytes, job.budget_bytes, "the budget of "),
        "lines": _limit("budget", job.budget_bytes),
        "empty": "No memory has been measured here: metrics.jsonl is missing or empty.",
    }


def device_chart(job: JobMetrics) -> dict[str, Any] | None:
    """Return the curve of the GPU's memory; None for a job without one."""
    if not job.device:
        return None
    return {
        **_over_time(job, "device", "GPU memory over time", "GPU", job.device),
        "note": _describe_peak(job.device_peak_bytes, job.device_total_bytes, ""),
        "lines": _limit("GPU", job.device_total_bytes),
        "empty": "",
    }


def _over_time(job: JobMetrics, id: str, title: str, name: str, curve: Series) -> dict[str, Any]:
    phases = [{"name": p.name, "begin": p.begin, "end": p.end} for p in job.phases]
    return {
        "type": "chart",
        "id": id,
        "title": title,
        "width": "wide",
        "height": 250,
        "axes": [{"key": "time", "label": "time", "format": "seconds"}],
        "format": "bytes",
        "from_zero": True,
        "series": [{"name": name, **curve.as_json(("time",))}] if curve else [],
        "cuts": [{"time": place, "text": "went on after a stop"} for place in job.resumes],
        "phases": phases if len(phases) > 1 else [],
    }


def _describe_peak(peak: int, limit: int | None, of_what: str) -> str:
    if not peak:
        return ""
    share = f", {100 * peak / limit:.0f} % of {of_what}{format_size(limit)}" if limit else ""
    return f"peak {format_size(peak)}{share}"


def _limit(name: str, size: int | None) -> list[dict[str, Any]]:
    return [{"y": size, "text": f"{name} {format_size(size)}"}] if size else []


def phase_table(job: JobMetrics) -> dict[str, Any] | None:
    """Return the phases with their times and rates; None for a job with one."""
    if len(job.phases) < 2:
        return None
    return {
        "type": "table",
        "id": "phases",
        "title": "Phases",
        "width": "wide",
        "columns": ["job", "phase", "time", "amount", "rate"],
        "rows": [_phase_row(phase) for phase in job.phases],
        "empty": "",
    }


def _phase_row(phase: PhaseTime) -> list[str]:
    rate = phase.rate
    return [
        phase.job,
        phase.name,
        format_seconds(phase.seconds or phase.end - phase.begin),
        _amount(phase.done, phase.unit),
        f"{_amount(rate, phase.unit)}/s" if rate else "",
    ]


def _amount(amount: float, unit: str) -> str:
    return format_size(amount) if unit == "B" else f"{format_count(amount)} {unit}".rstrip()
