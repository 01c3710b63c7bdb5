"""A look at a dataset, a tokenizer or a file of ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lowtide
from lowtide.loader.inspection import inspect


@pytest.fixture(scope="module")
def dataset_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspection")
    (folder / "a.txt").write_text("a few words to look at, one after the other\n" * 3)
    lowtide.prepare_dataset(
        input_files=folder / "a.txt", out_dir=folder / "data", tokenization="char", progress=False
    )
    return folder / "data"


def test_each_kind_is_found(dataset_dir: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(300, dtype=np.uint16))
    found = inspect(dataset_dir, tokens=5, split="val")
    assert found.kind == "dataset" and found.facts["vocab_size"] > 5
    assert str(found) == found.text and "<pre>" in found._repr_html_()
    found = inspect(dataset_dir / "tokenizer.json", text="few words")
    assert found.kind == "char tokenizer" and found.facts["vocab_size"] > 5
    found = inspect(tmp_path / "ids.npy")
    assert found.kind == "tokens" and found.facts["description"] == found.text
    assert inspect(tmp_path / "ids.npy", test_loading=True).kind == "loading"
