"""Show the progress of a job: a bar on a terminal, lines in a log, and rows in metrics.jsonl.

In:      `Phase.update(done)` from the worker, or a `poll` function for work that runs natively
Out:     stderr (bar or lines), metrics.jsonl (one row a second)
Memory:  a few kilobytes; rows are appended, never kept
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TextIO

from lowtide.answers import is_quiet
from lowtide.errors import printable, warn
from lowtide.filenames import METRICS_NAME
from lowtide.intervals import USUAL_INTERVALS, Intervals
from lowtide.memory import PeakMeter, format_size, tree_resident_bytes
from lowtide.standardstreams import is_terminal

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

__all__ = ["Phase", "Progress", "format_count", "format_seconds", "run_metrics_path"]

Poll = Callable[[], tuple[float, Mapping[str, float]]]
DeviceMemory = Callable[[], tuple[int, int]]
"""Returns the bytes that a job uses on its GPU, and the GPU's total."""

_BAR_CELLS = 20
_LAST_ROW_BYTES = 4096  # read from the end of metrics; the last row takes under 300


def format_count(count: float) -> str:
    """Return a count in a short form.

    >>> format_count(950), format_count(1_234_567)
    ('950', '1.23M')
    """
    for unit in ("", "k", "M", "G", "T"):
        if abs(count) < 999.5 or unit == "T":
            return f"{count:.3g}{unit}"
        count /= 1000
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """Return a duration in readable form.

    >>> format_seconds(4.26), format_seconds(75), format_seconds(7265), format_seconds(200_000)
    ('4.3s', '1:15', '2:01:05', '2 d 7:33')
    """
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24}:{minutes:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _ends_with_end(path: Path | None) -> bool:
    """True if the last row of a metrics file marks a finished job."""
    if path is None or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _LAST_ROW_BYTES, 0))
            return b'"event": "end"' in file.read().rstrip(b"\n").rpartition(b"\n")[2]
    except OSError:  # reported when it is written
        return False


def run_metrics_path(folder: Path) -> Path | None:
    """Return the metrics file of a run that another job may append to; None if not writable."""
    path = folder / METRICS_NAME
    return path if path.is_file() and os.access(path, os.W_OK) else None


class Phase:
    """One part of a job, from 0 (or where an interrupted run stopped) to `total`."""

    def __init__(
        self, name: str, *, total: float | None, unit: str, start: float, poll: Poll | None
    ) -> None:
        self.name = name
        self.total = total
        self.unit = unit
        self.doing = ""
        """Other work between two updates of the count, such as an evaluation."""
        self.numbers: dict[str, float] = {}
        self._first = start
        self._done = start
        self._poll = poll
        self.started = time.monotonic()

    def update(self, done: float, **numbers: float) -> None:
        """Set the total done, and any other numbers to show."""
        self._done = done
        self.numbers.update(numbers)

    def advance(self, count: float = 1, **numbers: float) -> None:
        """Add `count` to the total done."""
        self.update(self._done + count, **numbers)

    @property
    def done(self) -> float:
        """The total done."""
        if self._poll is not None:
            self._done, numbers = self._poll()
            self.numbers.update(numbers)
        return self._done

    def snapshot(self) -> dict[str, Any]:
        """Return the current numbers, as a row for metrics.jsonl."""
        done = self.done
        seconds = max(time.monotonic() - self.started, 1e-9)
        rate = (done - self._first) / seconds
        row: dict[str, Any] = {"phase": self.name, "done": done, "rate": rate, "unit": self.unit}
        if self.total is not None:
            row["total"] = self.total
            row["seconds_left"] = max(self.total - done, 0) / rate if rate > 0 else None
        row.update(self.numbers)
        if self.doing:
            row["doing"] = self.doing
        return row

    def end(self) -> dict[str, Any]:
        """Return the last numbers, and release the polled object, which may hold much memory."""
        row = self.snapshot()
        self._poll = None
        return row


