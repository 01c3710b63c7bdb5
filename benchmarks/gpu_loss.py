"""Loss for the clock: the lowest validation loss in a number of seconds of training steps.

Compilation and evaluation do not count. Every run sees the same tokens, is validated on all
windows of the same held-out file, and has as many steps as fit into the seconds: the step is
timed over the first twenty, and the schedule ends with the clock.

    python benchmarks/gpu_loss.py "baseline" --seconds 178
    python benchmarks/gpu_loss.py "smaller batch" --set batch_size=32 learning_rate=2e-3 seed=1
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from gpu import CONTEXT, SHAPES, append_row, make_trainer
from lowtide.loader.windows import TokenDataset
from lowtide.training.loop import Trainer
from lowtide.training.schedule import RunLength

RECIPE: dict[str, Any] = {
    "use_mixed_precision": True,
    "compile": True,
    "compile_whole": True,
    "float8_head": True,
    "float8_blocks": True,
    "attention": "cudnn",
    "batch_size": 64,
    "gradient_accumulation_steps": 1,
    "optimizer": "muon",
    "learning_rate": 2e-3,
    "schedule": "linear-decay",
    "decay_fraction": 0.7,
    "final_learning_rate": 0.0,
    "warmup": 40,
    "momentum_warmup": 300,
    "zero_init": True,
    "eval_iters": 100,
    "log_interval": 100,
}
TIMED_STEPS = 20


def timed(trainer: Trainer, steps: int) -> float:
    """Return the seconds of `steps` steps, the device's work included."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        trainer.train_step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def train_for(
    trainer: Trainer, val: TokenDataset, *, seconds: float, steps: int | None, points: int
) -> dict[str, Any]:
    """Train until the seconds are over, or so many steps; give the curve and the last loss."""
    timed(trainer, 3)  # compiles; these steps count as three of the later ones
    step_seconds = timed(trainer, TIMED_STEPS) / TIMED_STEPS
    used = step_seconds * (TIMED_STEPS + 3)
    steps = steps or int(seconds / step_seconds)
    trainer.length = RunLength(trainer.settings.length, trainer.settings.learning, steps)
    curve: list[tuple[int, float, float, float]] = []
    for point in range(1, points + 1):
        until = steps * point // points
        used += timed(trainer, max(0, until - trainer.state.step))
        counters = trainer.counters
        train_loss = float(counters.loss / counters.steps)
        counters.loss.zero_()
        counters.steps.zero_()
        val_loss = trainer.evaluator.evaluate_one(val).loss
        curve.append((trainer.state.step, round(used, 1), train_loss, val_loss))
        print(f"step {until} {used:.0f} s: train {train_loss:.4f} val {val_loss:.4f}", flush=True)
    tokens = trainer.settings.tokens_per_step
    return {
        "val_loss": curve[-1][3],
        "seconds": used,
        "steps": steps,
        "tokens_per_second": steps * tokens / used,
        "curve": curve,
    }


def parse_changes(words: list[str]) -> dict[str, Any]:
    """Read NAME=VALUE, values as JSON where they are JSON."""
    changes: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            changes[name] = json.loads(value)
        except json.JSONDecodeError:
            changes[name] = value
    return changes


def main() -> None:
    """Run one case and keep its row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--shape", default="qwen3, 6 heads")
    parser.add_argument("--seconds", type=float, default=178.0)
    parser.add_argument("--steps", type=int, help="a number of steps instead of seconds")
    parser.add_argument("--points", type=int, default=6)
    parser.add_argument("--data", type=Path, default=Path("carry/data/train.bin"))
    parser.add_argument("--val-data", type=Path, default=Path("carry/data/val.bin"))
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"))
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    settings = {**RECIPE, **parse_changes(options.set)}
    config = SHAPES[options.shape].replace(dropout=settings.get("dropout", 0.0))
    trainer = make_trainer(config, options.data, **settings)
    val = TokenDataset(options.val_data, split="all", seq_len=CONTEXT, dtype="uint16")
    row = train_for(
        trainer, val, seconds=options.seconds, steps=options.steps, points=options.points
    )
    trainer.feed.close()
    append_row(
        options.out,
        "loss",
        {"name": options.name, "shape": options.shape, "settings": settings, **row},
    )


if __name__ == "__main__":
    main()
