from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


class Numbers:
    """A block of windows that are numbers."""

    def __init__(self, number: int, first: int, count: int) -> None:
        self.start = BlockStart(number=number)
        self.first, self.num_windows = first, count

    def fill(self, first: int, inputs: Any, targets: Any) -> None:
        assert first >= 0 and first + len(inputs) <= self.num_windows
        inputs[:, 0] = np.arange(self.first + first, self.first + first + len(inputs))
        targets[:] = inputs + 1


@pytest.mark.parametrize("sizes", [[3, 1, 4], [1, 1, 1, 1], [10], [2, 5]])
@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("batch", [1, 2, 3, 5])
def test_every_window_comes_once_whatever_the_blocks_are(
    sizes: list[int], skip: int, batch: int
) -> None:
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    made = [
        Numbers(n, first, size) for n, (first, size) in enumerate(zip(firsts, sizes, strict=True))
    ]
    skip = min(skip, sizes[0] - 1)
    blocks: Any = iter([(one, skip if one is made[0] else 0) for one in made])
    total = sum(sizes) - skip
    reader = BlockReader(blocks)
    for first in range(0, total, batch):
        count = min(batch, total - first)
        there = reader.available(until=first + count)
        assert first + count <= there == reader.seen_windows <= total
        inputs, targets = np.zeros((2, count, 1), np.int64)
        reader.fill(first, inputs, targets)
        assert inputs[:, 0].tolist() == list(range(skip + first, skip + first + count))
        assert targets[:, 0].tolist() == list(range(skip + first + 1, skip + first + count + 1))
        half = np.zeros((2, max(1, count - 1), 1), np.int64)
        reader.fill(first + count - len(half[0]), *half)
        assert half[0][-1, 0] == inputs[-1, 0]
        if first + count < total:
            reader.available(until=first + count + 1)
            reader.drop(until=first + count)
            start, inside = reader.position(first + count)
            assert firsts[start.number] + inside == skip + first + count
            assert 0 <= inside < sizes[start.number]
    assert reader.available(until=total + 5) == total
    reader.close()
    with pytest.raises(RuntimeError):
        reader._submit()


def test_windows_on_disk_are_those_of_their_epoch() -> None:
    asked: list[Any] = []

    class Data:
        def __len__(self) -> int:
            return 10

        def plan_rows(self, order: str, **given: int) -> list[Any]:
            asked.append((order, given))
            return [SimpleNamespace(starts="starts", rows="rows")]

        def fill_rows(self, *given: Any) -> None:
            asked.append(given)

    data: Any = Data()
    arrays: Any = np.zeros((2, 3, 4))
    for shuffle, order in ((True, "shuffle"), (False, "sequential")):
        asked.clear()
        block = StoredBlock(data, 2, 7, shuffle)
        block.fill(5, *arrays)
        assert block.num_windows == 10 and block.start == BlockStart()
        assert asked[0] == (order, {"seed": 7, "first": 25, "count": 3})
        assert asked[1][:2] == ("starts", "rows")
