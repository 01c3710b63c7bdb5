"""Validation loss on Shakespeare's characters in equal processor time: nanoGPT's recipe and ours.

The recipe is 4 layers, width 128, context 64, batch 12, 2000 steps of AdamW (nanoGPT publishes a
validation loss of 1.88 for it). Ours is `configs/small_char.json`'s shape with as many steps as fit
into the processor time the plain loop took. One thread each and processor time instead of the wall
clock, so that other jobs on the machine disturb neither.

    python benchmarks/shakespeare_cpu.py tinyshakespeare.txt
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.tokenizer import Tokenizer
from lowtide.training.distributed import open_process_group
from lowtide.training.evaluation import evaluate_loss
from lowtide.training.loop import Trainer
from train_cpu import PlainLoop

STEPS = 2000
BATCH = 12
CONTEXT = 64


def train_plain(vocab_size: int, path: Path, steps: int) -> tuple[nn.Module, float]:
    """Train by the recipe; give the network and the processor seconds."""
    loop = PlainLoop(GPTConfig(vocab_size, CONTEXT, 4, 128, 4, layout="gpt2"), BATCH, path)
    torch.manual_seed(1337)
    for name, parameter in loop.model.named_parameters():
        if parameter.ndim == 2:
            residual = "project" in name or "down" in name
            nn.init.normal_(parameter, std=0.02 / math.sqrt(8) if residual else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    start = time.process_time()
    for step in range(0, steps, 10):
        progress = (step - 100) / (steps - 100)
        cosine = 1e-4 + 0.5 * 9e-4 * (1 + math.cos(math.pi * progress))
        for group in loop.optimizer.param_groups:
            group["lr"] = 1e-3 * (step + 1) / 100 if step < 100 else cosine
            group["betas"] = (0.9, 0.99)
        loop.run(10)
    return loop.model, time.process_time() - start


def train_ours(
    vocab_size: int, path: Path, seconds: float, optimizer: str
) -> tuple[nn.Module, int, float]:
    """Train with lowtide for as many steps as fit; give network, steps, processor seconds."""

    def trainer(steps: int) -> Trainer:
        torch.manual_seed(1337)
        config = GPTConfig(vocab_size, CONTEXT, 4, 128, 4)
        trainer = Trainer(
            GPT(config),
            data=TokenDataset(path, split="all", sequence_length=CONTEXT),
            batch_size=BATCH,
            max_iters=steps,
            optimizer=optimizer,
            order="random",
            checkpoints_dir=path.parent,
            device="cpu",
        )
        with open_process_group("cpu") as group:
            trainer.prepare(group)
        return trainer

    def run(trainer: Trainer, steps: int) -> float:
        start = time.process_time()
        for _ in range(steps):
            trainer.train_step()
        trainer.feed.close()
        return time.process_time() - start

    warm = trainer(1000)
    for _ in range(5):
        warm.train_step()
    steps = int(seconds / (run(warm, 30) / 30))
    whole = trainer(steps)
    return whole.model, steps, run(whole, steps)


def main() -> None:
    """Print the losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = options.text.read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_characters(sorted(set(text)))
    ids = tokenizer.encode(text).astype(np.uint16)
    boundary = int(len(ids) * 0.9)
    with tempfile.TemporaryDirectory() as folder:
        path, val_path = Path(folder) / "train.npy", Path(folder) / "val.npy"
        np.save(path, ids[:boundary])
        np.save(val_path, ids[boundary:])
        val = TokenDataset(val_path, split="all", sequence_length=CONTEXT)

        def loss_of(network: nn.Module) -> float:
            cpu = torch.device("cpu")
            return evaluate_loss(network, val, device=cpu, batch_size=64).loss

        network, seconds = train_plain(tokenizer.vocab_size, path, options.steps)
        print(f"plain, AdamW: {options.steps} steps, {seconds:.0f} s, loss {loss_of(network):.4f}")
        for optimizer in ("adamw", "muon"):
            network, steps, spent = train_ours(tokenizer.vocab_size, path, seconds, optimizer)
            print(
                f"lowtide, {optimizer}: {steps} steps, {spent:.0f} s, loss {loss_of(network):.4f}"
            )


if __name__ == "__main__":
    main()
