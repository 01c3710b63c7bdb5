"""A tokenizer.json with a flipped bit that still is a tokenizer: told by the record beside it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from lowtide import Tokenizer, prepare_dataset, train_tokenizer
from lowtide.dataset.pretokenization import pretokenize_file
from lowtide.errors import DataError
from lowtide.filenames import CHECKSUMS_NAME, LEARNED_NAME, METADATA_NAME, TOKENIZER_NAME
from lowtide.model.checksums import record_files


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    words = ["tide", "water", "shore", "boat", "moon", "sand", "wave", "gull", "rope", "sail"]
    lines = (" ".join(words[(n * k) % 10] for k in range(1, 9)) for n in range(1, 400))
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def learned(text: Path, tmp_path: Path) -> Path:
    train_tokenizer(input=[text], out_dir=tmp_path / "tok", vocab_size=300)
    return tmp_path / "tok"


def swap_tokens(folder: Path) -> None:
    """Give two tokens each other's ids, as a flipped bit in a digit does."""
    path = folder / TOKENIZER_NAME
    whole = json.loads(path.read_text())
    vocab = whole["model"]["vocab"]
    first, second = list(vocab)[-2:]
    text = path.read_text().replace(f": {vocab[first]},", ": §,", 1)
    text = text.replace(f": {vocab[second]}", f": {vocab[first]}", 1).replace(
        "§", str(vocab[second])
    )
    path.write_text(text)
    assert json.loads(text) != whole


@pytest.mark.parametrize("opened", ["tok", f"tok/{TOKENIZER_NAME}"])
def test_a_learned_tokenizer_is_known_by_its_record(
    learned: Path, tmp_path: Path, opened: str
) -> None:
    whole = Tokenizer.load(tmp_path / opened)
    swap_tokens(learned)
    with pytest.raises(DataError, match=f"{LEARNED_NAME} says {whole.fingerprint}") as caught:
        Tokenizer.load(tmp_path / opened)
    assert caught.value.path == learned / TOKENIZER_NAME
    assert "keep it in a folder without" in str(caught.value.next_step)
    (learned / LEARNED_NAME).unlink()  # then it is somebody's own
    assert Tokenizer.load(tmp_path / opened).fingerprint != whole.fingerprint


def test_no_verb_takes_a_damaged_tokenizer(learned: Path, text: Path, tmp_path: Path) -> None:
    swap_tokens(learned)
    with pytest.raises(DataError, match="is damaged"):
        prepare_dataset(input_files=[text], out_dir=tmp_path / "out", tokenization=str(learned))
    assert not (tmp_path / "out" / METADATA_NAME).exists()
    with pytest.raises(DataError, match="is damaged"):
        pretokenize_file(file=text, out_path=tmp_path / "a.npy", tokenization=str(learned))
    assert not (tmp_path / "a.npy").exists()
    with pytest.raises(DataError, match="damaged"):
        train_tokenizer(input=[text], out_dir=learned, vocab_size=300)


def test_a_datasets_tokenizer_is_known_by_its_metadata(
    learned: Path, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "data"
    prepare_dataset(input_files=[text], out_dir=out, tokenization=str(learned))
    assert Tokenizer.load(out).fingerprint == Tokenizer.load(learned).fingerprint
    swap_tokens(out)
    with pytest.raises(DataError, match=METADATA_NAME):
        Tokenizer.load(out)


def test_a_runs_tokenizer_is_known_by_its_checksum(learned: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(learned / TOKENIZER_NAME, run)
    record_files(run, [TOKENIZER_NAME])
    Tokenizer.load(run)
    swap_tokens(run)
    with pytest.raises(DataError, match=CHECKSUMS_NAME):
        Tokenizer.load(run)


@pytest.mark.parametrize(
    "record", [b"", b"{}", b"\xff\x00", b"[1]", b'{\n  "fingerprint": 3\n}\n', b"x" * 200_000]
)
def test_a_record_that_says_nothing_stops_nobody(learned: Path, record: bytes) -> None:
    fingerprint = Tokenizer.load(learned).fingerprint
    for name in (LEARNED_NAME, METADATA_NAME):
        (learned / name).write_bytes(record)
    assert Tokenizer.load(learned).fingerprint == fingerprint


def test_a_record_of_many_inputs_is_not_read_whole(learned: Path) -> None:
    """The fingerprint stands behind the list of inputs."""
    path = learned / LEARNED_NAME
    record = json.loads(path.read_text())
    record["input_files"] = [record["input_files"][0]] * 3000
    path.write_text(json.dumps(record, indent=2) + "\n")
    assert path.stat().st_size > 1 << 18
    Tokenizer.load(learned)
    swap_tokens(learned)
    with pytest.raises(DataError, match=LEARNED_NAME):
        Tokenizer.load(learned)


def test_a_pipe_in_place_of_a_record_is_not_waited_for(learned: Path) -> None:
    (learned / LEARNED_NAME).unlink()
    os.mkfifo(learned / LEARNED_NAME)
    Tokenizer.load(learned)
