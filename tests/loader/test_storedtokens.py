"""Shards of a store as one row of tokens, and what is brought from it before any is read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.errors import DataError, UsageError
from lowtide.loader import storedtokens
from lowtide.loader.storedtokens import ShardRow, fetch_tokenizer, open_stored_dataset
from lowtide.stores.refusals import ObjectMissingError
from lowtide.stores.urls import store_url


class Tokens:
    """The object of a shard; extents are named by their bytes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def extents(self, begin: int, end: int) -> list[tuple[str, int, int]]:
        return [(self.name, begin, end)]


def row_of(*sizes: int) -> ShardRow:
    shards: list[Any] = [
        SimpleNamespace(num_tokens=size, tokens=Tokens(str(number)), number=number)
        for number, size in enumerate(sizes)
    ]
    return ShardRow.of(shards)


def test_tokens_are_found_shard_by_shard() -> None:
    """By every pair of places; shards without tokens are left out."""
    sizes = (3, 0, 1, 4, 0)
    row = row_of(*sizes)
    assert row.ends == (3, 4, 8) and [shard.num_tokens for shard in row.shards] == [3, 1, 4]
    plain = [(number, place) for number, size in enumerate(sizes) for place in range(size)]
    for begin in range(9):
        for end in range(begin, 9):
            found: Any = list(row.spans(begin, end))
            tokens = [
                (shard.number, place)
                for shard, first, stop in found
                for place in range(first, stop)
            ]
            assert tokens == plain[begin:end]
            assert all(stop > first for _, first, stop in found)
            extents = [(str(shard.number), first * 2, stop * 2) for shard, first, stop in found]
            assert list(row.extents(begin, end, 2)) == extents
    assert row_of().ends == ()


class Folder:
    """A cache that keeps the files of a store which are there."""

    def __init__(self, *there: str) -> None:
        self.there = there
        self.asked: list[tuple[str, int]] = []

    def keep_file(self, store: Any, url: Any, *, most_bytes: int) -> Path:
        self.asked.append((url.name, most_bytes))
        if url.name not in self.there:
            raise ObjectMissingError(str(url))
        return Path("/cache/copy") / url.name


def settings_of(monkeypatch: pytest.MonkeyPatch, folder: Folder) -> Any:
    monkeypatch.setattr(storedtokens, "open_store", lambda url: "store")
    monkeypatch.setattr(
        storedtokens, "no_dataset", lambda store, url: DataError("no dataset", path=str(url))
    )
    return SimpleNamespace(open=lambda: SimpleNamespace(folder=folder))


def url_of(text: str) -> Any:
    return store_url(text)


def test_a_tokenizer_is_brought_with_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    url = url_of("s3://bucket/data")
    folder = Folder("dataset_metadata.json", "tokenizer.json")
    assert fetch_tokenizer(url, settings_of(monkeypatch, folder)) == Path("/cache/copy")
    assert [name for name, _ in folder.asked] == ["dataset_metadata.json", "tokenizer.json"]
    most = {size for _, size in folder.asked}
    assert most == {storedtokens._MOST_METADATA_BYTES}
    without = Folder("dataset_metadata.json")
    assert fetch_tokenizer(url, settings_of(monkeypatch, without)) is None
    with pytest.raises(DataError, match="no dataset"):
        fetch_tokenizer(url, settings_of(monkeypatch, Folder()))


@pytest.mark.parametrize("name", ["ids.npy", "ids.bin"])
def test_files_of_ids_are_not_read_from_a_store(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(monkeypatch, Folder())
    with pytest.raises(UsageError, match="only prepared datasets are read from an object store"):
        open_stored_dataset(url_of(f"s3://bucket/{name}"), settings)


def test_objects_are_those_of_each_split(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder("dataset_metadata.json", "tokenizer.json")
    settings = settings_of(monkeypatch, folder)
    asked: list[Any] = []
    metadata = {"shards": {"train": [1, 2]}, "dtype": "uint16"}

    def match(store: Any, url: Any, rows: list[Any], item_bytes: int) -> list[Any]:
        asked.append((store, str(url), rows, item_bytes))
        return [f"matched {row}" for row in rows]

    def load(root: Path, *, find_shards: Any) -> str:
        asked.append(list(find_shards("train", metadata)))
        asked.append(list(find_shards("val", metadata)))
        return f"info of {root}"

    monkeypatch.setattr(storedtokens, "shard_from_row", lambda root, row: f"{root}:{row}")
    monkeypatch.setattr(storedtokens, "match_objects", match)
    monkeypatch.setattr(storedtokens, "_stored_shard", lambda row: f"stored {row}")
    monkeypatch.setattr(storedtokens, "load_dataset_info", load)
    found = open_stored_dataset(url_of("s3://bucket/data"), settings)
    rows = ["/cache/copy:1", "/cache/copy:2"]
    assert asked == [
        ("store", "s3://bucket/data/train", rows, 2), rows,
        ("store", "s3://bucket/data/val", [], 2), [],
    ]  # fmt: skip
    assert found.info == "info of /cache/copy"
    assert found.shards == {"train": tuple(f"stored matched {row}" for row in rows), "val": ()}
