"""The demo's run: stages in order, what they took, and how it stops and goes on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.demo import running
from lowtide.demo.running import StageResult, describe_results, run_demo
from lowtide.demo.stages import Stage
from lowtide.errors import DataError, LowtideError, UsageError

# Stands for `python -m lowtide`: notes its call, and fails where the file "fail" says so.
FAKE_PROGRAM = """
import os, pathlib, signal, sys, time
verb = sys.argv[1]
with open("calls", "a") as file:
    file.write(verb + "\\n")
if "--quiet" in sys.argv:
    with open("quiet", "a") as file:
        file.write(verb + "\\n")
failing = pathlib.Path("fail")
if failing.exists() and failing.read_text() == verb:
    sys.exit(1)
pausing = pathlib.Path("pause")
if pausing.exists() and pausing.read_text() == verb:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("said so", file=sys.stderr) or 130))
    print("paused", flush=True)
    while True:
        time.sleep(0.02)
block = b"x" * (32 << 20)
"""
VERBS = ["train-tokenizer", "prepare", "train", "generate"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("some words\n" * 100)
    return path


@pytest.fixture
def fake_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "program.py"
    script.write_text(FAKE_PROGRAM)
    monkeypatch.setattr(running, "_PROGRAM", (sys.executable, str(script)))
    return script


def calls_in(folder: Path) -> list[str]:
    return (folder / "calls").read_text().split()


@pytest.mark.usefixtures("fake_program")
def test_stages_run_in_order_and_are_measured(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    began = time.monotonic()
    results = run_demo(text=text, out_dir=folder, memory="500MB")
    assert sum(result.seconds for result in results) <= time.monotonic() - began
    assert [result.verb for result in results] == VERBS == calls_in(folder)
    for result in results:
        assert result.seconds > 0
        # The child's own, as the kernel saw it; its count starts with what its parent held.
        ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        assert (32 << 20) < result.peak_bytes < ours + (80 << 20)
        assert result.budget_bytes == (None if result.verb == "generate" else 500_000_000)
        assert not result.was_there
    script = (folder / "commands.sh").read_text()
    assert [line.split()[1] for line in script.splitlines() if line.startswith("lowtide")] == VERBS
    assert os.access(folder / "commands.sh", os.X_OK)


@pytest.mark.usefixtures("fake_program")
def test_each_stage_is_announced_with_its_command(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    for again in (False, True):
        run_demo(text=text, out_dir=folder, memory="500MB")
        told = re.findall(r"^\[(\d)/4\] (.+)$", "".join(capsys.readouterr()), re.MULTILINE)
        assert [int(number) for number, _ in told] == [1, 2, 3, 4]
        for verb, (_, note) in zip(VERBS, told, strict=True):
            was_there = again and verb != "generate"
            assert note.startswith(f"{verb}: is there" if was_there else f"lowtide {verb} ")


def test_the_peak_of_a_stage_is_the_largest_that_it_noted(tmp_path: Path) -> None:
    stage = Stage("prepare", {}, 1.0, "B", "data")
    assert running._measured_peak(stage, tmp_path) == 0
    assert running._measured_peak(replace(stage, metrics_dir=None), tmp_path) == 0
    (tmp_path / "data").mkdir()
    metrics = tmp_path / "data" / "metrics.jsonl"
    for rows, peak in (
        ([{"event": "begin"}], 0),
        ([{"peak_memory_bytes": 7}, {"event": "end"}, {"peak_memory_bytes": 5}], 7),
    ):
        metrics.write_text("\n".join(map(json.dumps, rows)) + '\n{"peak_memory_by')
        assert running._measured_peak(stage, tmp_path) == peak


@pytest.mark.usefixtures("fake_program")
def test_a_second_run_makes_nothing_anew_but_text(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    first = run_demo(text=text, out_dir=folder)
    second = run_demo(text=text, out_dir=folder)
    assert calls_in(folder) == [*VERBS, "generate"]
    assert [result.was_there for result in second] == [True, True, True, False]
    assert [result.seconds for result in second[:3]] == [result.seconds for result in first[:3]]
    run_demo(text=text, out_dir=folder, prompt="other")
    assert calls_in(folder) == [*VERBS, "generate", "generate"]


@pytest.mark.usefixtures("fake_program")
def test_other_settings_in_the_same_folder_are_refused(text: Path, tmp_path: Path) -> None:
    run_demo(text=text, out_dir=tmp_path / "out")
    with pytest.raises(UsageError, match="other settings"):
        run_demo(text=text, out_dir=tmp_path / "out", max_iters=7)
    results = run_demo(text=text, out_dir=tmp_path / "out", memory="3GiB")  # the same results
    assert [result.was_there for result in results] == [True, True, True, False]


@pytest.mark.usefixtures("fake_program")
def test_a_failing_stage_stops_and_the_same_command_goes_on(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "fail").write_text("prepare")
    with pytest.raises(LowtideError, match="prepare ended with exit code 1") as caught:
        run_demo(text=text, out_dir=folder)
    assert f"lowtide demo --text {text} --out-dir {folder} goes on here" in str(caught.value)
    (folder / "fail").unlink()
    results = run_demo(text=text, out_dir=folder)
    assert calls_in(folder) == ["train-tokenizer", "prepare", "prepare", "train", "generate"]
    attempts = json.loads((folder / "demo.json").read_text())["stages"]["prepare"]
    assert results[1].seconds == attempts["seconds"] > results[0].seconds * 0.1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_only_the_demo_gets_reaches_the_stage(
    text: Path, tmp_path: Path, fake_program: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "pause").write_text("train")
    program = (
        "import functools, sys; from lowtide import cli; from lowtide.demo import running\n"
        f"running._PROGRAM = (sys.executable, {str(fake_program)!r})\n"
        "wait = functools.partial(running._wait_after_interrupt, grace_seconds=0.0)\n"
        "running._wait_after_interrupt = wait\n"
        f"sys.exit(cli.main(['demo', '--text', {str(text)!r}, '--out-dir', {str(folder)!r}]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "paused\n"
        process.send_signal(number)
        message = process.stderr.read()
        assert process.wait() == 130
    assert message.endswith("said so\n")  # by the stage, and not once more by the demo
    attempts = json.loads((folder / "demo.json").read_text())["stages"]
    assert [attempts[verb]["finished"] for verb in VERBS[:3]] == [True, True, False]


def test_bad_text_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(DataError, match="empty"):
        run_demo(text=tmp_path / "empty.txt", out_dir=tmp_path / "out")
    with pytest.raises(DataError, match="not found"):
        run_demo(text=tmp_path / "absent.txt", out_dir=tmp_path / "out")
    assert not (tmp_path / "out" / "demo.json").exists()


def test_the_table_shows_time_rate_and_peak_against_budget() -> None:
    results = [
        StageResult("prepare", 2.0, 100 << 20, 1 << 30, 8 << 20, "B", was_there=True),
        StageResult("train", 75.0, 512 << 20, 1 << 30, 750_000, "tokens", was_there=False),
        StageResult("generate", 2.0, 256 << 20, None, 100, "tokens", was_there=False),
    ]
    lines = describe_results(results, Path("demo")).splitlines()
    assert lines[0].split() == ["stage", "time", "throughput", "peak", "memory", "budget", "used"]
    assert lines[1].split()[:4] == ["prepare", "(was", "there)", "2.0s"]
    assert lines[1].endswith("4.0 MiB/s    100.0 MiB  1.0 GiB   10%")
    assert " ".join(lines[2].split()) == "train 1:15 10k tokens/s 512.0 MiB 1.0 GiB 50%"
    assert " ".join(lines[3].split()) == "generate 2.0s 50 tokens/s 256.0 MiB"
    assert "1:19 in all" in lines[5]


@pytest.mark.parametrize(("seconds", "killed"), [([0, 0, 0, 0], 0), ([0, 2, 9, 12, 15], 1)])
def test_a_stage_that_heard_the_interrupt_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], killed: int
) -> None:
    """A stage has some seconds to end by itself, and is told to only once."""
    clock, signals = iter(seconds), []
    waits = iter([(0, 0, None)] * (len(seconds) - 1) + [(7, 256, "used")])
    monkeypatch.setattr(running.os, "wait4", lambda pid, options: next(waits))
    monkeypatch.setattr(running.os, "kill", lambda *given: signals.append(given))
    monkeypatch.setattr(running.time, "monotonic", lambda: next(clock, 15))
    monkeypatch.setattr(running.time, "sleep", lambda seconds: None)
    assert running._wait_after_interrupt(7, grace_seconds=5.0) == (256, "used")
    assert signals == [(7, signal.SIGTERM)] * killed


@pytest.mark.usefixtures("fake_program")
@pytest.mark.parametrize("quiet", [False, True])
def test_stages_are_as_quiet_as_the_demo(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    monkeypatch.setattr(running, "is_quiet", lambda: quiet)
    run_demo(text=text, out_dir=tmp_path / "out")
    told = tmp_path / "out" / "quiet"
    assert (told.read_text().split() if quiet else told.exists()) == (VERBS if quiet else False)


@pytest.mark.usefixtures("fake_program")
def test_a_folder_in_place_of_the_commands_is_refused_first(text: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "commands.sh").mkdir(parents=True)
    with pytest.raises(LowtideError, match="choose another --out-dir"):
        run_demo(text=text, out_dir=tmp_path / "out")
    assert not (tmp_path / "out" / "calls").exists()


@pytest.mark.parametrize(("seconds", "rate"), [(0.5, 20.0), (4.0, 2.5), (0.0, 10e9)])
def test_a_rate_is_work_by_time_however_short(seconds: float, rate: float) -> None:
    result = StageResult("train", seconds, 1, None, amount=10.0, unit="B", was_there=False)
    assert result.rate == pytest.approx(rate)


def test_attempts_add_up_until_one_has_finished(tmp_path: Path) -> None:
    stages = [Stage(verb, {"--seed": 1}, 1.0, "B", None) for verb in ("prepare", "generate")]
    path = tmp_path / "demo.json"
    attempts = running._Attempts(path, stages)
    assert not attempts.is_finished(stages[0])
    for seconds, peak, finished, total, largest in (
        (2.0, 30, False, 2.0, 30),
        (3.0, 20, False, 5.0, 30),
        (1.0, 40, True, 6.0, 40),
        (0.5, 10, True, 0.5, 10),  # given again, it counts alone
    ):
        attempts.add(stages[0], seconds=seconds, peak_bytes=peak, finished=finished)
        attempts = running._Attempts(path, stages)
        assert attempts.is_finished(stages[0]) is finished
        assert (attempts.seconds(stages[0]), attempts.peak_bytes(stages[0])) == (total, largest)
    other = [replace(stage, flags={"--seed": 2}) for stage in stages]
    attempts.add(stages[1], seconds=1.0, peak_bytes=1, finished=True)
    with pytest.raises(UsageError) as caught:
        running._Attempts(path, other)
    assert caught.value.message == (
        "this folder holds a demo with other settings: lowtide prepare --seed 1"
    )
    assert running._Attempts(path, other[1:]).is_finished(other[1])  # text is generated anew


@pytest.mark.parametrize(
    ("status", "interrupted", "raised", "finished"),
    [
        (0, False, None, True),
        (1 << 8, False, LowtideError, False),
        (130 << 8, False, SystemExit, False),
        (0, True, KeyboardInterrupt, True),
        (130 << 8, True, SystemExit, False),
        (signal.SIGKILL, False, LowtideError, False),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_how_a_stage_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, interrupted: bool, raised: Any,
    finished: bool, as_json: bool,
) -> None:  # fmt: skip
    started: list[Any] = []
    child = SimpleNamespace(pid=7, returncode=None)

    def start(words: list[str], *, cwd: Path, stdout: Any) -> Any:
        started.append((words[-2:], cwd, stdout))
        return child

    def wait(pid: int, options: int) -> tuple[int, int, Any]:
        assert pid == 7
        if interrupted and options == 0:
            raise KeyboardInterrupt
        return 7, status, SimpleNamespace(ru_maxrss=5)

    monkeypatch.setattr(running.subprocess, "Popen", start)
    monkeypatch.setattr(running.os, "wait4", wait)
    monkeypatch.setattr(running, "wants_json", lambda: as_json)
    stage = Stage("train", {"--seed": 1}, 1.0, "B", None)
    attempts = running._Attempts(tmp_path / "demo.json", [stage])
    with pytest.raises(raised) if raised else contextlib.nullcontext():
        running._run_stage(stage, tmp_path, attempts, resume_command="lowtide demo")
    assert started == [(["--seed", "1"], tmp_path, sys.stderr if as_json else None)]
    assert child.returncode == os.waitstatus_to_exitcode(status)
    assert attempts.is_finished(stage) is finished
    assert attempts.peak_bytes(stage) == 5 * 1024
    assert attempts.seconds(stage) < 100


@pytest.mark.usefixtures("fake_program")
def test_the_larger_of_two_peaks_counts(text: Path, tmp_path: Path) -> None:
    """What the kernel saw of the process, and what the stage noted of all of its tree."""
    (tmp_path / "out" / "data").mkdir(parents=True)
    (tmp_path / "out" / "tokenizer").mkdir()
    for name, peak in (("data", 1 << 40), ("tokenizer", 5)):
        row = json.dumps({"peak_memory_bytes": peak})
        (tmp_path / "out" / name / "metrics.jsonl").write_text(f"{row}\n[1]\n")
    results = run_demo(text=text, out_dir=tmp_path / "out")
    assert results[0].peak_bytes > 1 << 20
    assert results[1].peak_bytes == 1 << 40
