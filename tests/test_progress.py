"""Progress on a terminal, in a log, and in metrics.jsonl."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide import progress as progress_module
from lowtide.answers import shown_as
from lowtide.intervals import Intervals
from lowtide.progress import Phase, Progress, format_count, format_seconds, run_metrics_path

pytestmark = pytest.mark.usefixtures("events_only")
QUICK = Intervals(refresh_seconds=0.001, metrics_seconds=0.0, line_seconds=0.0)
"""The thread reports at once, instead of every few seconds."""


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (7, "7"),
        (999, "999"),
        (1000, "1k"),
        (999_950, "1M"),
        (12e12, "12T"),
    ],
)
def test_counts(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.04, "0.0s"), (59.9, "59.9s"), (3600, "1:00:00")])
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_log_gets_plain_lines() -> None:
    stream = io.StringIO()
    with (
        Progress("count", budget_bytes=1 << 30, stream=stream) as progress,
        progress.phase("reading", total=4, unit="documents") as phase,
    ):
        phase.advance(3)
        phase.advance(1, merges=1200)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert re.match(r"reading +\d+\.\ds  4 of 4 documents  .*/s  merges 1.2k  ", lines[0])
    assert re.fullmatch(r"count: \d+\.\ds, peak memory [\d.]+ MiB of 1\.0 GiB budget", lines[1])
    assert "\x1b" not in stream.getvalue()


def test_stderr_is_looked_up_when_the_job_begins(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("count"):
        pass
    captured = capsys.readouterr()
    assert "count: " in captured.err
    assert captured.out == ""


def test_metrics_hold_the_same_numbers(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Progress("count", budget_bytes=5, metrics_path=path, stream=None) as progress:
        with progress.phase("reading", total=8, unit="B", start=2) as phase:
            phase.update(8, loss=np.float32(0.5), broken=float("nan"))
        progress.write_metrics({"event": "done here"})
    first, second, third = rows_of(path)
    assert (first["job"], first["phase"], first["done"], first["total"]) == (
        "count",
        "reading",
        8,
        8,
    )
    assert (first["loss"], first["broken"], first["seconds_left"]) == (0.5, None, 0)
    assert first["budget_bytes"] == 5
    assert first["peak_memory_bytes"] >= first["memory_bytes"] * 0.9 > 0
    assert second["event"] == "done here"
    assert third["event"] == "end"


def test_a_finished_job_that_does_nothing_leaves_its_numbers_alone(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Progress("count", metrics_path=path, stream=None):
        pass
    first = path.read_bytes()
    assert [row["event"] for row in rows_of(path)] == ["end"]
    with Progress("count", metrics_path=path, stream=None):
        pass
    assert path.read_bytes() == first
    with Progress("count", metrics_path=path, stream=None) as progress:
        progress.write_metrics({"loss": 1})
    with pytest.raises(ValueError), Progress("count", metrics_path=path, stream=None):
        raise ValueError
    with Progress("count", metrics_path=path, stream=None):
        pass
    events = [row.get("event") for row in rows_of(path)]
    assert events == ["end", None, "end", "stopped", "end"]


def test_an_error_is_marked_and_nothing_is_claimed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    stream = io.StringIO()
    with (
        pytest.raises(ValueError, match="x"),
        Progress("count", metrics_path=path, stream=stream) as progress,
        progress.phase("reading"),
    ):
        raise ValueError("x")
    assert stream.getvalue() == ""
    assert [row.get("event") for row in rows_of(path)] == ["stopped"]


def test_metrics_that_cannot_be_written_do_not_end_the_job() -> None:
    stream = io.StringIO()
    with Progress("count", metrics_path=Path("/dev/full"), stream=stream) as progress:
        for _ in range(3):
            progress.write_metrics({"loss": 1})
    assert stream.getvalue().count("no more metrics") == 1
    assert "No space left" in stream.getvalue()


def test_a_quiet_command_prints_warnings_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_as(as_json=False, quiet=True), Progress("train") as progress:
        progress.note("going on at step 4")
        progress.note("warning: step 6 is not used: \x1b")
    with Progress("train", stream=None) as progress:
        progress.note("warning: nobody asked")
    assert capsys.readouterr().err == "warning: step 6 is not used: \\x1b\n"


def test_what_is_done_between_steps_is_said_and_written() -> None:
    progress = Progress("train", stream=None)
    with progress.phase("training", total=5, unit="steps") as phase:
        phase.update(5)
        phase.doing = "evaluating val: 3 of 50 windows"
        row = phase.snapshot()
        assert row["doing"] == "evaluating val: 3 of 50 windows"
        assert "training      evaluating val: 3 of 50 windows  " in progress._describe(
            row, finished=False
        )
        phase.doing = ""
        assert "doing" not in phase.snapshot()


def test_a_resumed_phase_counts_only_its_own_work_in_the_rate() -> None:
    phase = Phase("reading", total=100, unit="", start=90, poll=None)
    phase.started -= 10  # as if ten seconds ago
    phase.update(95)
    row = phase.snapshot()
    assert row["rate"] == pytest.approx(0.5, rel=0.1)
    assert row["seconds_left"] == pytest.approx(10, rel=0.1)


def test_native_work_is_polled_while_it_runs_and_never_after(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    polled = threading.Event()
    open_for_polls = True
    late: list[str] = []

    def poll() -> tuple[float, dict[str, float]]:
        if not open_for_polls:
            late.append("polled after the phase")
        if threading.current_thread() is not threading.main_thread():
            polled.set()
        return 3, {"spilled": 2}

    with Progress("count", intervals=QUICK, metrics_path=path, stream=None) as progress:
        with progress.phase("reading", total=4, poll=poll):
            assert polled.wait(100)
        open_for_polls = False
        with progress.phase("merging"):
            pass
    assert late == []
    assert any(row.get("spilled") == 2 for row in rows_of(path))


def test_long_phases_report_in_between(tmp_path: Path) -> None:
    written = threading.Event()

    class Log(io.StringIO):
        def write(self, text: str) -> int:
            if "50%" in text and "left" in text:
                written.set()
            return super().write(text)

    with (
        Progress("count", intervals=QUICK, stream=Log()) as progress,
        progress.phase("reading", total=4) as phase,
    ):
        phase.update(2)
        assert written.wait(100)


def test_a_terminal_gets_a_bar_that_is_gone_at_the_end() -> None:
    program = (
        "from lowtide import progress\n"
        "import threading\n"
        "seen = threading.Event()\n"
        "def poll():\n"
        "    polls.append(1)\n"
        "    if len(polls) > 2: seen.set()\n"
        "    return 5, {}\n"
        "polls = []\n"
        "with progress.Progress('count', budget_bytes=1 << 30) as p:\n"
        "    p.note('[bold]starting[/bold]')\n"
        "    with p.phase('[a]reading', total=10, unit='B', poll=poll):\n"
        "        seen.wait(100)\n"
    )
    main, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "60"}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        env=environment,
    ) as process:
        os.close(terminal)
        shown = b""
        while True:
            try:
                block = os.read(main, 1 << 16)
            except OSError:  # the terminal's other end is closed
                break
            if not block:
                break
            shown += block
        assert process.wait() == 0
    os.close(main)
    text = shown.decode()
    assert "[bold]starting[/bold]" in text  # shown as it is, not taken for markup
    assert "[a]reading" in text
    assert "██████████░░░░░░░░░░  50%" in text
    assert "\x1b[2K" in text  # the bar's line is erased
    assert "peak memory" in text.splitlines()[-1] or "peak memory" in text.splitlines()[-2]


def test_memory_is_measured_between_phases_too(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    measured = threading.Event()

    def device_memory() -> tuple[int, int]:
        measured.set()
        return 1, 2

    with Progress(
        "count", intervals=QUICK, metrics_path=path, device_memory=device_memory, stream=None
    ):
        assert measured.wait(100)
    rows = rows_of(path)
    assert len(rows) >= 2
    assert all(row["memory_bytes"] > 0 and "phase" not in row for row in rows)


def test_metrics_may_begin_when_the_folder_is_there(tmp_path: Path) -> None:
    with Progress("count", stream=None) as progress:
        progress.write_metrics({"loss": 1})
        (tmp_path / "later").mkdir()
        progress.metrics_path = tmp_path / "later" / "metrics.jsonl"
        progress.write_metrics({"loss": 2})
    assert [row.get("loss") for row in rows_of(tmp_path / "later" / "metrics.jsonl")] == [2, None]


def test_memory_of_a_gpu_is_shown_and_written(tmp_path: Path) -> None:
    path, stream = tmp_path / "metrics.jsonl", io.StringIO()
    held = (3 << 30, 8 << 30)
    with (
        Progress("train", metrics_path=path, device_memory=lambda: held, stream=stream) as progress,
        progress.phase("training"),
    ):
        pass
    assert "GPU 3.0 GiB of 8.0 GiB" in stream.getvalue()
    assert {(row["device_bytes"], row["device_total_bytes"]) for row in rows_of(path)} == {held}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (99.5, "99.5"), (100.4, "100"), (999.4, "999"), (999.5, "1k"), (1.5, "1.5"), (-5.0, "-5"),
        (123_456, "123k"), (1e15, "1e+03T"), (1_000_000, "1M"), (1_500_000_000, "1.5G"),
    ],
)  # fmt: skip
def test_borders_of_counts(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (59.94, "59.9s"),
        (60, "1:00"),
        (60.9, "1:00"),
        (3599, "59:59"),
        (3661, "1:01:01"),
        (86_399, "23:59:59"),
        (86_400, "1 d 0:00"),
        (604_859, "7 d 0:00"),
    ],
)
def test_borders_of_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_metrics_of_a_run_only_where_they_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    assert run_metrics_path(tmp_path) is None
    path.touch()
    assert run_metrics_path(tmp_path) == path
    monkeypatch.setattr(progress_module.os, "access", lambda path, mode: False)
    assert run_metrics_path(tmp_path) is None


def test_a_snapshot_has_every_number_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    phase = Phase("reading", total=30, unit="B", start=10, poll=None)
    first = {"phase": "reading", "done": 10, "rate": 0.0, "unit": "B", "total": 30}
    assert phase.snapshot() == {**first, "seconds_left": None}
    now[0] += 2
    phase.advance(5, loss=1.5)
    phase.advance()
    row = phase.snapshot()
    assert row == {**first, "done": 16, "rate": 3.0, "seconds_left": 14 / 3, "loss": 1.5}
    phase.update(40)
    assert phase.snapshot()["seconds_left"] == 0
    polled = Phase("p", total=None, unit="", start=0, poll=lambda: (4, {"pieces": 2}))
    now[0] += 1
    assert polled.snapshot() == {"phase": "p", "done": 4, "rate": 4.0, "unit": "", "pieces": 2}


def test_a_notebook_has_one_bar_in_place() -> None:
    """Its stderr is no terminal; notes stand above, and the bar leaves nothing behind."""

    class OutStream(io.StringIO):
        __module__ = "ipykernel.iostream"

    stream = OutStream()
    progress = Progress("job", stream=stream)
    progress._draw("a long bar")
    progress._draw("short")
    progress.note("a line")
    progress.note("another")
    assert progress._in_notebook
    assert stream.getvalue() == "\ra long bar\rshort     \r     \ra line\nanother\n"
    assert not Progress("job", stream=io.StringIO())._in_notebook


@pytest.mark.parametrize(
    ("done", "total", "unit", "expected"),
    [
        (3, 8, "texts", "3 of 8 texts"),
        (1, 1, "texts", "1 of 1 text"),
        (1, None, "texts", "1 text"),
        (0, None, "texts", "0 texts"),
        (1, 2, "texts", "1 of 2 texts"),
        (1 << 20, 1 << 21, "B", "1.0 MiB of 2.0 MiB"),
    ],
)
def test_how_much_of_how_much(done: float, total: float | None, unit: str, expected: str) -> None:
    assert progress_module._share(done, total, unit) == expected


def test_a_brief_job_writes_its_rows_together_and_starts_no_thread(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Progress("job", stream=None, metrics_path=path, is_brief=True) as progress:
        assert "lowtide-progress" not in {thread.name for thread in threading.enumerate()}
        with progress.phase("first", total=1) as phase:
            phase.update(1)
        assert not path.exists()
    first, end = map(json.loads, path.read_text().splitlines())
    assert (first["phase"], first["done"], end["event"]) == ("first", 1, "end")
    assert first["memory_bytes"] > 0


def test_metrics_follow_no_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "metrics.jsonl").symlink_to("mine.txt")
    with Progress("job", metrics_path=tmp_path / "metrics.jsonl") as progress:
        progress.write_metrics({"a": 1})
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert "no more metrics" in capsys.readouterr().err
