"""A look at a dataset, a tokenizer or a file of ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lowtide
from lowtide.errors import UsageError
from lowtide.loader import inspection
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
    lowtide.convert_dataset(dataset_dir, tmp_path / "pair", to="megatron", progress=False)
    by_index = inspect(tmp_path / "pair" / "train.idx")
    assert by_index.text == inspect(tmp_path / "pair" / "train.bin").text


def test_settings_without_effect_are_refused(dataset_dir: Path, tmp_path: Path) -> None:
    """inspect DATASET --text showed other text, without a word."""
    np.save(tmp_path / "ids.npy", np.arange(300, dtype=np.uint16))
    for path, options, words in (
        (dataset_dir, {"text": "hi"}, "--text has no effect for a dataset"),
        (dataset_dir, {"sample": "a.txt"}, "--sample has no effect for a dataset"),
        (dataset_dir / "tokenizer.json", {"start": 5}, "--start has no effect for a tokenizer"),
        (dataset_dir / "tokenizer.json", {"show_ids": True}, "--show-ids has no effect for a tok"),
        (tmp_path / "ids.npy", {"text": "hi"}, "--text has no effect for a file of ids"),
        (dataset_dir, {"test_loading": True, "tokens": 3}, "--tokens has no effect with --test-lo"),
    ):
        with pytest.raises(UsageError, match=words):
            inspect(path, **options)


def test_facts_are_those_of_the_files(dataset_dir: Path, tmp_path: Path) -> None:
    tokenizer = lowtide.Tokenizer.load(dataset_dir)
    found = inspect(dataset_dir / "tokenizer.json")
    assert found.facts == {
        "kind": "char tokenizer",
        "path": dataset_dir / "tokenizer.json",
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": tokenizer.special_tokens,
        "fingerprint": tokenizer.fingerprint,
    }
    np.save(tmp_path / "ids.npy", np.arange(300, dtype=np.uint16))
    found = inspect(tmp_path / "ids.npy", start=7, tokens=3, split="val")
    assert found.facts["kind"] == "tokens" and found.facts["path"] == tmp_path / "ids.npy"
    assert found.text.endswith("val tokens 7 to 10:\n277 278 279")
    found = inspect(tmp_path / "ids.npy", test_loading=True)
    assert found.facts["kind"] == "loading" and found.facts["num_tokens"] == 270
    assert "exactly once" in found.text


@pytest.mark.parametrize(
    ("terminal", "plain", "color"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_colors_are_for_terminals_that_want_them(
    dataset_dir: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool, plain: bool, color: bool
) -> None:
    given: list[bool] = []
    monkeypatch.setattr(
        inspection, "inspect_tokenizer", lambda *_, color, **__: given.append(color) or "text"
    )
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if plain:
        monkeypatch.setenv("NO_COLOR", "")
    assert inspect(dataset_dir / "tokenizer.json").text == "text"
    assert given == [color]


def test_a_folder_of_unfinished_work_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be gone when it has been described, so whether it is one is asked once."""
    answers = iter([True])
    monkeypatch.setattr(inspection, "describe_work", lambda _: "unfinished")
    monkeypatch.setattr(inspection, "is_work_folder", lambda _: next(answers))
    found = inspect(tmp_path)
    assert (found.kind, found.text) == ("work", "unfinished")
    assert found.facts == {"kind": "work", "description": "unfinished"}
