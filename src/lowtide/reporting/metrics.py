"""Read metrics.jsonl in one pass: memory against budget over time, phases, and a run's own rows.

In:      metrics.jsonl of any length, also while it is being written
Out:     curves of a few hundred points each (JobMetrics)
Memory:  one line and the curves
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

from lowtide import files
from lowtide.quickclasses import dataclass
from lowtide.reporting.series import Series, finite_number

__all__ = ["JobMetrics", "MetricsFile", "PhaseTime"]

_GAP_SECONDS = (
    30.0  # rows come once a second; a longer silence is a stop, a start after it a resume
)
_MAX_LINE_BYTES = 1 << 20
_LAST_BYTES = 4096
_MAX_PHASES = 60
_MAX_RESUMES = 100


class MetricsFile:
    """Rows of a metrics file; each reading continues where the last one ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = 0
        self._offset = 0
        self._last = b""
        """The last bytes that were read, because a new file may get the old one's inode."""

    def is_same(self) -> bool:
        """True if the file is still the one that was read; a resumed run replaces it."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return self._offset == 0
        return self._offset == 0 or (
            status.st_ino == self._inode
            and status.st_size >= self._offset
            and self._read_last() == self._last
        )

    def _read_last(self) -> bytes:
        with contextlib.suppress(OSError), files.open_file(self.path) as file:
            return os.pread(file.fileno(), len(self._last), self._offset - len(self._last))
        return b""

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """Return the rows written since; an incomplete line is left for the next time."""
        try:
            if not self.path.is_file():  # reading a pipe would block for ever
                return
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            self._inode = os.fstat(file.fileno()).st_ino
            file.seek(self._offset)
            while line := file.readline(_MAX_LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
                    return
                self._offset += len(line)
                self._last = line[-_LAST_BYTES:]
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue  # the last line of a killed job is cut off
                if isinstance(row, dict):
                    yield row


@dataclass
class PhaseTime:
    """One phase of a job: when it ran, and how much it did."""

    job: str
    name: str
    begin: float
    end: float
    done: float = 0
    rate: float = 0
    unit: str = ""
    seconds: float = 0
    """Its duration, as the job wrote it at the end of the phase."""


@dataclass
class JobMetrics:
    """The content of a metrics file that all jobs share: time, memory, budget, phases.

    Time is the time the job ran: pauses between a stop and the next start are left out.
    """

    memory: Series = field(default_factory=Series)
    device: Series = field(default_factory=Series)
    phases: list[PhaseTime] = field(default_factory=list)
    resumes: list[float] = field(default_factory=list)
    """Positions on the time axis where the job resumed after a stop."""
    seconds: float = 0.0
    peak_bytes: int = 0
    device_peak_bytes: int = 0
    device_total_bytes: int | None = None
    budget_bytes: int | None = None
    """The budget of the job with the peak: a folder has rows of all jobs that ran in it."""
    last_time: float | None = None
    last_row: dict[str, Any] = field(default_factory=dict)
    last_event: str | None = None
    """end, stopped, or None while a job runs (or after a kill)."""
    is_over_budget: bool = False
    """Whether the job's last row says that the peak exceeded the budget."""
    num_rows: int = 0

    def add(self, row: dict[str, Any]) -> None:
        """Add one row."""
        now = finite_number(row.get("time"))
        if now is None:
            return
        self.num_rows += 1
        self._advance(now)
        self.last_event = row["event"] if row.get("event") in ("end", "stopped") else None
        self.is_over_budget = bool(finite_number(row.get("over_budget_bytes")))
        self.memory.add(row.get("memory_bytes"), places=(self.seconds,))
        self.device.add(row.get("device_bytes"), places=(self.seconds,))
        self._add_peak(row)
        peak = max(
            finite_number(row.get(key)) or 0 for key in ("device_bytes", "device_peak_bytes")
        )
        self.device_peak_bytes = max(self.device_peak_bytes, int(peak))
        self.device_total_bytes = _size(row.get("device_total_bytes"), self.device_total_bytes)
        if "phase" in row:
            self._add_phase(row)
            self.last_row = row

    def _add_peak(self, row: dict[str, Any]) -> None:
        peak = int(finite_number(row.get("peak_memory_bytes")) or 0)
        if peak >= self.peak_bytes:
            self.peak_bytes = peak
            self.budget_bytes = _size(row.get("budget_bytes"), self.budget_bytes)

    def _advance(self, now: float) -> None:
        if self.last_time is not None:
            passed = now - self.last_time
            if self.last_event is not None or passed > _GAP_SECONDS:
                if len(self.resumes) < _MAX_RESUMES:
                    self.resumes.append(self.seconds)
            elif passed > 0:
                self.seconds += passed
        self.last_time = now

    def _add_phase(self, row: dict[str, Any]) -> None:
        name, job = str(row["phase"]), str(row.get("job", ""))
        done = finite_number(row.get("done")) or 0
        last = self.phases[-1] if self.phases else None
        if last is None or (last.name, last.job) != (name, job):
            if len(self.phases) >= _MAX_PHASES:
                return
            begin = last.end if last is not None else 0.0
            last = PhaseTime(job, name, begin, self.seconds)
            self.phases.append(last)
        last.end, last.done, last.unit = self.seconds, done, str(row.get("unit", ""))
        last.rate = finite_number(row.get("rate")) or 0
        last.seconds += finite_number(row.get("phase_seconds")) or 0

    def read(self, file: MetricsFile, take: Callable[[dict[str, Any]], None] | None = None) -> int:
        """Add the new rows of a file; return how many there are."""
        before = self.num_rows
        for row in file.iter_rows():
            (take or self.add)(row)
        return self.num_rows - before


def _size(value: Any, otherwise: int | None) -> int | None:
    number = finite_number(value)
    return otherwise if number is None else int(number)
