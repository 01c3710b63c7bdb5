"""Failures that a GPU run must survive: out of memory, a kill, float16; checked, not timed.

python benchmarks/gpu_robust.py --data train.bin --val-data val.bin --out gpu.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu import BASE, CONTEXT, SHAPES, append_row, free, make_steps
from lowtide.loader.windows import TokenDataset
from lowtide.model.gpt import GPT
from lowtide.training.trainer import Trainer

STEPS = 24


def check_out_of_memory(path: Path) -> dict[str, Any]:
    """Cap the allocator below the need of a micro-batch of 64; check that training continues."""
    cap = 12 << 30
    torch.cuda.set_per_process_memory_fraction(cap / torch.cuda.mem_get_info()[1])
    torch.cuda.reset_peak_memory_stats()
    notes: list[str] = []
    ready, _ = make_steps(
        SHAPES["qwen3, 6 heads"], path, notify=notes.append, **{**BASE, "compile": False}
    )
    for _ in range(3):
        ready.train_step()
    loss = float(ready.counters.loss / ready.counters.steps)
    peak = torch.cuda.max_memory_allocated()
    ready.feed.close()
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert notes, "nothing ran out of memory"
    assert ready.state.micro_batch < 64
    return {
        "name": "out of memory under 12 GiB",
        "result": f"micro-batch 64 -> {ready.state.micro_batch}, loss {loss:.3f}, "
        f"peak {peak / 2**30:.1f} GiB",
    }


def check_precision(path: Path, precision: str) -> dict[str, Any]:
    """Train some steps in half precision; the loss must fall and few steps may be skipped."""
    options = {**BASE, "precision": precision, "batch_size": 32, "gradient_accumulation_steps": 1}
    options["warmup"] = 10
    ready, _ = make_steps(SHAPES["qwen3, 6 heads"], path, **options)
    losses: list[float] = []
    for _ in range(6):
        for _ in range(10):
            ready.train_step()
        losses.append(float(ready.counters.loss / ready.counters.steps))
        ready.counters.loss.zero_()
        ready.counters.steps.zero_()
    bad = int(ready.counters.bad)
    ready.feed.close()
    assert losses[-1] < losses[0] - 1.0, losses
    return {
        "name": f"60 steps in {precision}",
        "result": f"loss {losses[0]:.2f} -> {losses[-1]:.2f}, {bad} steps skipped",
    }


def fit(data: Path, val: Path, folder: Path, name: str) -> None:
    """Train a small run with checkpoints; this process may be killed."""
    torch.manual_seed(5)
    config = SHAPES["qwen3, 6 heads"].replace(num_layers=4)
    length = CONTEXT
    Trainer(
        GPT(config),
        data=TokenDataset(data, split="all", seq_len=length, dtype="uint16"),
        val_data=TokenDataset(val, split="all", seq_len=length, dtype="uint16"),
        **{**BASE, "optimizer": "muon", "batch_size": 16, "gradient_accumulation_steps": 2},
        max_iters=STEPS,
        save_interval=5,
        eval_interval=1000,
        eval_iters=4,
        log_interval=1,
        model_name=name,
        checkpoints_dir=folder,
        device="cuda",
    ).fit()


def check_kill(options: argparse.Namespace) -> dict[str, Any]:
    """Kill a run without warning after some checkpoints; it must end like an uninterrupted one."""
    folder = Path(tempfile.mkdtemp())
    command = [sys.executable, __file__, "--data", str(options.data), "--val-data"]
    command += [str(options.val_data), "--folder", str(folder), "--fit"]
    subprocess.run([*command, "whole"], check=True, stderr=subprocess.DEVNULL)
    process = subprocess.Popen([*command, "killed"], stderr=subprocess.DEVNULL)
    metrics = folder / "killed" / "metrics.jsonl"
    while process.poll() is None:
        if metrics.is_file() and len(_losses(metrics)) >= 13:
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.02)
    process.wait()
    reached = len(_losses(metrics))
    subprocess.run([*command, "killed"], check=True, stderr=subprocess.DEVNULL)
    whole, killed = _losses(folder / "whole" / "metrics.jsonl"), _losses(metrics)
    largest = max(abs(whole[step] - killed[step]) for step in whole)
    shutil.rmtree(folder)
    assert whole.keys() == killed.keys()
    assert process.returncode == -signal.SIGKILL
    assert largest < 0.01, largest
    return {
        "name": "kill -9 and resume",
        "result": f"killed after step {reached} of {STEPS}; losses of all steps within "
        f"{largest:.1e} of a run never stopped",
    }


def check_command(options: argparse.Namespace) -> dict[str, Any]:
    """Run the preset as a user does, from .npy files, kill it, and run the command again."""
    folder = Path(tempfile.mkdtemp())
    for name, path in (("train", options.data), ("val", options.val_data)):
        np.save(folder / f"{name}.npy", np.fromfile(path, dtype=np.uint16))
    command = [sys.executable, "-m", "lowtide", "train", "--preset", "h100"]
    command += ["--train-data-path", str(folder / "train.npy"), "--model-name", "owt"]
    command += ["--val-data-path", str(folder / "val.npy"), "--checkpoints-dir", str(folder)]
    command += ["--max-iters", "200", "--save-interval", "50", "--eval-interval", "130"]
    metrics = folder / "owt" / "metrics.jsonl"
    log = (options.out.parent / "command.log").open("w")
    start = time.perf_counter()
    process = subprocess.Popen(command, stderr=log, stdout=log)
    while process.poll() is None:
        if metrics.is_file() and max(_losses(metrics), default=0) >= 120:
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.05)
    assert process.returncode == -signal.SIGKILL, process.returncode
    before, first_rows = time.perf_counter() - start, read_rows(metrics)
    done = subprocess.run(command, stderr=log, stdout=log, check=False)
    assert done.returncode == 0, done.returncode
    rows = read_rows(metrics)
    speeds = {row["step"]: row["tokens_per_second"] for row in first_rows}
    usual = statistics.median(speeds.values())
    # Checkpoints of steps 50 and 100 are in the rows of 60 and 120: twenty steps of 65,536.
    stalls = [20 * 65536 * (1 / speeds[step] - 1 / usual) for step in (60, 120)]
    losses = [row["val_loss"] for row in read_rows(metrics, "eval")]
    shutil.rmtree(folder)
    return {
        "name": "the preset by its command, killed",
        "tokens_per_second_median": usual,
        "stall_seconds": stalls,
        "rows": [[row["step"], row["tokens_per_second"]] for row in first_rows + rows],
        "val_losses": losses,
        "result": f"killed after {before:.0f} s at step {first_rows[-1]['step']}, ended at step "
        f"{rows[-1]['step']}; {usual:,.0f} tokens/s, checkpoints held it up "
        f"{stalls[0] * 1000:.0f} and {stalls[1] * 1000:.0f} ms; validation "
        f"{', '.join(f'{loss:.2f}' for loss in losses)}",
    }


def _losses(path: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in read_rows(path)}


def read_rows(path: Path, event: str = "step") -> list[dict[str, Any]]:
    """Rows of one kind of a metrics.jsonl, without an incomplete last line after a kill."""
    rows: list[dict[str, Any]] = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue  # the line being written when the process was killed
    return [row for row in rows if row.get("event") == event]


def main() -> None:
    """Run every check; for one that fails, the row has the error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("carry/data/train.bin"))
    parser.add_argument("--val-data", type=Path, default=Path("carry/data/val.bin"))
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--fit")
    options = parser.parse_args()
    if options.fit:
        fit(options.data, options.val_data, options.folder, options.fit)
        return
    checks = {
        "the preset by its command, killed": lambda: check_command(options),
        "kill -9 and resume": lambda: check_kill(options),
        "60 steps in fp16": lambda: check_precision(options.data, "fp16"),
        "60 steps in bf16": lambda: check_precision(options.data, "bf16"),
        "out of memory under 12 GiB": lambda: check_out_of_memory(options.data),
    }
    for name, check in checks.items():
        if options.only and not any(word in name for word in options.only.split("|")):
            continue
        try:
            row = check()
        except Exception as error:
            row = {"name": name, "error": f"{type(error).__name__}: {error}"[:400]}
        append_row(options.out, "robust", row)
        free()


if __name__ == "__main__":
    main()
