"""Validation loss on Shakespeare's characters in equal time: nanoGPT's CPU recipe, then ours.

The recipe is 4 layers, width 128, context 64, batch 12, 2000 steps of AdamW, no dropout (nanoGPT
publishes a validation loss of 1.88 for it), in a plain loop that does nothing but train. Ours is
one command a user could copy, its evaluations, samples and checkpoints counted in:

    lowtide train --input-file TEXT --tokenization char --config-file small_char

with --max-hours set to the time of the plain loop. Both have the same number of threads and
alternate, seed by seed. Losses are over the whole validation split (the last tenth of the text).

    python benchmarks/shakespeare_cpu.py tinyshakespeare.txt

On a machine with other jobs wall time means little: --limit processor gives both the same processor
time, on one thread each. Ours then gets as many steps as fit according to a short trial; the
seconds shown are without the start of the program and its first and last evaluation.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.weights import load_model
from lowtide.tokenizer import Tokenizer
from lowtide.training.evaluation import evaluate_loss
from train_cpu import PlainLoop

BATCH, CONTEXT = 12, 64
TRIAL_STEPS = (20, 120)


@dataclass(frozen=True)
class Outcome:
    """The result of one training run."""

    steps: int
    seconds: float
    loss: float


class Bench:
    """The text, split once for both, and the two ways to train on it."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        text = options.text.read_text(encoding="utf-8")
        tokenizer = Tokenizer.from_characters(sorted(set(text)))
        self.vocab_size = tokenizer.vocab_size
        ids = tokenizer.encode(text).astype(np.uint16)
        boundary = len(ids) - len(ids) // 10
        self.train_path, val_path = folder / "train.npy", folder / "val.npy"
        np.save(self.train_path, ids[:boundary])
        np.save(val_path, ids[boundary:])
        self.val = TokenDataset(val_path, split="all", seq_len=CONTEXT)

    def loss_of(self, network: nn.Module) -> float:
        """Return the loss over the whole validation split."""
        return evaluate_loss(network, self.val, device=torch.device("cpu"), batch_size=64).loss

    def clock(self) -> float:
        """Return the seconds that count, of this process."""
        processor = self.options.limit == "processor"
        return time.process_time() if processor else time.perf_counter()

    def train_plain(self, seed: int) -> Outcome:
        """Train with the recipe."""
        config = GPTConfig(self.vocab_size, CONTEXT, 4, 128, 4, layout="gpt2")
        loop = PlainLoop(config, BATCH, self.train_path, betas=(0.9, 0.99))
        torch.manual_seed(seed)
        initialize_plain(loop.model)
        steps, start = self.options.steps, self.clock()
        for step in range(steps):
            for group in loop.optimizer.param_groups:
                group["lr"] = recipe_rate(step, steps)
            loop.run(1)
        seconds = self.clock() - start
        return Outcome(steps, seconds, self.loss_of(loop.model))

    def train_ours(self, seed: int, seconds: float) -> Outcome:
        """Train with one command for the same time."""
        name = f"ours-{seed}"
        if self.options.limit == "clock":
            spent = self.command(name, seed, "--max-hours", str(seconds / 3600))
        else:
            few, many = (
                self.command(f"trial-{steps}-{seed}", seed, "--max-iters", str(steps))
                for steps in TRIAL_STEPS
            )
            per_step = (many - few) / (TRIAL_STEPS[1] - TRIAL_STEPS[0])
            start_up = few - TRIAL_STEPS[0] * per_step
            wanted = str(max(1, int(seconds / per_step)))
            spent = self.command(name, seed, "--max-iters", wanted) - start_up
        rows = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").open()]
        last = [row for row in rows if row.get("event") == "step"][-1]
        if self.options.limit == "clock":
            spent = last["elapsed_seconds"]
        return Outcome(last["step"], spent, self.loss_of(load_model(self.folder / name)))

    def command(self, name: str, seed: int, *words: str) -> float:
        """Run `lowtide train`; return its processor seconds, including start and end."""
        command = [
            *(sys.executable, "-m", "lowtide", "train", "--input-file", str(self.options.text)),
            *("--tokenization", "char", "--config-file", str(self.options.config)),
            *("--checkpoints-dir", str(self.folder), "--model-name", name),
            *("--seed", str(seed), "--device", "cpu", *words),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def recipe_rate(step: int, steps: int) -> float:
    """Return nanoGPT's learning rate: a hundred steps of warm-up, cosine from 1e-3 to 1e-4."""
    if step < 100:
        return 1e-3 * (step + 1) / 101
    progress = (step - 100) / max(1, steps - 100)
    return 1e-4 + 0.5 * 9e-4 * (1 + math.cos(math.pi * progress))


def initialize_plain(model: nn.Module) -> None:
    """Draw the initial weights as nanoGPT does."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            residual = "project" in name or "down" in name
            nn.init.normal_(parameter, std=0.02 / math.sqrt(8) if residual else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def main() -> None:
    """Print a row per run, then the means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=2000, help="of the plain loop")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--limit", choices=("clock", "processor"), default="clock")
    parser.add_argument("--config", default="small_char")
    options = parser.parse_args()
    threads = 1 if options.limit == "processor" else options.threads
    if threads:
        torch.set_num_threads(threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, same {options.limit}")
    losses: dict[str, list[float]] = {"plain loop": [], "lowtide": []}
    with tempfile.TemporaryDirectory(prefix="lowtide-") as folder:
        bench = Bench(options, Path(folder))
        for seed in options.seeds:
            plain = bench.train_plain(seed)
            ours = bench.train_ours(seed, plain.seconds)
            for label, outcome in (("plain loop", plain), ("lowtide", ours)):
                losses[label].append(outcome.loss)
                print(
                    f"seed {seed}  {label:<10}  {outcome.steps:>5} steps  "
                    f"{outcome.seconds:>6.1f} s  validation loss {outcome.loss:.4f}",
                    flush=True,
                )
    for label, values in losses.items():
        print(f"mean of {len(values)}: {label:<10}  validation loss {statistics.mean(values):.4f}")


if __name__ == "__main__":
    main()
