"""Rows gathered into blocks: each once, in order, and a long one in parts that join up."""

from __future__ import annotations

import dataclasses
import gzip
import io
import itertools
import lzma
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lowtide.corpus import reading, rows
from lowtide.corpus.decompression import window_bytes
from lowtide.corpus.inputs import InputFile, expand_inputs
from lowtide.corpus.largepages import StoredText
from lowtide.corpus.longrows import iter_text_parts
from lowtide.corpus.rows import iter_row_blocks
from lowtide.errors import BudgetError, DataError

SMALL = reading.ReadingSettings(block_bytes=64)
STREAM = reading.Stream(0, (InputFile(3, Path("a.parquet"), "parquet", None, 100),), False, None)
LONG = st.integers(80, 700).map(lambda size: b"some words\nand lines " * (size // 21 + 1))


@given(st.lists(st.one_of(st.binary(max_size=70), LONG), max_size=12))
def test_every_row_once_and_in_order(texts: list[bytes]) -> None:
    blocks = list(iter_row_blocks(STREAM, SMALL, ((text, 1) for text in texts)))
    assert [block.number for block in blocks] == list(range(len(blocks)))
    assert sum(block.stored_bytes for block in blocks) == len(texts)
    joined: dict[int, bytes] = {}
    open_row = False
    for block in blocks:
        assert len(block.data) <= 2 * (SMALL.block_bytes + SMALL.window_bytes)
        assert block.continues == open_row
        open_row = block.continued
        for document in reading.block_documents(block, SMALL, {}):
            assert document.is_first == (document.ordinal not in joined)
            joined[document.ordinal] = joined.get(document.ordinal, b"") + document.text
    assert not open_row
    assert joined == {row: text for row, text in enumerate(texts) if text}


def test_ends_are_counted_within_the_block() -> None:
    (block,) = iter_row_blocks(STREAM, SMALL, iter([(b"ab", 1), (b"", 1), (b"c", 1)]))
    assert block.row_ends is not None
    np.testing.assert_array_equal(block.row_ends, [2, 2, 3])


PACK = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.ZstdCompressor().compress}


@pytest.mark.parametrize("suffix", list(PACK))
def test_parquet_inside_an_archive(suffix: str, tmp_path: Path) -> None:
    plain = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["first", "second " * 1000]}), plain)
    path = tmp_path / f"a.parquet.{suffix}"
    packed = PACK[suffix](plain.read_bytes())
    path.write_bytes(packed)
    expected = [document.text for document in reading.iter_documents([plain])]
    assert [document.text for document in reading.iter_documents([path])] == expected
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match="damaged or cut-off"):
        list(reading.iter_documents([path]))
    path.write_bytes(PACK[suffix](b"no table"))
    with pytest.raises(DataError, match="not a parquet file"):
        list(reading.iter_documents([path]))


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"compression": "lz4"}, "packed by LZ4"),
        ({"compression": "brotli"}, "packed by BROTLI"),
        (
            {"compression": "zstd", "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
            "encoded as .*DELTA_BYTE_ARRAY",
        ),
    ],
)
def test_what_cannot_be_read_in_parts_is_named(
    tmp_path: Path, options: dict[str, Any], cause: str
) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["x" * 12_000_000]})
    pq.write_table(table, path, use_dictionary=False, **options)
    limits = reading.ReadingSettings(reader_bytes=1 << 20)
    with pytest.raises(BudgetError, match=cause):
        list(reading.iter_documents([path], limits))


def test_parquet_is_read_through_a_buffer_of_one_mebibyte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as whole columns, which pyarrow fetches beforehand unless it is told."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["words"]}), path)
    given: list[dict[str, Any]] = []
    open_file = pq.ParquetFile

    def note(*arguments: Any, **options: Any) -> Any:
        given.append(options)
        return open_file(*arguments, **options)

    monkeypatch.setattr(pq, "ParquetFile", note)
    source = InputFile(0, path, "parquet", None, path.stat().st_size)
    with rows._opened(source, reading.ReadingSettings()) as (file, _):
        assert file.metadata.num_rows == 1
    assert given == [{"pre_buffer": False, "buffer_size": 1 << 20}]


def test_what_pages_took_is_given_back_when_a_file_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[str] = []
    pool = SimpleNamespace(release_unused=lambda: released.append("all"))
    monkeypatch.setattr(pa, "default_memory_pool", lambda: pool)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["some text", "more of it"]}), path)
    (source,) = expand_inputs([path])
    texts = rows.iter_parquet_rows(source, SMALL)
    next(texts)
    assert released == []
    assert len(list(texts)) == 1 and released == ["all"]


