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
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide import progress as progress_module
from lowtide.answers import shown_as
from lowtide.intervals import Intervals
from lowtide.memory import PeakMeter
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


def test_what_was_polled_is_held_by_nobody_afterwards() -> None:
    """The reporting thread knows the last phase until it looks again."""

    class Learner:
        def poll(self) -> tuple[float, dict[str, float]]:
            return 3, {"pieces": 2}

    learner = Learner()
    gone = weakref.ref(learner)
    with Progress("prepare", stream=None) as progress:
        with progress.phase("merging", poll=learner.poll) as phase:
            assert phase.done == 3
        del learner
        assert gone() is None and (phase.done, phase.numbers) == (3, {"pieces": 2})


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


def test_only_the_last_bytes_of_metrics_say_whether_a_job_ended(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    ended = progress_module._ends_with_end
    assert ended(None) is False
    assert ended(path) is False
    assert ended(tmp_path) is False
    path.write_text('{"event": "end"}')
    assert ended(path) is True
    path.write_text('{"event": "end"}\n{"loss": 1}\n')
    assert ended(path) is False
    path.write_text('{"loss": 1}\n{"event": "end"}\n\n')
    assert ended(path) is True
    path.write_text('{"event": "end", "text": "' + "a" * 4096 + '"}\n')
    assert ended(path) is False  # no more than 4096 bytes are read


def test_metrics_that_cannot_be_read_are_not_those_of_an_ended_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "end"}\n')

    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    assert progress_module._ends_with_end(path) is False


def test_nobody_is_warned_through_a_job_without_a_stream(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with shown_as(as_json=False, quiet=True):
        Progress("train", stream=None).note("warning: nobody asked")
        stream = io.StringIO()
        Progress("train", stream=stream).note("as asked for")
    assert capsys.readouterr().err == ""
    assert stream.getvalue() == "as asked for\n"


def test_a_job_is_timed_from_where_it_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    with monkeypatch.context() as patch:
        patch.setattr(progress_module.time, "monotonic", lambda: now[0])
        progress = Progress("count", stream=None, is_brief=True)
        now[0] += 3
        assert progress.seconds == 3
        with progress:
            now[0] += 4
            assert progress.seconds == 4
    assert progress._thread.daemon


def test_a_passed_budget_is_said_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak = 3 << 20
    monkeypatch.setattr("lowtide.memory.process_peak_bytes", lambda: peak)
    for budget, over in ((1 << 20, 2 << 20), (3 << 20, 0), (None, None)):
        path, stream = tmp_path / f"{budget}.jsonl", io.StringIO()
        with Progress("job", budget_bytes=budget, metrics_path=path, stream=stream) as progress:
            assert PeakMeter._outermost is progress._meter
            assert progress.peak_bytes == peak
        assert PeakMeter._outermost is None
        (row,) = rows_of(path)
        assert row.get("over_budget_bytes") == over
        assert (row["peak_memory_bytes"], row["budget_bytes"]) == (peak, budget)
        words = {
            1 << 20: " of 1.0 MiB budget: OVER BUDGET by 2.0 MiB",
            3 << 20: " of 3.0 MiB budget",
        }
        assert stream.getvalue().endswith(f", peak memory 3.0 MiB{words.get(budget or 0, '')}\n")


def test_the_bar_of_a_terminal_is_one_that_leaves_stdout_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import rich.live

    told: list[Any] = []
    drawn = threading.Event()

    class Bar:
        is_started = False

        def __init__(self, **options: Any) -> None:
            told.append({key: options[key] for key in sorted(options) if key != "console"})
            self.console = options["console"]

        def start(self) -> None:
            self.is_started = True

        def stop(self) -> None:
            self.is_started = False
            told.append("stop")

        def update(self, line: Any, *, refresh: bool) -> None:
            told.append((line.plain.split()[0], line.no_wrap, line.overflow, refresh))
            drawn.set()

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(rich.live, "Live", Bar)
    stream = Terminal()
    with Progress("count", stream=stream, intervals=QUICK) as progress:
        with progress.phase("reading", total=2):
            assert drawn.wait(100)
        progress.note("[b]above[/b]")
        assert isinstance(progress._live, Bar) and progress._live.console.file is stream
    options = {"auto_refresh": False, "redirect_stderr": False, "redirect_stdout": False}
    assert told[0] == {**options, "transient": True}
    assert set(told[1:-1]) == {("reading", True, "ellipsis", True)}
    assert told[-1] == "stop"
    assert "[b]above[/b]" in stream.getvalue()


def test_a_line_of_a_phase_says_what_there_is_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "tree_resident_bytes", lambda: 2 << 20)
    progress = Progress("job", budget_bytes=4 << 20, stream=None)
    progress.phase_seconds["reading"] = 61
    row = {"phase": "reading", "done": 3, "rate": 0.5, "unit": "texts", "total": 4}
    more = {"seconds_left": 2.0, "doing": "looking", "loss": 1.25}
    memory = "memory 2.0 MiB of 4.0 MiB"
    rate = "3 of 4 texts  0.5 texts/s"
    bar, full, left = "█" * 15 + "░" * 5 + "  75%", "█" * 20 + " 100%", "2.0s left"
    for given, finished, expected in (
        (row, False, f"reading       {bar}  {rate}  {memory}"),
        (row | more, False, f"reading       looking  {bar}  {rate}  {left}  loss 1.25  {memory}"),
        (row | more, True, f"reading       1:01  {rate}  loss 1.25  {memory}"),
        (row | {"seconds_left": 0.0}, False, f"reading       {bar}  {rate}  0.0s left  {memory}"),
        (row | {"done": 9}, False, f"reading       {full}  9 of 4 texts  0.5 texts/s  {memory}"),
        (row | {"total": None}, False, f"reading       3 texts  0.5 texts/s  {memory}"),
        (row | {"total": None, "done": 0}, False, f"reading       {memory}"),
        (row | {"done": 0}, True, f"reading       1:01  0 of 4 texts  0.5 texts/s  {memory}"),
    ):  # fmt: skip
        assert progress._describe(given, finished=finished) == expected
    plain = Progress("job", stream=None)
    assert plain._describe(row, finished=False).endswith("memory 2.0 MiB")


