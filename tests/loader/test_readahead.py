from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lowtide.loader.readahead import Block, BlockReader, StoredBlock
from lowtide.loader.tokenblocks import BlockStart, TokenBlock, Windowing
from lowtide.loader.windows import TokenDataset

WINDOWING = Windowing(seq_len=4, stride=4, buffer_windows=1)


def counting_blocks(sizes: list[int], skip: int = 0) -> Iterator[tuple[Block, int]]:
    """Return blocks of so many windows over 0, 1, 2 …; the first `skip` windows are past."""
    first = 0
    for number, windows in enumerate(sizes):
        tokens = np.arange(first, first + 4 * windows + 1, dtype=np.uint32)
        yield TokenBlock(BlockStart(number=number), tokens, windows, WINDOWING, seed=0), skip
        first += 4 * windows
        skip = 0


def read(reader: BlockReader, first: int, count: int) -> list[int]:
    inputs, targets = np.empty((count, 4), np.int64), np.empty((count, 4), np.int64)
    reader.fill(first, inputs, targets)
    np.testing.assert_array_equal(targets, inputs + 1)
    return (inputs[:, 0] // 4).tolist()


def test_rows_cross_blocks() -> None:
    reader = BlockReader(counting_blocks([3, 1, 4]))
    assert reader.available(until=5) == 8
    assert read(reader, 0, 5) == [0, 1, 2, 3, 4]
    assert read(reader, 2, 6) == [2, 3, 4, 5, 6, 7]
    assert reader.available(until=100) == 8
    reader.close()


def test_blocks_behind_are_dropped_and_the_place_is_known() -> None:
    reader = BlockReader(counting_blocks([3, 2, 4], skip=1))
    assert reader.available(until=3) == 4  # two of the first, which has given one, and the second
    assert read(reader, 0, 4) == [1, 2, 3, 4]
    assert reader.position(1)[0].number == 0
    reader.drop(until=3)
    start, given = reader.position(3)
    assert (start.number, given) == (1, 1)
    reader.close()


def test_an_error_of_the_thread_reaches_the_caller() -> None:
    def blocks() -> Iterator[tuple[Block, int]]:
        yield from counting_blocks([2])
        raise ValueError("no more text")

    reader = BlockReader(blocks())
    assert reader.available(until=2) == 2
    with pytest.raises(ValueError, match="no more text"):
        reader.available(until=3)
    reader.close()


def test_tokens_on_disk_are_a_block_too(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(41, dtype=np.int32))
    data = TokenDataset(tmp_path / "ids.npy", split="all", seq_len=4)
    epochs: list[list[int]] = []
    for epoch in range(2):
        block = StoredBlock(data, epoch, seed=1, shuffle=True)
        assert block.num_windows == 10
        reader = BlockReader(iter([(block, 0)]))
        reader.available(until=10)
        epochs.append(read(reader, 0, 10))
        reader.close()
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
    assert epochs[0] != epochs[1]
