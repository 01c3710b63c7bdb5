"""Streams hold documents out by content: the same ones always, and none of them is trained on."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.loader import heldout as heldout_texts
from lowtide.loader.heldout import KeptTexts, is_held_out
from lowtide.loader.streaming import StreamingDataLoader
from lowtide.loader.texts import FileTexts, Text
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer
from lowtide.training import heldout
from lowtide.training.data import TrainingData, open_training_data
from lowtide.training.heldout import HeldOut, HeldOutLimits, hold_out
from lowtide.training.settings import TrainSettings
from lowtide.training.start import train

SEPARATOR = "<|endoftext|>"


def documents(count: int) -> list[str]:
    rng = random.Random(7)
    words = ("low", "tide", "water", "sand", "moon")
    return [f"[{n}] {' '.join(rng.choices(words, k=rng.randint(5, 25)))}" for n in range(count)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.from_characters(sorted(set("".join(documents(300))))).save(folder)
    return str(folder)


def write_texts(folder: Path, texts: list[str], files: int = 3) -> str:
    folder.mkdir(parents=True)
    for number in range(files):
        (folder / f"{number}.txt").write_text(SEPARATOR.join(texts[number::files]))
    return str(folder / "*.txt")


def options(tmp_path: Path, name: str, source: str, tokenizer: str, **more: Any) -> dict[str, Any]:
    known = {"model_name": name, "checkpoints_dir": tmp_path / "runs", "dataset_id": source}
    return {**known, "tokenization": tokenizer, "seq_len": 16, **more}


def open_data(*given: Any, **more: Any) -> tuple[TrainingData, str]:
    notes: list[str] = []
    settings = build_settings(TrainSettings, options(*given, **more))
    return open_training_data(settings, note=notes.append), "\n".join(notes)


def numbers_in(data: Any, tokenizer: str) -> set[str]:
    """The numbers of documents in a stream of batches, or in a dataset."""
    text = Tokenizer.load(tokenizer)
    if isinstance(data, StreamingDataLoader):
        windows = [row for batch in data for row in batch["input_ids"]]
    else:
        windows = [data[row][0] for row in range(len(data))]
    found = text.decode(np.concatenate(windows))
    return {part.split("]")[0] for part in found.split("[")[1:] if "]" in part}


def test_what_is_held_out_is_validated_on_and_never_trained_on(
    tmp_path: Path, tokenizer: str
) -> None:
    source = write_texts(tmp_path / "texts", documents(300))
    data, notes = open_data(tmp_path, "a", source, tokenizer, shuffle_buffer_size=1)
    assert data.val is not None and "held out by their content" in notes
    val, trained = numbers_in(data.val, tokenizer), numbers_in(data.train, tokenizer)
    assert 15 < len(val) < 50
    assert not val & trained
    assert len(val | trained) > 290  # one cut by the end of a window may be missed
    record = json.loads((tmp_path / "runs/a/data/val/held_out.json").read_text())
    assert record["documents"] == len(val)


def test_order_and_files_decide_nothing(tmp_path: Path, tokenizer: str) -> None:
    found: list[set[str]] = []
    for name, texts, files in (("a", documents(300), 3), ("b", documents(300)[::-1], 7)):
        source = write_texts(tmp_path / name, texts, files)
        data, _ = open_data(tmp_path, name, source, tokenizer)
        found.append(numbers_in(data.val, tokenizer))
    missed = found[0] ^ found[1]
    assert len(missed) <= 1 and len(found[0] & found[1]) > 15, "the last may be cut by a window"


@pytest.mark.parametrize(
    ("more", "count", "reason"),
    [
        ({"val_fraction": 0.0}, 300, ""),
        ({}, 20, "too few documents at the beginning of the stream to hold some out (20)"),
        ({"max_examples": 30}, 300, "stream to hold some out (30)"),
    ],
)
def test_where_nothing_is_held_out_all_is_trained_on(
    tmp_path: Path, tokenizer: str, more: dict[str, Any], count: int, reason: str
) -> None:
    source = write_texts(tmp_path / "texts", documents(count))
    data, notes = open_data(tmp_path, "a", source, tokenizer, **more)
    assert data.val is None and reason in notes
    plain = StreamingDataLoader(
        files=[source], tokenizer=Tokenizer.load(tokenizer), seq_len=16, seed=1337,
        max_examples=more.get("max_examples"),
    )  # fmt: skip
    assert data.train.fingerprint == plain.fingerprint


def test_given_validation_data_holds_nothing_out(tmp_path: Path, tokenizer: str) -> None:
    source = write_texts(tmp_path / "texts", documents(300))
    np.save(tmp_path / "val.npy", np.zeros(500, dtype=np.int32))
    data, notes = open_data(tmp_path, "a", source, tokenizer, val_data_path=tmp_path / "val.npy")
    assert data.val is not None and data.val.num_tokens == 500 and "held out" not in notes


def test_it_is_bounded_by_size(tmp_path: Path, tokenizer: str) -> None:
    source = write_texts(tmp_path / "texts", documents(300))
    notes: list[str] = []

    def hold(name: str, **limits: int) -> HeldOut:
        settings = build_settings(TrainSettings, options(tmp_path, name, source, tokenizer))
        chosen = HeldOutLimits(kept_bytes=500, fewest_documents=10, **limits)
        texts, known = FileTexts([source]), Tokenizer.load(tokenizer)
        return hold_out(settings, texts, known, notes.append, limits=chosen)

    found = hold("a")
    assert found.val is not None and 400 < found.val.num_tokens < 800
    assert hold("b", scan_bytes=100).val is None
    assert "no validation: too few documents" in notes[-1]


_RUN: dict[str, Any] = {
    "target_params": 20000, "batch_size": 2, "eval_interval": 2, "save_interval": 2,
    "log_interval": 1, "eval_iters": 1, "schedule": "constant", "warmup": 0,
    "sample_tokens": 4, "memory": "4GiB",
}  # fmt: skip


def test_a_run_evaluates_on_it_and_goes_on_the_same(tmp_path: Path, tokenizer: str) -> None:
    source = write_texts(tmp_path / "texts", documents(200))
    whole = options(tmp_path, "whole", source, tokenizer, **_RUN)
    parts = options(tmp_path, "parts", source, tokenizer, **_RUN)
    train(**whole, max_iters=4)
    train(**parts, max_iters=2)
    train(**parts, max_iters=4)
    rows: list[list[dict[str, Any]]] = []
    for name in ("whole", "parts"):
        lines = (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()
        rows.append([row for row in map(json.loads, lines) if row.get("event") == "eval"])
    assert [(row["step"], row["val_loss"]) for row in rows[0]] == [
        (row["step"], row["val_loss"]) for row in rows[1]
    ]
    assert all(row["sample"] for row in rows[0])


def test_a_run_of_an_earlier_version_goes_on_without(
    tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_texts(tmp_path / "texts", documents(200))
    given = options(tmp_path, "old", source, tokenizer, **_RUN)
    train(**given, val_fraction=0.0, max_iters=2)  # as earlier versions read streams
    (tmp_path / "runs/old/data/val/held_out.json").unlink()
    settings = tmp_path / "runs/old/settings.json"
    settings.write_text(settings.read_text().replace('"val_fraction": 0.0', '"val_fraction": 0.1'))
    train(**given, max_iters=4)
    assert "began without held-out documents, and goes on without" in capsys.readouterr().err


def test_a_document_in_parts_is_never_held_out(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("low tide " * 3000 + SEPARATOR + "the end")
    source = FileTexts([path], block_bytes=4096)
    texts = list(source.iter_texts(seed=None))
    assert len(texts) > 3 and texts[-1].begins_document
    kept = list(KeptTexts(source, 0.999999).iter_texts(seed=None))
    assert b"".join(text.data for text in kept) == b"low tide " * 3000


def test_the_share_ends_below_its_border(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all hashes, those below the share of 2 ** 64; none for no share, all for the whole."""
    for value, fraction, wanted in [
        (0, 0.0, False),
        ((1 << 62) - 1, 0.25, True),
        (1 << 62, 0.25, False),
        ((1 << 64) - 1, 1.0, True),
    ]:
        hashes = SimpleNamespace(xxh3_64_intdigest=lambda data, value=value: value)
        monkeypatch.setattr(heldout_texts, "xxhash", hashes)
        assert is_held_out(Text(b"low", ()), fraction) is wanted


@pytest.mark.parametrize(("tokens", "has_row"), [(16, False), (17, True)])
def test_ids_that_give_no_row_are_not_validated_on(
    tmp_path: Path, tokens: int, has_row: bool
) -> None:
    np.arange(tokens, dtype="<u4").tofile(tmp_path / heldout._TOKENS)
    record = {"fraction": 0.1, "asked": 0.1, "num_tokens": tokens, "documents": 2, "seen": 90}
    notes: list[str] = []
    known: Any = SimpleNamespace(vocab_size=99)
    found = heldout._open(16, tmp_path, known, record, notes.append)
    assert found.fraction == 0.1 and (found.val is not None) is has_row
    said = (
        "validation: 10% of all documents are held out by their content; the first 2 "
        f"({tokens} tokens) are in {tmp_path}"
    )
    assert notes == [said if has_row else "no validation: 16 tokens held out give no row"]


def test_what_is_scanned_is_known_by_its_source() -> None:
    source: Any = SimpleNamespace(fingerprint="of the source")
    scan = heldout._Scan(source, 0.1, None, HeldOutLimits())
    assert (scan.fingerprint, scan.text_bytes) == ("of the source", None)
