"""Accuracy of device memory estimates, the largest model under a cap, data larger than memory.

python benchmarks/gpu_limits.py peaks --data train.bin --out gpu.jsonl
python benchmarks/gpu_limits.py largest --data train.bin --out gpu.jsonl
python benchmarks/gpu_limits.py shards --data train.bin --folder /tmp/shards --out gpu.jsonl
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from gpu import BASE, BLOCKS, CONTEXT, FLOAT8, SHAPES, WaitedFeed, append_row, free, make_steps
from hostlimits import drop_caches, limit_memory
from lowtide.dataset.layout import ShardInfo, shard_name, write_metadata
from lowtide.loader.batches import BatchLoader
from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.sizing import count_parameters
from lowtide.planning.plan import make_plan
from lowtide.training.distributed import open_process_group
from lowtide.training.footprint import planned_bytes
from lowtide.training.trainer import Trainer

SMALL, LARGE = "qwen3, 6 heads", "750M"
PLAIN = {"compile": False}
AGAIN = {"activation_checkpointing": True}
EIGHT = {"use_8bit_optimizer": True}
MUON = {"optimizer": "muon"}
# (shape, rows, changes): settings that users may choose, compiled and not.
GRID: list[tuple[str, int, dict[str, Any]]] = [
    (SMALL, 16, PLAIN),
    (SMALL, 16, {**PLAIN, **AGAIN}),
    (SMALL, 64, {**PLAIN, **AGAIN}),
    (SMALL, 16, {**PLAIN, **EIGHT}),
    (SMALL, 8, {**PLAIN, "use_mixed_precision": False}),
    (SMALL, 16, {**PLAIN, "precision": "fp16"}),
    ("gpt2", 16, PLAIN),
    ("gpt2", 16, {**PLAIN, **AGAIN}),
    ("350M", 8, {**PLAIN, **MUON}),
    ("350M", 8, {**PLAIN, **AGAIN}),
    (LARGE, 4, {**PLAIN, **EIGHT}),
    (LARGE, 16, {**PLAIN, **AGAIN, **MUON}),
    (SMALL, 16, {}),
    (SMALL, 16, AGAIN),
    (SMALL, 64, AGAIN),
    (SMALL, 32, MUON),
    ("gpt2", 32, {}),
    ("350M", 16, {**AGAIN, **EIGHT}),
    ("350M", 32, MUON),
    (LARGE, 16, {**AGAIN, **MUON}),
    (LARGE, 16, MUON),
    (SMALL, 64, FLOAT8),
]


def check_peak(shape: str, rows: int, changes: dict[str, Any], path: Path) -> dict[str, Any]:
    """Take two steps of two micro-batches; compare the peak with the plan."""
    options = {**BASE, **changes, "batch_size": rows, "gradient_accumulation_steps": 2}
    ready, settings = make_steps(SHAPES[shape], path, **options)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        ready.train_step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    ready.feed.close()
    planned = planned_bytes(SHAPES[shape], settings, on_gpu=True)
    return {
        "name": f"{shape}, {rows} rows, {_words(changes)}",
        "shape": shape,
        "rows": rows,
        "changes": changes,
        "peak_bytes": peak,
        "planned_bytes": planned.device_bytes,
        "parts": dataclasses.asdict(planned),
        "result": f"peak {peak / 2**30:.2f} GiB, planned {planned.device_bytes / 2**30:.2f} "
        f"({planned.device_bytes / peak - 1:+.0%})",
    }


def _words(changes: dict[str, Any]) -> str:
    words = [name if value is True else f"{name}={value}" for name, value in changes.items()]
    return " ".join(words) or "compiled"


def check_largest(gibibytes: int, path: Path) -> dict[str, Any]:
    """Train the largest model that `plan` finds for a GPU, the allocator capped to its size."""
    plan = make_plan(
        vram=f"{gibibytes}GiB", ram="120GiB", tokens="500M", vocab_size=50257, seq_len=CONTEXT,
        size="7.9B", measure=False,
    )  # fmt: skip
    chosen = plan.chosen
    assert chosen is not None
    total = torch.cuda.mem_get_info()[1]
    cap = (gibibytes << 30) - (600 << 20)  # CUDA's own context is not the allocator's
    torch.cuda.set_per_process_memory_fraction(cap / total)
    settings = dataclasses.replace(
        chosen.settings, gradient_accumulation_steps=2, max_iters=10, device="cuda"
    )
    notes: list[str] = []
    try:
        peak, loss = _train_two_steps(chosen.config, settings, path, notes)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    count = count_parameters(chosen.config)
    return {
        "name": f"largest model in {gibibytes} GiB",
        "parameters": count,
        "peak_bytes": peak,
        "planned_bytes": chosen.footprint.device_bytes,
        "result": f"{count / 1e9:.2f} billion parameters ({', '.join(chosen.changes)}): peak "
        f"{peak / 2**30:.1f} GiB, planned {chosen.footprint.device_bytes / 2**30:.1f}, "
        f"loss {loss:.2f}",
    }


def _train_two_steps(
    config: GPTConfig, settings: Any, path: Path, notes: list[str]
) -> tuple[int, float]:
    data = TokenDataset(path, split="all", seq_len=CONTEXT, dtype="uint16")
    with torch.device("cuda"):
        model = GPT(config)
    trainer = Trainer(model, data=data, settings=settings, notify=notes.append)
    with open_process_group("cuda") as group:
        ready = trainer.prepare(group)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        ready.train_step()
    loss = float(ready.counters.loss / ready.counters.steps)
    ready.feed.close()
    assert not notes, notes
    return torch.cuda.max_memory_allocated(), loss


def make_shards(path: Path, folder: Path, *, count: int, shard_tokens: int) -> None:
    """Write a dataset of any size: a corpus repeated, each shard rotated differently."""
    tokens = np.fromfile(path, dtype=np.uint16)
    whole = np.tile(tokens, -(-shard_tokens // len(tokens)))[:shard_tokens]
    (folder / "train").mkdir(parents=True)

    def write(number: int) -> ShardInfo:
        where = folder / "train" / shard_name(number)
        np.roll(whole, number * 7919 * 1024).tofile(where)
        return ShardInfo(where, shard_tokens, 0, 0, 50256, None)

    with ThreadPoolExecutor(8) as threads:
        shards = list(threads.map(write, range(count)))
    write_metadata(
        folder,
        shards={"train": shards},
        vocab_size=50257,
        tokenizer_fingerprint="made up",
        tokenization="gpt2",
        tokens_per_shard=shard_tokens,
        input_files=[],
    )


def train_from_shards(folder: Path, steps: int) -> dict[str, Any]:
    """Train from a large dataset with one loader thread; measure its waits and its memory."""
    data = TokenDataset(folder, split="train", seq_len=CONTEXT)
    loader = BatchLoader(data, batch_size=64, num_threads=1, seed=1, pin_memory=True)
    torch.manual_seed(0)
    options = {**BASE, **BLOCKS, **MUON, "gradient_accumulation_steps": 1}
    trainer = Trainer(GPT(SHAPES[SMALL]), data=loader, max_iters=10**6, device="cuda", **options)
    with open_process_group("cuda") as group:
        ready = trainer.prepare(group)
    process, feed = psutil.Process(), WaitedFeed(ready)
    for _ in range(20):
        ready.train_step()
    torch.cuda.synchronize()
    before, feed.seconds, start = process.memory_info().rss, 0.0, time.perf_counter()
    for _ in range(steps):
        ready.train_step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    feed.close()
    return {
        "waiting_share": feed.seconds / seconds,
        "tokens_per_second": steps * 65536 / seconds,
        "resident_bytes": [before, process.memory_info().rss],
    }


def check_shards(options: argparse.Namespace) -> dict[str, Any]:
    """Train from shards many times larger than the host memory limit of the process."""
    if not options.folder.exists():
        make_shards(options.data, options.folder, count=options.shards, shard_tokens=100_000_000)
    size = sum(path.stat().st_size for path in options.folder.rglob("*.bin"))
    command = [sys.executable, __file__, "inner", "--folder", str(options.folder)]
    limited = limit_memory("lowtide-shards", options.limit_bytes)
    drop_caches()
    # The compiler's worker processes, one per core, would exceed the limit.
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, preexec_fn=limited, timeout=240,
        env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-400:])
    row = json.loads(done.stdout.splitlines()[-1])
    limit = f"at most {options.limit_bytes / 1e9:.0f} GB of host memory" if limited else "no limit"
    before, after = (value / 1e9 for value in row["resident_bytes"])
    row["name"] = f"{size / 1e9:.0f} GB of shards, {limit}"
    row["result"] = (
        f"waiting for data {row['waiting_share']:.2%} of the time with one loader thread, "
        f"{row['tokens_per_second']:,.0f} tokens/s; resident {before:.2f} GB, later {after:.2f}"
    )
    return row


def main() -> None:
    """Run one part; for a case that fails, the row has the error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["peaks", "largest", "shards", "inner"])
    parser.add_argument("--data", type=Path, default=Path("carry/data/train.bin"))
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"))
    parser.add_argument("--folder", type=Path, default=Path("shards"))
    parser.add_argument("--shards", type=int, default=160)
    parser.add_argument("--limit-bytes", type=int, default=5 * 10**9)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    if options.part == "inner":
        print(json.dumps(train_from_shards(options.folder, steps=200)))
        return
    cases: dict[str, Any] = {}
    if options.part == "peaks":
        for shape, rows, changes in GRID:
            name = f"{shape}, {rows} rows, {_words(changes)}"
            cases[name] = lambda s=shape, r=rows, c=changes: check_peak(s, r, c, options.data)
    elif options.part == "largest":
        for size in (8, 16, 24, 80):
            name = f"largest model in {size} GiB"
            cases[name] = lambda size=size: check_largest(size, options.data)
    else:
        cases["shards"] = lambda: check_shards(options)
    for name, check in cases.items():
        try:
            row = check()
        except Exception as error:
            row = {"name": name, "error": f"{type(error).__name__}: {error}"[:400]}
        append_row(options.out, options.part, row)
        free()


if __name__ == "__main__":
    main()
