"""The record of a .npy: its inputs, and whether they still exist unchanged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import xxhash

from lowtide.dataset import provenance
from lowtide.dataset.provenance import (
    Provenance,
    SourceText,
    describe_source_change,
    load_own_tokenizer,
    npy_path,
    read_provenance,
    record_path,
    tokenizer_dir,
    write_provenance,
)
from lowtide.errors import DataError
from lowtide.tokenizer import Tokenizer

RECORD = Provenance(
    7, "uint16", 300, "char", "f" * 16, SourceText("a.txt", 5, 9, "x"), {"a": 1}, "y"
)


def write(path: Path, record: Provenance = RECORD) -> None:
    write_provenance(path, record, lambda partial, name: partial.rename(name) and None)


def test_a_record_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    assert read_provenance(path) is None
    write(path)
    assert read_provenance(path) == RECORD
    value = json.loads(record_path(path).read_text())
    del value["xxh3_128"]  # as earlier versions wrote it
    record_path(path).write_text(json.dumps(value))
    found = read_provenance(path)
    assert found is not None and found.xxh3_128 is None


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": 99}, {"num_tokens": "many"}, {"source": None}, {"settings": 5},
        {"source": {"file": "a"}}, {"dtype": None, "vocab_size": None},
    ],
)  # fmt: skip
def test_a_damaged_record_is_told(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "a.npy"
    write(path)
    value = json.loads(record_path(path).read_text())
    record_path(path).write_text(json.dumps({**value, **change}))
    with pytest.raises(DataError) as caught:
        read_provenance(path)
    assert caught.value.message.startswith("this record of a.npy cannot be read: ")
    assert caught.value.path == record_path(path)


def test_names_beside_a_text() -> None:
    for text, npy in (
        ("a.txt", "a.npy"),
        ("a.txt.gz", "a.npy"),
        ("b.jsonl", "b.npy"),
        ("c", "c.npy"),
    ):
        assert npy_path(Path("x") / text) == Path("x") / npy
    assert record_path(Path("x/a.npy")) == Path("x/a.npy.json")
    assert tokenizer_dir(Path("x/a.npy")) == Path("x/a.tokenizer")


def test_how_a_text_differs(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"12345")
    os.utime(path, ns=(5, 5))
    whole = xxhash.xxh3_128_hexdigest(b"12345")
    same = SourceText("a.txt", 5, 5, "not compared")
    assert describe_source_change(same, path) is None
    assert describe_source_change(SourceText("a.txt", 5, 6, whole), path) is None
    assert describe_source_change(SourceText("a.txt", 5, 6, "0"), path) == (
        "a.txt holds other text of the same size"
    )
    assert describe_source_change(SourceText("a.txt", 4, 5, whole), path) == (
        "a.txt has 5 bytes, it had 4"
    )


def test_the_tokenizer_beside_it_is_the_one_of_the_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npy"
    own = Tokenizer.from_characters("ab")
    record = Provenance(1, "uint16", 2, "named", own.fingerprint, RECORD.source, {})
    asked: list[str] = []
    real = Tokenizer.load
    monkeypatch.setattr(provenance.Tokenizer, "load", lambda name: asked.append(name) or real(name))
    with pytest.raises(DataError, match="which cannot be loaded"):
        load_own_tokenizer(path, record)
    assert asked == ["named"]  # the given name, if none is beside it
    own.save(tokenizer_dir(path))
    assert load_own_tokenizer(path, record).fingerprint == own.fingerprint
    assert asked[-1] == str(tokenizer_dir(path))
    other = Provenance(1, "uint16", 2, "named", "0" * 16, RECORD.source, {})
    with pytest.raises(DataError) as caught:
        load_own_tokenizer(path, other)
    assert caught.value.message == (
        f"a.npy was made with tokenizer named (000000000000), {tokenizer_dir(path)} is another one "
        f"now ({own.fingerprint[:12]})"
    )
