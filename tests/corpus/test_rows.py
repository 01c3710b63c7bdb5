"""Rows gathered into blocks: each once, in order, and a long one in parts that join up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.corpus import reading
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.rows import iter_row_blocks
from lowtide.errors import DataError

SMALL = reading.ReadingOptions(block_bytes=64, max_row_bytes=1000)
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


def test_a_row_too_large_for_the_memory_is_named() -> None:
    rows = [(b"short", 1), (b"x" * 2000, 1)]
    with pytest.raises(DataError, match=r"the row 1 has 2.0 KiB, too much") as raised:
        list(iter_row_blocks(STREAM, SMALL, iter(rows)))
    assert raised.value.next_step is not None and "--memory 256MiB" in raised.value.next_step


def test_ends_are_counted_within_the_block() -> None:
    (block,) = iter_row_blocks(STREAM, SMALL, iter([(b"ab", 1), (b"", 1), (b"c", 1)]))
    assert block.row_ends is not None
    np.testing.assert_array_equal(block.row_ends, [2, 2, 3])


def test_parquet_inside_an_archive_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet.gz"
    path.write_bytes(b"\x1f\x8b")
    with pytest.raises(DataError, match="inside gzip") as caught:
        list(reading.iter_documents([path]))
    assert caught.value.next_step is not None and "unpack it" in caught.value.next_step
