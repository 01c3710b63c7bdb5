"""Accuracy of plans: planned and measured numbers, over grids of settings.

Two grids, each of real commands in separate processes:

- shapes: `lowtide train` on made-up ids (three steps, with an evaluation, a sample and
  checkpoints), the peak against the estimate of the trainer;
- with --text: what a newcomer does. For each text and each machine, `lowtide plan`, then the
  commands it printed, as they are but for the number of steps: peaks of train-tokenizer, prepare
  and train, the disk that prepare filled, and what loading took.

Peaks are the kernel's own count, as metrics.jsonl has it.

    python benchmarks/planning.py                                  # shapes, on the CPU
    python benchmarks/planning.py --unseen                         # shapes no formula has seen
    python benchmarks/planning.py --device cuda                    # shapes, memory of the GPU
    python benchmarks/planning.py --text a.txt b.txt --no-shapes   # the commands of plans
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.filenames import METRICS_NAME
from lowtide.memory import format_size
from lowtide.model.config import padded_vocab_size
from lowtide.model.sizing import count_parameters
from lowtide.planning import Plan, make_plan
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer
from lowtide.training.choosing import model_config
from lowtide.training.footprint import Footprint, planned_bytes
from lowtide.training.settings import TrainSettings

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
    shape(6, 512, 8, 256, optimizer="muon"),
    shape(6, 512, 2, 256, optimizer="muon"),
    shape(8, 768, 2, 128, optimizer="muon"),
    shape(12, 512, 2, 128, optimizer="muon"),
    shape(4, 768, 4, 256, optimizer="muon"),
    shape(8, 384, 4, 256, optimizer="muon"),
    shape(10, 128, 8, 256, gradient_accumulation_steps=2),
    shape(5, 128, 16, 256, gradient_accumulation_steps=4, vocab_size=8000),
    shape(8, 256, 4, 256, gradient_accumulation_steps=8),
    shape(2, 256, 16, 256, gradient_accumulation_steps=4),
    shape(5, 320, 8, 256),
    shape(12, 256, 4, 128, gradient_accumulation_steps=4, layout="gpt2"),
    shape(3, 512, 4, 256, activation_checkpointing=True),
    shape(12, 256, 8, 256, activation_checkpointing=True),
]
# Cases that the formulas were not fitted to; fitting to them would make them useless.
UNSEEN_CASES: list[Options] = [
    shape(7, 192, 8, 256),
    shape(3, 256, 12, 128, vocab_size=10000),
    shape(9, 320, 2, 256, optimizer="adamw"),
    shape(4, 448, 4, 128),
    shape(7, 128, 16, 128, gradient_accumulation_steps=3),
    shape(5, 256, 6, 256, gradient_accumulation_steps=2, layout="gpt2", vocab_size=5000),
    shape(6, 384, 6, 256, activation_checkpointing=True),
    shape(10, 448, 2, 256, optimizer="muon"),
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
    """One case: planned and measured numbers."""

    name: str
    planned_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        """Planned over measured, minus one."""
        return self.planned_bytes / self.measured_bytes - 1


def measure_training(
    case: Options, folder: Path, *, device: str = "cpu"
) -> tuple[Outcome, Footprint]:
    """Run a case and return its peak beside the plan."""
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
        "memory": "1TiB",  # so that micro-batches are not reduced
    }
    rows = _run(["train", *_words(options)], folder / run_name / "metrics.jsonl")
    settings = build_settings(TrainSettings, options)
    config = model_config(settings.model, padded_vocab_size(vocab_size))
    plan = planned_bytes(config, settings, on_gpu=device != "cpu")
    if device == "cpu":
        planned, measured = plan.total_bytes, rows[-1]["peak_memory_bytes"]
    else:
        planned = plan.device_bytes
        measured = max(row.get("device_peak_bytes", 0) for row in rows)
    params = f"{count_parameters(config) / 1e6:.1f}M"
    name = " ".join([params, *(f"{key}={value}" for key, value in case.items())])
    return Outcome(name, planned, measured), plan


def follow_plan(text: Path, ram: str, folder: Path, *, steps: int) -> list[Outcome]:
    """Plan for a text and a machine, run the commands of the plan, compare."""
    plan = make_plan(input_files=[str(text)], ram=ram)
    if not plan.fits:
        raise SystemExit(f"{text} does not fit a machine of {ram}")
    said = {need.stage: need for need in plan.needs}
    name = f"{text.name}, {text.stat().st_size / 1e6:.0f} MB, plan --ram {ram}: "
    outcomes: list[Outcome] = []
    for line in plan.commands:
        words = shlex.split(line)[1:]
        if words[0] == "train":
            place = words.index("--max-iters") + 1
            words[place] = str(min(int(words[place]), steps))
            words += ["--eval-interval", str(max(1, steps - 1)), "--eval-iters", "2"]
        out_dir = folder / _folder_of(words)
        disk_bytes = _run_watched(words, folder, out_dir)
        rows = [json.loads(row) for row in (out_dir / METRICS_NAME).read_text().splitlines()]
        peak = rows[-1]["peak_memory_bytes"]
        outcomes.append(Outcome(name + words[0], said[words[0]].memory_bytes, peak))
        if peak > plan.machine.budget_bytes:
            raise SystemExit(f"{line}: {format_size(peak)}, more than its budget")
        if words[0] == "prepare":
            planned = said["prepare"].disk_bytes
            outcomes.append(Outcome(name + "prepare, disk", planned, disk_bytes))
            planned = said["load"].memory_bytes
            outcomes.append(Outcome(name + "load", planned, _loading_peak(plan, out_dir)))
    return outcomes


def _folder_of(words: list[str]) -> Path:
    if "--out-dir" in words:
        return Path(words[words.index("--out-dir") + 1])
    return Path("checkpoints") / words[words.index("--model-name") + 1]


def _run_watched(words: list[str], folder: Path, out_dir: Path) -> int:
    """Run a command and return the most disk space that its folder took meanwhile."""
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "lowtide", *words],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        most = 0
        while child.poll() is None:
            most = max(most, _disk_bytes(out_dir))
            time.sleep(0.02)
        if child.returncode != 0:
            errors.seek(0)
            raise SystemExit(f"lowtide {shlex.join(words)}\n{errors.read()}")
    return max(most, _disk_bytes(out_dir))


def _disk_bytes(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # removed meanwhile
                total += (Path(place) / name).stat().st_blocks * 512
    return total


_LOADING = """
import json, sys
from lowtide import BatchLoader, TokenDataset
from lowtide.memory import process_peak_bytes
path, rows, length, ahead = sys.argv[1], *map(int, sys.argv[2:])
data = TokenDataset(path, split="train", seq_len=length)
with BatchLoader(data, batch_size=rows, prefetch_batches=ahead) as loader:
    for _ in range(200):
        next(loader)
