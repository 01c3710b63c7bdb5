"""Loss in equal time: the lowest validation loss in a number of seconds of training steps.

Compilation and evaluation do not count. Every run sees the same tokens, is validated on all
windows of the same held-out file, and has as many steps as fit into the seconds: the step is
timed over the first twenty, and the schedule ends with the time.

    python benchmarks/gpu_loss.py "baseline" --seconds 178
    python benchmarks/gpu_loss.py "smaller batch" --set batch_size=32 learning_rate=2e-3 seed=1
    python benchmarks/gpu_loss.py "as it comes" --preset fastest-small-data --set seed=2
    python benchmarks/gpu_loss.py "small" --preset small-data --layers 8 --width 512 --steps 640 \
        --tokens 6250000 --set batch_size=32 dropout=0.05
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from gpu import CONTEXT, SHAPES, append_row, make_steps
from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.settings import read_preset
from lowtide.training.results import RunEvaluator
from lowtide.training.schedule import RunLength
from lowtide.training.settings import TrainSettings
from lowtide.training.steps import Steps

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
# Settings of presets that a run of minutes does not use.
OF_LONG_RUNS = ("max_hours", "eval_interval", "save_interval")
OF_THE_SHAPE = ("layout", "num_layers", "width", "num_heads", "num_kv_heads", "seq_len")
HEAD_DIM = 128


def timed(ready: Steps, steps: int) -> float:
    """Return the seconds of `steps` steps, including the device's work."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        ready.train_step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def train_for(
    ready: Steps,
    settings: TrainSettings,
    val: TokenDataset,
    *,
    seconds: float,
    steps: int | None,
    points: int,
) -> dict[str, Any]:
    """Train until the time is over, or for some steps; return the curve and the last loss."""
    timed(ready, 3)  # compiles; these steps count as three of the later ones
    step_seconds = timed(ready, TIMED_STEPS) / TIMED_STEPS
    used = step_seconds * (TIMED_STEPS + 3)
    steps = steps or int(seconds / step_seconds)
    ready.length = RunLength(settings.length, settings.learning, steps)
    evaluator = RunEvaluator(
        ready.engine,
        settings,
        ready.group,
        rows=settings.batch.rows_per_step,
        datasets={},
        tokenizer=None,
    )
    curve: list[tuple[int, float, float, float]] = []
    for point in range(1, points + 1):
        until = steps * point // points
        used += timed(ready, max(0, until - ready.state.step))
        counters = ready.counters
        train_loss = float(counters.loss / counters.steps)
        counters.loss.zero_()
        counters.steps.zero_()
        val_loss = evaluator.evaluate_one(val, "val", lambda _: None).loss
        curve.append((ready.state.step, round(used, 1), train_loss, val_loss))
        print(f"step {until} {used:.0f} s: train {train_loss:.4f} val {val_loss:.4f}", flush=True)
    tokens = settings.tokens_per_step
    return {
        "val_loss": curve[-1][3],
        "seconds": used,
        "steps": steps,
        "tokens_per_second": steps * tokens / used,
        "curve": curve,
    }


def parse_changes(words: list[str]) -> dict[str, Any]:
    """Parse NAME=VALUE, with values as JSON if they are valid JSON."""
    changes: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            changes[name] = json.loads(value)
        except json.JSONDecodeError:
            changes[name] = value
    return changes


def preset_recipe(
    name: str, layers: int | None, width: int | None, kv_heads: int | None
) -> tuple[GPTConfig, Any]:
    """The shape of a preset, or another one of its layout, and its other settings.

    Its number of heads of keys and values is that of its own width; another width has all heads.
    """
    values = read_preset(name, for_settings=TrainSettings)
    for left_out in OF_LONG_RUNS:
        values.pop(left_out, None)
    shape = {field: values.pop(field) for field in OF_THE_SHAPE if field in values}
    if kv_heads is None and width in (None, shape["width"]):
        kv_heads = shape.get("num_kv_heads")
    width = width or shape["width"]
    config = SHAPES["qwen3, 6 heads"].replace(
        num_layers=layers or shape["num_layers"],
        width=width,
        num_heads=width // HEAD_DIM,
        head_dim=0,
        mlp_width=0,
        num_kv_heads=kv_heads or 0,
        layout=shape.get("layout", "qwen3"),
        logit_cap=None,
        without_own_values=None,
    )
    return config, {**values, "eval_iters": RECIPE["eval_iters"]}


def first_tokens(path: Path, count: int | None) -> Path:
    """A file with the first tokens of another, or that file itself."""
    if count is None:
        return path
    part = path.with_name(f"{path.stem}-{count}{path.suffix}")
    written = part.with_name(f"{part.name}.{os.getpid()}")
    with path.open("rb") as file:
        written.write_bytes(file.read(2 * count))
    return written.replace(part)  # another run may be reading the same tokens


def main() -> None:
    """Run one case and store its row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--shape", default="qwen3, 6 heads")
    parser.add_argument("--preset", help="its shape and settings instead of --shape and ours")
    parser.add_argument("--layers", type=int, help="with --preset: another depth")
    parser.add_argument("--width", type=int, help="with --preset: another width, heads of 128")
    parser.add_argument(
        "--kv-heads", type=int, help="with --preset: heads of keys and values; 0 is all"
    )
    parser.add_argument("--tokens", type=int, help="train on the first so many only")
    parser.add_argument("--seconds", type=float, default=178.0)
    parser.add_argument("--steps", type=int, help="a number of steps instead of seconds")
    parser.add_argument("--points", type=int, default=6)
    parser.add_argument("--data", type=Path, default=Path("carry/data/train.bin"))
    parser.add_argument("--val-data", type=Path, default=Path("carry/data/val.bin"))
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"))
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    config, recipe = SHAPES[options.shape], RECIPE
    if options.preset:
        config, recipe = preset_recipe(
            options.preset, options.layers, options.width, options.kv_heads
        )
    settings = {**recipe, **parse_changes(options.set)}
    config = config.replace(dropout=settings.get("dropout", 0.0))
    data = first_tokens(options.data, options.tokens)
    ready, whole = make_steps(config, data, **settings)
    val = TokenDataset(options.val_data, split="all", seq_len=CONTEXT, dtype="uint16")
    row = train_for(
        ready, whole, val, seconds=options.seconds, steps=options.steps, points=options.points
    )
    ready.feed.close()
    append_row(
        options.out,
        "loss",
        {
            "name": options.name,
            "shape": [config.layout, config.num_layers, config.width, config.num_heads],
            "settings": settings,
            **row,
        },
    )


if __name__ == "__main__":
    main()
