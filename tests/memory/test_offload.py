"""Runs with --offload keep the smallest budget that they ask for, far below that of plain AdamW."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .commands import Ran, run_commands

WORDS = [
    "train", "--tokenization", "char", "--num-layers", "5", "--width", "448", "--num-heads", "7",
    "--seq-len", "32", "--batch-size", "2", "--max-iters", "2", "--eval-interval", "100",
    "--eval-iters", "1", "--sample-tokens", "0", "--device", "cpu", "--input-file", "text.txt",
    "--model-name",
]  # fmt: skip


def smallest(refused: Ran) -> int:
    """The budget in MiB that a refusal asks for."""
    assert refused.exit_code == 1, refused.errors
    return int(re.findall(r"at least --memory (\d+)MiB", refused.errors)[0])


@pytest.mark.parametrize(("rung", "optimizer"), [("packed", "adamw"), ("disk", "muon")])
def test_the_smallest_budget_is_kept(tmp_path: Path, rung: str, optimizer: str) -> None:
    (tmp_path / "text.txt").write_text("low tide, high tide; " * 400)
    words = [*WORDS, rung, "--optimizer", optimizer, "--offload", rung, "--memory"]
    plain = [*WORDS, "plain", "--optimizer", "adamw", "--memory", "1MiB"]
    refusals = run_commands([("", [*words, "1MiB"]), ("", plain)], tmp_path)
    budget, others = map(smallest, refusals)
    assert others - budget > (75 if rung == "packed" else 125)  # 12 million parameters
    (done,) = run_commands([("", [*words, f"{budget}MiB"])], tmp_path)
    assert done.exit_code == 0, done.errors[-2000:]  # 3 where the peak passed it
    assert done.peak_bytes <= budget << 20
