"""Peak memory of a training run by the size of its dataset: the data must make no difference.

The same small network is trained for the same steps by `lowtide train` on datasets of 10 MB, 100 MB
and 2 GB of random ids, each in its own process; peaks are the kernel's count.

    python benchmarks/train_memory.py --folder /somewhere/with/room
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from lowtide.tokenizer import Tokenizer

VOCAB_SIZE = 1024
SIZES_MB = (10, 100, 2000)


def write_ids(path: Path, megabytes: int) -> None:
    """Write random uint16 ids, a piece at a time."""
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(megabytes // 2):
            random.integers(VOCAB_SIZE, size=1_000_000, dtype=np.uint16).tofile(file)


def train(folder: Path, megabytes: int, steps: int) -> dict[str, float]:
    """Train on this many megabytes; return the last row of metrics.jsonl."""
    data, name = folder / f"{megabytes}.bin", f"run-{megabytes}"
    write_ids(data, megabytes)
    flags = {
        "train-data-path": data, "dtype": "uint16", "checkpoints-dir": folder, "model-name": name,
        "num-layers": 4, "width": 128, "num-heads": 4, "seq-len": 256, "batch-size": 8,
        "max-iters": steps, "eval-interval": steps // 2, "eval-iters": 10, "device": "cpu",
    }  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "lowtide", "train", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    data.unlink()
    return json.loads((folder / name / "metrics.jsonl").read_text().splitlines()[-1])


def main() -> None:
    """Print a row per size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None, help="for 2 GB of ids, one at a time")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="lowtide-") as folder:
        characters = map(chr, range(0x100, 0x100 + VOCAB_SIZE - 2))  # and two special ones
        Tokenizer.from_characters(characters).save(folder)
        for megabytes in SIZES_MB:
            row = train(Path(folder), megabytes, options.steps)
            peak = row["peak_memory_bytes"] / (1 << 20)
            print(f"dataset {megabytes:>5} MB   peak memory {peak:.1f} MiB", flush=True)


if __name__ == "__main__":
    main()
