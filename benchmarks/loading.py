"""How fast do batches come, how soon the first, and does memory stay flat? Ours and the peers'.

In:      nothing; tokens are made up (uniform random ids of a 50,257-word vocabulary)
Out:     Markdown tables on stdout

    python benchmarks/loading.py                       all questions: minutes, 3 GB of disk
    python benchmarks/loading.py --only speed --rounds 5

Peers that are not installed are left out: torch, litdata. Each round measures all of them in turn,
and the table shows the median and the ratio within rounds, because machines are noisy.
"""

from __future__ import annotations

import argparse
import importlib.util
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

from lowtide.dataset.layout import shard_name, write_metadata, write_shard
from lowtide.loader.batches import BatchLoader
from lowtide.loader.windows import TokenDataset
from lowtide.memory import format_size

BATCH, LENGTH, VOCABULARY = 64, 1024, 50257


def main() -> None:
    """Measure what is asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=["speed", "start", "memory"])
    parser.add_argument("--tokens", type=int, default=100_000_000, help="for the speed question")
    parser.add_argument("--memory-tokens", type=int, default=1_000_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the made-up tokens go")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(*measure_growth(*arguments.measure))
        return
    with tempfile.TemporaryDirectory(prefix="lowtide-load-", dir=arguments.folder) as name:
        folder = Path(name)
        if arguments.only in (None, "speed"):
            print(compare_speed(folder, arguments.tokens, arguments.rounds))
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


def compare_speed(folder: Path, num_tokens: int, rounds: int) -> str:
    """Measure tokens per second of each way in turn, several times."""
    path = make_tokens(folder / "tokens.bin", num_tokens)
    ways = speed_ways(path, folder)
    results: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, make in ways.items():
            results[name].append(tokens_per_second(make()))
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


def tokens_per_second(batches: Iterator[Any], seconds: float = 1.0) -> float:
    """Count tokens for about a second, after a few batches to warm up."""
    for _ in range(3):
        next(batches)
    started = time.perf_counter()
    count = 0
    while time.perf_counter() - started < seconds:
        for _ in range(5):
            next(batches)
        count += 5
    elapsed = time.perf_counter() - started
    close = getattr(batches, "close", None)
    if close is not None:
        close()
    return count * BATCH * LENGTH / elapsed


def speed_ways(path: Path, folder: Path) -> dict[str, Callable[[], Iterator[Any]]]:
    """Give the ways to load batches, the baseline first."""
    data = TokenDataset(path, split="all", sequence_length=LENGTH, dtype="uint16")
    ways: dict[str, Callable[[], Iterator[Any]]] = {}
    if importlib.util.find_spec("torch"):
        ways["get_batch as in nanoGPT"] = lambda: nanogpt_batches(path)
        ways["torch DataLoader over a memmap, 0 workers"] = lambda: data_loader_batches(path, 0)
        ways["torch DataLoader over a memmap, 2 workers"] = lambda: data_loader_batches(path, 2)
    if importlib.util.find_spec("litdata"):
        chunks = write_litdata(folder / "litdata", path)
        ways["LitData TokensLoader, 0 workers"] = lambda: litdata_batches(chunks, 0)
        ways["LitData TokensLoader, 2 workers"] = lambda: litdata_batches(chunks, 2)
    ways["lowtide TokenDataset.get_batch, random windows"] = lambda: get_batches(data)
    ways["lowtide BatchLoader, no threads"] = lambda: BatchLoader(
        data, batch_size=BATCH, prefetch_batches=0
    )
    ways["lowtide BatchLoader, 1 thread"] = lambda: BatchLoader(data, batch_size=BATCH)
    ways["lowtide BatchLoader, 2 threads"] = lambda: BatchLoader(
        data, batch_size=BATCH, num_threads=2
    )
    return ways


def get_batches(data: TokenDataset) -> Iterator[Any]:
    """Ask for random windows by index."""
    rng = np.random.default_rng(1)
    while True:
        yield data.get_batch(rng.integers(0, len(data), BATCH))


def nanogpt_batches(path: Path) -> Iterator[Any]:
    """Do what nanoGPT's training script does for each batch, up to the copy to the GPU."""
    import torch

    while True:
        tokens = np.memmap(path, dtype=np.uint16, mode="r")  # anew each time, against its leak
        starts = torch.randint(len(tokens) - LENGTH, (BATCH,))
        inputs = torch.stack(
            [torch.from_numpy(tokens[i : i + LENGTH].astype(np.int64)) for i in starts]
        )
        targets = torch.stack(
            [torch.from_numpy(tokens[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in starts]
        )
        yield inputs, targets


def data_loader_batches(path: Path, num_workers: int) -> Iterator[Any]:
    """Use torch's own loader over a mapped file, shuffled."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Mapped(Dataset):  # pyright: ignore[reportMissingTypeArgument]
        def __init__(self) -> None:
            self.tokens = np.memmap(path, dtype=np.uint16, mode="r")

        def __len__(self) -> int:
            return (len(self.tokens) - 1) // LENGTH

        def __getitem__(self, index: int) -> Any:
            begin = index * LENGTH
            window = torch.from_numpy(self.tokens[begin : begin + LENGTH + 1].astype(np.int64))
            return window[:-1], window[1:]

    yield from DataLoader(
        Mapped(), batch_size=BATCH, shuffle=True, num_workers=num_workers, drop_last=True
    )


def write_litdata(folder: Path, path: Path) -> Path:
    """Write the same tokens as LitData's chunks, in windows of one token more."""
    import torch
    from litdata.streaming import Cache, TokensLoader

    cache = Cache(str(folder), chunk_bytes="64MB", item_loader=TokensLoader(block_size=LENGTH + 1))
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    step = 1000 * (LENGTH + 1)
    for number, first in enumerate(range(0, len(tokens), step)):
        cache[number] = torch.from_numpy(tokens[first : first + step].astype(np.int32))
    cache.done()
    cache.merge()
    return folder


def litdata_batches(folder: Path, num_workers: int) -> Iterator[Any]:
    """Use LitData's own loader, shuffled."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import TokensLoader

    dataset = StreamingDataset(
        str(folder), item_loader=TokensLoader(block_size=LENGTH + 1), shuffle=True, drop_last=True
    )
    for batch in StreamingDataLoader(dataset, batch_size=BATCH, num_workers=num_workers):
        tokens = batch.long()
        yield tokens[:, :-1], tokens[:, 1:]


# the first batch


def compare_start(folder: Path, rounds: int) -> str:
    """Measure from the path to the first batch, for a dataset of a thousand shards."""
    root = folder / "thousand"
    rng = np.random.default_rng(2)
    shards = [
        write_shard(
            root / "train" / shard_name(number),
            rng.integers(0, VOCABULARY, 20_000, dtype=np.uint16),
            [10_000, 20_000],
        )
        for number in range(1000)
    ]
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
        with BatchLoader(TokenDataset(root, sequence_length=LENGTH), batch_size=BATCH) as loader:
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
    """Read every window once in shuffled order; give the growth of the peak, seconds, tokens."""
    data = TokenDataset(path, split="all", sequence_length=LENGTH, dtype="uint16")
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
    """Give the largest resident memory this process had, by the kernel's own count."""
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not count resident memory here")


if __name__ == "__main__":
    main()
