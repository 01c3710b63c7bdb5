"""Claims on the names that an append adds, and how readers treat shards of a claim."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lowtide.dataset.claims import (
    Additions,
    Claim,
    drop_claims,
    list_claims,
    read_present_names,
    take_claim,
)
from lowtide.errors import DataError
from lowtide.stores.refusals import ObjectChangedError, ObjectMissingError
from lowtide.stores.urls import StoreURL

from ..stores.memorystore import MemoryStore

DATASET = StoreURL("s3", "bucket", "data")
TAG, OTHER = "01234567-00000001", "01234567-00000002"
MINE = Claim(3, "plan", TAG, "s3://bucket/work")
THEIRS = Claim(3, "another", OTHER, "s3://bucket/theirs")


def describe(store: MemoryStore, *names: str) -> None:
    """Store metadata that lists these shards."""
    rows = {
        split: [{"file": name} for name in names if split in name] for split in ("train", "val")
    }
    known = {"format_version": 1, "dtype": "uint16", "vocab_size": 5, "tokenizer_fingerprint": "f"}
    store.put("data/dataset_metadata.json", json.dumps({**known, "shards": rows}).encode())


@pytest.fixture
def store() -> Any:
    made = MemoryStore()
    describe(made, "train/shard_00000.bin")
    return made


def test_one_plan_has_a_claim_and_any_of_its_workers(store: Any) -> None:
    take_claim(store, DATASET, MINE)
    take_claim(store, DATASET, MINE)
    take_claim(store, DATASET, Claim(3, "plan", TAG, "elsewhere"))
    assert list_claims(store, DATASET) == [MINE]
    assert MINE.url(DATASET).key == "data/.adding/00003.json"
    with pytest.raises(DataError, match="whose workers meet in s3://bucket/work") as caught:
        take_claim(store, DATASET, THEIRS)
    assert caught.value.path == "s3://bucket/data/.adding/00003.json"
    assert caught.value.next_step is not None
    assert "then remove s3://bucket/theirs" in caught.value.next_step
    assert f"remove the shards with {TAG} in their names" in caught.value.next_step
    assert list_claims(store, DATASET) == [MINE]
    take_claim(store, DATASET, Claim(4, "another", OTHER, ""))  # of another append
    assert len(list_claims(store, DATASET)) == 2


@pytest.mark.parametrize("data", [b"nonsense", b"[]", b"{}", b'{"number": "x"}'])
def test_an_object_that_is_no_claim_keeps_others_out(store: Any, data: bytes) -> None:
    store.put("data/.adding/00003.json", data)
    store.put("data/.adding/notes.txt", b"")
    assert list_claims(store, DATASET) == []
    with pytest.raises(DataError, match="another append is about to end here") as caught:
        take_claim(store, DATASET, MINE)
    assert str(caught.value.next_step).endswith(
        "runs, remove s3://bucket/data/.adding/00003.json instead"
    )


def test_a_claim_that_goes_just_now_is_taken(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    take_claim(store, DATASET, THEIRS)
    read = store.read_whole

    def gone(url: StoreURL, **more: Any) -> Any:
        store.delete([url])
        return read(url, **more)

    monkeypatch.setattr(store, "read_whole", gone)
    take_claim(store, DATASET, MINE)
    assert json.loads(store.contents["data/.adding/00003.json"])["plan"] == "plan"
    assert list_claims(store, DATASET) == []  # removed between list and read


def test_what_is_not_described_goes_with_its_claim(store: Any) -> None:
    new, other = f"shard_00001-{TAG}", f"shard_00002-{OTHER}"
    for name in ("train/shard_00000", f"train/{new}", f"train/{other}", f"val/{new}"):
        store.put(f"data/{name}.bin", b"")
        store.put(f"data/{name}.docs", b"")
    describe(store, "train/shard_00000.bin", f"val/{new}.bin")
    before = set(store.contents)
    drop_claims(store, DATASET, "plan")
    assert set(store.contents) == before
    take_claim(store, DATASET, MINE)
    take_claim(store, DATASET, Claim(4, "another", OTHER, ""))
    drop_claims(store, DATASET, "plan")
    left = {f"data/train/{new}.bin", f"data/train/{new}.docs"}
    assert set(store.contents) == (before | {"data/.adding/00004.json"}) - left


def test_readers_know_what_is_added_and_what_was_just_now(store: Any) -> None:
    new, other = f"shard_00001-{TAG}.bin", f"shard_00001-{OTHER}.bin"
    additions = Additions(store, DATASET)
    assert not additions.has("train", new)
    take_claim(store, DATASET, MINE)
    assert additions.has("train", new) and not additions.has("train", other)
    describe(store, "train/shard_00000.bin", f"train/{new}")
    drop_claims(store, DATASET, "plan")
    later = Additions(store, DATASET)
    assert later.has("train", new) and not later.has("val", new)
    calls = len(store.calls)
    assert later.has("train", new) and len(store.calls) == calls  # no second lookup
    del store.contents["data/dataset_metadata.json"]
    assert not Additions(store, DATASET).has("train", new)


def test_metadata_that_changes_while_it_is_read_is_read_again(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failures = store.read, [ObjectChangedError("changed")]

    def read_later(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return read(*given)

    monkeypatch.setattr(store, "read", read_later)
    assert read_present_names(store, DATASET) == {"train/shard_00000.bin"}
    assert failures == []
    del store.contents["data/dataset_metadata.json"]
    with pytest.raises(ObjectMissingError):
        read_present_names(store, DATASET)