def test_millions_of_empty_rows_are_blocks_too(tmp_path: Path) -> None:
    """Counted by their bytes alone they would all be one block, a few hundred bytes each."""
    path = tmp_path / "empty.parquet"
    pq.write_table(pa.table({"text": ["", None, "a", "bc"] * 500}), path)
    options = reading.ReadingSettings(block_bytes=6400)
    (stream,) = reading.plan_streams(reading.expand_inputs([path]), options)
    blocks = [block for block in reading.iter_blocks(stream, options) if block is not None]
    assert [len(block.row_ends) for block in blocks if block.row_ends is not None] == [100] * 20
    assert [block.segments[0].offset for block in blocks] == [100 * n for n in range(20)]
    assert b"".join(block.data for block in blocks) == b"abc" * 500
    documents = list(reading.iter_documents(reading.expand_inputs([path]), options))
    assert [row.ordinal for row in documents[:4]] == [2, 3, 6, 7]
    assert documents[-1].ordinal == 1999


@given(
    st.lists(
        st.one_of(
            st.just(b""),
            st.binary(max_size=40),
            st.sampled_from([b"x" * 96, b"y" * 97, b"z" * 300]),
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_blocks_are_those_of_gathering_by_hand(texts: list[bytes], stored: bool) -> None:
    """A block is full with 64 bytes or 16 rows; a text beyond 96 bytes ends it, and is alone."""
    expected: list[tuple[int, list[bytes], int]] = []
    held: list[bytes] = []
    pending = 0

    def end(last: int) -> None:
        nonlocal pending
        if held:
            expected.append((last - len(held), list(held), pending))
            held.clear()
            pending = 0

    for row, text in enumerate(texts):
        pending += row + 1
        if len(text) > 96:
            end(row)
            for part in iter_text_parts(io.BytesIO(text).read, len(text), SMALL):
                expected.append((row, [part], pending))
                pending = 0
            continue
        held.append(text)
        if sum(map(len, held)) >= 64 or len(held) >= 16:
            end(row + 1)
    end(len(texts))
    blocks = iter_row_blocks(STREAM, SMALL, as_rows(texts, stored))
    shown = []
    for block in blocks:
        assert block.row_ends is not None
        ends = [0, *block.row_ends.tolist()]
        pieces = [block.data[a:b] for a, b in itertools.pairwise(ends)]
        shown.append((block.segments[0].offset, pieces, block.stored_bytes))
        (segment,) = block.segments
        assert (segment.input_index, segment.begin, segment.end) == (3, 0, len(block.data))
        assert (block.stream, block.kind) == (0, "rows")
    assert shown == expected


def as_rows(texts: list[bytes], stored: bool) -> Iterator[tuple[Any, int]]:
    """Each row counts its number from 1 on; long texts as they lie in a file, or as views."""
    for row, text in enumerate(texts, 1):
        if stored and len(text) > 96:
            yield StoredText(io.BytesIO(b"before" + text + b"after"), 6, len(text)), row
        else:
            yield memoryview(text), row


def test_short_texts_are_copied_and_long_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view keeps its batch in memory; a copy of a long text would be a second one."""
    kinds: list[type] = []
    make = rows._rows_block

    def note(stream: Any, number: int, texts: Any, *more: Any) -> Any:
        kinds.extend(map(type, texts))
        return make(stream, number, texts, *more)

    monkeypatch.setattr(rows, "_rows_block", note)
    options = reading.ReadingSettings(block_bytes=1 << 20)
    sizes = (0, 1024, 1025, 5000)
    given_rows = iter([(memoryview(b"x" * size), 1) for size in sizes])
    assert len(list(iter_row_blocks(STREAM, options, given_rows))) == 1
    assert kinds == [bytes, bytes, memoryview, memoryview]


def test_what_is_inside_an_archive_is_seen_when_it_is_unpacked(tmp_path: Path) -> None:
    """Before that only its own window is known."""
    plain = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x" * 100_000]}), plain)
    packed = tmp_path / "a.parquet.zst"
    packed.write_bytes(zstandard.compress(plain.read_bytes()))
    sources = expand_inputs([plain, packed])
    held = [rows.parquet_bytes(source, reading.ReadingSettings()) for source in sources]
    assert held[0] > 3 * 100_000
    assert held[1] == window_bytes(sources[1]) > 0
    gone = dataclasses.replace(sources[0], path=tmp_path / "none.parquet")
    assert rows.parquet_bytes(gone, reading.ReadingSettings()) == 0
