"""Run the demo's stages one after another, each as a process, and measure each.

In:      DemoSettings
Out:     a folder with text, tokenizer, dataset, run, commands.sh and demo.json; StageResults
Memory:  very little: the work is done in the processes
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lowtide.answers import is_quiet, tell, wants_json
from lowtide.demo.stages import (
    DemoSettings,
    Stage,
    plan_stages,
    resume_command,
    write_commands,
)
from lowtide.demo.text import find_text
from lowtide.errors import LowtideError, UsageError
from lowtide.filenames import METRICS_NAME
from lowtide.files import hold_lock
from lowtide.flags import path_word
from lowtide.freenames import require_free_names
from lowtide.journal import Journal
from lowtide.keywords import takes_keywords
from lowtide.memory import format_size, parse_size
from lowtide.notebooks import ResultList, shown_in_notebooks
from lowtide.progress import format_count, format_seconds
from lowtide.quickclasses import dataclass
from lowtide.tables import table_lines

__all__ = ["StageResult", "describe_results", "run_demo"]

_PROGRAM = (sys.executable, "-m", "lowtide")
_GRACE_SECONDS = 5.0


@shown_in_notebooks()
@dataclass(frozen=True)
class StageResult:
    """Time and memory of one stage, over all attempts if it was interrupted."""

    verb: str
    seconds: float
    peak_bytes: int
    budget_bytes: int | None
    """None for a stage that has no budget of its own."""
    amount: float
    unit: str
    was_there: bool

    @property
    def rate(self) -> float:
        """Units of work per second, start-up included."""
        return self.amount / max(self.seconds, 1e-9)


@takes_keywords(DemoSettings)
def run_demo(settings: DemoSettings) -> list[StageResult]:
    """Run every stage that is not finished yet, and return the time and memory of each."""
    with hold_lock(settings.out_dir, create_folder=True):
        return _run_stages(settings, parse_size(settings.memory))


def _run_stages(settings: DemoSettings, budget_bytes: int) -> list[StageResult]:
    folder = settings.out_dir
    text_path = find_text(settings)
    stages = plan_stages(settings, text_path)
    if not (folder / "demo.json").exists():
        require_free_names(folder, ["commands.sh"], next_step="choose another --out-dir")
    attempts = _Attempts(folder / "demo.json", stages)
    write_commands(folder / "commands.sh", settings, stages)
    results: list[StageResult] = ResultList()
    for number, stage in enumerate(stages, 1):
        # Text is generated every time: it takes seconds, and users want to see it.
        was_there = attempts.is_finished(stage) and stage.verb != "generate"
        note = f"{stage.verb}: is there already" if was_there else stage.command
        tell(f"\n[{number}/{len(stages)}] {note}")
        if not was_there:
            _run_stage(stage, folder, attempts, resume_command=resume_command(settings))
        results.append(
            StageResult(
                verb=stage.verb,
                seconds=attempts.seconds(stage),
                peak_bytes=max(attempts.peak_bytes(stage), _measured_peak(stage, folder)),
                budget_bytes=budget_bytes if "--memory" in stage.flags else None,
                amount=stage.amount,
                unit=stage.unit,
                was_there=was_there,
            )
        )
    return results


def describe_results(results: list[StageResult], out_dir: Path) -> str:
    """Return the table of stages, and suggestions for next steps."""
    header = ("stage", "time", "throughput", "peak memory", "budget", "used")
    rows: list[tuple[str, ...]] = [header]
    for result in results:
        rate = format_size(result.rate) if result.unit == "B" else format_count(result.rate)
        rows.append(
            (
                result.verb + (" (was there)" if result.was_there else ""),
                format_seconds(result.seconds),
                f"{rate}/s" if result.unit == "B" else f"{rate} {result.unit}/s",
                format_size(result.peak_bytes),
                format_size(result.budget_bytes) if result.budget_bytes else "",
                f"{100 * result.peak_bytes / result.budget_bytes:.0f}%"
                if result.budget_bytes
                else "",
            )
        )
    lines = table_lines(rows, align="<>>>>>")
    total = sum(result.seconds for result in results)
    return "\n".join(
        [
            *lines,
            "",
            f"{format_seconds(total)} in all. Everything is in {out_dir}; "
            f"{out_dir / 'commands.sh'} has the commands that made it. To go on from there:",
            f"  cd {path_word(out_dir)}",
            '  lowtide generate --model-name demo --prompt "import"',
        ]
    )


class _Attempts:
    """Time and memory of the stages so far, saved in demo.json so that a stop loses nothing."""

    def __init__(self, path: Path, stages: list[Stage]) -> None:
        self._journal = Journal(path, verb="demo", version=1)
        notes = self._journal.read(on_notice=tell)
        self._rows: dict[str, dict[str, Any]] = {} if notes is None else notes["stages"]
        for stage in stages:
            row = self._rows.get(stage.verb, {})
            is_other = row.get("finished", False) and row["result"] != stage.result
            if is_other and stage.verb != "generate":
                raise UsageError(
                    f"this folder holds a demo with other settings: {row['command']}",
                    path=path.parent,
                    next_step="choose another --out-dir, or remove this folder",
                )

    def is_finished(self, stage: Stage) -> bool:
        return self._rows.get(stage.verb, {}).get("finished", False)

    def seconds(self, stage: Stage) -> float:
        return self._rows[stage.verb]["seconds"]

    def peak_bytes(self, stage: Stage) -> int:
        return self._rows[stage.verb]["peak_bytes"]

    def add(self, stage: Stage, *, seconds: float, peak_bytes: int, finished: bool) -> None:
        """Note one attempt; attempts that did not finish add up with the one that does."""
        before = self._rows.get(stage.verb, {})
        if before.get("finished", True):
            before = {"seconds": 0.0, "peak_bytes": 0}
        self._rows[stage.verb] = {
            "command": stage.command,
            "result": stage.result,
            "seconds": before["seconds"] + seconds,
            "peak_bytes": max(before["peak_bytes"], peak_bytes),
            "finished": finished,
        }
        self._journal.write({"stages": self._rows})


def _run_stage(stage: Stage, folder: Path, attempts: _Attempts, *, resume_command: str) -> None:
    """Run one command; its output, progress and errors go straight to the terminal.

    A child's peak memory as the kernel counts it starts at its parent's size, so this process must
    stay small.
    """
    began = time.monotonic()
    words = [*_PROGRAM, *stage.words, *(["--quiet"] if is_quiet() else [])]
    # With --json, stdout is reserved for the demo's own object.
    child = subprocess.Popen(words, cwd=folder, stdout=sys.stderr if wants_json() else None)
    interrupted = False
    try:
        _, status, usage = os.wait4(child.pid, 0)
    except KeyboardInterrupt:
        interrupted = True
        status, usage = _wait_after_interrupt(child.pid)
    code = os.waitstatus_to_exitcode(status)
    child.returncode = code  # reaped here, for its resource usage; Popen must not wait again
    attempts.add(
        stage,
        seconds=time.monotonic() - began,
        peak_bytes=usage.ru_maxrss * 1024,
        finished=code == 0,
    )
    if code == 130:
        raise SystemExit(130)  # the stage has printed how to resume
    if interrupted:
        raise KeyboardInterrupt
    if code != 0:
        raise LowtideError(
            f"the demo stopped: {stage.verb} ended with exit code {code}",
            next_step=f"do what its message above says; then {resume_command} goes on here",
        )


def _wait_after_interrupt(pid: int, *, grace_seconds: float = _GRACE_SECONDS) -> tuple[int, Any]:
    """Wait for a child that most likely received the same Ctrl-C; signal it if it did not."""
    deadline = time.monotonic() + grace_seconds
    passed_on = False
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return status, usage
        if not passed_on and time.monotonic() > deadline:
            os.kill(pid, signal.SIGTERM)  # background processes ignore SIGINT
            passed_on = True
        time.sleep(0.05)


def _measured_peak(stage: Stage, folder: Path) -> int:
    """Return the largest peak of the stage's process tree in its metrics.jsonl, 0 without one."""
    if stage.metrics_dir is None:
        return 0
    path = folder / stage.metrics_dir / METRICS_NAME
    if not path.exists():
        return 0
    peak = 0
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                peak = max(peak, int(json.loads(line).get("peak_memory_bytes") or 0))
            except (ValueError, AttributeError):
                continue  # the last line of a killed run may be half written
    return peak
