"""A long run of a preset by its command, in parts: loss curve, checkpoint stalls, memory.

The command is killed without warning after every part and run again, until it ends by itself. Rows
of metrics.jsonl are kept; the appended row has the curve of validation losses over the seconds of
steps, the median speed, the additional time of steps around checkpoints, and the peak memory of the
GPU.

    python benchmarks/gpu_long.py "h100, 25 minutes" --preset h100 --hours 0.4 --part 600
    python benchmarks/gpu_long.py "fastest" --preset fastest --hours 0.1 --flags --seed 2
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from gpu import append_row
from gpu_robust import read_rows


def run_part(command: list[str], log: Any, *, seconds: float) -> tuple[int, int]:
    """Run the command for at most some seconds; return its exit status and the GPU's peak."""
    process = subprocess.Popen(command, stdout=log, stderr=log)
    end, peak = time.perf_counter() + seconds, 0
    while process.poll() is None:
        if time.perf_counter() > end:
            process.send_signal(signal.SIGKILL)
        peak = max(peak, gpu_bytes(process.pid))
        time.sleep(2.0)
    return process.returncode, peak


def gpu_bytes(pid: int) -> int:
    """Bytes of the GPU that a process uses; 0 if unknown."""
    if shutil.which("nvidia-smi") is None:
        return 0
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    held = [line.split(",") for line in lines if line.split(",")[0].strip() == str(pid)]
    return sum(int(mebibytes) << 20 for _, mebibytes in held if mebibytes.strip().isdigit())


def describe(metrics: Path, *, save_interval: int) -> dict[str, Any]:
    """The curve, the usual speed, and the additional time of rows with a checkpoint."""
    steps = {row["step"]: row for row in read_rows(metrics)}
    usual = statistics.median(row["tokens_per_second"] for row in steps.values())
    taken: dict[bool, list[float]] = {False: [], True: []}  # seconds a row, by having a checkpoint
    for before, row in itertools.pairwise(steps[step] for step in sorted(steps)):
        saved = row["step"] // save_interval > before["step"] // save_interval
        taken[saved].append(row["elapsed_seconds"] - before["elapsed_seconds"])
    plain = statistics.median(taken[False])
    stalls = [seconds - plain for seconds in taken[True]]
    evaluations = {row["step"]: row["val_loss"] for row in read_rows(metrics, "eval")}
    return {
        "steps": max(steps),
        "tokens_per_second": usual,
        "checkpoints": len(stalls),
        "stall_seconds": [statistics.median(stalls), max(stalls)] if stalls else [],
        "curve": sorted(evaluations.items()),
        "val_loss": evaluations[max(evaluations)],
    }


def main() -> None:
    """Run it to its end, and store its row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("--preset", help="none: by the flags alone")
    parser.add_argument("--hours", type=float, default=0.4, help="of training, all parts together")
    parser.add_argument("--part", type=float, default=600.0, help="seconds until it is killed")
    parser.add_argument("--save-interval", type=int, default=500)
    parser.add_argument("--eval-interval", type=int, default=500)
    parser.add_argument("--data", type=Path, default=Path("carry/data/train.bin"))
    parser.add_argument("--val-data", type=Path, default=Path("carry/data/val.bin"))
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"))
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="of lowtide train")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    for name, path in (("train", options.data), ("val", options.val_data)):
        np.save(folder / f"{name}.npy", np.fromfile(path, dtype=np.uint16))
    command = [sys.executable, "-m", "lowtide", "train", "--model-name", "long"]
    command += ["--preset", options.preset] if options.preset else []
    command += ["--train-data-path", str(folder / "train.npy"), "--checkpoints-dir", str(folder)]
    command += ["--val-data-path", str(folder / "val.npy"), "--max-hours", str(options.hours)]
    command += ["--save-interval", str(options.save_interval)]
    command += ["--eval-interval", str(options.eval_interval), *options.flags]
    parts, peak, status = 0, 0, -signal.SIGKILL
    with (options.out.parent / "long.log").open("w") as log:
        while status == -signal.SIGKILL:
            status, held = run_part(command, log, seconds=options.part)
            parts, peak = parts + 1, max(peak, held)
            print(f"part {parts}: exit {status}, {held / 2**30:.1f} GiB", flush=True)
    if status != 0:
        raise SystemExit(f"the command ended with {status}: see long.log")
    found = describe(folder / "long" / "metrics.jsonl", save_interval=options.save_interval)
    append_row(options.out, "long", {"name": options.name, "parts": parts, "peak": peak, **found})
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
