"""Against moto's S3, which others wrote: what our own server takes for S3 is what S3 does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import obstore
import pytest

from lowtide.errors import DataError
from lowtide.loader import BatchLoader, TokenDataset
from lowtide.stores import extents, objects
from lowtide.stores.objects import Store
from lowtide.stores.refusals import ObjectChangedError, ObjectMissingError
from lowtide.stores.urls import StoreURL

ROOT = StoreURL("s3", "bucket", "")


@pytest.fixture
def store(moto: str) -> Store:
    return Store(ROOT)


def test_objects_behave_as_our_own_server_says(
    store: Store, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "20")
    data = bytes(range(256)) * 10
    for number in range(45):  # more than a page
        obstore.put(store._client, f"many/{number:04}", b"x")
    obstore.put(store._client, "one", data)
    info = store.head(ROOT / "one")
    assert (info.size, info.has_etag) == (2560, True)
    assert bytes(store.read(info, 1000, 200)) == data[1000:1200]
    listed = list(store.iter_objects(ROOT / "many"))
    assert [row.url.name for row in listed] == [f"{number:04}" for number in range(45)]
    assert store.head(listed[3].url) == listed[3]  # the tag of a list is that of the object
    obstore.put(store._client, "one", data[::-1])
    with pytest.raises(ObjectChangedError):
        store.read(info, 0, 10)
    obstore.delete(store._client, "one")
    with pytest.raises(ObjectMissingError):
        store.read(info, 0, 10)
    assert list(store.iter_objects(ROOT / "nothing")) == []
    elsewhere = StoreURL("s3", "nobucket", "")
    with pytest.raises(DataError, match="no bucket nobucket"):
        list(Store(elsewhere).iter_objects(elsewhere / "x"))
    assert waits == []


def test_a_dataset_gives_the_batches_of_its_folder(
    store: Store, dataset: Path, tmp_path: Path, small_extents: int
) -> None:
    for path in dataset.rglob("*"):
        if path.is_file():
            obstore.put(store._client, f"data/{path.relative_to(dataset)}", path)
    there = TokenDataset("s3://bucket/data", seq_len=64, cache_dir=tmp_path / "c")
    here = TokenDataset(dataset, seq_len=64)
    assert there.fingerprint == here.fingerprint
    loaders = [BatchLoader(data, batch_size=16, order="blocks") for data in (here, there)]
    for _ in range(40):
        one, two = (next(loader) for loader in loaders)
        assert np.array_equal(one[0], two[0])
    for loader in loaders:
        loader.close()
    extents.close_caches()
    assert objects._open  # one client for all of it
