"""A prefix of a store that workers share: its requests, and how responses are handled."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from lowtide.engine import storefolders
from lowtide.engine.folders import SeenLease
from lowtide.engine.storefolders import StoreFolder, refuse_overwriting, refuse_replacing
from lowtide.errors import DataError, UsageError
from lowtide.stores.paths import StorePath
from lowtide.stores.refusals import StoreDownError
from lowtide.stores.urls import StoreURL

from ..stores.memorystore import MemoryStore


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    made = MemoryStore()
    monkeypatch.setattr(storefolders, "open_store", lambda url: made)
    return made


@pytest.fixture
def folder(store: MemoryStore) -> StoreFolder:
    return StoreFolder(StorePath("s3://bucket/work"))


def content(nonce: str = "a", beat: int = 0) -> bytes:
    return json.dumps({"nonce": nonce, "beat": beat}).encode()


def test_a_whole_bucket_is_no_work_folder(store: MemoryStore) -> None:
    with pytest.raises(UsageError) as caught:
        StoreFolder(StorePath("s3://bucket"))
    assert caught.value.message == "s3://bucket is a whole bucket"
    assert caught.value.next_step == "name a prefix: s3://bucket/work"


def test_names_are_those_right_under_a_prefix(store: MemoryStore, folder: StoreFolder) -> None:
    for key in ("work/plan.json", "work/leases/a", "work/leases/b", "work/leases/c/d", "worker"):
        store.put(key, b"x")
    assert folder.list_names() == ["leases", "plan.json"]
    assert folder.list_names("leases") == ["a", "b", "c"]
    assert folder.list_names("none") == []
    assert ("list", "work/leases") in store.calls
    assert (folder.exists("plan.json"), folder.exists("plan")) == (True, False)
    assert folder.read("plan.json") == b"x"
    assert ("read_whole", "work/plan.json", 64 << 20) in store.calls
    with pytest.raises(FileNotFoundError, match="s3://bucket/work/none"):
        folder.read("none")
    assert folder.find_time("plan.json") == 5.0
    with pytest.raises(FileNotFoundError, match="s3://bucket/work/none"):
        folder.find_time("none")
    assert folder.path == StorePath("s3://bucket/work")


def test_an_object_is_created_once(store: MemoryStore, folder: StoreFolder) -> None:
    assert folder.create("records/a", b"1") is True
    assert folder.create("records/a", b"2") is False
    assert store.contents == {"work/records/a": b"1"}


def test_a_store_that_replaces_under_any_tag_or_none_is_refused(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = StoreURL("s3", "bucket", "data")
    refuse_replacing(prefix, ".adding/probe-")
    assert store.contents == {}  # the probe is gone
    assert [name for name, *_ in store.calls] == ["create", "exchange", "exchange", "delete"] * 3
    assert store.calls[0][1].startswith("data/.adding/probe-")
    assert [tag for _, _, tag in store.calls[1:3]] == ["t1", "t1"]
    for answers in (["t2", "t3"], [None, "t3"], [None, None]):
        waiting: list[Any] = [*answers]
        monkeypatch.setattr(store, "exchange", lambda *_, waiting=waiting: waiting.pop(0))
        with pytest.raises(DataError, match="does not replace an object under its ETag") as caught:
            refuse_replacing(prefix, "probe")
        assert (waiting, caught.value.path) == ([], "s3://bucket/data")
        assert store.contents == {}


def test_a_store_that_keeps_its_conditions_only_sometimes_is_refused(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = StoreURL("s3", "bucket", "data")
    for try_number in range(3):
        created: list[Any] = ["t1", None] * 3
        created[2 * try_number + 1] = "t2"
        monkeypatch.setattr(store, "create", lambda *_, waiting=created: waiting.pop(0))
        with pytest.raises(DataError, match="replaces an object that it was asked only to create"):
            refuse_overwriting(prefix, "probe/")
        exchanged: list[Any] = ["t2", None] * 3
        exchanged[2 * try_number + 1] = "t3"
        monkeypatch.setattr(store, "create", lambda *_: "t1")
        monkeypatch.setattr(store, "exchange", lambda *_, waiting=exchanged: waiting.pop(0))
        with pytest.raises(DataError, match="does not replace an object under its ETag"):
            refuse_replacing(prefix, "probe/")


def test_no_worker_removes_the_probes_of_others_that_start(
    store: MemoryStore, folder: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, names = store.create, set[str]()

    def interrupted(url: StoreURL, data: bytes) -> str | None:
        found = create(url, data)
        names.add(url.key)
        folder.remove(["probe", "plan.json"])  # as another worker does when it has ended
        return found

    monkeypatch.setattr(store, "create", interrupted)
    folder.prepare()
    assert len(names) == 3  # each has a new name
    (name, *_) = names
    left = ("work/probe/left", "work/probe/1700000000-" + "a" * 16)
    store.contents = dict.fromkeys((name, *left), b"")
    folder.remove(["probe"])
    assert list(store.contents) == [name]


def test_a_store_that_overwrites_or_does_not_write_is_refused(
    store: MemoryStore, folder: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.prepare()
    assert store.contents == {}  # the probe is gone
    assert [name for name, *_ in store.calls] == ["create", "create", "delete"] * 3
    assert store.calls[0][1].startswith("work/probe/")
    for answers in ([None, None], ["t1", "t2"], [None, "t2"]):
        waiting = [*answers]
        monkeypatch.setattr(store, "create", lambda url, data, waiting=waiting: waiting.pop(0))
        with pytest.raises(DataError, match="replaces an object that it was asked only to create"):
            refuse_overwriting(StoreURL("s3", "bucket", "work"), "probe/")


def test_a_result_is_uploaded_unless_it_is_there(
    store: MemoryStore, folder: StoreFolder, tmp_path: Path
) -> None:
    partial = tmp_path / "result"
    partial.write_bytes(b"12345")
    assert folder.publish(partial, "hash", "hash-1", "c0") == "hash-1-c0.out"
    path = folder.output_path("hash", "hash-1-c0.out")
    key = str(path).removeprefix("s3://bucket/")
    assert store.contents == {key: b"12345"}
    assert not key.startswith("work/hash/")  # away from the records
    assert folder.publish(partial, "hash", "hash-1", "c0") == "hash-1-c0.out"
    assert store.calls.count(("upload", key)) == 1
    store.put(key, b"123")  # of another size: not whole
    folder.publish(partial, "hash", "hash-1", "c0")
    assert store.contents[key] == b"12345"


def test_scratch_files_are_on_this_machine_and_go(folder: StoreFolder) -> None:
    assert folder.disk == Path(tempfile.gettempdir())
    with folder.scratch_file("hash") as (partial, file):
        file.write(b"123")
        file.flush()
        assert partial.read_bytes() == b"123"
        file.seek(0)
        assert file.read() == b"123"
    assert not partial.parent.exists()
    with folder.scratch_folder() as made:
        assert made.is_dir()
    assert not made.exists()


def test_all_under_a_name_is_removed_a_thousand_at_a_time(
    store: MemoryStore, folder: StoreFolder
) -> None:
    for number in range(2001):
        store.contents[f"work/a/{number:04}"] = b""
    store.contents |= {"work/b": b"", "work/bc": b"", "work/d/e": b""}
    folder.remove(["a", "b"])
    assert set(store.contents) == {"work/bc", "work/d/e"}
    deleted = [call[1] for call in store.calls if call[0] == "delete"]
    assert deleted == [1, 1000, 1000, 1, 1]
    store.calls.clear()
    for number in range(1000):
        store.contents[f"work/a/{number:04}"] = b""
    folder.remove(["a"])
    assert [call[1] for call in store.calls if call[0] == "delete"] == [1, 1000]


def test_a_lease_is_taken_renewed_and_released(store: MemoryStore, folder: StoreFolder) -> None:
    lease = folder.create_lease("leases/a", content())
    assert lease is not None
    assert folder.create_lease("leases/a", content("b")) is None
    assert folder.read_lease("leases/a") == SeenLease(content(), "t1")
    assert folder.read_lease("leases/none") is None
    lease.renew(content(beat=1))
    assert folder.read_lease("leases/a") == SeenLease(content(beat=1), "t2")
    lease.renew(content(beat=2))
    lease.release()
    assert store.contents == {}
    store.calls.clear()
    lease.renew(content(beat=3))
    lease.release()
    assert store.calls == []  # the lease has no owner any more


def test_a_lease_of_another_is_replaced_only_as_it_was_seen(
    store: MemoryStore, folder: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.create_lease("leases/a", content())
    seen = folder.read_lease("leases/a")
    assert seen is not None
    taken = folder.replace_lease("leases/a", content("b"), seen)
    assert taken is not None
    assert folder.replace_lease("leases/a", content("c"), seen) is None
    taken.renew(content("b", 1))
    assert store.contents["work/leases/a"] == content("b", 1)

    def down(*given: Any) -> None:
        raise StoreDownError("no answer")

    monkeypatch.setattr(store, "replace", down)
    now = folder.read_lease("leases/a")
    assert now is not None
    assert folder.replace_lease("leases/a", content("c"), now) is None
    taken.renew(content("b", 2))  # looks expired to others, but is not an error


def test_a_lease_that_somebody_took_over_is_let_be(store: MemoryStore, folder: StoreFolder) -> None:
    lease: Any = folder.create_lease("leases/a", content())
    store.put("work/leases/a", content("b"))
    lease.renew(content(beat=1))
    assert lease.tag is None
    lease.release()
    assert store.contents["work/leases/a"] == content("b")
    lease = folder.create_lease("leases/c", content())
    store.put("work/leases/c", content("b"))
    lease.release()  # it has another tag: not ours to remove
    assert "work/leases/c" in store.contents and lease.tag is None


@pytest.mark.parametrize(
    ("found", "tag"),
    [
        (content(beat=1), "t2"),  # the response to its last renewal was lost
        (content("b"), None),
        (b"no json", None),
        (b"{}", None),
        (b"[]", None),
    ],
)
def test_a_renewal_whose_answer_was_lost(
    store: MemoryStore, folder: StoreFolder, found: bytes, tag: str | None
) -> None:
    lease: Any = folder.create_lease("leases/a", content())
    store.put("work/leases/a", found)
    lease.renew(content(beat=2))
    assert lease.tag == tag
    store.contents.clear()
    assert lease._find_own(content()) is None
