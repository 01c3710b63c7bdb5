"""Ids in arrays and files: which they are, where they lie, what of them is a split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.errors import DataError, UsageError
from lowtide.loader import sources
from lowtide.loader.storedtokens import StoredShard

COUNT = 1 << 20
PART = sources._SAMPLE_BYTES // 2  # ids of uint16 in a sample


def places() -> list[int]:
    """Where samples begin: the fifteen parts, and the last ids."""
    return [*(COUNT * part // 15 for part in range(15)), COUNT - PART]


def test_a_fingerprint_is_of_samples_all_over_the_array() -> None:
    ids = np.zeros(COUNT, np.uint16)
    found = {sources._array_fingerprint(ids)}
    looked_at = {edge for place in places() for edge in (place, place + PART - 1)}
    for place in looked_at:
        ids[place] = 1
        found.add(sources._array_fingerprint(ids))
        ids[place] = 0
    assert len(found) == 1 + len(looked_at)
    ids[PART] = 1  # behind the first sample
    assert sources._array_fingerprint(ids) in found
    for other in (ids[:-1], ids.astype(np.uint32), ids.astype(np.int16)):
        assert sources._array_fingerprint(other * 0) not in found


def test_a_fingerprint_of_a_file_is_of_samples_all_over_it(tmp_path: Path) -> None:
    path, size = tmp_path / "a.bin", 2 * COUNT
    path.write_bytes(bytes(size))
    part = sources._SAMPLE_BYTES
    starts = [*(size * number // 15 for number in range(15)), size - part]
    looked_at = {edge for start in starts for edge in (start, start + part - 1)}
    found: set[str] = set()
    with path.open("r+b", buffering=0) as file:
        found.add(sources.sample_fingerprint(file.fileno(), size))
        for place in sorted(looked_at):
            file.seek(place)
            file.write(b"x")
            found.add(sources.sample_fingerprint(file.fileno(), size))
            file.seek(place)
            file.write(b"\0")
        assert len(found) == 1 + len(looked_at)
        assert sources.sample_fingerprint(file.fileno(), size) in found
        assert sources.sample_fingerprint(file.fileno(), size - 1) not in found


def test_arrays_that_hold_no_ids_are_refused() -> None:
    for wrong in (np.zeros(4), np.zeros((2, 2), np.uint16), np.zeros(4, ">u2"), [1.5]):
        with pytest.raises(UsageError):
            sources._from_array(wrong)
    source = sources._from_array([5, 6, 7])
    assert source.array is not None and source.array.tolist() == [5, 6, 7]
    assert source.total_tokens == source.shards[0].num_tokens == 3


def test_a_mapped_array_is_the_file_that_it_is_mapped_from(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    np.arange(100, dtype=np.uint16).tofile(path)
    mapped = np.memmap(path, np.uint16, "r", offset=20)
    assert sources._place_in_file(mapped) == (path, 20)
    assert sources._place_in_file(mapped[5:][2:9]) == (path, 34)
    assert sources._place_in_file(mapped[::2]) is None
    assert sources._place_in_file(np.memmap(path, np.uint16, "c")) is None
    assert sources._place_in_file(np.memmap(path, np.uint16, "r+")) == (path, 0)
    assert sources._place_in_file(np.arange(4)) is None
    source = sources._from_array(mapped[3:])
    assert source.array is None and source.path == path
    assert (source.shards[0].byte_offset, source.shards[0].num_tokens) == (26, 87)
    path.unlink()
    assert sources._place_in_file(mapped) is None


@pytest.mark.parametrize(
    ("val_tokens", "fraction", "boundary"), [(None, 0.25, 75), (0, 0.5, 100), (1, 0.5, 99)]
)
def test_splits_of_one_file(val_tokens: int | None, fraction: float, boundary: int) -> None:
    whole = sources._from_array(np.arange(100))

    def take(split: sources.Split) -> sources.TokenSource:
        return sources._take_portion(whole, split, val_fraction=fraction, val_tokens=val_tokens)

    train, val = take("train"), take("val")
    assert train.array is not None and val.array is not None
    assert [*train.array, *val.array] == list(range(100))
    assert (len(train.array), train.first_token, val.first_token) == (boundary, 0, boundary)
    assert val.shards[0].byte_offset == 8 * boundary
    assert len({whole.fingerprint, train.fingerprint, val.fingerprint}) == 3
    assert take("all") is whole


def test_more_validation_than_there_is_is_refused() -> None:
    whole = sources._from_array(np.arange(100))
    for count in (100, -1):
        with pytest.raises(DataError, match="100 in all"):
            sources._take_portion(whole, "val", val_fraction=0.1, val_tokens=count)
    found = sources._take_portion(whole, "train", val_fraction=0.1, val_tokens=99)
    assert found.num_tokens == 1


@pytest.mark.parametrize("dtype", ["float32", "uint", "1,2", object(), "S2"])
def test_types_of_ids(dtype: object) -> None:
    if dtype == "uint":
        assert sources._checked_dtype(dtype).itemsize == 8  # pyright: ignore[reportArgumentType]
        return
    with pytest.raises(UsageError):
        sources._checked_dtype(dtype)  # pyright: ignore[reportArgumentType]


def test_an_empty_path_is_not_the_current_folder() -> None:
    with pytest.raises(UsageError, match="the path of the tokens is empty"):
        sources.find_tokens("")


def test_what_to_do_about_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "there.txt").write_text("text")
    found = {
        name: sources._advice_for_missing(tmp_path / name)
        for name in ("there.npy", "there.bin", "other.npy", "other.bin")
    }
    checked = "check the path for typing errors"
    assert found == {
        "there.npy": f"lowtide pretokenize {tmp_path / 'there.txt'}",
        "there.bin": checked,
        "other.npy": checked,
        "other.bin": checked,
    }


@pytest.mark.parametrize(("name", "found"), [("shard.bin", 3), ("shard.npy", 0)])
def test_documents_of_a_file_are_counted_by_their_ends(
    tmp_path: Path, name: str, found: int
) -> None:
    path = tmp_path / name
    ids = np.arange(20, dtype="<u2")
    np.save(path, ids) if name.endswith(".npy") else ids.tofile(path)
    np.array([5, 11, 20], dtype="<i8").tofile(path.with_suffix(".docs"))
    dtype = np.dtype("uint16")
    assert sources._describe_file(path, dtype=dtype).shards[0].num_documents == found
    path.with_suffix(".docs").unlink()
    assert sources._describe_file(path, dtype=dtype).shards[0].num_documents == 0


def files_in(folder: Path, **sizes: int) -> Path:
    folder.mkdir(exist_ok=True)
    for name, size in sizes.items():
        np.arange(size, dtype="<u2").tofile(folder / f"{name}.bin")
    return folder


def test_a_folder_of_two_files_is_cut_as_it_is(tmp_path: Path) -> None:
    folder = files_in(tmp_path / "data", train=70, val=30)
    rows = {"train": ["train.bin"], "val": ["val.bin"], "all": ["train.bin", "val.bin"]}
    for split, names in rows.items():
        found = sources.find_tokens(folder, split=split, dtype="uint16")
        assert [shard.path.name for shard in found.shards] == names
        assert (
            found.num_tokens
            == found.total_tokens
            == sum({"train.bin": 70, "val.bin": 30}[name] for name in names)
        )
        assert (found.path, found.split, found.place) == (folder, split, str(folder))
    found = sources.find_tokens(folder, dtype="uint16", eval_only=True)
    assert [shard.path.name for shard in found.shards] == ["val.bin"]


def test_a_flat_folder_is_for_all_or_for_evaluation(tmp_path: Path) -> None:
    folder = files_in(tmp_path / "data", b=5, a=6, train=7)
    (folder / ".hidden.bin").write_bytes(b"12")
    for options in ({"split": "all"}, {"eval_only": True}):
        found = sources.find_tokens(folder, dtype="uint16", **options)
        assert [shard.path.name for shard in found.shards] == ["a.bin", "b.bin", "train.bin"]
    for split in ("train", "val"):
        with pytest.raises(DataError) as caught:
            sources.find_tokens(folder, dtype="uint16", split=split)
        assert caught.value.message == (
            f"a folder of 3 .bin files without dataset_metadata.json has no {split} split"
        )
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no tokens here: neither dataset_metadata\.json nor"):
        sources.find_tokens(tmp_path / "empty")


def test_files_of_a_folder_hold_ids_of_one_type(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(4, np.int32))
    np.save(tmp_path / "b.npy", np.zeros(4, np.uint16))
    paths = [tmp_path / "a.npy", tmp_path / "b.npy"]
    with pytest.raises(DataError) as caught:
        sources._from_files(tmp_path, paths, split="all", dtype=None)
    assert caught.value.message == "b.npy holds uint16, a.npy int32"
    assert caught.value.path == paths[1]
    one = sources._from_files(tmp_path, paths[:1], split="all", dtype=None)
    two = sources._from_files(tmp_path, [paths[0], paths[0]], split="all", dtype=None)
    assert one.fingerprint != two.fingerprint


def test_what_is_asked_for_must_make_sense(tmp_path: Path) -> None:
    ids = np.arange(10)
    with pytest.raises(UsageError, match="split 'test' is not one of train, val, all"):
        sources.find_tokens(ids, split="test")  # type: ignore[arg-type]
    for fraction in (-0.1, 1.0):
        with pytest.raises(UsageError, match="does not lie between 0 and 1"):
            sources.find_tokens(ids, val_fraction=fraction)
    assert sources.find_tokens(ids, val_fraction=0.0).num_tokens == 10
    np.save(tmp_path / "a.npy", ids.astype(np.int32))
    with pytest.raises(DataError, match=r"a.npy holds int32, not uint16 as given"):
        sources.find_tokens(tmp_path / "a.npy", dtype="uint16")
    np.save(tmp_path / "b.npy", ids.astype(">i4"))
    with pytest.raises(DataError, match=r"b.npy holds >i4, expected one row of little-endian ids"):
        sources.find_tokens(tmp_path / "b.npy")


def test_a_split_without_shards_is_named_by_its_folder(tmp_path: Path) -> None:
    info: Any = SimpleNamespace(
        root=tmp_path, shards={"train": [], "val": []}, dtype=np.dtype("<u2")
    )
    with pytest.raises(DataError) as caught:
        sources._from_dataset(info, "val")
    assert caught.value.message == "no val shards found"
    assert caught.value.path == tmp_path / "val"
    assert caught.value.next_step == (f"lowtide inspect {tmp_path}   (shows what each split holds)")


def test_splits_are_parts_of_the_whole_array() -> None:
    ids = np.arange(50, 150)
    whole = sources.find_tokens(ids, split="all")
    train, val = (sources.find_tokens(ids, split=name, val_tokens=30) for name in ("train", "val"))
    assert train.array is not None and val.array is not None
    assert train.array.tolist() == list(range(50, 120)) and train.first_token == 0
    assert val.array.tolist() == list(range(120, 150)) and val.first_token == 70
    assert val.shards[0].byte_offset == 70 * ids.dtype.itemsize
    assert (train.total_tokens, val.total_tokens) == (100, 100)
    assert len({whole.fingerprint, train.fingerprint, val.fingerprint}) == 3
    again = sources.find_tokens(ids, split="val", val_tokens=30)
    assert again.fingerprint == val.fingerprint


def test_documents_belong_to_what_begins_with_them(tmp_path: Path) -> None:
    np.arange(100, dtype="<u2").tofile(tmp_path / "a.bin")
    (tmp_path / "a.docs").write_bytes(bytes(8 * 5))
    found = {
        split: sources.find_tokens(tmp_path / "a.bin", dtype="uint16", split=split).shards[0]
        for split in ("all", "train", "val")
    }
    assert [shard.num_documents for shard in found.values()] == [5, 5, 0]
    assert [shard.num_tokens for shard in found.values()] == [100, 90, 10]


@pytest.mark.parametrize(("split", "names"), [("train", "ab"), ("val", "c"), ("all", "abc")])
def test_shards_of_a_store_are_those_of_the_split(
    monkeypatch: pytest.MonkeyPatch, split: Any, names: str
) -> None:
    source = sources.find_tokens(np.arange(10), split="all")
    parts = [replace(source.shards[0], begins_document=name == "b") for name in names]
    source = replace(source, shards=tuple(parts))
    nothing: Any = None
    a, b, c = (StoredShard(nothing, number, nothing, 0) for number in range(3))
    found = SimpleNamespace(info="info", shards={"train": (a, b), "val": (c,)})
    cache = sources.CacheSettings()
    opened: list[Any] = []
    monkeypatch.setattr(
        sources, "open_stored_dataset", lambda *given: opened.append(given) or found
    )
    monkeypatch.setattr(
        sources, "_from_dataset", lambda info, part: (opened.append((info, part)), source)[1]
    )
    made = sources.find_tokens("s3://bucket/data", split=split, cache=cache)
    expected = {"a": a, "b": replace(b, begins_document=True), "c": c}
    assert made.stored is not None and made.stored.shards == tuple(expected[name] for name in names)
    assert str(made.stored.url) == made.place == "s3://bucket/data" and made.stored.cache is cache
    assert opened[1] == ("info", split)

    def fail(info: Any, part: str) -> Any:
        raise DataError("no shards", path="/cache/copy")

    monkeypatch.setattr(sources, "_from_dataset", fail)
    with pytest.raises(DataError) as caught:
        sources.find_tokens("s3://bucket/data", split=split)
    assert (caught.value.message, caught.value.path) == ("no shards", "s3://bucket/data")
