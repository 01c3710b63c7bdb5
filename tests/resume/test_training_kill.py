"""A training process killed with SIGKILL ends, when started again, as if never killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

FLAGS = ["--num-layers", "1", "--width", "32", "--num-heads", "2", "--seq-len", "16"]
FLAGS += ["--batch-size", "4", "--max-iters", "60", "--save-interval", "5", "--eval-interval", "20"]
FLAGS += ["--eval-iters", "2", "--log-interval", "1", "--dropout", "0.1", "--device", "cpu"]
LETTERS = "abcdefgh \n"


def command(folder, name):
    text = ["--input-file", str(folder / "text.txt"), "--tokenization", "char"]
    place = ["--checkpoints-dir", str(folder), "--model-name", name]
    return [sys.executable, "-m", "lowtide", "train", *text, *place, *FLAGS]


def start(folder, name):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(folder, name),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors[-2000:]


def losses(folder, name, event):
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row.get("event") == event]
    return [(row["step"], row.get("loss", row.get("val_loss"))) for row in rows]


def kill_after(process, metrics, rows):
    """Kill the process as soon as it has logged some steps, wherever it is then."""
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
        if metrics.exists() and metrics.read_text().count('"event": "step"') >= rows:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return
    pytest.fail("the run ended before it could be killed")


def test_kill_and_start_again_is_exact(tmp_path):
    letters = np.random.default_rng(0).choice(list(LETTERS), size=4000)
    (tmp_path / "text.txt").write_text("".join(letters))
    whole = start(tmp_path, "whole")
    killed = start(tmp_path, "killed")
    kill_after(killed, tmp_path / "killed" / "metrics.jsonl", 13)
    finish(whole)
    finish(start(tmp_path, "killed"))
    for event in ("step", "eval"):
        assert losses(tmp_path, "killed", event) == losses(tmp_path, "whole", event)
    assert len(losses(tmp_path, "whole", "step")) == 60
    first, second = (tmp_path / name / "model.safetensors" for name in ("whole", "killed"))
    assert first.read_bytes() == second.read_bytes()
