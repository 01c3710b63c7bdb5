"""Datasets in a store: small files copied, objects matched, errors that name the dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.dataset import layout, storeddatasets
from lowtide.dataset.storeddatasets import (
    load_any_info,
    match_objects,
    no_dataset,
    open_small_files,
    read_any_metadata,
)
from lowtide.dataset.tokenfiles.shards import id_chunk, shard_name, write_shard_stream
from lowtide.errors import DataError
from lowtide.stores import paths
from lowtide.stores.paths import StorePath
from lowtide.stores.urls import StoreURL
from lowtide.tokenizer import Tokenizer

from ..stores.memorystore import MemoryStore

ROOT = StorePath("s3://bucket/data")
URL = StoreURL("s3", "bucket", "data")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    made = MemoryStore()
    for module in (storeddatasets, paths):
        monkeypatch.setattr(module, "open_store", lambda url: made)
    monkeypatch.setattr(paths, "_infos", type(paths._infos)())
    return made


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards of train, of which one has documents, and one of val."""
    root = tmp_path_factory.mktemp("dataset")
    tokenizer = Tokenizer.from_characters("abc")
    tokenizer.save(root)
    shards: dict[str, list[Any]] = {"train": [], "val": []}
    for number, (split, count, ends) in enumerate(
        (("train", 10, [4, 10]), ("train", 5, []), ("val", 3, [3]))
    ):
        path = root / split / shard_name(number, "01234567-bc013c54")
        path.parent.mkdir(exist_ok=True)
        ids = np.zeros(count, np.uint32)
        chunk = id_chunk(ids, np.array(ends, np.int64), vocab_size=3, path=path)
        shards[split].append(write_shard_stream(path, iter([chunk]), vocab_size=3))
    layout.write_metadata(
        root, shards=shards, vocab_size=3, tokenizer_fingerprint=tokenizer.fingerprint,
        tokenization="char", tokens_per_shard=10, input_files=["a.txt"], more={},
    )  # fmt: skip
    return root


def upload(store: MemoryStore, root: Path, prefix: str = "data") -> None:
    for path in root.rglob("*"):
        if path.is_file():
            store.put(f"{prefix}/{path.relative_to(root).as_posix()}", path.read_bytes())


def test_a_dataset_in_a_store_is_described_as_on_a_disk(store: MemoryStore, dataset: Path) -> None:
    upload(store, dataset)
    local, stored = load_any_info(dataset), load_any_info(ROOT)
    assert stored.root == ROOT
    assert stored.metadata == local.metadata == read_any_metadata(ROOT)
    for split in layout.SPLITS:
        rows = [replace(shard, path=Path()) for shard in local.shards[split]]
        assert [replace(shard, path=Path()) for shard in stored.shards[split]] == rows
        assert [str(shard.path) for shard in stored.shards[split]] == [
            f"{ROOT}/{split}/{shard.path.name}" for shard in local.shards[split]
        ]
    with open_small_files(dataset) as folder:
        assert folder == dataset
    with open_small_files(ROOT) as folder:
        assert sorted(path.name for path in folder.iterdir()) == [
            "dataset_metadata.json", "tokenizer.json"
        ]  # fmt: skip
        for path in folder.iterdir():
            assert path.read_bytes() == (dataset / path.name).read_bytes()
    assert not folder.exists()
    del store.contents["data/tokenizer.json"]
    with open_small_files(ROOT) as folder:
        assert [path.name for path in folder.iterdir()] == ["dataset_metadata.json"]


def test_small_files_are_those_of_now(store: MemoryStore, dataset: Path) -> None:
    upload(store, dataset)
    assert read_any_metadata(ROOT)["vocab_size"] == 3
    text = store.contents["data/dataset_metadata.json"]
    store.put("data/dataset_metadata.json", text.replace(b'"vocab_size": 3', b'"vocab_size": 4'))
    assert read_any_metadata(ROOT)["vocab_size"] == 4


