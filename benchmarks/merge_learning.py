"""Time of learning merges from counted pieces: processor time of the learner alone.

    python benchmarks/merge_learning.py --text made.txt enwiki.txt [--rounds 9] [--threads 1 8]
        [--many-words 8192] [--python OTHER/bin/python]

Each text is counted once and its counts are saved; then learning runs in separate processes,
alternating with those of `--python`, the environment of another checkout. All must make the same
merges. Printed for each: medians of processor time and wall time for the first pairs and for the
merges, and the peak memory of the learner.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LEARN = """
import hashlib, json, pickle, sys, time
from pathlib import Path
from lowtide import _native
items = pickle.loads(Path(sys.argv[1]).read_bytes())
target, threads, many_words = map(int, sys.argv[2:])
learner = _native.MergeLearner("huggingface", num_threads=threads, many_words=many_words)
learner.take_items(items)
times = [(time.process_time(), time.perf_counter())]
learner.build()
times.append((time.process_time(), time.perf_counter()))
most = learner.bytes
while learner.learn(target, 256, 1):
    most = max(most, learner.bytes)
times.append((time.process_time(), time.perf_counter()))
merges = hashlib.sha256(learner.merges()).hexdigest()
print(json.dumps({"times": times, "bytes": most, "merges": merges}))
"""
COUNT = """
import pickle, sys
from pathlib import Path
from lowtide import _native
path, out = sys.argv[1:]
counter = _native.PieceCounter(
    "gpt2", [b"<|endoftext|>"], num_threads=2, table_bytes=2 << 30, window_bytes=1 << 20,
    spill_dir=str(Path(out).parent),
)
size = Path(path).stat().st_size
counter.count_file(path, 0, size, size)
items = counter.drain()
Path(out).write_bytes(pickle.dumps(items))
print(f"{path}: {len(items):,} pieces of {sum(len(piece) for piece, _ in items):,} bytes")
"""


def run(python: str, program: str, *arguments: str) -> str:
    words = [python, "-c", program, *arguments]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--many-words", type=int, default=8192, help="of a pair that threads share")
    parser.add_argument("--python", action="append", default=[])
    given = parser.parse_args()
    pythons = [sys.executable, *given.python]
    for text in given.text:
        with tempfile.TemporaryDirectory() as folder:
            counts = str(Path(folder) / "counts")
            print(run(sys.executable, COUNT, str(text), counts), end="", flush=True)
            rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
            numbers = [str(given.vocab_size - 257), str(given.many_words)]
            for _ in range(given.rounds):
                for python in pythons:
                    for threads in given.threads:
                        made = json.loads(
                            run(python, LEARN, counts, numbers[0], str(threads), numbers[1])
                        )
                        rows.setdefault((python, threads), []).append(made)
            if len({row["merges"] for found in rows.values() for row in found}) != 1:
                raise SystemExit("not all made the same merges")
        for (python, threads), found in rows.items():
            print_row(python, threads, found)


def print_row(python: str, threads: int, found: list[dict[str, Any]]) -> None:
    def median(step: int, clock: int) -> float:
        return statistics.median(
            row["times"][step][clock] - row["times"][step - 1][clock] for row in found
        )

    most = max(row["bytes"] for row in found) >> 20
    print(
        f"  {python}, {threads} threads: first pairs {median(1, 0):.3f} s ({median(1, 1):.3f} by "
        f"the clock), merges {median(2, 0):.3f} s ({median(2, 1):.3f}), {most} MiB"
    )


if __name__ == "__main__":
    main()
