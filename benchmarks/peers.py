"""Run the contenders of a benchmark one after the other, each in its own process.

Rounds alternate between contenders, since a noisy machine disturbs whoever runs at the moment; the
best round of each counts, and speeds are given as ratios to the fastest peer. Memory is sampled
100 times a second from outside, of the process and those it started: resident, and its anonymous
part, which file pages do not inflate.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_SAMPLE_SECONDS = 0.01


@dataclasses.dataclass
class Result:
    """The best results of a contender, and its peak memory."""

    name: str
    seconds: list[float] = dataclasses.field(default_factory=list)
    """As reported by the contender."""
    wall_seconds: list[float] = dataclasses.field(default_factory=list)
    """From the start of the process to its end."""
    core_seconds: list[float] = dataclasses.field(default_factory=list)
    """Of the process and its children, user and system."""
    peak_bytes: int = 0
    peak_anonymous_bytes: int = 0
    notes: dict[str, object] = dataclasses.field(default_factory=dict)
    error: str | None = None

    @property
    def best(self) -> float:
        """The fastest round in seconds; infinite if none succeeded."""
        return min(self.seconds, default=float("inf"))


def run_rounds(
    script: str,
    names: Sequence[str],
    *,
    rounds: int,
    arguments: Sequence[str],
    commands: Mapping[str, Command] | None = None,
) -> list[Result]:
    """Run `python script --contender NAME …` for each name, `rounds` times, alternately.

    A contender prints one JSON line last: {"seconds": …, and whatever else is worth noting}. One
    in `commands` is run as users run it instead, without this script around it.
    """
    results = {name: Result(name) for name in names}
    for _ in range(rounds):
        for name in names:
            if results[name].error is None:
                command = (commands or {}).get(name)
                _run_once(script, results[name], arguments, command)
    return list(results.values())


@dataclasses.dataclass(frozen=True)
class Command:
    """A contender that is a separate command."""

    words: Sequence[str]
    """`{out}` is an empty folder, a new one each time."""
    read_notes: Callable[[str], dict[str, object]]
    """Extracts results from its output."""


def _run_once(
    script: str, result: Result, arguments: Sequence[str], command: Command | None
) -> None:
    words = [sys.executable, script, "--contender", result.name, *arguments]
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        tempfile.TemporaryDirectory(prefix="lowtide-benchmark-") as folder,
    ):
        if command is not None:
            words = [word.replace("{out}", folder) for word in command.words]
        started = time.perf_counter()
        process = subprocess.Popen(words, stdout=out, stderr=err)
        ticks: dict[int, int] = {}
        ended = threading.Event()
        sampler = threading.Thread(target=_sample, args=(process.pid, result, ticks, ended))
        sampler.start()
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        ended.set()
        sampler.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        printed = out.read()
        lines = [line for line in printed.splitlines() if line.startswith("{")]
        if process.returncode != 0 or not (lines or command):
            result.error = (err.read().strip().splitlines() or ["no output"])[-1]
            return
    row = json.loads(lines[-1]) if command is None else command.read_notes(printed)
    result.seconds.append(row.pop("seconds", wall))
    result.wall_seconds.append(wall)
    # Grandchildren that were not waited for are missing from the system's sum.
    sampled = sum(ticks.values()) / os.sysconf("SC_CLK_TCK")
    result.core_seconds.append(max(used.ru_utime + used.ru_stime, sampled))
    result.notes = row


def _sample(pid: int, result: Result, ticks: dict[int, int], ended: threading.Event) -> None:
    while not ended.wait(_SAMPLE_SECONDS):
        resident, anonymous = _sample_tree(pid, ticks)
        result.peak_bytes = max(result.peak_bytes, resident)
        result.peak_anonymous_bytes = max(result.peak_anonymous_bytes, anonymous)


def _sample_tree(pid: int, ticks: dict[int, int]) -> tuple[int, int]:
    """Return resident and anonymous bytes of a process and its descendants; record their time."""
    folder = Path(f"/proc/{pid}")
    try:
        status = folder.joinpath("status").read_text().splitlines()
        children = folder.joinpath(f"task/{pid}/children").read_text().split()
        used = folder.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0, 0
    ticks[pid] = sum(map(int, used))
    rows = dict(line.split(":", 1) for line in status if line.startswith(("VmRSS", "RssAnon")))
    totals = [int(rows.get(name, "0").split()[0]) * 1024 for name in ("VmRSS", "RssAnon")]
    for child in children:
        resident, anonymous = _sample_tree(int(child), ticks)
        totals = [totals[0] + resident, totals[1] + anonymous]
    return totals[0], totals[1]


def print_table(title: str, results: Sequence[Result], *, megabytes: float) -> None:
    """Print results as Markdown, the first contender compared with all others."""
    print(f"\n{title}\n")
    print("| contender | best | MB/s | ours is | peak | anonymous | notes |")
    print("|---|---|---|---|---|---|---|")
    ours = results[0].best
    for result in results:
        if result.error is not None:
            print(f"| {result.name} | failed: {result.error} | | | | | |")
            continue
        notes = ", ".join(f"{key} {value}" for key, value in result.notes.items())
        print(
            f"| {result.name} | {result.best:.2f} s | {megabytes / result.best:.0f} "
            f"| {result.best / ours:.1f}x | {result.peak_bytes / 1e6:.0f} MB "
            f"| {result.peak_anonymous_bytes / 1e6:.0f} MB | {notes} |"
        )


def describe_machine() -> str:
    """Return a description of the machine and versions."""
    model = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"
