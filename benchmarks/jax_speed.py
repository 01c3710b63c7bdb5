"""Tokens per second of both backends on this machine's CPU, in turn, on the same data.

    python benchmarks/jax_speed.py --params 10e6 --steps 8 --rounds 2

Each round trains with torch and with JAX in a process of its own; the first two steps, which load
and compile, are left out. Float32, AdamW, rows of 256 tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

VOCABULARY, TOKENS, ROWS = 8192, 256, 8
CODE = """
import sys
from pathlib import Path
from lowtide.loader.windows import TokenDataset
from lowtide.training.backends import open_backend
from lowtide.training.choosing import model_config
from lowtide.training.settings import train_settings
from lowtide.training.trainer import Trainer

folder, backend, params, steps = sys.argv[1:]
settings = train_settings(
    backend=backend, target_params=float(params), max_iters=int(steps), seq_len=256, batch_size=8,
    optimizer="adamw", warmup=1, log_interval=1, eval_interval=10**6, save_interval=10**6,
    device="cpu", memory="64GiB", checkpoints_dir=folder, model_name=backend, overwrite=True,
)
config = model_config(settings.model, 8192)
data = TokenDataset(Path(folder) / "ids.npy", split="all", seq_len=256)
Trainer(open_backend(backend).new_model(config, seed=0), data=data, settings=settings).fit()
"""


def measure(folder: Path, backend: str, params: float, steps: int) -> tuple[float, float]:
    """Return the median of tokens per second, and the last loss."""
    command = [sys.executable, "-c", CODE, str(folder), backend, str(params), str(steps)]
    subprocess.run(command, check=True, capture_output=True)
    rows = map(json.loads, (folder / backend / "metrics.jsonl").read_text().splitlines())
    steps_seen = [row for row in rows if row.get("event") == "step"]
    speeds = [row["tokens_per_second"] for row in steps_seen[2:]]
    return statistics.median(speeds), steps_seen[-1]["loss"]


def main() -> None:
    """Print a line for each process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=float, default=10e6)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ids = np.random.default_rng(0).integers(0, VOCABULARY, 200_000)
        np.save(folder / "ids.npy", ids.astype(np.uint16))
        for _ in range(options.rounds):
            for backend in ("torch", "jax"):
                speed, loss = measure(folder, backend, options.params, options.steps)
                print(f"{backend:6} {speed:8.0f} tokens/s   loss {loss:.5f}", flush=True)


if __name__ == "__main__":
    main()
