"""The data of a run: ids are used only with the tokenizer they were made with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.dataset.pretokenization import pretokenize_file
from lowtide.errors import DataError, UsageError
from lowtide.files import read_json, write_json
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer
from lowtide.training import data as data_module
from lowtide.training.data import TrainingData, open_training_data
from lowtide.training.settings import TrainSettings
from lowtide.training.texttokens import find_text_tokens

TEXT = "".join(f"line {number} of a text about nothing in particular\n" for number in range(400))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "ts.txt"
    path.write_text(TEXT)
    return path


def settings_of(tmp_path: Path, **options: Any) -> TrainSettings:
    known = {"model_name": "m", "checkpoints_dir": tmp_path / "runs", "seq_len": 16}
    return build_settings(TrainSettings, {**known, **options})


def open_data(tmp_path: Path, **options: Any) -> tuple[TrainingData, str]:
    notes: list[str] = []
    settings = settings_of(tmp_path, **options)
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


def test_of_what_is_no_data_only_that_is_said(tmp_path: Path, text: Path) -> None:
    for name, message in ((text, "is text, not tokens"), (tmp_path, "no tokens here")):
        notes: list[str] = []
        settings = build_settings(TrainSettings, {"model_name": "m", "dataset_dir": name})
        with pytest.raises(DataError, match=message):
            open_training_data(settings, note=notes.append)
        assert not notes


def test_of_what_is_not_there_nothing_is_said_but_that(tmp_path: Path) -> None:
    notes: list[str] = []
    settings = build_settings(TrainSettings, {"model_name": "m", "dataset_dir": tmp_path / "gone"})
    with pytest.raises(DataError, match="gone not found"):
        open_training_data(settings, note=notes.append)
    assert notes == []


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


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The datasets that were opened: (path, options) of each; nothing is read."""
    calls: list[Any] = []

    class Dataset:
        tokenizer_fingerprint = None

        def __init__(self, path: Path, **options: Any) -> None:
            calls.append((str(path), options))
            self.path, self.source = path, SimpleNamespace(place=path)

        def describe(self) -> str:
            return f"described {self.path}"

        def require_cache(self, order: str) -> None:
            assert order == "shuffle"

    monkeypatch.setattr(data_module, "TokenDataset", Dataset)
    monkeypatch.setattr(data_module, "require_same_tokenizer", lambda *given: None)
    monkeypatch.setattr(data_module, "Mixture", lambda parts, shares: (parts, shares))
    return calls


def test_every_part_of_a_run_is_opened_as_the_settings_say(
    tmp_path: Path, opened: list[Any]
) -> None:
    Tokenizer.from_characters("ab").save(tmp_path / "d")
    data, notes = open_data(
        tmp_path,
        dataset_dir=tmp_path / "d",
        stride=4,
        dtype="uint16",
        val_fraction=0.25,
        replay_dataset_dir=tmp_path / "r",
        replay_fraction=0.25,
        eval_dataset_dir=(f"web={tmp_path / 'd'}", f"file={tmp_path / 'f.npy'}"),
        cache_dir=tmp_path / "cache",
        cache_size="3GiB",
    )
    common: dict[str, Any] = {"seq_len": 16, "dtype": "uint16", "val_fraction": 0.25}
    common |= {"cache_dir": tmp_path / "cache", "cache_size": "3GiB"}
    common["vocab_size"] = data.tokenizer.vocab_size
    folder = str(tmp_path / "d")
    assert opened == [
        (folder, {"split": "train", **common, "stride": 4}),
        (folder, {"split": "val", **common}),
        (str(tmp_path / "r"), {"split": "train", **common, "stride": 4}),
        (folder, {"split": "val", **common, "eval_only": True}),
        (str(tmp_path / "f.npy"), {"split": "val", **common, "eval_only": False}),
    ]
    parts, shares = data.train
    assert list(parts) == ["domain", "replay"] and shares == {"domain": 0.75, "replay": 0.25}
    assert list(data.others) == ["web", "file"]
    assert f"described {folder}" in notes
    assert f"replay: 25% of the rows from {tmp_path / 'r'}" in notes


def test_without_a_share_nothing_is_mixed_in(tmp_path: Path, opened: list[Any]) -> None:
    Tokenizer.from_characters("ab").save(tmp_path / "d")
    replay = {"replay_dataset_dir": tmp_path / "r", "replay_fraction": 0.0}
    data, _ = open_data(tmp_path, dataset_dir=tmp_path / "d", **replay)
    assert str(data.train.path) == str(tmp_path / "d") and len(opened) == 2


