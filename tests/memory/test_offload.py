"""Runs with --offload keep the smallest budget that they ask for, far below that of plain AdamW."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

WORDS = [
    "train", "--tokenization", "char", "--num-layers", "8", "--width", "448", "--num-heads", "7",
    "--seq-len", "32", "--batch-size", "2", "--max-iters", "2", "--eval-interval", "100",
    "--eval-iters", "1", "--sample-tokens", "0", "--device", "cpu", "--input-file", "text.txt",
    "--model-name",
]  # fmt: skip


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lowtide", *WORDS, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def smallest(folder: Path, *words: str) -> int:
    """The budget in MiB that a refusal asks for."""
    refused = run(folder, *words, "--memory", "1MiB")
    assert refused.returncode == 1, refused.stderr
    return int(re.findall(r"at least --memory (\d+)MiB", refused.stderr)[0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("low tide, high tide; " * 400)
    return tmp_path


@pytest.mark.parametrize(("rung", "optimizer"), [("packed", "adamw"), ("disk", "muon")])
def test_the_smallest_budget_is_kept(folder: Path, rung: str, optimizer: str) -> None:
    words = (rung, "--optimizer", optimizer, "--offload", rung)
    budget = smallest(folder, *words)
    plain = smallest(folder, "plain", "--optimizer", "adamw")
    assert plain - budget > (120 if rung == "packed" else 200)  # 19 million parameters
    done = run(folder, *words, "--memory", f"{budget}MiB")
    assert done.returncode == 0, done.stderr[-2000:]  # 3 where the peak passed it
