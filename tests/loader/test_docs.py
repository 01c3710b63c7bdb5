"""The examples of docs/load.md run as they are written, one after the other."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.tokenizer import Tokenizer

from .conftest import MakeDataset

PAGE = Path(__file__).parents[2] / "docs" / "load.md"
BLOCKS = re.findall(r"```python ?(\w*)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def page_folder(tmp_path: Path, make_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the files that the page names."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    for name in ("data/mine", "data/general"):
        documents = [[rng.integers(0, 200, 150) for _ in range(40)] for _ in range(3)]
        make_dataset(documents, documents[:1], name=name, vocab_size=256)
    Tokenizer.from_characters(map(chr, range(32, 127))).save("data/mine")
    (tmp_path / "training_data").mkdir()
    for name in ("train", "valid"):
        ids = rng.integers(0, 50257, 5000).astype(np.int32)
        np.save(tmp_path / "training_data" / f"owt_{name}_tokens.npy", ids)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("some words of text " * 300)
    return tmp_path


def run(blocks: list[tuple[str, str]]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for _, code in blocks:
        exec(compile(code, str(PAGE), "exec"), names)
    return names


def test_the_page_runs(page_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = [block for block in BLOCKS if not block[0]]
    assert len(plain) == 7
    names = run(plain)
    assert names["inputs"].shape == (8, 64)
    assert names["loader"].epoch == 1
    printed = capsys.readouterr().out
    assert "TokenDataset (train)" in printed and "exactly once" in printed


CHECKS = {
    "grain": """
import json
assert inputs.shape == targets.shape == (8, 64)
assert (inputs[:, 1:] == targets[:, :-1]).all()
assert (again == inputs).all() and json.loads(json.dumps(state)) == state
rows.set_state(state)
assert (next(rows)[0] == inputs).all() and not (next(rows)[0] == inputs).all()
""",
    "jax": "assert mean_id(*small.get_batch([0, 1]))[0] > 0\n",
    "flax": "assert len(losses) > 5 and losses[-1] < losses[0] - 0.5, losses\n",
}


@pytest.mark.parametrize("needs", CHECKS)
def test_the_examples_for_jax_users(page_folder: Path, needs: str) -> None:
    """In a process of their own: where JAX was imported, nothing may fork any more."""
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    (block,) = [block for block in BLOCKS if block[0] == needs]
    before = [BLOCKS[0][1], BLOCKS[1][1]]
    if needs == "flax":
        (text,) = [code for tag, code in BLOCKS if not tag and "StreamingDataLoader(" in code]
        before.append(text)
    code = "\n".join([*before, block[1], CHECKS[needs]])
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
