"""What every job's page shows: memory against its budget over time, and how long each phase took.

In:      JobMetrics
Out:     page data
Memory:  as JobMetrics
"""

from __future__ import annotations

from typing import Any

from lowtide.memory import format_size
from lowtide.progress import format_count, format_seconds
from lowtide.reporting.metrics import JobMetrics, PhaseTime

__all__ = ["memory_chart", "phase_table"]


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


def phase_table(job: JobMetrics, state: str = "") -> dict[str, Any] | None:
    """Give the phases with their times and rates; None for a job with one."""
    if len(job.phases) < 2:
        return None
    return {
        "type": "table",
        "id": "phases",
        "title": "Phases",
        "note": state,
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
