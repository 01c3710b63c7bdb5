"""The data of a run: ids are used only with the tokenizer they were made with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.dataset.pretokenization import pretokenize_file
from lowtide.errors import DataError
from lowtide.files import read_json, write_json
from lowtide.settings import build_settings
from lowtide.training.data import TrainingData, open_training_data
from lowtide.training.settings import TrainSettings

TEXT = "".join(f"line {number} of a text about nothing in particular\n" for number in range(400))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "ts.txt"
    path.write_text(TEXT)
    return path


def open_data(tmp_path: Path, **options: Any) -> tuple[TrainingData, str]:
    notes: list[str] = []
    known = {"model_name": "m", "checkpoints_dir": tmp_path / "runs", "seq_len": 16}
    settings = build_settings(TrainSettings, {**known, **options})
    return open_training_data(settings, note=notes.append), "\n".join(notes)


@pytest.mark.parametrize("named", [{}, {"tokenization": "char"}])
def test_a_npy_is_used_with_its_own_tokenizer(
    tmp_path: Path, text: Path, named: dict[str, str]
) -> None:
    pretokenize_file(file=text, tokenization="char")
    for given in ({"input_file": text}, {"train_data_path": tmp_path / "ts.npy"}):
        data, notes = open_data(tmp_path, **given, **named)
        assert data.tokenizer.kind == "char"
        assert data.tokenizer.decode(data.train[0][0]) == TEXT[:16]
        assert str(tmp_path / "ts.npy") in notes and "not used" not in notes


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tokenization": "char"}, "made with tokenizer gpt2, --tokenization is char"),
        ({"vocab_size": 300}, "has a vocabulary of 50257, --vocab-size is 300"),
    ],
)
def test_another_tokenizer_makes_the_ids_anew(
    tmp_path: Path, text: Path, options: dict[str, Any], reason: str
) -> None:
    pretokenize_file(file=text)
    data, notes = open_data(tmp_path, input_file=text, **options)
    assert reason in notes and "tokenized anew" in notes
    assert data.tokenizer.decode(data.train[0][0]) in TEXT
    assert data.tokenizer.vocab_size <= 300


def test_a_changed_text_makes_the_ids_anew(tmp_path: Path, text: Path) -> None:
    pretokenize_file(file=text, tokenization="char")
    text.write_text(TEXT.replace("nothing", "another"))
    data, notes = open_data(tmp_path, input_file=text, tokenization="char")
    assert "other text of the same size; the text is tokenized anew" in notes
    assert "another" in data.tokenizer.decode(np.concatenate([data.train[i][0] for i in range(9)]))


def test_another_tokenizer_for_ids_alone_is_refused(tmp_path: Path, text: Path) -> None:
    pretokenize_file(file=text, tokenization="char")
    with pytest.raises(DataError, match="--tokenization gpt2 is not the tokenizer of this dataset"):
        open_data(tmp_path, train_data_path=tmp_path / "ts.npy", tokenization="gpt2")


def test_what_cannot_be_checked_is_said(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(500, dtype=np.int32))
    _, notes = open_data(tmp_path, train_data_path=tmp_path / "a.npy")
    assert "a.npy: nothing beside it says which tokenizer made it; taken as gpt2's" in notes


def test_a_record_of_another_file_is_refused(tmp_path: Path, text: Path) -> None:
    pretokenize_file(file=text, tokenization="char")
    record = tmp_path / "ts.npy.json"
    saved = read_json(record)
    np.save(tmp_path / "ts.npy", np.arange(500, dtype=np.int32))
    with pytest.raises(DataError, match="it is not the file that lowtide made"):
        open_data(tmp_path, train_data_path=tmp_path / "ts.npy")
    for damage in ({}, {**saved, "source": 3}, {**saved, "vocab_size": None}, []):
        write_json(record, damage)
        with pytest.raises(DataError, match=r"record of ts\.npy cannot be read"):
            open_data(tmp_path, train_data_path=tmp_path / "ts.npy")
