"""Shards of a split: those unchanged since the metadata was written, and those moved in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.dataset import shardlist
from lowtide.dataset.shardlist import find_split_shards
from lowtide.dataset.tokenfiles.shards import ShardInfo, id_chunk, shard_row, write_shard_stream
from lowtide.errors import DataError


def write(root: Path, name: str, ids: list[int]) -> ShardInfo:
    path = root / "train" / name
    path.parent.mkdir(exist_ok=True)
    chunk = id_chunk(np.array(ids), np.array([len(ids)], np.uint64), vocab_size=300, path=path)
    return write_shard_stream(path, [chunk], vocab_size=300)


def find(root: Path, rows: list[Any], **changes: Any) -> list[ShardInfo]:
    metadata = {"shards": {"train": rows}, "tokenizer_fingerprint": "f" * 16}
    given: dict[str, Any] = {"dtype": "uint16", "vocab_size": 300, **changes}
    return find_split_shards(root, "train", metadata, **given)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "dataset_metadata.json").touch()
    return tmp_path


def test_shards_are_as_the_metadata_says(root: Path) -> None:
    shards = [write(root, f"{name}.bin", [1, 2, 3]) for name in "ab"]
    rows = [shard_row(root, shard) for shard in shards]
    assert find(root, rows) == shards
    (root / "train" / "a.bin").write_bytes(bytes(5))
    with pytest.raises(DataError) as caught:
        find(root, rows)
    assert caught.value.message == "a.bin holds 5 bytes, dataset_metadata.json says 3 tokens"
    (root / "train" / "a.bin").write_bytes(bytes(8))
    with pytest.raises(DataError, match=r"a\.bin holds 4 tokens, dataset_metadata\.json says 3"):
        find(root, rows)
    (root / "train" / "a.bin").unlink()
    with pytest.raises(DataError, match=r"a\.bin is missing, .* says it holds 3 tokens"):
        find(root, rows)
    assert (
        find_split_shards(root, "val", {"shards": {}, "tokenizer_fingerprint": "f"}, "uint16", 300)
        == []
    )


@pytest.mark.parametrize(
    ("newer", "has_head", "refused"),
    [(0, True, True), (1, True, True), (-1, True, False), (1, False, False)],
)
def test_a_shard_that_is_newer_than_the_metadata_is_looked_at(
    root: Path, monkeypatch: pytest.MonkeyPatch, newer: int, has_head: bool, refused: bool
) -> None:
    shard = write(root, "a.bin", [1, 2, 3])
    row = shard_row(root, shard)
    if not has_head:
        row["head_xxh3_64"] = None
    (root / "train" / "a.bin").write_bytes(np.array([1, 2, 4], "<u2").tobytes())
    described = (root / "dataset_metadata.json").stat().st_ctime_ns
    status = SimpleNamespace(st_size=6, st_ctime_ns=described + newer)
    monkeypatch.setattr(shardlist, "_stat_shards", lambda folder: {"a.bin": status})
    if refused:
        with pytest.raises(DataError, match=r"a\.bin is not the shard .* other first bytes"):
            find(root, [row])
    else:
        assert len(find(root, [row])) == 1


def test_shards_moved_in_are_read_once_and_again_when_something_changed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned: list[str] = []
    real = shardlist.scan_shard

    def scan(path: Path, **options: Any) -> Any:
        scanned.append(path.name)
        return real(path, **options)

    monkeypatch.setattr(shardlist, "scan_shard", scan)
    known = write(root, "z.bin", [1])
    rows = [shard_row(root, known)]
    for name in ("b", "a"):
        np.array([1, 2], "<u2").tofile(root / "train" / f"{name}.bin")
    for name in (".hidden.bin", "notes.txt"):
        (root / "train" / name).touch()
    (root / "train" / "gone.bin").symlink_to("nothing")
    found = find(root, rows)
    assert [shard.path.name for shard in found] == ["z.bin", "a.bin", "b.bin"]
    assert scanned == ["a.bin", "b.bin"]
    stored = json.loads((root / "moved_in.json").read_text())
    assert set(stored) == {"train/a.bin", "train/b.bin"}
    assert find(root, rows) == found and len(scanned) == 2
    os.utime(root / "train" / "a.bin", (5, 5))
    assert find(root, rows) == found and scanned[2:] == ["a.bin"]
    find(root, rows, vocab_size=299)  # another vocabulary
    assert scanned[3:] == ["a.bin", "b.bin"]
    (root / "moved_in.json").write_text("[")
    find(root, rows, vocab_size=299)
    assert scanned[5:] == ["a.bin", "b.bin"]
    (root / "moved_in.json").unlink()
    monkeypatch.setattr(shardlist.files, "write_json", refuse)
    find(root, rows)  # a read-only dataset
    assert len(scanned) == 9 and not (root / "moved_in.json").exists()
    (root / "train" / "a.bin").unlink()
    (root / "train" / "b.bin").unlink()
    assert find(root, rows) == [known]


def refuse(path: Path, value: Any) -> None:
    raise PermissionError
