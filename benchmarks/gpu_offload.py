"""The largest model for a part of a GPU: steps on each rung of --offload, memory and speed.

The allocator is capped (600 MiB of the GPU are left for its context); every step sees other rows of
the data. Initial weights are drawn on the GPU, which is faster and gives other numbers than a run.

    python benchmarks/gpu_offload.py --vram 8 --params 7e9 --offload layers --rows 2 --parts 8
    python benchmarks/gpu_offload.py --vram 0 --params 2.5e9 --offload packed   (the whole GPU)
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Set before torch starts: reduces fragmentation of a small memory.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import numpy as np
import torch
from torch import Tensor

from lowtide.ladder import network
from lowtide.ladder.engine import LadderEngine
from lowtide.ladder.network import PackedGPT
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.sizing import count_parameters, shape_for_parameters
from lowtide.training.distributed import ProcessGroup
from lowtide.training.offloading import offload_bytes
from lowtide.training.settings import TrainSettings, train_settings
from lowtide.training.state import RunState

VOCAB, CONTEXT = 50304, 1024
CONTEXT_GIB = 0.6


def first_weights(config: GPTConfig, seed: int, *, zero_init: bool) -> Iterator[tuple[str, Tensor]]:
    """Draw weights on the GPU, some at a time; each replaces the one before in memory."""
    with torch.device("meta"):
        outline = GPT(config)
    room = torch.empty(max(parameter.numel() for parameter in outline.parameters()))
    generator = torch.Generator("cuda").manual_seed(seed)
    for name, parameter in outline.named_parameters():
        if parameter.ndim < 2:
            yield name, torch.full(parameter.shape, 0.0 if name.endswith("bias") else 1.0)
            continue
        residual = name.endswith(("attention.output.weight", "mlp.down.weight"))
        std = 0.02 / math.sqrt(2 * config.num_layers) if residual else 0.02
        value = room[: parameter.numel()]
        for part in value.split(1 << 24):
            part.copy_(torch.randn(part.numel(), generator=generator, device="cuda") * std)
        yield name, value.view(parameter.shape)


def batch(path: Path, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows from random offsets in a file of uint16 ids."""
    ids = np.memmap(path, np.uint16, "r")
    starts = np.random.default_rng(seed).integers(0, len(ids) - CONTEXT - 1, rows)
    found = np.stack([ids[start : start + CONTEXT + 1].astype(np.int64) for start in starts])
    there = torch.from_numpy(found).cuda()
    return there[:, :-1].contiguous(), there[:, 1:].contiguous()


def run_settings(options: argparse.Namespace, rung: str, scratch_dir: Path | None) -> TrainSettings:
    """The settings of a run on a rung; with a folder for its scratch files, if any."""
    return train_settings(
        offload=rung,
        batch_size=options.rows,
        gradient_accumulation_steps=options.parts,
        seq_len=CONTEXT,
        learning_rate=options.learning_rate,
        optimizer=options.optimizer,
        use_mixed_precision=True,
        compile=options.compile,
        offload_dir=scratch_dir if rung.startswith("disk") else None,
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run some steps; return losses, times and peaks, and the planned numbers."""
    config = shape_for_parameters(options.params, vocab_size=VOCAB, context_length=CONTEXT)
    settings = run_settings(options, options.offload, options.offload_dir)
    state, rows = RunState(micro_batch=options.rows), options.rows * options.parts
    group = ProcessGroup(0, 1, torch.device("cuda"))
    began = time.perf_counter()
    engine = LadderEngine(PackedGPT(config, seed=1), settings, state, group, rows=rows, note=print)
    filled = time.perf_counter() - began
    losses, seconds = [], []
    for step in range(options.steps):
        inputs, targets = batch(options.data, rows, step)
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = engine.compute(inputs, targets)
        engine.update(loss, min(1.0, (step + 1) / 5))
        engine.wait()
        seconds.append(time.perf_counter() - start)
        losses.append(round(loss.item(), 3))
        state.step += 1
    plan = offload_bytes(config, settings, rows=state.micro_batch, on_gpu=True)
    planned = plan.weights + plan.gradients + plan.optimizer
    planned += max(plan.activations + plan.loss, plan.update)
    tokens = rows * CONTEXT
    return {
        "vram": options.vram,
        "params": count_parameters(config),
        "shape": [config.num_layers, config.width],
        "offload": options.offload,
        "optimizer": options.optimizer,
        "learning_rate": options.learning_rate,
        "rows": options.rows,
        "parts": options.parts,
        "compile": options.compile,
        "first_weights_seconds": round(filled, 1),
        "losses": losses,
        "tokens_per_second": round(tokens / statistics.median(seconds[2:])),
        "device_peak_bytes": torch.cuda.max_memory_allocated(),
        "planned_device_bytes": planned,
        "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "planned_host_bytes": plan.host,
    }


def add_run_flags(parser: argparse.ArgumentParser, *, steps: int) -> None:
    """The flags of a measured run, for all programs."""
    parser.add_argument("--params", type=lambda text: int(float(text)), required=True)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--learning-rate", type=float, default=3e-6)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--data", type=Path, default=Path("carry/data/train.bin"))
    parser.add_argument("--out", type=Path, default=Path("offload.jsonl"))


def keep_row(row: dict[str, Any], path: Path) -> None:
    """Print the measurements, and append them to a file."""
    print(json.dumps(row))
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def main() -> None:
    """Measure one case and store its row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vram", type=float, default=0.0, help="GiB; 0 for all there is")
    add_run_flags(parser, steps=10)
    parser.add_argument("--offload", default="packed")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--offload-dir", type=Path, default=Path())
    options = parser.parse_args()
    if options.vram:
        total = torch.cuda.get_device_properties(0).total_memory
        share = (options.vram - CONTEXT_GIB) * 2**30 / total
        torch.cuda.set_per_process_memory_fraction(share)
    network._first_weights = first_weights
    keep_row(measure(options), options.out)


if __name__ == "__main__":
    main()
