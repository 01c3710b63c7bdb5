"""Readers' errors in words, and how many files stay open."""

from __future__ import annotations

import errno
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.dataset.tokenfiles.streams import TokenFile
from lowtide.errors import DataError, LowtideError
from lowtide.loader import tokenstreams
from lowtide.loader.tokenstreams import Expected, explain_read_error


def explain(
    kind: str, position: int, value: int, *, dtype: str = "<u2", path: Path = Path("nowhere"),
    id_limit: int = 300, vocab_size: int | None = 300,
) -> LowtideError:  # fmt: skip
    source: Any = SimpleNamespace(path=path, dtype=np.dtype(dtype))
    expected = Expected(id_limit, vocab_size, np.dtype("int32"))
    return explain_read_error(source, expected, kind, "data/shard.bin", position, value)


@pytest.mark.parametrize(
    ("value", "dtype", "vocab_size", "words"),
    [
        (300, "<u2", 300, "shard.bin has id 300 at token 7, the vocabulary ends at 299"),
        (300, "<u2", 9000, "shard.bin has id 300 at token 7, int32 ends at 299"),
        (300, "<u2", None, "shard.bin has id 300 at token 7, int32 ends at 299"),
        (65_535, "<u2", 300, "shard.bin has id 65535 at token 7, the vocabulary ends at 299"),
        (65_535, "<i2", 300, "shard.bin has id -1 at token 7, ids begin at 0"),
        (32_768, "<i2", 300, "shard.bin has id -32768 at token 7, ids begin at 0"),
        (32_767, "<i2", 300, "shard.bin has id 32767 at token 7, the vocabulary ends at 299"),
        (2**32 - 2, "<i4", 300, "shard.bin has id -2 at token 7, ids begin at 0"),
    ],
)
def test_ids_that_are_too_large_or_negative(
    value: int, dtype: str, vocab_size: int | None, words: str
) -> None:
    error = explain("id_too_large", 7, value, dtype=dtype, vocab_size=vocab_size)
    assert isinstance(error, DataError) and error.message == words
    assert str(error.path) == "data/shard.bin"
    step = "was it made with another tokenizer or dtype? then: lowtide verify nowhere"
    assert error.next_step == step


def test_files_that_are_cut_short_or_have_wrong_documents(tmp_path: Path) -> None:
    error = explain("too_short", 7, 90)
    assert error.message == "shard.bin holds 7 bytes, expected at least 90: it was cut short"
    assert error.next_step == "lowtide verify nowhere"
    (tmp_path / "a.bin").touch()
    error = explain("too_short", 7, 90, path=tmp_path / "a.bin")
    assert error.next_step == "write or copy the file again"
    error = explain("documents", 7, 90)
    assert error.message.startswith("shard.bin: document 7 ends at token 90, before the one before")
    error = explain("system", 0, errno.EIO)
    assert (
        error.message == "the disk failed to read or write" and str(error.path) == "data/shard.bin"
    )


@pytest.mark.parametrize(
    ("allowed", "wanted"),
    [(4096, 256), (2048, 256), (2047, 255), (16, 2), (7, 1), (resource.RLIM_INFINITY, 256)],
)
def test_an_eighth_of_the_files_that_may_be_open(
    monkeypatch: pytest.MonkeyPatch, allowed: int, wanted: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (allowed, allowed))
    assert tokenstreams._max_open_files() == wanted


def test_each_kind_of_source_has_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, Any, dict[str, Any]]] = []

    def note(name: str) -> Any:
        def make(*given: Any, **more: Any) -> str:
            made.append((name, given, more))
            return name

        return make

    monkeypatch.setattr(tokenstreams, "ArrayStream", note("array"))
    monkeypatch.setattr(tokenstreams, "StoreStream", note("store"))
    monkeypatch.setattr(tokenstreams._native, "TokenStream", note("files"))
    monkeypatch.setattr(tokenstreams, "_max_open_files", lambda: 5)
    shard = TokenFile(Path("a/b.c.bin"), 3, 4, np.dtype("<u4"), 2, begins_document=True)
    about: dict[str, Any] = {
        "array": None,
        "stored": None,
        "dtype": np.dtype("<u4"),
        "shards": [shard],
    }
    places: Any = "places"
    for changed, name in (({"array": "ids"}, "array"), ({"stored": "row"}, "store"), ({}, "files")):
        source: Any = SimpleNamespace(**{**about, **changed})
        assert tokenstreams.open_tokens(source, id_limit=9, places=places) == name
    assert made == [
        ("array", ("ids",), {"id_limit": 9}),
        ("store", ("row",), {"dtype": np.dtype("<u4"), "id_limit": 9, "windowing": "places"}),
        ("files", ([("a/b.c.bin", 3, 4, "a/b.c.docs", 2, True)],),
         {"item_bytes": 4, "id_limit": 9, "max_open_files": 5}),
    ]  # fmt: skip


def test_an_id_of_0_is_no_negative_one() -> None:
    error = explain("id_too_large", 7, 0, id_limit=0, vocab_size=0)
    assert error.message == "shard.bin has id 0 at token 7, the vocabulary ends at -1"
