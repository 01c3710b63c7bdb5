"""A run whose GPU memory another process fills, before its start and during training.

A second process takes memory until only so much is free, with the plain allocator. In turn:

    room for some  a run that wants more than is left: it should train in smaller micro-batches
    filled         after its third step the other process takes all that is left: it should go on
    no room        nothing is left: it should end with an error that says what to do
    auto           `--offload auto` should see what is free, not the size of the GPU

    python benchmarks/gpu_shared.py --data train.bin
    python benchmarks/gpu_shared.py --data train.bin --device cpu   (nothing is filled)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HOG = """
import sys, torch
held = []
for line in sys.stdin:
    left, size = float(line) * 2**30, 256 << 20
    while size >= 1 << 20:
        if torch.cuda.mem_get_info()[0] - size < left:
            size //= 2
            continue
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    print(torch.cuda.mem_get_info()[0] / 2**30, flush=True)
"""
LARGE = ["--num-layers", "12", "--width", "768", "--num-heads", "6", "--batch-size", "64"]
SMALL = ["--num-layers", "1", "--width", "32", "--num-heads", "2", "--batch-size", "2"]
OFFLOADED = ["--target-params", "3e8", "--batch-size", "8", "--offload", "auto"]


class Hog:
    """The other process."""

    def __init__(self, device: str) -> None:
        self._process = None
        if device != "cpu":
            self._process = subprocess.Popen(
                [sys.executable, "-c", HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True,
            )  # fmt: skip

    def fill(self, left_gib: float) -> str:
        """Allocate memory until this much is left; return what is left."""
        if self._process is None:
            return "nothing filled"
        assert self._process.stdin and self._process.stdout
        print(left_gib, file=self._process.stdin, flush=True)
        return f"{float(self._process.stdout.readline()):.2f} GiB left"

    def close(self) -> None:
        """End the process, so that its memory is free again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def run(
    name: str, options: argparse.Namespace, *, left_gib: float, shape: list[str], filled: bool
) -> dict[str, Any]:
    """Train while another process holds memory; the run's messages, and its steps."""
    hog = Hog(options.device)
    with tempfile.TemporaryDirectory() as folder:
        ids = Path(folder) / "ids.npy"
        np.save(ids, np.fromfile(options.data, np.uint16))
        command = [sys.executable, "-m", "lowtide", "train", "--train-data-path", str(ids)]
        command += ["--seq-len", str(options.tokens), "--max-iters", str(options.steps)]
        command += ["--log-interval", "1", "--eval-interval", "1000000", "--warmup", "1"]
        command += ["--eval-iters", "1", "--sample-tokens", "1"]
        command += ["--save-interval", "1000000", "--checkpoints-dir", folder, "--model-name", "a"]
        command += ["--device", options.device, *(SMALL if options.device == "cpu" else shape)]
        if options.device != "cpu":
            command += ["--use-mixed-precision"]
        row: dict[str, Any] = {"case": name, "before": hog.fill(left_gib)}
        metrics = Path(folder) / "a" / "metrics.jsonl"
        with (Path(folder) / "said").open("w+") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said)
            end = time.monotonic() + options.seconds
            while process.poll() is None and time.monotonic() < end:
                if filled and "later" not in row and len(_steps(metrics)) >= 3:
                    row["later"] = hog.fill(0.0)
                time.sleep(0.05)
            if process.poll() is None:
                process.kill()
                row["ended"] = "by the clock"
            row["status"] = process.wait()
            said.seek(0)
            lines = (line for line in said.read().splitlines() if line)
            row["said"] = [x for x in lines if not x.startswith("training ")][-options.lines :]
        steps = _steps(metrics)
        row["steps"] = len(steps)
        row["losses"] = [round(step["loss"], 3) for step in steps]
        row["peak_gib"] = [round(s.get("device_peak_bytes", 0) / 2**30, 2) for s in steps[-1:]]
    hog.close()
    return row


def _steps(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    rows = [json.loads(line) for line in whole]
    return [row for row in rows if row.get("event") == "step"]


def main() -> None:
    """Run each case and store its row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("carry/ladder/train.bin"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=60, help="of each run, at most")
    parser.add_argument("--lines", type=int, default=14, help="of what a run said")
    parser.add_argument("--out", type=Path, default=Path("shared.jsonl"))
    options = parser.parse_args()
    for name, left, shape, filled in (
        ("room for some, then filled", 9.0, LARGE, True),
        ("no room", 0.7, LARGE, False),
        ("auto", 3.0, OFFLOADED, False),
    ):
        row = run(name, options, left_gib=left, shape=shape, filled=filled)
        print(json.dumps(row, indent=1), flush=True)
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
