"""Settings for small models on a CPU: validation losses in the same processor time.

Each run is one command a user could copy, on one thread, evaluated at its end on all windows of the
last tenth of the text:

    characters  --tokenization char --config-file small_char
    stories     --vocab-size 2048 --target-params 1000000 --seq-len 128 --batch-size 16

A run is one line of a file: what was changed, steps, processor seconds of the command, losses.
Other jobs affect processor time as well, though less than wall time; give an arm with slower steps
correspondingly fewer of them (--steps).

    python benchmarks/small_models.py characters shakespeare.txt "decay 1" --steps 500 \
        --set weight_decay=1 --out runs.jsonl
    python benchmarks/small_models.py stories stories.txt "at random" --seeds 1 2 3 --steps 200 \
        --set first_embedding=random embedding_rate=1 --out runs.jsonl
    python benchmarks/small_models.py --table runs.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

CASES = {
    "characters": "--tokenization char --config-file small_char",
    "stories": "--vocab-size 2048 --target-params 1000000 --seq-len 128 --batch-size 16",
    "stories, 5M": "--vocab-size 2048 --target-params 5000000 --seq-len 128 --batch-size 16",
    "stories, 10M": "--vocab-size 2048 --target-params 10000000 --seq-len 128 --batch-size 16",
    "stories, 30M": "--vocab-size 2048 --target-params 30000000 --seq-len 128 --batch-size 16",
}
QUIET = "--device cpu --eval-interval 1000000 --save-interval 1000000 --eval-iters 1000"


def train(case: str, text: Path, changes: list[str], *, steps: int, seed: int) -> dict[str, Any]:
    """Train once; return steps, processor seconds of the whole command, and the last losses."""
    flags = [word for change in changes for word in flag_of(change)]
    with tempfile.TemporaryDirectory(prefix="lowtide-") as folder:
        command = [
            *(sys.executable, "-m", "lowtide", "train", "--input-file", str(text)),
            *(*CASES[case].split(), *QUIET.split(), "--sample-tokens", "0"),
            *("--checkpoints-dir", folder, "--model-name", "run", "--seed", str(seed)),
            *("--max-iters", str(steps), *flags, "--quiet"),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").open()]
    lasting = [row for row in rows if row.get("event") == "step"]
    tail = lasting[-max(1, len(lasting) // 10) :]
    return {
        "steps": steps,
        "seed": seed,
        "seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "train_loss": statistics.mean(row["loss"] for row in tail),
        "val_loss": next(row["val_loss"] for row in reversed(rows) if row.get("event") == "eval"),
    }


def flag_of(change: str) -> list[str]:
    """The arguments of a command for NAME=VALUE.

    >>> flag_of("weight_decay=1"), flag_of("cautious_decay=true")
    (['--weight-decay', '1'], ['--cautious-decay'])
    """
    name, _, value = change.partition("=")
    flag = f"--{name.replace('_', '-')}"
    return [flag] if value == "true" else [flag, value]


def print_table(path: Path) -> None:
    """Print a line for each case, number of steps and arm: losses of its seeds and their mean."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for line in path.open():
        row = json.loads(line)
        groups[row["case"], row["name"], row["steps"]].append(row)
    for (case, name, steps), rows in groups.items():
        losses = [row["val_loss"] for row in rows]
        each = ", ".join(f"{row['val_loss']:.4f} (seed {row['seed']})" for row in rows)
        cost = statistics.mean(row["seconds"] for row in rows)
        learned = statistics.mean(row["train_loss"] for row in rows)
        print(
            f"{case:<12} {steps:>5} steps {cost:>6.1f} s  {name:<60} "
            f"mean {statistics.mean(losses):.4f}  training {learned:.4f}  {each}"
        )


def main() -> None:
    """Train one arm, or print the stored results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="?", choices=tuple(CASES))
    parser.add_argument("text", nargs="?", type=Path)
    parser.add_argument("name", nargs="?", default="as it is")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the runs of a file")
    options = parser.parse_args()
    if options.table:
        print_table(options.table)
        return
    if options.case is None or options.text is None:
        parser.error("give a case and a text, or --table")
    for seed in options.seeds:
        found = train(options.case, options.text, options.set, steps=options.steps, seed=seed)
        row = {"case": options.case, "name": options.name, "changes": options.set, **found}
        print(json.dumps(row), flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
