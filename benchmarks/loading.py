"""Batches per second, time to the first batch, and memory growth: lowtide and peers.

In:      nothing; tokens are generated (uniform random ids of a 50,257-word vocabulary)
Out:     Markdown tables on stdout

    python benchmarks/loading.py                       all questions: minutes, 3 GB of disk
    python benchmarks/loading.py --only speed --rounds 5
    python benchmarks/loading.py --peer-python peers/bin/python

The peers are in loading_peers.py. One that is not installed here is run by `--peer-python` (made
with `python -m venv peers && peers/bin/pip install litdata mosaicml-streaming`); without that it is
left out. Each round measures all ways in turn, and the table shows the median and the ratio within
rounds, because machines are noisy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import loading_peers
from loading_peers import BATCH, LENGTH, tokens_per_second
from lowtide.dataset.layout import (
    ShardInfo,
    id_chunk,
    shard_name,
    write_metadata,
    write_shard_stream,
)
from lowtide.loader.batches import BatchLoader
from lowtide.loader.windows import TokenDataset
from lowtide.memory import format_size

VOCABULARY = 50257


def main() -> None:
    """Run the selected measurements and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=["speed", "start", "memory"])
    parser.add_argument("--tokens", type=int, default=100_000_000, help="for the speed question")
    parser.add_argument("--memory-tokens", type=int, default=1_000_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the made-up tokens go")
    parser.add_argument("--peer-python", type=Path, help="runs peers that are not installed here")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(*measure_growth(*arguments.measure))
        return
    with tempfile.TemporaryDirectory(prefix="lowtide-load-", dir=arguments.folder) as name:
        folder = Path(name)
        if arguments.only in (None, "speed"):
            print(compare_speed(folder, arguments.tokens, arguments.rounds, arguments.peer_python))
        if arguments.only in (None, "start"):
            print(compare_start(folder, arguments.rounds))
        if arguments.only in (None, "memory"):
            print(compare_memory(folder, arguments.memory_tokens))


def make_tokens(path: Path, count: int) -> Path:
    """Write `count` random ids as raw uint16."""
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for first in range(0, count, 1 << 22):
            ids = rng.integers(0, VOCABULARY, min(1 << 22, count - first), dtype=np.uint16)
            file.write(ids.data)
    return path


# speed


def compare_speed(folder: Path, num_tokens: int, rounds: int, peer_python: Path | None) -> str:
    """Measure tokens per second of each way in turn, several times."""
    path = make_tokens(folder / "tokens.bin", num_tokens)
    ways = speed_ways(path, folder, peer_python)
    results: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            results[name].append(measure())
    first = next(iter(results))
    rows = [
        f"| {name} | {statistics.median(speeds) / 1e6:,.0f} "
        f"| {statistics.median(a / b for a, b in zip(speeds, results[first], strict=True)):.2f} |"
        for name, speeds in results.items()
    ]
    return "\n".join(
        [
            f"Batches of {BATCH} x {LENGTH}, inputs and targets int64, from {num_tokens:,} uint16 "
            "tokens, page cache warm:",
            "",
            f"| | million tokens/s | times {first} |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def speed_ways(
    path: Path, folder: Path, peer_python: Path | None
) -> dict[str, Callable[[], float]]:
    """Return the ways to load batches, the baseline first; each measures tokens per second."""
    ways: dict[str, Callable[[], float]] = {}
    for name, way in loading_peers.WAYS.items():
        if way.is_installed:
            ways[name] = lambda way=way: tokens_per_second(way.batches(path, folder))
        elif peer_python is not None:
            ways[name] = lambda name=name: measure_elsewhere(peer_python, name, path, folder)
    for name, make in own_ways(path).items():
        ways[name] = lambda make=make: tokens_per_second(make())
    return ways


def measure_elsewhere(peer_python: Path, name: str, path: Path, folder: Path) -> float:
    """Measure a peer with the interpreter it is installed for."""
    command = [str(peer_python), loading_peers.__file__, name, str(path), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{name}: {done.stderr.strip()}")
    return float(done.stdout.split()[-1])


def own_ways(path: Path) -> dict[str, Callable[[], Iterator[Any]]]:
    """Return lowtide's forms."""
    data = TokenDataset(path, split="all", seq_len=LENGTH, dtype="uint16")
    return {
        "lowtide TokenDataset.get_batch, random windows": lambda: get_batches(data),
        "lowtide BatchLoader, no threads": lambda: BatchLoader(
            data, batch_size=BATCH, prefetch_batches=0
        ),
        "lowtide BatchLoader, 1 thread": lambda: BatchLoader(data, batch_size=BATCH, num_threads=1),
        "lowtide BatchLoader, 2 threads (default)": lambda: BatchLoader(data, batch_size=BATCH),
    }


def get_batches(data: TokenDataset) -> Iterator[Any]:
    """Read random windows by index."""
    rng = np.random.default_rng(1)
    while True:
        yield data.get_batch(rng.integers(0, len(data), BATCH))


# the first batch


def compare_start(folder: Path, rounds: int) -> str:
    """Measure from the path to the first batch, for a dataset of a thousand shards."""
    root = folder / "thousand"
    rng = np.random.default_rng(2)
    ends = np.array([10_000, 20_000])
    (root / "train").mkdir(parents=True)
    shards: list[ShardInfo] = []
    for number in range(1000):
        path = root / "train" / shard_name(number)
        ids = rng.integers(0, VOCABULARY, 20_000, dtype=np.uint16)
        chunk = id_chunk(ids, ends, vocab_size=VOCABULARY, path=path)
        shards.append(write_shard_stream(path, [chunk], vocab_size=VOCABULARY))
    write_metadata(
        root,
        shards={"train": shards},
        vocab_size=VOCABULARY,
        tokenizer_fingerprint="none",
        tokenization="gpt2",
        tokens_per_shard=20_000,
        input_files=["made up"],
    )
    seconds: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        with BatchLoader(TokenDataset(root, seq_len=LENGTH), batch_size=BATCH) as loader:
            next(loader)
            seconds.append(time.perf_counter() - started)
    return (
        f"First batch of a dataset of 1,000 shards: {1000 * statistics.median(seconds):.0f} ms "
        f"(median of {rounds}, slowest {1000 * max(seconds):.0f} ms)\n"
    )


# memory


def compare_memory(folder: Path, num_tokens: int) -> str:
    """Measure how resident memory grows over a shuffled pass, each way in its own process."""
    path = make_tokens(folder / "large.bin", num_tokens)
    rows: list[str] = []
    for way in ("lowtide", "memmap"):
        command = [sys.executable, __file__, "--measure", way, str(path)]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        growth, seconds, tokens = (float(word) for word in found.split()[-3:])
        name = {"lowtide": "lowtide BatchLoader", "memmap": "one np.memmap, kept open"}[way]
        speed = tokens / seconds / 1e6
        rows.append(f"| {name} | {format_size(int(growth))} | {seconds:.1f} | {speed:,.0f} |")
    return "\n".join(
        [
            f"A shuffled pass over {format_size(path.stat().st_size)} of tokens:",
            "",
            "| | resident memory grew by (peak) | seconds | million tokens/s |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def measure_growth(way: str, path: str) -> tuple[int, float, int]:
    """Read every window once in shuffled order; return the growth of the peak, seconds, tokens."""
    data = TokenDataset(path, split="all", seq_len=LENGTH, dtype="uint16")
    if way == "memmap":
        tokens = np.memmap(path, dtype=np.uint16, mode="r")
        order = np.random.default_rng(3).permutation(len(data))

        def read() -> None:
            for first in range(0, len(order), BATCH):
                starts = np.minimum(order[first : first + BATCH] * LENGTH, data.last_start)
                for start in starts.tolist():
                    tokens[start : start + LENGTH + 1].astype(np.int64)

    else:
        loader = BatchLoader(data, batch_size=BATCH, num_epochs=1)

        def read() -> None:
            for _ in loader:
                pass

    data.get_batch(range(BATCH))
    before = peak_bytes()
    started = time.perf_counter()
    read()
    return peak_bytes() - before, time.perf_counter() - started, data.num_tokens


def peak_bytes() -> int:
    """Return the largest resident memory this process had, by the kernel's own count."""
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not count resident memory here")


if __name__ == "__main__":
    main()
