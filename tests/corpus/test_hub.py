"""Hugging Face datasets as inputs, from local folders: nothing here needs the network."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.corpus import hub, reading
from lowtide.corpus.hub import parse_hub_name
from lowtide.corpus.inputs import expand_inputs
from lowtide.dataset.settings import PretokenizeSettings
from lowtide.errors import DataError, UsageError
from lowtide.loader.texts import HubTexts
from lowtide.tokenizer.training import train_tokenizer

if importlib.util.find_spec("datasets") is None:  # to import it takes a second
    pytest.skip("datasets is not installed", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("default")  # the package's own are not ours to mend


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    rows = [json.dumps({"text": f"row {number}", "id": number}) for number in range(50)]
    (data / "train.jsonl").write_text("\n".join(rows))
    return data


def test_rows_are_documents(folder: Path) -> None:
    options = reading.ReadingSettings(block_bytes=64)
    inputs = expand_inputs([f"hf://{folder}"])
    documents = list(reading.iter_documents(inputs, options))
    assert [document.text for document in documents] == [b"row %d" % n for n in range(50)]
    assert [document.ordinal for document in documents] == list(range(50))


def test_folder_saved_by_the_package(folder: Path, tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_dict({"text": ["one", None, "two"]}).save_to_disk(tmp_path / "saved")
    documents = reading.iter_documents(expand_inputs([f"hf://{tmp_path / 'saved'}"]))
    assert [document.text for document in documents] == [b"one", b"two"]


def test_mistakes_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = reading.ReadingSettings(text_field="body")
    with pytest.raises(DataError, match="no column 'body'; there are text, id"):
        list(reading.iter_documents(expand_inputs([f"hf://{folder}"]), options))
    with pytest.raises(DataError, match=r"'id' holds int, .*; the columns are text, id\n"):
        options = reading.ReadingSettings(text_field="id")
        list(reading.iter_documents(expand_inputs([f"hf://{folder}"]), options))
    with pytest.raises(DataError, match="cannot be opened"):
        list(reading.iter_documents(expand_inputs([f"hf://{folder}:nosuchsplit"])))
    with pytest.raises(UsageError, match="names no dataset"):
        parse_hub_name("hf://")
    with pytest.raises(UsageError, match="pretokenize reads files, and hf://a/b is a dataset"):
        PretokenizeSettings(file=Path("hf://a/b"))  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match="needs the package datasets"):
        list(reading.iter_documents(expand_inputs([f"hf://{folder}"])))


def test_a_saved_folder_is_loaded_and_a_name_is_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    fake = SimpleNamespace(
        load_from_disk=lambda name: calls.append(name),
        load_dataset=lambda name, config, **more: calls.append((name, config, more)),
    )
    monkeypatch.setattr(hub, "import_package", lambda module, what: fake)
    hub.open_hub_rows("owner/name", split="train")
    hub.open_hub_rows("owner/name", split="val", config_name="en", streaming=False)
    assert calls == [
        ("owner/name", None, {"split": "train", "streaming": True}),
        ("owner/name", "en", {"split": "val", "streaming": False}),
    ]
    monkeypatch.setattr(hub, "is_saved_dataset", lambda name: True)
    hub.open_hub_rows("folder", split="train")
    assert calls[2:] == ["folder"]


@pytest.mark.parametrize("saved", [False, True])
def test_the_same_name_works_in_training_preparing_and_learning(
    folder: Path, tmp_path: Path, saved: bool
) -> None:
    import datasets

    name = f"hf://{folder}:train"
    if saved:
        datasets.load_dataset(str(folder), split="train").save_to_disk(tmp_path / "saved")
        name = f"hf://{tmp_path / 'saved'}"
    texts = [row.data for row in HubTexts(name).iter_texts(seed=None)]
    inputs = expand_inputs([name])
    prepared = [row.text for row in reading.iter_documents(inputs, reading.ReadingSettings())]
    learned = train_tokenizer(input=[name], kind="char")
    assert texts == prepared
    assert learned.tokenizer.vocab_size == len(set(b"".join(texts))) + 2
