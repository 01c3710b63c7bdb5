"""Where the files of a dataset are written: a folder, or objects in a store, metadata last."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lowtide.dataset.staged import destination
from lowtide.dataset.staged.destination import open_destination
from lowtide.dataset.tokenfiles.shards import documents_path, shard_name
from lowtide.engine import storefolders
from lowtide.errors import LowtideError, UsageError
from lowtide.stores import paths
from lowtide.stores.paths import StorePath

from ..stores.memorystore import MemoryStore

SHARD, OTHER = (shard_name(number, "01234567-bc013c54") for number in range(2))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    made = MemoryStore()
    for module in (destination, storefolders, paths):
        monkeypatch.setattr(module, "open_store", lambda url: made)
    monkeypatch.setattr(paths, "_infos", type(paths._infos)())
    return made


def test_what_is_taken_on_a_disk(tmp_path: Path) -> None:
    place = open_destination(tmp_path)
    place.prepare()
    assert place.find_taken(tokenizer=True) is None
    (tmp_path / "tokenizer.json").touch()
    assert place.find_taken(tokenizer=True) == "tokenizer.json"
    assert place.find_taken(tokenizer=False) is None
    for split, names in (("train", ["b.bin", "c.bin", "a.docs"]), ("val", ["aa.bin"])):
        (tmp_path / split).mkdir()
        for name in names:
            (tmp_path / split / name).touch()
    assert place.find_taken(tokenizer=False) == "aa.bin"


def test_files_get_their_names_on_a_disk_when_they_are_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = open_destination(tmp_path)
    rows = [(tmp_path / f".{name}.partial", tmp_path / name) for name in ("a.docs", "a.bin")]
    for unnamed, _ in rows:
        unnamed.write_bytes(b"tokens")
    events: list[str] = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: events.append("flush") or sync(number))
    monkeypatch.setattr(
        Path, "replace", lambda path, to: events.append(to.name) or replace(path, to)
    )
    assert not place.takes_one
    place.publish(tmp_path, rows)
    assert events == ["flush", "flush", "a.docs", "a.bin"]
    place.finish(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.docs"]


def test_work_of_another_engine_is_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination, "has_plan", lambda root: root == tmp_path)
    assert open_destination(tmp_path).find_taken(tokenizer=True) == ".work"


def test_a_folder_is_locked_while_it_is_finished(tmp_path: Path) -> None:
    place = open_destination(tmp_path / "out")
    with place.stage() as root:
        assert root == tmp_path / "out" and not root.exists()
    with place.stage(locked=True) as root:
        assert root.is_dir()
        with pytest.raises(LowtideError, match="another lowtide command"), place.stage(locked=True):
            pass
    assert not root.exists()


def test_what_is_taken_in_a_store(store: MemoryStore) -> None:
    place = open_destination(StorePath("s3://bucket/out"))
    place.prepare()
    assert store.contents == {} and store.calls[0][1].startswith("out/.probe-")
    assert place.find_taken(tokenizer=True) is None
    store.put("out/train/a.docs", b"")
    store.put("out/val/b.bin", b"")
    store.put("out/tokenizer.json", b"")
    assert place.find_taken(tokenizer=False) == "b.bin"
    assert place.find_taken(tokenizer=True) == "tokenizer.json"


def test_files_become_objects_and_go_and_the_metadata_comes_last(
    store: MemoryStore, tmp_path: Path
) -> None:
    place = open_destination(StorePath("s3://bucket/out"))
    with place.stage() as root:
        for name in ("train/a.bin", "train/a.docs", "tokenizer/t.json", "dataset_metadata.json"):
            path = root / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(name.encode())
        unnamed = (root / "train" / "a.bin").rename(root / "train" / ".a.partial")
        assert place.takes_one
        place.publish(root, [(unnamed, root / "train" / "a.bin")])
        assert store.contents == {"out/train/a.bin": b"train/a.bin"}
        assert not unnamed.exists()
        store.calls.clear()
        place.finish(root)
    assert not root.exists()
    assert store.calls == [
        ("upload", "out/tokenizer/t.json"), ("upload", "out/train/a.docs"),
        ("create", "out/dataset_metadata.json"),
    ]  # fmt: skip
    assert set(store.contents) == {
        "out/train/a.bin", "out/train/a.docs", "out/tokenizer/t.json", "out/dataset_metadata.json",
    }  # fmt: skip


def test_metadata_is_created_once_and_uploaded_where_it_is_large(
    store: MemoryStore, tmp_path: Path
) -> None:
    place = open_destination(StorePath("s3://bucket/out"))
    path = tmp_path / "dataset_metadata.json"
    store.put("out/dataset_metadata.json", b"another")
    path.write_bytes(bytes(8 << 20))
    with pytest.raises(UsageError) as caught:
        place.finish(tmp_path)
    assert caught.value.message == "another dataset was finished here meanwhile"
    assert store.contents["out/dataset_metadata.json"] == b"another"
    path.write_bytes(bytes((8 << 20) + 1))
    with pytest.raises(UsageError, match="another dataset was finished here meanwhile"):
        place.finish(tmp_path)
    assert store.contents.pop("out/dataset_metadata.json") == b"another"
    place.finish(tmp_path)
    assert len(store.contents["out/dataset_metadata.json"]) == (8 << 20) + 1


def test_a_shard_is_here_with_both_its_files(store: MemoryStore, tmp_path: Path) -> None:
    names = [Path("train") / SHARD, Path("val") / OTHER]
    (tmp_path / "train").mkdir()
    (tmp_path / "val").mkdir()
    stored = open_destination(StorePath("s3://bucket/out"))
    for place, put in (
        (stored, lambda name: store.put(f"out/{name}", b"")),
        (open_destination(tmp_path), lambda name: (tmp_path / name).touch()),
    ):
        assert place.keep_only([]) is None
        assert place.keep_only(names) == names[0]
        for name in (names[0], documents_path(names[0]), documents_path(names[1])):
            put(name)
        assert place.keep_only(names) == names[1]
        put(names[1])
        assert place.keep_only(names) is None


def test_only_shards_that_are_not_ours_are_removed(store: MemoryStore, tmp_path: Path) -> None:
    names = [SHARD, OTHER]
    docs = [Path(name).with_suffix(".docs").name for name in names]
    kept = Path("train") / SHARD
    stored = open_destination(StorePath("s3://bucket/out"))
    for place, put in (
        (stored, lambda name: store.put(f"out/{name}", b"")),
        (open_destination(tmp_path), lambda name: (tmp_path / name).touch()),
    ):
        for split in ("train", "val"):
            (tmp_path / split).mkdir(exist_ok=True)
            for name in (*names, *docs, "notes.bin"):
                put(f"{split}/{name}")
        assert place.keep_only([kept]) is None
    left = {f"train/{SHARD}", f"train/{docs[0]}", "train/notes.bin", "val/notes.bin"}
    assert {key.removeprefix("out/") for key in store.contents} == left
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert found == left
    store.calls.clear()
    assert stored.keep_only([kept]) is None
    assert store.calls == [("list", "out/train"), ("list", "out/val")]  # once in total
    store.put(f"out/val/{OTHER}", b"")
    missing = Path("train") / OTHER
    assert stored.keep_only([kept, missing]) == missing
    assert "delete" not in {call[0] for call in store.calls}


def test_shards_that_a_finished_dataset_does_not_list_are_withdrawn(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination, "read_present_names", lambda *_: {f"train/{SHARD}"})
    names = [Path("train") / SHARD, Path("train") / OTHER]
    (tmp_path / "train").mkdir()
    stored = open_destination(StorePath("s3://bucket/out"))
    metadata = json.dumps({
        "format_version": 1, "vocab_size": 9, "dtype": "uint16", "tokenizer_fingerprint": "f",
        "shards": {"train": [{"file": f"train/{SHARD}"}], "val": []},
    }).encode()  # fmt: skip
    for place, put, exists in (
        (stored, store.put, lambda name: f"out/{name}" in store.contents),
        (open_destination(tmp_path), lambda key, data: _write(tmp_path, key, data),
         lambda name: (tmp_path / name).exists()),
    ):  # fmt: skip
        files = [*names, *map(documents_path, names)]
        for name in (*files, Path("train/shard_00007.bin")):
            put(f"out/{name}", b"")
        place.withdraw(names)  # no dataset is there
        assert all(map(exists, files))
        put("out/dataset_metadata.json", metadata)
        place.withdraw(names[:1])
        with pytest.raises(UsageError, match="another dataset was finished here meanwhile"):
            place.withdraw(names)
        assert exists("train/shard_00007.bin")
        assert [exists(name) for name in files] == [True, False, True, False]


def _write(root: Path, key: str, data: bytes) -> None:
    (root / key.removeprefix("out/")).write_bytes(data)


def test_shards_beside_a_finished_dataset_are_never_removed(store: MemoryStore) -> None:
    """A suspended worker resumes when the dataset exists already, and has grown."""
    place = open_destination(StorePath("s3://bucket/out"))
    added = f"out/train/{OTHER}"
    store.put(added, b"")
    store.put("out/dataset_metadata.json", b"{}")
    place.keep_only([])
    assert added in store.contents
    del store.contents["out/dataset_metadata.json"]
    place.keep_only([])
    assert added not in store.contents