class Progress:
    """A job's progress, memory and metrics; use it as a context manager.

    >>> with Progress("count", stream=None) as progress:
    ...     with progress.phase("reading", total=10) as phase:
    ...         phase.update(10)
    """

    def __init__(
        self,
        job: str,
        *,
        budget_bytes: int | None = None,
        metrics_path: Path | None = None,
        device_memory: DeviceMemory | None = None,
        stream: TextIO | Literal["stderr"] | None = "stderr",
        is_brief: bool = False,
        intervals: Intervals | None = None,
    ) -> None:
        self.job = job
        self._intervals = intervals or USUAL_INTERVALS
        self.budget_bytes = budget_bytes
        self.phase_seconds: dict[str, float] = {}
        self.metrics_path = metrics_path
        """May be set later, by a job whose folder does not exist at the start."""
        self._device_memory = device_memory
        # Looked up now, not at import, so that a redirection made since then counts.
        usual = None if is_quiet() else sys.stderr
        self._stream = usual if stream == "stderr" else stream
        self._only_warns = stream == "stderr" and is_quiet()
        self._phase: Phase | None = None
        self._meter = PeakMeter()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lowtide-progress", daemon=True)
        self._live: Live | None = None
        # A notebook's stderr is not a terminal, but supports carriage returns like one.
        self._in_notebook = type(self._stream).__module__.startswith("ipykernel")
        # Over in a moment: no thread shows progress, and its rows are written together.
        self._is_brief = is_brief
        self._waiting_rows: list[dict[str, Any]] = []
        self._drawn = 0
        self._has_written = False
        self._started = time.monotonic()

    @property
    def peak_bytes(self) -> int:
        """The largest resident memory of the process tree, since the start of the process.

        If called from Python: since the outermost job began (see PeakMeter).
        """
        return self._meter.peak_bytes

    @property
    def seconds(self) -> float:
        """Seconds since the job began."""
        return time.monotonic() - self._started

    def __enter__(self) -> Progress:
        self._started = time.monotonic()
        self._meter.__enter__()
        if self.budget_bytes is not None:
            self._meter.set_budget(self.budget_bytes)
        if is_terminal(self._stream):
            from rich.console import Console  # imported only if there is a terminal
            from rich.live import Live

            self._live = Live(
                console=Console(file=self._stream),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        if not self._is_brief:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        if not self._is_brief:
            self._thread.join()
        if self._live is not None:
            self._live.stop()
        row: dict[str, Any] = {"event": "end" if error is None else "stopped"}
        if self.budget_bytes is not None:
            row["over_budget_bytes"] = self._meter.excess_bytes
        # A finished job that was started again did nothing: its metrics are left unchanged.
        if error is not None or self._has_written or not _ends_with_end(self.metrics_path):
            self.write_metrics(row)
        if error is None:
            self.note(f"{self.job}: {format_seconds(self.seconds)}, {self._describe_peak()}")
        self._meter.__exit__(kind, error, traceback)

    def _describe_peak(self) -> str:
        text = f"peak memory {format_size(self.peak_bytes)}"
        if self.budget_bytes is None:
            return text
        excess = self._meter.excess_bytes
        over = f": OVER BUDGET by {format_size(excess)}" if excess else ""
        return f"{text} of {format_size(self.budget_bytes)} budget{over}"

    @contextlib.contextmanager
    def phase(
        self,
        name: str,
        *,
        total: float | None = None,
        unit: str = "",
        start: float = 0,
        poll: Poll | None = None,
    ) -> Generator[Phase]:
        """Run one part of the job; `poll` returns (done, numbers) for work without callbacks."""
        phase = Phase(name, total=total, unit=unit, start=start, poll=poll)
        with self._lock:
            self._phase = phase
        try:
            yield phase
        finally:
            with self._lock:
                self._phase = None
        self.phase_seconds[name] = time.monotonic() - phase.started
        row = phase.end()
        self.write_metrics({**row, "phase_seconds": round(self.phase_seconds[name], 3)})
        if self._stream is not None:
            self.note(self._describe(row, finished=True))

    def note(self, text: str) -> None:
        """Print one line above the bar; a quiet command prints only warnings."""
        if self._stream is None:
            if self._only_warns and text.startswith("warning: "):
                warn(text)
            return
        text = printable(text)
        if self._drawn:
            self._draw("")
            self._stream.write("\r")
        if self._live is not None and self._live.is_started:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._stream, flush=True)

    def write_metrics(self, numbers: Mapping[str, Any]) -> None:
        """Append a row to metrics.jsonl, with the time and the memory.

        Metrics never stop a job: if they cannot be written (a full disk, a missing folder), one
        note says so and the work continues; it may fail by the same cause later.
        """
        path = self.metrics_path
        if path is None:
            return
        self._has_written = True
        row = {
            "time": round(time.time(), 3),
            "job": self.job,
            **{key: _json_number(value) for key, value in numbers.items()},
        }
        if self._is_brief and "event" not in numbers:
            self._waiting_rows.append(row)
            return
        rows = [*self._waiting_rows, row]
        self._waiting_rows = []
        memory: dict[str, Any] = {
            "memory_bytes": tree_resident_bytes(),
            "peak_memory_bytes": self.peak_bytes,
            "budget_bytes": self.budget_bytes,
        }
        if self._device_memory is not None:
            memory["device_bytes"], memory["device_total_bytes"] = self._device_memory()
        lines = "".join(json.dumps(row | memory) + "\n" for row in rows)
        try:
            # Opening a pipe must not block the job until there is a reader.
            # Links are not followed: they may lead to other users' files.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
            flags |= os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o666)
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write(lines)
        except OSError as error:
            self.note(f"no more metrics: {path}: {error.strerror}")
            self.metrics_path = None

    def _run(self) -> None:
        intervals = self._intervals
        last_row = last_line = time.monotonic()
        while not self._stop.wait(intervals.refresh_seconds):
            # The lock is held while `poll` runs: after the phase, the polled object may be freed.
            with self._lock:
                phase = self._phase
                row = phase.snapshot() if phase is not None else {}
            now = time.monotonic()
            if now - last_row >= intervals.metrics_seconds:  # also between phases: memory changes
                last_row = now
                self.write_metrics(row)
            if phase is None:
                continue
            if self._live is not None:
                self._live.update(self._line(self._describe(row, finished=False)), refresh=True)
            elif self._in_notebook:
                self._draw(self._describe(row, finished=False))
            elif min(now - last_line, now - phase.started) >= intervals.line_seconds:
                last_line = now
                self.note(self._describe(row, finished=False))

    def _draw(self, text: str) -> None:
        """Overwrite the previous bar, in a notebook."""
        assert self._stream is not None
        text = printable(text)
        self._stream.write("\r" + text.ljust(self._drawn))
        self._stream.flush()
        self._drawn = len(text)

    @staticmethod
    def _line(text: str) -> Text:
        """Return the bar as one line, cut to the terminal's width: a wrapped one leaves remains."""
        from rich.text import Text

        return Text(printable(text), no_wrap=True, overflow="ellipsis")

    def _describe(self, row: Mapping[str, Any], *, finished: bool) -> str:
        total = row.get("total")
        parts = [f"{row['phase']:<12}"]
        if not finished and row.get("doing"):
            parts.append(str(row["doing"]))
        if finished:
            parts.append(format_seconds(self.phase_seconds[row["phase"]]))
        elif total:
            share = min(row["done"] / total, 1.0)
            filled = round(share * _BAR_CELLS)
            parts.append("█" * filled + "░" * (_BAR_CELLS - filled) + f" {100 * share:3.0f}%")
        if total or row["done"]:  # else there is no count, only time and memory
            parts.append(_share(row["done"], total, row["unit"]))
            parts.append(f"{_with_unit(row['rate'], row['unit'])}/s")
        if not finished and row.get("seconds_left") is not None:
            parts.append(f"{format_seconds(row['seconds_left'])} left")
        standard = {"phase", "done", "rate", "unit", "total", "seconds_left", "doing"}
        parts += [
            f"{key} {format_count(value)}" for key, value in row.items() if key not in standard
        ]
        budget = f" of {format_size(self.budget_bytes)}" if self.budget_bytes else ""
        parts.append(f"memory {format_size(tree_resident_bytes())}{budget}")
        if self._device_memory is not None:
            held, there = self._device_memory()
            parts.append(f"GPU {format_size(held)} of {format_size(there)}")
        return "  ".join(parts)


def _json_number(value: Any) -> Any:
    """Return a value for JSON: NumPy's numbers as Python's, no NaN or infinity."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _share(done: float, total: float | None, unit: str) -> str:
    """Progress as text: 3 of 8 texts, 1 of 1 text, 1.0 MiB of 2.0 MiB."""
    if not total:
        return _with_unit(done, unit)
    before = _with_unit(done, unit) if unit == "B" else format_count(done)
    return f"{before} of {_with_unit(total, unit)}"


def _with_unit(amount: float | None, unit: str) -> str:
    if unit == "B":
        return format_size(amount or 0)
    return f"{format_count(amount or 0)} {unit.removesuffix('s') if amount == 1 else unit}".rstrip()
