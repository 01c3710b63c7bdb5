"""Speed of both backends on this machine's CPU, in turn, on the same data.

    python benchmarks/jax_speed.py --params 10e6 --steps 8 --rounds 2
    python benchmarks/jax_speed.py --params 124e6 --rows 2 --steps 5 --rounds 1

Each round trains with torch and with JAX in a process of its own; the first two steps, which load
and compile, are left out. Float32, AdamW, rows of 256 tokens. Beside the tokens of a second stand
those of a second of processor time, of all threads together, which other work on the machine hardly
changes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np

VOCABULARY, TOKENS = 8192, 256
CODE = """
import json, sys, time
from pathlib import Path
from lowtide.loader.windows import TokenDataset
from lowtide.training.backends import open_backend
from lowtide.training.choosing import model_config
from lowtide.training.settings import train_settings
from lowtide.training.trainer import Trainer

folder, backend, params, steps, rows = sys.argv[1:]
seen = []
def note(event):
    seen.append((float(event.loss), time.perf_counter(), time.process_time()))
settings = train_settings(
    backend=backend, target_params=float(params), max_iters=int(steps), seq_len=256,
    batch_size=int(rows), optimizer="adamw", warmup=1, log_interval=1, eval_interval=10**6,
    save_interval=10**6, device="cpu", memory="64GiB", checkpoints_dir=folder,
    model_name=backend, overwrite=True,
)
config = model_config(settings.model, 8192)
data = TokenDataset(Path(folder) / "ids.npy", split="all", seq_len=256)
model = open_backend(backend).new_model(config, seed=0)
Trainer(model, data=data, settings=settings, on_step=note).fit()
print(json.dumps(seen))
"""


def measure(folder: Path, backend: str, options: argparse.Namespace) -> tuple[float, float, float]:
    """Return medians of tokens per second, per second of the processor, and the last loss."""
    words = [folder, backend, options.params, options.steps, options.rows]
    command = [sys.executable, "-c", CODE, *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seen = json.loads(done.stdout.splitlines()[-1])[1:]
    tokens = options.rows * TOKENS
    speeds = [
        statistics.median(tokens / (after[i] - before[i]) for before, after in pairwise(seen))
        for i in (1, 2)
    ]
    return speeds[0], speeds[1], seen[-1][0]


def main() -> None:
    """Print a line for each process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=float, default=10e6)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ids = np.random.default_rng(0).integers(0, VOCABULARY, 200_000)
        np.save(folder / "ids.npy", ids.astype(np.uint16))
        for _ in range(options.rounds):
            for backend in ("torch", "jax"):
                speed, busy, loss = measure(folder, backend, options)
                rates = f"{speed:8.0f} tokens/s {busy:8.0f} a second of the processor"
                print(f"{backend:6} {rates}   loss {loss:.5f}", flush=True)


if __name__ == "__main__":
    main()
