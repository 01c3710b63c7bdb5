"""Several commands one after the other in one process of their own, each with its peak.

What a command imports (torch above all) takes seconds and is the same for each of them: the process
is a new one, or a fork of one that has imported it. The peak is what the kernel saw since the
command began.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MARK = "-- a command ended: "
_RUN = f"""
import json, os, sys
from pathlib import Path
from lowtide.cli import main
os.fsync = os.fstat  # nothing is waited for: no power is cut here
held = []
if len(sys.argv) > 2:  # a fork, which writes where the one before it wrote
    os.chdir(sys.argv[2])
    for number, name in ((1, "printed"), (2, "told")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
for before, words in json.loads(sys.argv[1]):
    exec(before)
    Path("/proc/self/clear_refs").write_text("5")
    code = main(words)
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) << 10
    for stream in (sys.stdout, sys.stderr):
        print("\\n{_MARK}", code, " ", peak, sep="", file=stream, flush=True)
"""


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    exit_code: int
    peak_bytes: int
    output: str
    errors: str


def run_commands(
    commands: Sequence[tuple[str, Sequence[object]]],
    folder: Path,
    start_forks: Callable[..., Any] | None = None,
) -> list[Ran]:
    """Run (Python to execute before, words of the command), in order; `held` is a list there."""
    given = json.dumps([[before, [str(word) for word in words]] for before, words in commands])
    if start_forks is None:
        done = subprocess.run(
            [sys.executable, "-c", _RUN, given],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        code, printed, told = done.returncode, done.stdout, done.stderr
    else:
        ((code,), _) = start_forks((_RUN, [given, folder], {}))()
        printed, told = ((folder / name).read_text() for name in ("printed", "told"))
    assert code == 0, told[-3000:]
    split = re.compile(rf"\n{_MARK}(\d+) (\d+)\n")
    outputs, errors = split.split(printed), split.split(told)
    assert len(outputs) == 3 * len(commands) + 1, told[-3000:]
    return [
        Ran(int(outputs[at + 1]), int(outputs[at + 2]), outputs[at], errors[at])
        for at in range(0, len(outputs) - 1, 3)
    ]
