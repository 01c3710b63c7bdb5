"""Run the contenders of a benchmark one after the other, each in a process of its own.

Rounds alternate between contenders, since a noisy machine disturbs whoever runs at the moment; the
best round of each counts, and speeds are given as ratios to the fastest peer. Memory is sampled
200 times a second from outside: resident, and its anonymous part, which file pages do not inflate.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


@dataclasses.dataclass
class Result:
    """The best a contender did, and the most memory it took."""

    name: str
    seconds: list[float] = dataclasses.field(default_factory=list)
    peak_bytes: int = 0
    peak_anonymous_bytes: int = 0
    notes: dict[str, object] = dataclasses.field(default_factory=dict)
    error: str | None = None

    @property
    def best(self) -> float:
        """The fastest round in seconds; infinite if none ended well."""
        return min(self.seconds, default=float("inf"))


def run_rounds(
    script: str, names: Sequence[str], *, rounds: int, arguments: Sequence[str]
) -> list[Result]:
    """Run `python script --contender NAME …` for each name, `rounds` times, alternately.

    A contender prints one JSON line last: {"seconds": …, and whatever else is worth noting}.
    """
    results = {name: Result(name) for name in names}
    for _ in range(rounds):
        for name in names:
            if results[name].error is None:
                _run_once(script, results[name], arguments)
    return list(results.values())


def _run_once(script: str, result: Result, arguments: Sequence[str]) -> None:
    command = [sys.executable, script, "--contender", result.name, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        rows = _memory_rows(status)
        result.peak_bytes = max(result.peak_bytes, rows.get("VmHWM", 0))
        result.peak_anonymous_bytes = max(result.peak_anonymous_bytes, rows.get("RssAnon", 0))
        time.sleep(0.005)
    out, err = process.communicate()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode != 0 or not lines:
        result.error = (err.strip().splitlines() or ["no output"])[-1]
        return
    row = json.loads(lines[-1])
    result.seconds.append(row.pop("seconds"))
    result.notes = row


def _memory_rows(status: Path) -> dict[str, int]:
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return {}
    rows = (line.split(":", 1) for line in lines if line.startswith(("VmHWM", "RssAnon")))
    return {name: int(value.split()[0]) * 1024 for name, value in rows}


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
    """Give what the numbers were measured on."""
    model = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"
