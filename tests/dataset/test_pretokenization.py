"""Pretokenizing: the ids of the whole file, whatever it is stored in, in a real .npy."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.dataset import pretokenization
from lowtide.dataset.pretokenization import pretokenize_file
from lowtide.dataset.summary import describe_pretokenization
from lowtide.errors import DataError, UsageError
from lowtide.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
from corpora import SEPARATOR, make_documents, write_corpus


def test_the_ids_of_the_whole_file(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "a.txt", make_documents(300))
    result = pretokenize_file(file=path)
    found = np.load(tmp_path / "a.npy", mmap_mode="r")
    expected = Tokenizer.load("gpt2").encode(path.read_text(), special="allow")
    assert found.dtype == np.uint16 and found.tolist() == expected.tolist()
    assert result.num_tokens == len(expected)
    assert f"{len(expected):,} tokens" in describe_pretokenization(result)
    assert sorted(item.name for item in tmp_path.iterdir()) == [
        ".a.npy.metrics.jsonl",
        "a.npy",
        "a.txt",
    ]


def test_interrupted_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_corpus(tmp_path / "a.txt", make_documents(300))
    monkeypatch.setattr(pretokenization, "_STEP_BYTES", 5000)
    monkeypatch.setattr(pretokenization, "_WINDOW_BYTES", 1000)
    real = pretokenization.files.write_json
    steps: list[int] = []

    def stop_after_three(target: Path, value: dict[str, Any]) -> None:
        real(target, value)
        steps.append(value["position"])
        if len(steps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(pretokenization.files, "write_json", stop_after_three)
    with pytest.raises(KeyboardInterrupt):
        pretokenize_file(file=path)
    assert not (tmp_path / "a.npy").exists()
    pretokenize_file(file=path)
    assert len(steps) == len(set(steps)) and steps == sorted(steps), "something was done twice"
    expected = Tokenizer.load("gpt2").encode(path.read_text(), special="allow")
    assert np.load(tmp_path / "a.npy").tolist() == expected.tolist()


def test_changed_file_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_corpus(tmp_path / "a.txt", make_documents(50))
    (tmp_path / ".a.npy.partial").write_bytes(b"x" * 999)
    (tmp_path / ".a.json.partial").write_text('{"identity": [1, 2, 3], "position": 9, "count": 9}')
    pretokenize_file(file=path)
    expected = Tokenizer.load("gpt2").encode(path.read_text(), special="allow")
    assert np.load(tmp_path / "a.npy").tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl"])
def test_documents_end_with_end_of_text(tmp_path: Path, name: str) -> None:
    documents = make_documents(30)
    data = SEPARATOR.join(documents).encode()
    if name == "a.jsonl":
        data = "\n".join(json.dumps({"text": text}) for text in documents).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    pretokenize_file(file=tmp_path / name)
    text = Tokenizer.load("gpt2").decode(np.load(tmp_path / "a.npy"))
    # Rows are whole documents; of a text, what stands between them is all there is.
    end = SEPARATOR if name == "a.jsonl" else ""
    assert text == SEPARATOR.join(documents) + end


def test_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("ein Übel für alle\n")
    pretokenize_file(file=path, tokenization="char")
    tokenizer = Tokenizer.load(tmp_path / "a.tokenizer")
    assert tokenizer.decode(np.load(tmp_path / "a.npy")) == "ein Übel für alle\n"


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    assert pretokenize_file(file=tmp_path / "a.txt").num_tokens == 0
    assert np.load(tmp_path / "a.npy").shape == (0,)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.npy").write_bytes(b"precious")
    with pytest.raises(UsageError, match="there already"):
        pretokenize_file(file=tmp_path / "a.txt")
    assert (tmp_path / "a.npy").read_bytes() == b"precious"
    with pytest.raises(DataError, match="no such file"):
        pretokenize_file(file=tmp_path / "none.txt")


@pytest.mark.parametrize("end", ["", SEPARATOR, "\n", SEPARATOR * 2])
def test_compressed_and_other_encodings_give_the_ids_of_the_plain_file(
    tmp_path: Path, end: str
) -> None:
    text = SEPARATOR.join([*make_documents(5)[:3], "", "Übung am Ende"]).replace("水", "") + end
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "c.txt").write_bytes(text.encode("latin-1"))
    for name, encoding in (("a.txt", "utf-8"), ("b.txt.gz", "utf-8"), ("c.txt", "latin-1")):
        pretokenize_file(file=tmp_path / name, encoding=encoding)
    expected = np.load(tmp_path / "a.npy").tolist()
    assert np.load(tmp_path / "b.npy").tolist() == expected
    assert np.load(tmp_path / "c.npy").tolist() == expected


def test_several_files_are_refused(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("text")
    with pytest.raises(UsageError, match="2 files, expected one"):
        pretokenize_file(file=tmp_path)


def test_rows_without_text_are_skipped_on_request(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "low tide"}\n{"id": 1}\n{"text": "low"}\n')
    with pytest.raises(DataError, match="its fields: 'id'"):
        pretokenize_file(file=tmp_path / "a.jsonl")
    pretokenize_file(file=tmp_path / "a.jsonl", skip_bad_inputs=True)
    assert np.load(tmp_path / "a.npy").tolist() == [9319, 20013, 50256, 9319, 50256]
