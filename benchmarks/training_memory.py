"""Peaks of training compared with budgets and plans, with any installed version of torch.

    python benchmarks/training_memory.py                                 this Python's torch
    python benchmarks/training_memory.py --python env/bin/python         that of another environment

For each shape the smallest budget is found (by giving too small a one), then the command runs
with the budget that it named, and with a large one. The peak is the kernel's, of the whole process.
Rows over their budget, and plans that are off by more than a tenth, are marked.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
SHAPES = {
    "100k parameters, by characters": "--tokenization char --target-params 100000",
    "1M parameters, learned vocabulary": "--vocab-size 1000 --target-params 1000000 --batch-size 8",
    "gpt2 layout, AdamW": "--tokenization char --layout gpt2 --num-layers 4 --width 192 "
    "--num-heads 3 --optimizer adamw --batch-size 8 --seq-len 128",
    "tiny model, 1024 rows": "--tokenization char --num-layers 1 --width 32 --num-heads 1 "
    "--batch-size 1024 --seq-len 64",
}
COMMON = "--max-iters 3 --eval-iters 1 --sample-tokens 4 --device cpu"
PLANNED = """
import sys
from lowtide.arguments import parse_settings
from lowtide.model.config import load_config
from lowtide.training.footprint import planned_bytes
from lowtide.training.settings import TrainSettings
settings = parse_settings(TrainSettings, sys.argv[2:], program="", summary="")
print(planned_bytes(load_config(sys.argv[1]), settings).total_bytes)
"""
_MEASURE = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print("\\npeak", usage.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@dataclass(frozen=True)
class Run:
    """The outcome of one command."""

    code: int
    peak_bytes: int
    seconds: float
    errors: str


def run(python: str, folder: Path, words: list[str]) -> Run:
    """Run a command of lowtide from a small process, so that only its own memory counts."""
    began = time.monotonic()
    command = [sys.executable, "-S", "-c", _MEASURE, python, "-m", "lowtide", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    peak = int(re.findall(r"^peak (\d+)$", done.stdout, re.MULTILINE)[-1])
    return Run(done.returncode, peak, time.monotonic() - began, done.stderr)


def write_text(path: Path) -> None:
    """Write 300 KB of random words."""
    source = random.Random(0)
    words = ["".join(source.choices("etaoinshrdlu", k=source.randrange(2, 9))) for _ in range(900)]
    path.write_text("\n".join(" ".join(source.choices(words, k=12)) for _ in range(4500)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the environment to measure")
    python = os.path.abspath(parser.parse_args().python)  # noqa: PTH100  (a link is to stay one)
    version = "import torch; print(torch.__version__)"
    torch = subprocess.check_output([python, "-c", version], text=True).strip()
    print(f"torch {torch}\n\n| training | budget | exit | peak | planned | off | time |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="lowtide-") as place:
        folder = Path(place)
        write_text(folder / "text.txt")
        for number, (name, flags) in enumerate(SHAPES.items()):
            words = ["train", "--input-file", "text.txt", *shlex.split(flags), *COMMON.split()]
            refused = run(python, folder, [*words, "--memory", "64MiB"])
            print(row(name, "64MiB", refused, None), flush=True)
            found = re.search(r"give at least --memory (\w+)", refused.errors)
            assert found is not None, refused.errors
            for budget in (found.group(1), "2GiB"):
                run_dir = f"checkpoints/{number}-{budget}"
                done = run(
                    python,
                    folder,
                    [*words, "--memory", budget, "--model-name", f"{number}-{budget}"],
                )
                plan = None
                if budget == "2GiB" and done.code == 0:  # nothing was reduced to fit
                    command = [python, "-c", PLANNED, run_dir, *words[1:]]
                    plan = int(subprocess.check_output(command, cwd=folder, text=True))
                print(row(name, budget, done, plan), flush=True)


def row(name: str, budget: str, done: Run, planned: int | None) -> str:
    """One line of the table."""
    peak = f"{done.peak_bytes / MIB:.0f} MiB" if done.code != 1 else "refused"
    plan = off = ""
    if planned is not None:
        share = planned / done.peak_bytes - 1
        plan, off = f"{planned / MIB:.0f} MiB", f"{share:+.1%}" + (" !" if abs(share) > 0.1 else "")
    mark = " OVER" if done.code == 3 else ""
    cells = [name, budget, f"{done.code}{mark}", peak, plan, off, f"{done.seconds:.0f} s"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
