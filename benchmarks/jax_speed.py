"""Speed of both backends on this machine, alternately, on the same data.

    python benchmarks/jax_speed.py --params 10e6 --steps 8 --rounds 2
    python benchmarks/jax_speed.py --params 124e6 --rows 2 --steps 5 --rounds 1
    python benchmarks/jax_speed.py --layers 12 --width 768 --heads 6 --device gpu --half \
        --rows 32 --tokens 1024 --vocabulary 50304 --steps 60 --every 10 --rounds 1

Each round trains with torch and with JAX in separate processes; the first steps, which load and
compile, are left out. AdamW; float32, or bfloat16 with `--half`. On a GPU torch compiles too, and
`jax-plain` (`--backends`) is JAX without the attention of cuDNN. With `--every 10` the loss is read
only after ten steps, as in runs, so that a device need not wait for its host. Besides the tokens
per second, those per second of processor time of all threads are printed, which other work on the
machine hardly changes.
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

CODE = """
import json, sys, time
from pathlib import Path
from lowtide.loader.windows import TokenDataset
from lowtide.model.program import program_here
from lowtide.training.backends import open_backend
from lowtide.training.choosing import model_config
from lowtide.training.footprint import planned_bytes
from lowtide.training.settings import train_settings
from lowtide.training.trainer import Trainer

given = json.loads(sys.argv[1])
folder, backend, tokens = given["folder"], given["backend"], given["tokens"]
on_gpu = given["device"] == "gpu"
if backend == "jax-plain":
    from lowtide.jaxtraining import engine
    engine.can_fuse = lambda *shape: False
    backend = "jax"
shape = {"target_params": given["params"]}
if given["layers"]:
    shape = {"num_layers": given["layers"], "width": given["width"], "num_heads": given["heads"]}
seen = []
def note(event):
    if event.step % given["every"] == 0:
        seen.append((float(event.loss), time.perf_counter(), time.process_time()))
settings = train_settings(
    backend=backend, **shape, max_iters=given["steps"], seq_len=tokens,
    batch_size=given["rows"], optimizer="adamw", warmup=1, log_interval=given["every"],
    eval_interval=10**6, save_interval=10**6, device="cuda" if on_gpu else "cpu", memory="64GiB",
    use_mixed_precision=given["half"], compile=on_gpu and backend == "torch",
    checkpoints_dir=folder, model_name=given["backend"], overwrite=True,
)
config = model_config(settings.model, given["vocabulary"])
data = TokenDataset(Path(folder) / "ids.npy", split="all", seq_len=tokens)
model = open_backend(backend).new_model(config, seed=0)
Trainer(model, data=data, settings=settings, on_step=note).fit()
rows = map(json.loads, (Path(folder) / given["backend"] / "metrics.jsonl").open())
peak = max(row.get("device_peak_bytes", 0) for row in rows)
program = program_here(0, backend=backend)  # which is there: no other process need measure it
plan = planned_bytes(config, settings, on_gpu=on_gpu, program=program).device_bytes
print(json.dumps([peak, plan]))
print(json.dumps(seen))
"""


def measure(folder: Path, backend: str, options: argparse.Namespace) -> str:
    """Return a line with medians of tokens per second, the last loss, and the GPU's peak, if any.

    The planned peak is printed beside it.
    """
    given = {**vars(options), "folder": str(folder), "backend": backend}
    command = [sys.executable, "-c", CODE, json.dumps(given)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (peak, plan), seen = map(json.loads, done.stdout.splitlines()[-2:])
    seen = seen[1:]
    tokens = options.rows * options.tokens * options.every
    speeds = [
        statistics.median(tokens / (after[i] - before[i]) for before, after in pairwise(seen))
        for i in (1, 2)
    ]
    rates = f"{speeds[0]:8.0f} tokens/s {speeds[1]:8.0f} a second of the processor"
    held = f", {peak / 2**30:.2f} GiB of {plan / 2**30:.2f} planned" if peak else ""
    return f"{rates}   loss {seen[-1][0]:.5f}{held}"


def main() -> None:
    """Print a line for each process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=float, default=10e6)
    parser.add_argument("--layers", type=int, help="this shape instead of --params")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--every", type=int, default=1, help="steps between two losses read")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--backends", nargs="+", default=["torch", "jax"])
    parser.add_argument("--tokens", type=int, default=256, help="of a row")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--half", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ids = np.random.default_rng(0).integers(0, options.vocabulary, 2_000_000)
        np.save(folder / "ids.npy", ids.astype(np.uint16))
        for _ in range(options.rounds):
            for backend in options.backends:
                print(f"{backend:9} {measure(folder, backend, options)}", flush=True)


if __name__ == "__main__":
    main()
