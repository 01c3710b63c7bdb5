"""Run a few steps of a plan in a separate process, to measure this machine's speed.

In:      a Choice
Out:     Trial: tokens per second
Memory:  the memory of training, in the other process
"""

from __future__ import annotations

import json
import subprocess
import sys

from lowtide.packages import first_missing, install_command
from lowtide.planning.choices import Choice
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass
from lowtide.settings import settings_as_json
from lowtide.waiting import sleep_while_waiting

__all__ = ["Trial", "run_trial"]

_TIMEOUT_SECONDS = 90


@dataclass(frozen=True)
class Trial:
    """The speed of a few steps, or why there is none."""

    tokens_per_second: float | None
    problem: str = ""


def run_trial(choice: Choice, *, seconds: float = 8.0) -> Trial:
    """Time some steps of the chosen training on made-up ids."""
    missing = first_missing(choice.settings.computing.backend)
    if missing is not None:
        return Trial(None, f"{missing} is not installed here ({install_command(missing)})")
    request = {
        "config": settings_as_json(choice.config),
        "settings": choice.options,
        "seconds": seconds,
    }
    command = [sys.executable, "-m", "lowtide.training.trial"]
    sleep_while_waiting()  # the process imports its framework at once
    try:
        with Progress("plan") as progress, progress.phase("time a few steps"):
            done = subprocess.run(
                command,
                input=json.dumps(request),
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return Trial(None, f"no step ended in {_TIMEOUT_SECONDS} seconds")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return Trial(None, lines[-1] if lines else "the trial ended without a word")
    answer = json.loads(done.stdout)
    return Trial(answer["tokens_per_second"])
