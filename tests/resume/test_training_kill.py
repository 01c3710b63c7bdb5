"""A training process killed with SIGKILL ends, when started again, as if never killed."""

import json
import os
import signal
import threading

import numpy as np

FLAGS = ["--num-layers", "1", "--width", "32", "--num-heads", "2", "--seq-len", "16"]
FLAGS += ["--batch-size", "4", "--max-iters", "60", "--save-interval", "5", "--eval-interval", "20"]
FLAGS += ["--eval-iters", "2", "--log-interval", "1", "--dropout", "0.1", "--device", "cpu"]
LETTERS = "abcdefgh \n"


SCRIPT = """
import os, sys
from pathlib import Path
from lowtide.cli import main
Path(sys.argv[1]).write_text(str(os.getpid()))
sys.exit(main(sys.argv[2:]))
"""


def job(folder, name):
    text = ["--input-file", folder / "text.txt", "--tokenization", "char"]
    place = ["--checkpoints-dir", folder, "--model-name", name]
    words = [folder / f"{name}.pid", "train", *text, *place, *FLAGS]
    return SCRIPT, words, {"OMP_NUM_THREADS": "1"}


def losses(folder, name, event):
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row.get("event") == event]
    return [(row["step"], row.get("loss", row.get("val_loss"))) for row in rows]


def kill_after(folder, name, rows):
    """Kill the process as soon as it has logged some steps, wherever it is then."""
    metrics = folder / name / "metrics.jsonl"
    for _ in range(12000):
        if metrics.exists() and metrics.read_text().count('"event": "step"') >= rows:
            break
        threading.Event().wait(0.02)  # leaves the processor to the run
    os.kill(int((folder / f"{name}.pid").read_text()), signal.SIGKILL)


def test_kill_and_start_again_is_exact(tmp_path, start_forks):
    letters = np.random.default_rng(0).choice(list(LETTERS), size=4000)
    (tmp_path / "text.txt").write_text("".join(letters))
    wait = start_forks(job(tmp_path, "whole"), job(tmp_path, "killed"))
    kill_after(tmp_path, "killed", 13)
    codes, printed = wait()
    assert codes == [0, -signal.SIGKILL], printed[-2000:]
    codes, printed = start_forks(job(tmp_path, "killed"))()
    assert codes == [0], printed[-2000:]
    for event in ("step", "eval"):
        assert losses(tmp_path, "killed", event) == losses(tmp_path, "whole", event)
    assert len(losses(tmp_path, "whole", "step")) == 60
    first, second = (tmp_path / name / "model.safetensors" for name in ("whole", "killed"))
    assert first.read_bytes() == second.read_bytes()
