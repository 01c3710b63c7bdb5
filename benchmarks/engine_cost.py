"""What does `prepare --engine files` cost over threads, on one machine? Processor time of both.

python benchmarks/engine_cost.py --text enwiki.txt [--rounds 7] [--python OTHER/bin/python]

The commands run by turns, each in a process of its own, and must make the same files. `--python`
is that of another checkout's environment, whose commands take turns with these.
"""

from __future__ import annotations

import argparse
import filecmp
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ENGINES: dict[str, list[str]] = {"threads": [], "files": ["--engine", "files"]}


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def prepare(python: str, engine: str, text: Path, out: Path) -> float:
    """Return the processor time of one command."""
    before = processor_seconds()
    words = [python, "-m", "lowtide", "prepare", "--input-files", str(text), "--out-dir", str(out)]
    subprocess.run(
        [*words, "--memory", "512MiB", "--quiet", *ENGINES[engine]],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return processor_seconds() - before


def require_same(first: Path, second: Path) -> None:
    names = [path.relative_to(first) for path in first.rglob("shard_*")]
    _, other, failed = filecmp.cmpfiles(first, second, map(str, names), shallow=False)
    if not names or other or failed:
        raise SystemExit(f"the engines made different shards: {other + failed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--python", action="append", default=[])
    given = parser.parse_args()
    pythons = [sys.executable, *given.python]
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(given.rounds):
        for python in pythons:
            with tempfile.TemporaryDirectory() as folder:
                for engine in ENGINES:
                    out = Path(folder) / engine
                    row = seconds.setdefault((python, engine), [])
                    row.append(prepare(python, engine, given.text, out))
                require_same(*(Path(folder) / engine for engine in ENGINES))
    for python in pythons:
        middle = {engine: statistics.median(seconds[python, engine]) for engine in ENGINES}
        print(python)
        for engine in ENGINES:
            row = seconds[python, engine]
            print(f"  {engine:8} {middle[engine]:.2f} s ({min(row):.2f} to {max(row):.2f})")
        print(f"  files over threads: {middle['files'] / middle['threads']:.2f}")


if __name__ == "__main__":
    main()
