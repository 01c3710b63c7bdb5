"""Train a tiny model and measure the program's memory; run as a program, it prints JSON.

In:      arguments: plain, recompute, 8bit, compile or jax; the device
Out:     stdout: the fields of Program
Memory:  what training imports and loads on demand
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

import numpy as np

from lowtide.loader.windows import TokenDataset
from lowtide.memory import PeakMeter, tree_resident_bytes
from lowtide.model.config import GPTConfig
from lowtide.scratch import scratch_folder
from lowtide.tokenizer import Tokenizer
from lowtide.training import start
from lowtide.training.backends import Backend, open_backend
from lowtide.training.trainer import Trainer

__all__ = ["train_next_to_nothing"]

_VOCABULARY = 62
# When compiling, each kind of kernel counts; width and rows are large enough to get the real ones.
_SHAPE = GPTConfig(vocab_size=64, context_length=16, num_layers=1, width=64, num_heads=2)
# JAX compiles a single layer without the loop over layers: 40 MiB less.
_JAX_LAYERS = 2
# Its compiler's threads meet by chance: six probes took 496 to 535 MiB, and 16 runs of one command
# 524 to 596.
_JAX_SPREAD_BYTES = 40 << 20


def train_next_to_nothing(folder: Path, backend: Backend, *, part: str, device: str) -> None:
    """Do everything that a run does, once: steps, evaluation, a sample, a checkpoint."""
    tokenizer = Tokenizer.from_characters(map(chr, range(0x100, 0x100 + _VOCABULARY)))
    ids = np.random.default_rng(0).integers(2, _VOCABULARY, 1000).astype(np.uint16)
    np.save(folder / "ids.npy", ids)
    data = TokenDataset(folder / "ids.npy", split="all", seq_len=16)
    shape = _SHAPE.replace(num_layers=_JAX_LAYERS) if part == "jax" else _SHAPE
    Trainer(
        backend.new_model(shape, seed=0),
        data=data,
        val_data=data,
        tokenizer=tokenizer,
        checkpoints_dir=folder,
        max_iters=2,
        eval_interval=1,
        eval_iters=1,
        batch_size=2,
        sample_tokens=2,
        optimizer="adamw" if part == "8bit" else "muon",
        use_8bit_optimizer=part == "8bit",
        compile=part == "compile",
        activation_checkpointing=part == "recompute",
        device=device,
        memory="1TiB",
    ).fit()


def main() -> None:
    """Measure, and print the answer as the last line."""
    part, device = sys.argv[1:]
    backend = open_backend("jax" if part == "jax" else "torch")
    imported = tree_resident_bytes()
    with (
        PeakMeter(whole_process=True) as meter,
        scratch_folder("probe") as folder,
        contextlib.redirect_stdout(sys.stderr),
    ):
        train_next_to_nothing(folder, backend, part=part, device=device)
        peak = meter.peak_bytes
    answer = {
        "imported_bytes": imported,
        "trained_bytes": peak + (_JAX_SPREAD_BYTES if part == "jax" else 0),
        "device": backend.device_kind(device),
    }
    print(json.dumps(answer), flush=True)
    # Unloading CUDA's libraries touches more of their memory than using them: 110 MiB and a second.
    os._exit(0)


assert start.train is not None  # imported for what it loads: the same modules as a command's

if __name__ == "__main__":
    main()