def test_errors_name_the_dataset_and_not_its_copy(store: MemoryStore, dataset: Path) -> None:
    upload(store, dataset)
    store.put("data/dataset_metadata.json", b"{")
    for load in (load_any_info, read_any_metadata):
        with pytest.raises(DataError) as caught:
            load(ROOT)
        assert str(caught.value.path) == f"{ROOT}/dataset_metadata.json"
    other = DataError("x", path="/elsewhere/a", next_step="y")
    assert storeddatasets._named(other, Path("/copy"), ROOT) is other
    assert storeddatasets._named(DataError("x"), Path("/copy"), ROOT).path is None
    named = storeddatasets._named(
        DataError("x", path="/copy/a", next_step="y"), Path("/copy"), ROOT
    )
    assert (named.message, named.path, named.next_step) == ("x", f"{ROOT}/a", "y")


@pytest.mark.parametrize(
    ("keys", "prefix", "message", "step"),
    [
        ([], "data", "nothing is stored under this prefix", "aws s3 cp --recursive DATASET"),
        (["data/x/y"], "data", "the first object is y", "text is prepared first"),
        (["data/train/s.bin"], "data/train", "the first object is s.bin", "did you mean s3://bucket/data?"),
        (["val/s.bin"], "val", "the first object is s.bin", "did you mean s3://bucket?"),
    ],
)  # fmt: skip
def test_what_is_there_instead_of_a_dataset(
    store: MemoryStore, keys: list[str], prefix: str, message: str, step: str
) -> None:
    for key in keys:
        store.put(key, b"")
    found: Any = no_dataset(store, StoreURL("s3", "bucket", prefix))  # pyright: ignore
    assert message in found.message and step in found.next_step
    with (
        pytest.raises(DataError, match=message),
        open_small_files(StorePath(f"s3://bucket/{prefix}")),
    ):
        pass


def shard(name: str, tokens: int, documents: int) -> Any:
    return SimpleNamespace(path=Path(name), num_tokens=tokens, num_documents=documents)


def match(store: MemoryStore, *rows: Any) -> list[Any]:
    return list(match_objects(store, URL / "train", list(rows), 2))  # pyright: ignore


def test_objects_are_matched_by_name_and_size(store: MemoryStore) -> None:
    store.put("data/train/a.bin", bytes(20))
    store.put("data/train/a.docs", bytes(16))
    store.put("data/train/b.bin", bytes(6))
    store.put("data/train/.hidden.bin", b"")
    store.put("data/train/deeper/c.bin", b"")
    store.put("data/train/notes.txt", b"")
    first, second = match(store, shard("x/a.bin", 10, 2), shard("x/b.bin", 3, 0))
    assert (first.tokens.url.key, first.tokens.size) == ("data/train/a.bin", 20)
    assert first.documents.url.key == "data/train/a.docs"
    assert (second.tokens.url.key, second.documents) == ("data/train/b.bin", None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("a.bin", 9, 2), "a.bin has 20 bytes, dataset_metadata.json says 18 bytes"),
        (("b.bin", 9, 2), "b.bin is missing, dataset_metadata.json says 18 bytes"),
        (("a.bin", 10, 3), "a.docs is of another size, dataset_metadata.json says that it has 3"),
        (("c.bin", 1, 1), "c.docs is missing, dataset_metadata.json says that it has 1 documents"),
    ],
)
def test_objects_that_do_not_fit_the_metadata(
    store: MemoryStore, row: tuple[str, int, int], message: str
) -> None:
    store.put("data/train/a.bin", bytes(20))
    store.put("data/train/a.docs", bytes(16))
    store.put("data/train/c.bin", bytes(2))
    known = [shard("a.bin", 10, 0), shard("c.bin", 1, 0)]
    rows = [*(one for one in known if one.path.name != row[0]), shard(*row)]
    with pytest.raises(DataError) as caught:
        match(store, *rows)
    assert caught.value.message.startswith(message)
    assert str(caught.value.path).startswith("s3://bucket/data/train/")


def test_a_shard_that_nobody_knows_is_refused(store: MemoryStore) -> None:
    store.put("data/train/a.bin", bytes(2))
    store.put("data/train/b.bin", bytes(2))
    with pytest.raises(DataError) as caught:
        match(store, shard("a.bin", 1, 0))
    assert caught.value.message == (
        "b.bin lies beside the shards, but dataset_metadata.json does not describe it"
    )
    assert caught.value.path == "s3://bucket/data/train/b.bin"
