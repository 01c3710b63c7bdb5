"""What does `prepare --engine files` cost over threads, on one machine? Processor and wall time.

python benchmarks/engine_cost.py --text enwiki.txt [--rounds 7] [--python OTHER/bin/python]
                                 [--flush-ms 40] [--more "--tokens-per-shard 1000"]

The commands run in a random order, each in a process of its own, and must make the same files.
`--python` is that of another checkout's environment, whose commands run among these. `--flush-ms`
makes every flush to the disk take so much longer, as on a network disk (it needs a C compiler).
`--more` are words for all commands.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ENGINES: dict[str, list[str]] = {"threads": [], "files": ["--engine", "files"]}


SLOW_FLUSHES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int fsync(int file) {
  usleep(1000 * MILLISECONDS);
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}
"""


class Used(NamedTuple):
    """What a command took, in seconds."""

    processor: float
    wall: float


def build_slow_flushes(folder: Path, milliseconds: int) -> dict[str, str]:
    """The environment in which a flush takes longer."""
    source, library = folder / "slow.c", folder / "slow.so"
    source.write_text(SLOW_FLUSHES.replace("MILLISECONDS", str(milliseconds)))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def prepare(
    python: str, words_of_engine: list[str], text: Path, out: Path, env: dict[str, str]
) -> Used:
    """Run one command."""
    before, begun = processor_seconds(), time.perf_counter()
    words = [python, "-m", "lowtide", "prepare", "--input-files", str(text), "--out-dir", str(out)]
    subprocess.run(
        [*words, "--memory", "512MiB", "--quiet", *words_of_engine],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **env},
    )
    return Used(processor_seconds() - before, time.perf_counter() - begun)


def require_same(first: Path, *others: Path) -> None:
    names = [str(path.relative_to(first)) for path in first.rglob("shard_*")]
    for other in others:
        _, differ, failed = filecmp.cmpfiles(first, other, names, shallow=False)
        if not names or differ or failed:
            raise SystemExit(f"the engines made different shards: {differ + failed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--more", default="")
    parser.add_argument("--flush-ms", type=int, default=0)
    given = parser.parse_args()
    cases = [(python, engine) for python in [sys.executable, *given.python] for engine in ENGINES]
    taken: dict[tuple[str, str], list[Used]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as libraries:
        env = build_slow_flushes(Path(libraries), given.flush_ms) if given.flush_ms else {}
        for _ in range(given.rounds):
            with tempfile.TemporaryDirectory() as folder:
                outs = {case: Path(folder) / str(number) for number, case in enumerate(cases)}
                for case in random.sample(cases, len(cases)):
                    python, engine = case
                    words = [*ENGINES[engine], *given.more.split()]
                    taken[case].append(prepare(python, words, given.text, outs[case], env))
                require_same(*outs.values())
    for python in dict.fromkeys(python for python, _ in cases):
        print(python)
        for kind in Used._fields:
            rows = {
                engine: [getattr(row, kind) for row in taken[python, engine]] for engine in ENGINES
            }
            middle = {engine: statistics.median(row) for engine, row in rows.items()}
            shown = ", ".join(
                f"{engine} {middle[engine]:.2f} s ({min(row):.2f} to {max(row):.2f})"
                for engine, row in rows.items()
            )
            ratio = middle["files"] / middle["threads"]
            print(f"  {kind} time: {shown}; files over threads {ratio:.2f}")


if __name__ == "__main__":
    main()