def test_a_file_with_its_own_validation_is_trained_on_to_its_end(
    tmp_path: Path, opened: list[Any]
) -> None:
    np.save(tmp_path / "a.npy", np.arange(9))
    open_data(tmp_path, train_data_path=tmp_path / "a.npy", val_data_path=tmp_path / "v.npy")
    assert [(path[-5:], options["split"]) for path, options in opened] == [
        ("a.npy", "all"),
        ("v.npy", "all"),
    ]
    opened.clear()
    Tokenizer.from_characters("ab").save(tmp_path / "d")
    open_data(tmp_path, dataset_dir=tmp_path / "d", val_data_path=tmp_path / "v.npy")
    assert [options["split"] for _, options in opened] == ["train", "all"]


def test_nothing_or_too_much_to_train_on_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to train on is given"):
        open_data(tmp_path)
    with pytest.raises(UsageError, match="--dataset-dir and --dataset-id are given"):
        open_data(tmp_path, dataset_dir=tmp_path, dataset_id="x")


@pytest.mark.parametrize("world", [1, 2])
def test_a_stream_is_opened_as_the_settings_say(
    tmp_path: Path, opened: list[Any], monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(
        data_module, "StreamingDataLoader", lambda name, **options: made.append((name, options))
    )
    read: list[Any] = []
    for kind in ("FileTexts", "HubTexts"):
        monkeypatch.setattr(
            data_module, kind, lambda *given, kind=kind, **more: read.append((kind, given, more))
        )
    monkeypatch.setattr(
        data_module, "hold_out", lambda *given: SimpleNamespace(fraction=0.125, val=None)
    )
    monkeypatch.setenv("WORLD_SIZE", str(world))
    monkeypatch.setenv("RANK", str(world - 1))
    text = tmp_path / "t.txt"
    text.write_text(TEXT)
    options = {
        "tokenization": "gpt2", "batch_size": 6, "gradient_accumulation_steps": 2, "stride": 8,
        "use_streaming": False, "shuffle_buffer_size": 50, "max_examples": 7, "text_column": "body",
        "split": "test", "seed": 3, "val_data_path": tmp_path / "v.npy",
    }  # fmt: skip
    for name, local in ((str(text), True), ("some/texts", False)):
        data, notes = open_data(tmp_path, dataset_id=name, **options)
        given, found = made.pop()
        assert given == (None if local else name)
        tokenizer = found.pop("tokenizer")
        assert tokenizer.vocab_size == 50257 and data.tokenizer is tokenizer
        assert {
            key: found[key]
            for key in (
                "files",
                "seq_len",
                "batch_size",
                "streaming",
                "shuffle_buffer_size",
                "stride",
                "max_examples",
                "val_fraction",
                "text_field",
                "split",
                "seed",
                "drop_last",
                "output_dtype",
                "rank",
                "world_size",
                "reader_bytes",
            )
        } == {
            "files": [name] if local else None,
            "seq_len": 16,
            "batch_size": 12 // world,
            "streaming": False,
            "shuffle_buffer_size": 50,
            "stride": 8,
            "max_examples": 7,
            "val_fraction": 0.125,
            "text_field": "body",
            "split": "train" if local else "test",
            "seed": 3,
            "drop_last": world > 1,
            "reader_bytes": 1 << 30,
            "output_dtype": "int64",
            "rank": world - 1,
            "world_size": world,
        }
        assert f"streaming {name}, tokenized on the fly" in notes
        assert opened.pop()[1]["split"] == "all"
        expected = ("FileTexts", ([name],), {"text_field": "body", "reader_bytes": 1 << 30})
        if not local:
            expected = ("HubTexts", (name,), {"split": "test", "text_field": "body"})
        assert read.pop() == expected


def test_a_named_tokenizer_is_compared_by_what_it_is(tmp_path: Path, opened: list[Any]) -> None:
    tokenizer = Tokenizer.from_characters("ab")
    for name in ("d", "same"):
        tokenizer.save(tmp_path / name)
    for named in (str(tmp_path / "same"), "char"):
        data, _ = open_data(tmp_path, dataset_dir=tmp_path / "d", tokenization=named)
        assert data.tokenizer.fingerprint == tokenizer.fingerprint
    with pytest.raises(DataError, match="is not the tokenizer of this dataset"):
        open_data(tmp_path, dataset_dir=tmp_path / "d", tokenization="gpt2")


def test_the_models_tokenizer_is_taken_where_none_is_named(
    tmp_path: Path, opened: list[Any]
) -> None:
    np.save(tmp_path / "a.npy", np.arange(9))
    known = Tokenizer.from_characters("ab")
    settings = build_settings(TrainSettings, {"train_data_path": tmp_path / "a.npy"})
    found = open_training_data(settings, note=lambda text: None, tokenizer=known)
    assert found.tokenizer is known
    named = build_settings(
        TrainSettings, {"train_data_path": tmp_path / "a.npy", "tokenization": "gpt2"}
    )
    found = open_training_data(named, note=lambda text: None, tokenizer=known)
    assert found.tokenizer.vocab_size == 50257


def test_a_large_text_is_better_tokenized_once(tmp_path: Path, text: Path) -> None:
    _, notes = open_data(tmp_path, input_file=text, tokenization="char")
    assert "lowtide pretokenize" not in notes
    chosen = settings_of(tmp_path, input_file=text, tokenization="char", model_name="other")
    told: list[str] = []
    find_text_tokens(chosen, told.append, None, large_bytes=text.stat().st_size)
    notes = "\n".join(told)
    folder = tmp_path / "runs" / "other" / "data"
    assert f"lowtide pretokenize {text} --tokenization {folder} does it once" in notes
    pretokenize_file(file=text, tokenization=str(folder))
    data, notes = open_data(tmp_path, input_file=text, model_name="third")
    assert str(text.with_suffix(".npy")) in notes and data.tokenizer.kind == "char"


def test_a_cache_that_costs_something_and_ids_without_validation_are_told(
    tmp_path: Path, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset: Any = data_module.TokenDataset
    asked: list[str] = []

    class Costly(dataset):
        def __init__(self, path: Path, **options: Any) -> None:
            super().__init__(path, **options)
            if options["split"] == "val":
                raise DataError("too short for a row")

        def require_cache(self, order: str) -> str:
            asked.append(Path(self.path).name)
            return f"by {order} it is read twice"

    monkeypatch.setattr(data_module, "TokenDataset", Costly)
    Tokenizer.from_characters("ab").save(tmp_path / "d")
    replay = {"replay_dataset_dir": tmp_path / "r", "replay_fraction": 0.25}
    data, notes = open_data(tmp_path, dataset_dir=tmp_path / "d", **replay)
    assert data.val is None and asked == ["d", "r"]
    assert notes.splitlines() == [
        f"described {tmp_path / 'd'}", "by shuffle it is read twice",
        "no validation: too short for a row", f"replay: 25% of the rows from {tmp_path / 'r'}",
    ]  # fmt: skip


@pytest.mark.parametrize("is_there", [False, True])
def test_the_tokenizer_of_a_dataset_in_a_store_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    asked: list[Any] = []
    ab = Tokenizer.from_characters("ab")
    ab.save(tmp_path / "copy")

    def fetch(url: Any, cache: Any) -> Path | None:
        asked.append((str(url), cache.folder, cache.size))
        return tmp_path / "copy" if is_there else None

    monkeypatch.setattr(data_module, "fetch_tokenizer", fetch)
    options = {"dataset_dir": "s3://b/d", "cache_dir": tmp_path / "c", "cache_size": "3GiB"}
    settings = settings_of(tmp_path, **options).data
    found = data_module._tokenizer_beside(Path("s3://b/d"), settings)
    assert (found and found.fingerprint) == (ab.fingerprint if is_there else None)
    assert asked == [("s3://b/d", tmp_path / "c", "3GiB")]


def test_ids_of_another_program_have_the_tokenizer_of_the_folder_with_their_name(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(2))
    data = settings_of(tmp_path, train_data_path=path).data
    assert data_module._tokenizer_beside(path, data) is None
    Tokenizer.from_characters("a").save(tmp_path)
    beside = data_module._tokenizer_beside(path, data)
    Tokenizer.from_characters("abc").save(data_module.tokenizer_dir(path))
    own = data_module._tokenizer_beside(path, data)
    assert beside is not None and own is not None and own.vocab_size == beside.vocab_size + 2
