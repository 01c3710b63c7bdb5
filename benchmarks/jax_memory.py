"""Memory of JAX's compiled training step, by the compiler's count, and the plan's formula.

    python benchmarks/jax_memory.py
    python benchmarks/jax_memory.py --resident

By default nothing is computed: each shape is compiled for this machine's CPU, some seconds each,
some minutes in total. The last stage of the compiler takes most of the time and no memory, and is
left out, with the same numbers. With `--resident` a few runs of three steps are trained, each in
its own process, and the kernel's peak is printed beside the plan's total.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax
import jax.numpy as jnp

from lowtide.jaxtraining.engine import compute_gradients
from lowtide.jaxtraining.network import Form
from lowtide.jaxtraining.trees import stacked_shapes
from lowtide.model.config import GPTConfig
from lowtide.model.sizing import loss_chunk_tokens
from lowtide.training.activations import jax_pass_bytes

# Layout, vocabulary, layers, width, rows, tokens, recomputed activations, bfloat16.
CASES = (
    ("qwen3", 8192, 8, 288, 8, 256, False, False),
    ("qwen3", 8192, 8, 288, 8, 256, True, False),
    ("qwen3", 8192, 8, 288, 1, 2048, False, False),
    ("qwen3", 8192, 8, 288, 1, 2048, True, False),
    ("qwen3", 8192, 16, 288, 8, 256, False, False),
    ("gpt2", 8192, 8, 288, 8, 256, False, False),
    ("gpt2", 8192, 8, 288, 8, 256, True, False),
    ("qwen3", 8192, 8, 288, 8, 256, False, True),
    ("qwen3", 8192, 8, 288, 8, 256, True, True),
    ("gpt2", 1024, 2, 3072, 1, 64, False, False),
    ("gpt2", 1024, 2, 3072, 1, 64, False, True),
    ("gpt2", 1024, 2, 1536, 1, 64, False, False),
    ("qwen3", 1024, 2, 1536, 1, 64, False, False),
    ("gpt2", 1024, 4, 1536, 1, 64, True, False),
    ("gpt2", 1024, 4, 1536, 1, 64, True, True),
    ("qwen3", 1024, 4, 1536, 1, 64, True, True),
    ("gpt2", 1024, 24, 768, 1, 64, False, False),
    ("gpt2", 1024, 24, 768, 1, 64, False, True),
    ("gpt2", 1024, 24, 768, 1, 64, True, True),
    ("gpt2", 8192, 8, 768, 1, 256, False, False),
    ("gpt2", 8192, 8, 768, 4, 256, False, False),
    ("qwen3", 8192, 4, 1536, 2, 256, False, False),
    ("qwen3", 8192, 4, 1536, 2, 256, True, True),
    ("qwen3", 50304, 2, 768, 8, 128, True, False),
    ("qwen3", 50304, 2, 768, 8, 128, True, True),
    ("qwen3", 32768, 2, 512, 2, 512, True, False),
    ("qwen3", 32768, 2, 512, 2, 512, True, True),
    ("qwen3", 50304, 2, 768, 1, 1024, True, False),
    ("qwen3", 50304, 2, 768, 1, 1024, True, True),
    ("qwen3", 32000, 2, 768, 16, 256, True, False),
    ("qwen3", 32000, 2, 768, 16, 256, True, True),
    ("gpt2", 50304, 12, 768, 8, 512, False, False),
    ("gpt2", 50304, 12, 768, 8, 512, False, True),
)
# Both layouts, with activations kept and recomputed, in both precisions, of each of these:
# vocabulary, layers, width, rows, tokens. A small vocabulary tests the block, a large one the loss.
SHAPES = (
    (256, 4, 768, 4, 256),
    (256, 4, 768, 1, 1024),
    (256, 4, 768, 1, 64),
    (256, 4, 288, 8, 256),
    (256, 3, 1536, 2, 256),
    (32768, 2, 288, 8, 256),
    (8192, 4, 768, 4, 256),
    (16384, 6, 512, 4, 512),
    (50304, 12, 768, 1, 256),
    (50304, 12, 768, 4, 1024),
)

# Runs of rows of 256 tokens, with a vocabulary of 8,192.
RUNS: tuple[dict[str, Any], ...] = (
    {"target_params": 10e6, "optimizer": "adamw", "batch_size": 2},
    {"target_params": 10e6, "optimizer": "muon", "batch_size": 2},
    {"target_params": 10e6, "optimizer": "adamw", "batch_size": 2, "use_mixed_precision": True},
    {
        "target_params": 10e6,
        "optimizer": "adamw",
        "batch_size": 8,
        "activation_checkpointing": True,
    },
    {"target_params": 40e6, "optimizer": "adamw", "batch_size": 2},
    {"target_params": 40e6, "optimizer": "muon", "batch_size": 2},
    {"target_params": 40e6, "optimizer": "adamw", "batch_size": 2, "use_8bit_optimizer": True},
)
TRAIN = """
import json, resource, sys
from pathlib import Path
from lowtide.loader.windows import TokenDataset
from lowtide.training.backends import open_backend
from lowtide.training.choosing import model_config
from lowtide.training.footprint import planned_bytes
from lowtide.training.settings import train_settings
from lowtide.training.trainer import Trainer