print(process_peak_bytes())
"""


def _loading_peak(plan: Plan, dataset_dir: Path) -> int:
    """Return the peak of a program that only loads batches."""
    assert plan.chosen is not None
    settings = plan.chosen.settings
    sizes = [settings.batch.rows_per_step, settings.model.seq_len, settings.machine.num_workers]
    command = [sys.executable, "-c", _LOADING, str(dataset_dir), *map(str, sizes)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


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
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="texts to plan for")
    parser.add_argument("--ram", nargs="*", default=["8GiB", "16GiB", "32GiB"], help="machines")
    parser.add_argument("--steps", type=int, default=3, help="training steps after a plan")
    parser.add_argument("--shapes", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--unseen", action="store_true", help="shapes no formula was fitted to")
    parser.add_argument("--cases", type=int, nargs="*", help="numbers of shapes; default: all")
    parser.add_argument("--json", type=Path, help="append raw rows to this file")
    options = parser.parse_args()
    cases = CPU_CASES if options.device == "cpu" else GPU_CASES
    if options.unseen:
        cases = UNSEEN_CASES
    chosen = range(len(cases)) if options.cases is None else options.cases
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="lowtide-") as folder:
        for number in chosen if options.shapes else ():
            outcome, plan = measure_training(cases[number], Path(folder), device=options.device)
            outcomes.append(outcome)
            _tell(outcome)
            if options.json:
                row = {"case": cases[number], "measured": outcome.measured_bytes, **vars(plan)}
                with options.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        for text, ram in itertools.product(options.text, options.ram):
            place = Path(folder) / f"{text.name}-{ram}"
            place.mkdir()
            for outcome in follow_plan(text.absolute(), ram, place, steps=options.steps):
                outcomes.append(outcome)
                _tell(outcome)
            shutil.rmtree(place)
    print_table(outcomes)


def _tell(outcome: Outcome) -> None:
    measured = format_size(outcome.measured_bytes)
    print(f"{outcome.name}: {measured}, {outcome.error:+.1%}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