def test_a_line_comes_after_its_time_and_never_for_a_phase_that_is_new(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stand-in for the clock: lines every ten seconds, rows of metrics every second."""
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    usual = Intervals(refresh_seconds=0.25, metrics_seconds=1.0, line_seconds=10.0)
    progress = Progress("job", stream=io.StringIO(), intervals=usual)
    lines: list[float] = []
    written: list[tuple[float, str]] = []
    monkeypatch.setattr(progress, "note", lambda text: lines.append(now[0]))
    monkeypatch.setattr(
        progress, "write_metrics", lambda row: written.append((now[0], row.get("phase", "")))
    )
    moments = iter([0.5, 1.0, 1.5, 2.0, 9.75, 10.0, 10.25, 12.0, 19.75, 20.0, 22.0])

    def wait(seconds: float) -> bool:
        assert seconds == 0.25
        now[0] = next(moments, -1.0)
        if now[0] == 2.0:
            progress._phase = Phase("first", total=None, unit="", start=0, poll=None)
            progress._phase.started = 0.0
        if now[0] == 12.0:
            progress._phase = Phase("second", total=None, unit="", start=0, poll=None)
        return now[0] < 0

    monkeypatch.setattr(progress._stop, "wait", wait)
    progress._run()
    assert lines == [10.0, 22.0]
    assert written == [
        (1.0, ""), (2.0, "first"), (9.75, "first"), (12.0, "second"), (19.75, "second"),
        (22.0, "second"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "expected"),
    [(np.float32(0.5), 0.5), (np.int64(3), 3), (float("inf"), None), (np.float64("nan"), None),
     (2.5, 2.5), ("text", "text"), (None, None), (True, True)],
)  # fmt: skip
def test_values_as_json_has_them(value: Any, expected: Any) -> None:
    found = progress_module._json_number(value)
    assert found == expected and type(found) is type(expected)


def test_amounts_of_nothing_and_of_one() -> None:
    with_unit = progress_module._with_unit
    assert with_unit(None, "B") == "0 B"
    assert with_unit(None, "steps") == "0 steps"
    assert with_unit(1, "steps") == "1 step"
    assert with_unit(1.5, "") == "1.5"
