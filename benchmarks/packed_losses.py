"""The loss of packed states: runs with --offload compared with float32, seed by seed, on a CPU.

Float32 itself is not one number: the same run with its rows in another number of micro-batches
rounds its sums differently, and drifts. That drift is measured first, for each seed; packed states
should stay within it, or within the difference between seeds.

    python benchmarks/packed_losses.py --text stories.txt --steps 300 --seeds 1 2 3
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import lowtide

SHAPE: dict[str, Any] = {"num_layers": 3, "width": 96, "num_heads": 3, "seq_len": 64}
ARMS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float32, rows in two parts": {"batch_size": 8, "gradient_accumulation_steps": 2},
    "packed": {"offload": "packed"},
}


def final_loss(dataset: Path, folder: Path, name: str, **options: Any) -> float:
    """Validation loss of the last weights of one run."""
    lowtide.train(
        dataset_dir=dataset,
        checkpoints_dir=folder,
        model_name=name,
        progress=False,
        device="cpu",
        sample_tokens=0,
        save_interval=10**6,
        **{"batch_size": 16, **SHAPE, **options},
    )
    rows = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    return [row["val_loss"] for row in rows if "val_loss" in row][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--optimizers", nargs="+", default=["adamw", "muon"])
    parser.add_argument("--vocab-size", type=int, default=1024)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lowtide.train_tokenizer(
            input=(str(options.text),), vocab_size=options.vocab_size, out_dir=folder / "tok",
            progress=False,
        )  # fmt: skip
        lowtide.prepare_dataset(
            input_files=(str(options.text),), tokenization=str(folder / "tok"),
            out_dir=folder / "data", progress=False,
        )  # fmt: skip
        print("| optimizer | seed | " + " | ".join(ARMS) + " | drift | packed apart |", flush=True)
        print("|---|---|" + "---|" * (len(ARMS) + 2))
        for optimizer in options.optimizers:
            table: list[list[float]] = []
            for seed in options.seeds:
                losses = [
                    final_loss(
                        folder / "data", folder / "runs", f"{optimizer}-{seed}-{number}",
                        optimizer=optimizer, seed=seed, max_iters=options.steps,
                        eval_interval=options.steps, **arm,
                    )
                    for number, arm in enumerate(ARMS.values())
                ]  # fmt: skip
                table.append([*losses, losses[1] - losses[0], losses[2] - losses[0]])
                row = " | ".join(f"{value:.4f}" for value in table[-1])
                print(f"| {optimizer} | {seed} | {row} |", flush=True)
            means = " | ".join(
                f"{statistics.mean(column):.4f}" for column in zip(*table, strict=True)
            )
            print(f"| {optimizer} | mean | {means} |", flush=True)


if __name__ == "__main__":
    main()
