"""Windows over tokens: how many, which, and where a block begins that is read again."""

from __future__ import annotations

import numpy as np
import pytest

from lowtide.loader.tokenblocks import (
    BlockStart,
    TokenBlock,
    Windowing,
    _HeldTokens,
    windows_before,
)


@pytest.mark.parametrize(
    ("tokens", "stride", "windows"),
    [(0, 4, 0), (4, 4, 0), (5, 4, 1), (6, 4, 2), (9, 4, 2), (10, 4, 3), (7, 1, 3), (9, 2, 3)],
)
def test_the_last_window_ends_with_the_last_token(tokens: int, stride: int, windows: int) -> None:
    assert Windowing(4, stride, 1).count_windows(tokens) == windows


def test_rows_are_the_windows_and_the_last_is_moved_back() -> None:
    tokens = np.arange(10, dtype=np.uint32)
    block = TokenBlock(BlockStart(), tokens, 3, Windowing(4, 4, 1), seed=0)
    inputs, targets = np.zeros((2, 2, 4), np.uint32)
    block.fill(1, inputs, targets)
    assert inputs.tolist() == [[4, 5, 6, 7], [5, 6, 7, 8]]
    assert targets.tolist() == [[5, 6, 7, 8], [6, 7, 8, 9]]


def test_shuffled_rows_are_the_same_windows_in_an_order_of_the_blocks_own() -> None:
    tokens = np.arange(41, dtype=np.uint32)
    orders: list[list[int]] = []
    for number in (0, 1):
        start = BlockStart(number=number)
        block = TokenBlock(start, tokens, 10, Windowing(4, 4, 2), seed=5)
        inputs, targets = np.zeros((2, 10, 4), np.uint32)
        block.fill(0, inputs, targets)
        assert sorted(inputs[:, 0].tolist()) == list(range(0, 40, 4))
        orders.append(inputs[:, 0].tolist())
    assert orders[0] != orders[1] != sorted(orders[1])


def test_windows_before_a_block() -> None:
    for buffer in (0, 1):
        counts = [windows_before(number, Windowing(4, 4, buffer), seed=3) for number in range(4)]
        assert counts == [0, 1, 2, 3]
    firsts = {windows_before(1, Windowing(4, 4, 5), seed=seed) for seed in range(60)}
    assert firsts == {1, 2, 3, 4, 5}  # cut short at random, never empty, never more than a block
    for seed in range(5):
        counts = [windows_before(number, Windowing(4, 4, 5), seed=seed) for number in (1, 2, 4)]
        assert [count - counts[0] for count in counts] == [0, 5, 15]


@pytest.mark.parametrize("start", [BlockStart(), BlockStart(3, (1, 2, 3), 4, 5)])
def test_a_start_is_the_same_after_a_file(start: BlockStart) -> None:
    values = start.as_json()
    assert BlockStart.from_json(values) == start
    assert list(values) == ["number", "place", "skip_tokens", "documents"]
    assert not isinstance(values["place"], tuple)  # JSON has none


def test_a_block_begins_in_the_text_its_first_token_is_of() -> None:
    held = _HeldTokens(BlockStart())
    for number in range(4):  # texts of 10 tokens: 0 to 9, 10 to 19, ...
        ids = np.arange(10 * number, 10 * number + 10, dtype=np.uint32)
        held.append(ids, (number, 0, 0), ends_document=True)
    windowing = Windowing(seq_len=4, stride=4, buffer_windows=3)
    first = held.cut(windowing, seed=0, num_windows=3)
    assert first.start == BlockStart() and first.tokens.tolist() == list(range(13))
    assert held.start == BlockStart(number=1, place=(1, 0, 0), skip_tokens=2, documents=1)
    second = held.cut(windowing, seed=0, num_windows=2)
    assert second.tokens.tolist() == list(range(12, 21))
    assert held.start == BlockStart(number=2, place=(2, 0, 0), skip_tokens=0, documents=2)
    rest = held.cut(windowing, seed=0, num_windows=None)
    assert rest.tokens.tolist() == list(range(20, 40)) and rest.num_windows == 5
