"""Shards: impossible ones are rejected, and the first bytes distinguish the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from lowtide.dataset.tokenfiles import shards
from lowtide.errors import DataError


@pytest.mark.parametrize("bad", [-1, 300, 70_000])
def test_a_chunk_with_an_id_outside_the_vocabulary_is_refused(tmp_path: Path, bad: int) -> None:
    no_ends = np.empty(0, np.uint64)
    with pytest.raises(DataError, match=f"id {bad} is outside the vocabulary of 300"):
        shards.id_chunk(np.array([1, bad]), no_ends, vocab_size=300, path=tmp_path / "s.bin")
    if 0 <= bad < 1 << 16:
        chunk = (memoryview(np.array([1, bad], np.uint16).tobytes()), memoryview(b""))
        with pytest.raises(DataError, match=f"id {bad} is outside the vocabulary of 300"):
            shards.write_shard_stream(tmp_path / "s.bin", [chunk], vocab_size=300)
    assert not (tmp_path / "s.bin").exists()


@pytest.mark.parametrize("ends", [[5, 5], [6, 3], [11]])
def test_wrong_document_ends_are_refused(tmp_path: Path, ends: list[int]) -> None:
    (tmp_path / "s.docs").write_bytes(np.array(ends, "<u8").tobytes())
    with pytest.raises(DataError, match="document ends"):
        shards.load_document_ends(shards.ShardInfo(tmp_path / "s.bin", 10, len(ends), 0, 9, None))


@pytest.mark.parametrize("sizes", [[5000], [3, 1500, 3497], [2048, 2952]])
def test_a_stream_of_chunks_gives_the_same_shard(tmp_path: Path, sizes: list[int]) -> None:
    ids = np.arange(5000, dtype=np.uint16)
    chunks = []
    begin = 0
    for size in sizes:
        ends = [end - begin for end in (10, 5000) if begin < end <= begin + size]
        part = ids[begin : begin + size]
        path = tmp_path / "parts.bin"
        chunks.append(shards.id_chunk(part, np.array(ends, np.uint64), vocab_size=5000, path=path))
        begin += size
    streamed = shards.write_shard_stream(tmp_path / "parts.bin", chunks, vocab_size=5000)
    assert (tmp_path / "parts.bin").read_bytes() == ids.tobytes()
    assert np.fromfile(tmp_path / "parts.docs", "<u8").tolist() == [10, 5000]
    assert streamed.checksum == xxhash.xxh3_128_hexdigest(ids.tobytes())
    assert streamed.head == shards.checksum_head(tmp_path / "parts.bin")
    assert streamed.head == xxhash.xxh3_64_hexdigest(ids[:2048].tobytes())


@pytest.mark.parametrize("id", [0, 1, 299])
def test_a_shard_of_one_id_has_it_as_smallest_and_largest(tmp_path: Path, id: int) -> None:
    """For example a last shard with nothing but end-of-text."""
    chunk = (np.full(3, id, np.uint16), np.array([1, 2, 3], np.uint64))
    data = shards.id_chunk(*chunk, vocab_size=300, path=tmp_path / "s.bin")
    info = shards.write_shard_stream(tmp_path / "s.bin", [data], vocab_size=300)
    assert (info.min_id, info.max_id, info.num_tokens, info.num_documents) == (id, id, 3, 3)
    np.full(40, id, np.uint16).tofile(tmp_path / "found.bin")  # one that is not in the metadata
    found = shards.scan_shard(
        tmp_path / "found.bin", dtype=np.dtype("<u2"), vocab_size=300, tokenizer_fingerprint="x"
    )
    assert (found.min_id, found.max_id, found.num_tokens) == (id, id, 40)


@pytest.mark.parametrize(
    ("ids", "wrong"),
    [([0, 300], 300), ([-1, 5], -1), ([-7, 300], -7), ([299, 0], None), ([], None)],
)
def test_the_id_that_is_outside_is_named(ids: list[int], wrong: int | None) -> None:
    no_ends, given = np.empty(0, np.uint64), np.array(ids, np.int64)
    if wrong is None:
        data, ends = shards.id_chunk(given, no_ends, vocab_size=300, path=Path("a"))
        assert np.frombuffer(data, "<u2").tolist() == ids and len(ends) == 0
        return
    with pytest.raises(DataError) as caught:
        shards.id_chunk(given, no_ends, vocab_size=300, path=Path("a"))
    assert caught.value.message == f"id {wrong} is outside the vocabulary of 300"


def test_a_shard_is_told_to_the_disk_chunk_by_chunk(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    count = shards._ENDS_STEP + 3
    chunks = []
    for ids, ends in (
        (np.arange(5), [2, 5]), (np.empty(0, int), []), (np.full(count, 7), range(1, count + 1)),
    ):  # fmt: skip
        given = np.array(list(ends), np.uint64)
        chunks.append(shards.id_chunk(ids, given, vocab_size=70_000, path=Path("a")))
    info = shards.write_shard_stream(
        tmp_path / "s.bin", chunks, vocab_size=70_000,
        on_written=lambda file, place, size: told.append((place, size)),
    )  # fmt: skip
    assert told == [(0, 20), (20, 4 * count)]
    ends = np.fromfile(tmp_path / "s.docs", "<u8")
    assert ends.tolist() == [2, 5, *range(6, 6 + count)]
    data = (tmp_path / "s.docs").read_bytes()
    assert info.ends_checksum == xxhash.xxh3_128_hexdigest(data)
    assert (info.num_tokens, info.num_documents) == (5 + count, 2 + count)
    assert (info.min_id, info.max_id) == (0, 7)
    row = shards.shard_row(tmp_path, info)
    assert shards.shard_from_row(tmp_path, row) == info
    assert row["file"] == "s.bin"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (np.array([1, 0] * 16, "<u2"), "every second id is 0, as if it held uint32"),
        (np.array([1, 0] * 15, "<u2"), None),  # too few to tell
        (np.array([1, 0] * 16 + [1], "<u2"), None),
        (np.array([0, 0] * 16, "<u2"), None),
        (np.array([1, 0] * 15 + [1, 1], "<u2"), None),
        (np.array([1, 2, 300], "<u2"), "it has id 300, the vocabulary ends at 299"),
        (np.array([1, 2, 299], "<u2"), None),
        (np.array([1, 0] * 16, "<u4"), None),
    ],
)
def test_a_shard_that_no_metadata_describes(tmp_path: Path, data: Any, reason: str | None) -> None:
    path = tmp_path / "mine.bin"
    path.write_bytes(data.tobytes())
    (tmp_path / "mine.docs").write_bytes(bytes(24))
    options: Any = {"dtype": data.dtype, "vocab_size": 300, "tokenizer_fingerprint": "x"}
    if reason is None:
        found = shards.scan_shard(path, **options)
        assert (found.num_tokens, found.num_documents) == (len(data), 3)
        assert (found.min_id, found.max_id) == (int(data.min()), int(data.max()))
        assert found.checksum is None
        return
    with pytest.raises(DataError) as caught:
        shards.scan_shard(path, **options)
    assert caught.value.message == (
        f"mine.bin does not belong to this dataset of uint16 ids: {reason}"
    )


def test_a_shard_of_no_whole_ids_or_another_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.bin"
    options: Any = {"dtype": np.dtype("<u2"), "vocab_size": 300, "tokenizer_fingerprint": "0" * 16}
    for size in (0, 3):
        path.write_bytes(bytes(size))
        with pytest.raises(DataError, match=f"has {size} bytes, expected a whole number of uint16"):
            shards.scan_shard(path, **options)
    named = tmp_path / shards.shard_name(3, "01234567-bc013c54")
    named.write_bytes(bytes(4))
    with pytest.raises(DataError, match="its name should say 00000000, as this dataset"):
        shards.scan_shard(named, **options)
    same = {**options, "tokenizer_fingerprint": "01234567ffff"}
    assert shards.scan_shard(named, **same).num_documents == 0


def test_ends_are_compared_with_their_checksum(tmp_path: Path) -> None:
    info = shards.ShardInfo(tmp_path / "s.bin", 10, 2, 0, 9, None)
    assert shards.load_document_ends(info).tolist() == []  # nothing records where they are
    data = np.array([4, 10], "<u8").tobytes()
    (tmp_path / "s.docs").write_bytes(data)
    assert shards.load_document_ends(info).tolist() == [4, 10]
    known = replace(info, ends_checksum=xxhash.xxh3_128_hexdigest(data))
    assert shards.load_document_ends(known).tolist() == [4, 10]
    with pytest.raises(DataError):
        shards.load_document_ends(replace(info, ends_checksum="0" * 32))
    (tmp_path / "s.docs").write_bytes(data[:-1])
    with pytest.raises(DataError, match=r"s\.docs has 15 bytes, expected a multiple of 8"):
        shards.load_document_ends(info)
    opened = shards.open_shard(known, np.dtype("<u2"))
    assert (opened.ends_path, opened.ends_checksum) == (tmp_path / "s.docs", known.ends_checksum)
    bare = shards.open_shard(replace(known, num_documents=0), np.dtype("<u2"))
    assert (bare.ends_path, bare.ends_checksum) == (None, None)


def test_some_tokens_of_a_shard(tmp_path: Path) -> None:
    np.arange(10, dtype="<u4").tofile(tmp_path / "s.bin")
    info = shards.ShardInfo(tmp_path / "s.bin", 10, 0, 0, 9, None)
    for begin, end in ((0, 10), (3, 7), (5, 5)):
        found = shards.read_shard_tokens(info, np.dtype("<u4"), begin, end)
        assert found.tolist() == list(range(begin, end))
    assert shards.load_shard_tokens(info, np.dtype("<u4")).tolist() == list(range(10))


def test_a_tag_is_of_all_that_decided_the_ids() -> None:
    tag = shards.shard_tag
    first = tag("0123456789abcdef", {"a": 1, "b": [2]}, ["x", "y"], 5)
    assert first.startswith("01234567-") and len(first) == 17
    assert tag("0123456789abcdef", {"b": [2], "a": 1}, iter(["x", "y"]), 5) == first
    assert tag("f", iter([]), 5) == tag("f", [], 5)
    assert tag("f", iter([[1, 2], {"c": None}])) == tag("f", [[1, 2], {"c": None}])
    text = json.dumps(["f", {"a": 1}, ["x", 3]]).encode()
    assert tag("f", {"a": 1}, iter(["x", 3])) == f"f-{xxhash.xxh3_64_hexdigest(text)[:8]}"
    others = [
        tag("0123456789abcdee", {"a": 1, "b": [2]}, ["x", "y"], 5),
        tag("0123456789abcdef", {"a": 1, "b": [3]}, ["x", "y"], 5),
        tag("0123456789abcdef", {"a": 1, "b": [2]}, ["y", "x"], 5),
        tag("0123456789abcdef", {"a": 1, "b": [2]}, ["x", "y"], 6),
    ]
    assert len({first, *others}) == 5


@pytest.mark.parametrize(
    ("name", "number", "same", "plain"),
    [
        ("train/shard_00046-01234567-bc013c54.bin", 46, True, "train/shard_00046.bin"),
        ("shard_00046-11234567-bc013c54.docs", 46, False, None),
        ("shard_00000.bin", 0, None, None),
        ("shard_1.bin", 1, None, None),
        ("shard_.bin", None, None, None),
        ("mine.bin", None, None, None),
        ("shard_00046-01234567.bin", None, None, None),
    ],
)
def test_what_the_name_of_a_shard_says(
    name: str, number: int | None, same: bool | None, plain: str | None
) -> None:
    assert shards.shard_number(name) == number
    assert shards.names_tokenizer(name, "0123456789abcdef") is same
    assert shards.plain_name(name) == (plain or name)
