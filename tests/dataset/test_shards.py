"""Shards: what cannot be is refused, and the first bytes tell shards apart."""

from __future__ import annotations

from pathlib import Path

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
    """Such as a last shard that holds nothing but end-of-text."""
    chunk = (np.full(3, id, np.uint16), np.array([1, 2, 3], np.uint64))
    data = shards.id_chunk(*chunk, vocab_size=300, path=tmp_path / "s.bin")
    info = shards.write_shard_stream(tmp_path / "s.bin", [data], vocab_size=300)
    assert (info.min_id, info.max_id, info.num_tokens, info.num_documents) == (id, id, 3, 3)
    np.full(40, id, np.uint16).tofile(tmp_path / "found.bin")  # one that no metadata describes
    found = shards.scan_shard(
        tmp_path / "found.bin", dtype=np.dtype("<u2"), vocab_size=300, tokenizer_fingerprint="x"
    )
    assert (found.min_id, found.max_id, found.num_tokens) == (id, id, 40)
