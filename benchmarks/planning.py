"""Do plans come true? Estimated against measured peaks, over a grid of settings.

Every case is a real command in a process of its own: `lowtide train` on made-up ids (three steps,
with an evaluation, a sample and checkpoints), and with --text `lowtide train-tokenizer` and
`lowtide prepare` on that file. The peak is the kernel's own count, as metrics.jsonl has it.

    python benchmarks/planning.py                       # training, on the CPU
    python benchmarks/planning.py --device cuda         # memory of the GPU
    python benchmarks/planning.py --text corpus.txt     # tokenizer and preparation too
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.dataset import preparation
from lowtide.memory import format_size, usable_cores
from lowtide.model.config import padded_vocab_size
from lowtide.model.sizing import count_parameters
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer import training as tokenizer_training
from lowtide.training.footprint import Footprint, planned_bytes
from lowtide.training.settings import TrainSettings, model_config

Options = dict[str, Any]


def shape(layers: int, width: int, rows: int, length: int, **more: Any) -> Options:
    heads = max(1, width // 64)
    return {
        "num_layers": layers,
        "width": width,
        "num_heads": heads,
        "batch_size": rows,
        "seq_len": length,
        **more,
    }


CPU_CASES: list[Options] = [
    shape(1, 64, 1, 32),
    shape(4, 128, 16, 128),
    shape(6, 256, 8, 256),
    shape(2, 384, 16, 256),
    shape(6, 192, 16, 256, layout="gpt2"),
    shape(3, 384, 8, 512, layout="gpt2"),
    shape(8, 256, 16, 256, activation_checkpointing=True),
    shape(2, 256, 16, 256, vocab_size=16000, optimizer="adamw"),
    shape(4, 256, 4, 256, vocab_size=32000),
    shape(4, 256, 8, 256, gradient_accumulation_steps=4),
    shape(6, 512, 2, 256, use_8bit_optimizer=True),
    shape(8, 768, 1, 128, optimizer="adamw"),
    shape(6, 512, 4, 256, optimizer="muon"),
    shape(4, 256, 8, 128, use_mixed_precision=True),
    shape(8, 512, 1, 64, optimizer="muon"),
    shape(6, 192, 4, 256, gradient_accumulation_steps=2, layout="gpt2"),
    shape(2, 256, 64, 256),
    shape(6, 192, 16, 256, gradient_accumulation_steps=4),
]
GPU_CASES: list[Options] = [
    shape(12, 768, rows, 1024, vocab_size=50000, **more)
    for rows, more in (
        (4, {}),
        (8, {"use_mixed_precision": True}),
        (32, {"use_mixed_precision": True}),
        (32, {"use_mixed_precision": True, "activation_checkpointing": True}),
        (8, {"use_mixed_precision": True, "optimizer": "adamw", "use_8bit_optimizer": True}),
        (8, {"use_mixed_precision": True, "layout": "gpt2"}),
    )
]


@dataclass(frozen=True)
class Outcome:
    """One case: what was said, what was used."""

    name: str
    planned_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        """Planned over measured, less one."""
        return self.planned_bytes / self.measured_bytes - 1


def measure_training(
    case: Options, folder: Path, *, device: str = "cpu"
) -> tuple[Outcome, Footprint]:
    """Run a case and give its peak beside the plan."""
    options = dict(case)
    vocab_size = options.pop("vocab_size", 1000)
    run_name = f"run{len(list(folder.glob('run*')))}"
    options |= {
        "train_data_path": str(_make_ids(folder, vocab_size)),
        "checkpoints_dir": str(folder),
        "model_name": run_name,
        "max_iters": 3,
        "log_interval": 1,
        "eval_interval": 2,
        "eval_iters": 1,
        "sample_tokens": 4,
        "device": device,
        "memory": "1TiB",  # so that no micro-batch is cut
    }
    rows = _run(["train", *_words(options)], folder / run_name / "metrics.jsonl")
    settings = build_settings(TrainSettings, options)
    config = model_config(settings, padded_vocab_size(vocab_size))
    plan = planned_bytes(config, settings, on_gpu=device != "cpu")
    if device == "cpu":
        planned, measured = plan.total_bytes, rows[-1]["peak_memory_bytes"]
    else:
        planned = plan.device_bytes
        measured = max(row.get("device_peak_bytes", 0) for row in rows)
    params = f"{count_parameters(config) / 1e6:.1f}M"
    name = " ".join([params, *(f"{key}={value}" for key, value in case.items())])
    return Outcome(name, planned, measured), plan


def measure_text_stages(text: Path, folder: Path) -> list[Outcome]:
    """Train a tokenizer on a file and prepare it, beside the plans of both."""
    size, cores = text.stat().st_size, usable_cores()
    tok, data = folder / "tok", folder / "data"
    words = [
        "train-tokenizer",
        "--input",
        str(text),
        "--vocab-size",
        "16000",
        "--out-dir",
        str(tok),
    ]
    rows = _run([*words, "--memory", "8GiB"], tok / "metrics.jsonl")
    planned = tokenizer_training.planned_peak_bytes(size, vocab_size=16000, num_threads=cores)
    outcomes = [Outcome(f"train-tokenizer {size:,} bytes", planned, rows[-1]["peak_memory_bytes"])]
    result = json.loads(
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import json, sys; from lowtide import prepare_dataset; "
                "r = prepare_dataset(**json.loads(sys.argv[1])); print(json.dumps(r.peak_bytes))",
                json.dumps(
                    {
                        "input_files": [str(text)],
                        "out_dir": str(data),
                        "tokenization": str(tok),
                        "memory": "8GiB",
                    }
                ),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    planned = preparation.planned_bytes(size, num_workers=cores, budget_bytes=8 << 30)
    outcomes.append(Outcome(f"prepare {size:,} bytes", planned, result))
    return outcomes


def _make_ids(folder: Path, vocab_size: int) -> Path:
    """Make random ids and a tokenizer that has them."""
    place = folder / f"ids{vocab_size}"
    if not place.exists():
        place.mkdir()
        Tokenizer.from_characters(map(chr, range(0x100, 0x100 + vocab_size - 2))).save(place)
        ids = np.random.default_rng(0).integers(2, vocab_size, 400_000)
        ids.astype(np.uint16).tofile(place / "ids.bin")
    return place / "ids.bin"


def _words(options: Options) -> list[str]:
    words: list[str] = []
    for key, value in options.items():
        flag = "--" + key.replace("_", "-")
        words += [flag] if value is True else [flag, str(value)]
    return words


def _run(words: list[str], metrics_path: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "lowtide", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return [json.loads(line) for line in metrics_path.read_text().splitlines()]


def print_table(outcomes: list[Outcome]) -> None:
    """Print a Markdown table and the errors over all cases."""
    print("\n| case | planned | measured | error |\n|---|---|---|---|")
    for row in outcomes:
        print(
            f"| {row.name} | {format_size(row.planned_bytes)} | "
            f"{format_size(row.measured_bytes)} | {row.error:+.1%} |"
        )
    errors = [abs(row.error) for row in outcomes]
    print(f"\nerror: {statistics.mean(errors):.1%} in the mean, {max(errors):.1%} at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--text", type=Path, help="a text file, for tokenizer and preparation")
    parser.add_argument("--cases", type=int, nargs="*", help="numbers of cases; default: all")
    parser.add_argument("--json", type=Path, help="append raw rows to this file")
    options = parser.parse_args()
    cases = CPU_CASES if options.device == "cpu" else GPU_CASES
    chosen = range(len(cases)) if options.cases is None else options.cases
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="lowtide-") as folder:
        for number in chosen:
            started = time.monotonic()
            outcome, plan = measure_training(cases[number], Path(folder), device=options.device)
            outcomes.append(outcome)
            print(
                f"{number}: {outcome.name}: {format_size(outcome.measured_bytes)}, "
                f"{outcome.error:+.1%}, {time.monotonic() - started:.0f} s",
                file=sys.stderr,
                flush=True,
            )
            if options.json:
                row = {"case": cases[number], "measured": outcome.measured_bytes, **vars(plan)}
                with options.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        if options.text:
            outcomes += measure_text_stages(options.text, Path(folder))
    print_table(outcomes)


if __name__ == "__main__":
    main()
