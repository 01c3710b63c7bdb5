"""Runs with --offload keep the smallest budget that they ask for, far below that of plain AdamW."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .commands import Ran, run_commands

TEXT = "low tide, high tide; " * 400
WORDS = [
    "train", "--tokenization", "char", "--num-layers", "5", "--width", "448", "--num-heads", "7",
    "--seq-len", "32", "--batch-size", "2", "--max-iters", "2", "--eval-interval", "100",
    "--eval-iters", "1", "--device", "cpu", "--input-file", "text.txt", "--model-name",
]  # fmt: skip


def smallest(refused: Ran) -> int:
    """The budget in MiB that a refusal asks for."""
    assert refused.exit_code == 1, refused.errors
    return int(re.findall(r"at least --memory (\d+)MiB", refused.errors)[0])


CASES = {
    "packed": ["--offload", "packed", "--optimizer", "adamw", "--sample-tokens", "0"],
    "disk": ["--offload", "disk", "--optimizer", "muon", "--sample-tokens", "0"],
    # Samples meet every length, and a CPU keeps code for each shape in bfloat16.
    "half": ["--offload", "packed", "--optimizer", "adamw", "--use-mixed-precision"],
}


def words_of(case: str) -> list[str]:
    return [*WORDS, case, *CASES[case], "--memory"]


@pytest.fixture(scope="module")
def budgets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What each asks for, and AdamW without a rung: one process is refused by all."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "text.txt").write_text(TEXT)
    plain = [*WORDS, "plain", "--optimizer", "adamw", "--sample-tokens", "0", "--memory"]
    refused = run_commands([("", [*w, "1MiB"]) for w in (plain, *map(words_of, CASES))], folder)
    return dict(zip(("plain", *CASES), map(smallest, refused), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_the_smallest_budget_is_kept(tmp_path: Path, case: str, budgets: dict[str, int]) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    budget = budgets[case]
    assert budgets["plain"] - budget > (125 if case == "disk" else 75)  # 12 million parameters
    (done,) = run_commands([("", [*words_of(case), f"{budget}MiB"])], tmp_path)
    assert done.exit_code == 0, done.errors[-2000:]  # 3 where the peak passed it
    assert done.peak_bytes <= budget << 20
