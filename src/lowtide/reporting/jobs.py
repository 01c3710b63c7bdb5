"""What every job's page shows: memory against its budget over time, and how long phases took.

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

__all__ = ["JobReader", "describe_state", "memory_chart", "phase_table"]

_ALIVE_SECONDS = 15.0


class JobReader:
    """Reads what a job measured, where there is nothing else to show yet."""

    def __init__(self, metrics_path: Path, *, title: str) -> None:
        self._title = title
        self._file = MetricsFile(metrics_path)
        self._job = JobMetrics()

    def read(self) -> bool:
        """Read what is new; tell whether there was anything."""
        if not self._file.is_same():
            self._file, self._job = MetricsFile(self._file.path), JobMetrics()
        return self._job.read(self._file) > 0

    def page(self) -> dict[str, Any]:
        """Give the page's data."""
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
    """Say how a job is, by the last it wrote."""
    if job.last_time is None:
        return {"text": "not started", "tone": "idle"}
    if job.last_event == "end":
        return {"text": "finished", "tone": "good"}
    if job.last_event == "stopped":
        return {"text": "stopped", "tone": "warn"}
    if now - job.last_time <= _ALIVE_SECONDS:
        return {"text": "running", "tone": "live"}
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.last_time))
    return {"text": f"no news since {when}", "tone": "warn"}


def memory_chart(job: JobMetrics) -> dict[str, Any]:
    """Give the curves of host and device memory, with the budget as a line."""
    series = [
        {"name": name, **curve.as_json(("time",))}
        for name, curve in (("process tree", job.memory), ("GPU", job.device))
        if curve
    ]
    lines: list[dict[str, Any]] = []
    if job.budget_bytes:
        lines.append({"y": job.budget_bytes, "text": f"budget {format_size(job.budget_bytes)}"})
    if job.device and job.device_total_bytes:
        size = job.device_total_bytes
        lines.append({"y": size, "text": f"GPU {format_size(size)}"})
    note = f"peak {format_size(job.peak_bytes)}" if job.peak_bytes else ""
    if job.peak_bytes and job.budget_bytes:
        share = 100 * job.peak_bytes / job.budget_bytes
        note += f", {share:.0f} % of the budget of {format_size(job.budget_bytes)}"
    return {
        "type": "chart",
        "id": "memory",
        "title": "Memory over time",
        "note": note,
        "width": "wide",
        "height": 250,
        "axes": [{"key": "time", "label": "time", "format": "seconds"}],
        "format": "bytes",
        "from_zero": True,
        "series": series,
        "lines": lines,
        "cuts": [{"time": place, "text": "went on after a stop"} for place in job.resumes],
        "phases": [
            {"name": phase.name, "begin": phase.begin, "end": phase.end} for phase in job.phases
        ]
        if len(job.phases) > 1
        else [],
        "empty": "No memory has been measured here: metrics.jsonl is missing or empty.",
    }


def phase_table(job: JobMetrics) -> dict[str, Any] | None:
    """Give the phases with their times and rates; None for a job with one."""
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
    seconds = phase.end - phase.begin
    rate = phase.done / seconds if seconds > 0 else 0
    return [
        phase.job,
        phase.name,
        format_seconds(seconds),
        _amount(phase.done, phase.unit),
        f"{_amount(rate, phase.unit)}/s" if rate else "",
    ]


def _amount(amount: float, unit: str) -> str:
    return format_size(amount) if unit == "B" else f"{format_count(amount)} {unit}".rstrip()