folder, options = sys.argv[1], json.loads(sys.argv[2])
settings = train_settings(
    backend="jax", max_iters=3, warmup=1, seq_len=256, log_interval=1, eval_interval=10**6,
    save_interval=10**6, device="cpu", memory="64GiB", checkpoints_dir=folder, model_name="run",
    overwrite=True, **options,
)
config = model_config(settings.model, 8192)
plan = planned_bytes(config, settings).total_bytes
data = TokenDataset(Path(folder) / "ids.npy", split="all", seq_len=256)
Trainer(open_backend("jax").new_model(config, seed=0), data=data, settings=settings).fit()
print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, plan]))
"""


def measure_runs() -> None:
    """Print the peak of each run, and its plan."""
    ours = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    with tempfile.TemporaryDirectory() as folder:
        ids = np.random.default_rng(0).integers(0, 8192, 200_000)
        np.save(Path(folder) / "ids.npy", ids.astype(np.uint16))
        for options in RUNS:
            command = [sys.executable, "-c", TRAIN, folder, json.dumps(options)]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=kept)
            peak, plan = json.loads(done.stdout.splitlines()[-1])
            words = ", ".join(f"{name} {value}" for name, value in options.items())
            sizes = f"peak {peak / (1 << 20):5.0f} MiB, plan {plan / (1 << 20):5.0f} MiB"
            print(f"{words}: {sizes}, {100 * (plan / peak - 1):+.1f} %", flush=True)


def temporary_bytes(config: GPTConfig, rows: int, tokens: int, *, again: bool, half: bool) -> int:
    """Memory of the compiled pass besides its arguments and results."""
    chunk = loss_chunk_tokens(config.vocab_size, on_gpu=False)
    dtype = "bfloat16" if half else "float32"
    form = Form(config, dtype=dtype, again=again, chunk_tokens=chunk)
    params = {
        name: jax.ShapeDtypeStruct(shape, jnp.float32)
        for name, shape in stacked_shapes(config).items()
    }
    ids = jax.ShapeDtypeStruct((1, rows, tokens), jnp.int32)
    weights = jax.ShapeDtypeStruct((1, rows), jnp.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    lowered = compute_gradients.lower(params, ids, ids, weights, key, form=form)
    return lowered.compile().memory_analysis().temp_size_in_bytes


def main() -> None:
    """Print a line for each shape, or each run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--resident", action="store_true")
    if parser.parse_args().resident:
        measure_runs()
        return
    print(f"{'shape':60} {'compiler':>9} {'plan':>9}")
    ways = itertools.product(SHAPES, ("qwen3", "gpt2"), (False, True), (False, True))
    cases = (*CASES, *((layout, *shape, again, half) for shape, layout, again, half in ways))
    differences: list[float] = []
    for layout, vocabulary, layers, width, rows, tokens, again, half in cases:
        count = {288: 9, 512: 8}.get(width, 12)
        heads = (4 if width == 512 else 3) if layout == "qwen3" else count
        config = GPTConfig(
            vocabulary, tokens, layers, width, count, num_kv_heads=heads, layout=layout
        )
        found = temporary_bytes(config, rows, tokens, again=again, half=half)
        parts = jax_pass_bytes(config, rows=rows, tokens=tokens, half=half, checkpointing=again)
        plan = sum(parts)
        differences.append(100 * (plan / found - 1))
        name = f"{layout} {layers} x {width}, {rows} x {tokens}, vocabulary {vocabulary}"
        name += f"{', bf16' if half else ''}{', again' if again else ''}"
        sizes = f"{found / (1 << 20):5.0f} MiB {plan / (1 << 20):5.0f} MiB"
        print(f"{name:60} {sizes} {differences[-1]:+5.1f} %", flush=True)
    mean = sum(map(abs, differences)) / len(differences)
    ends = f"from {min(differences):.1f} to {max(differences):.1f} %"
    print(f"{len(differences)} shapes: {ends}, {mean:.1f} % in the mean")


if __name__ == "__main__":
    main()
