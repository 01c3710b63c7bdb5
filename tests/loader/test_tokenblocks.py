"""Windows over tokens: how many, which, and where a block begins that is read again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.loader import tokenblocks
from lowtide.loader.ordering import derive_seed, order_indices
from lowtide.loader.tokenblocks import (
    BlockStart,
    TokenBlock,
    Windowing,
    _HeldTokens,
    iter_token_blocks,
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


def texts_of(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> list[dict[str, Any]]:
    """Texts of so many tokens, numbered on; every third is the rest of the one before it."""
    asked: list[dict[str, Any]] = []

    def iterate(source: Any, encoder: Any, **more: Any) -> Any:
        assert (source, encoder) == ("source", "encoder")
        asked.append(more)
        begin = 0
        for number, size in enumerate(sizes):
            place = (number - (number % 3 == 2), 0, 0)
            ids = np.arange(begin, begin + size, dtype=np.int32)
            begin += size
            if more["place"] is None or place >= more["place"]:
                yield SimpleNamespace(place=place, ends_document=number % 3 != 1), ids

    monkeypatch.setattr(tokenblocks, "iter_encoded", iterate)
    return asked


def blocks_of(windowing: Windowing, **more: Any) -> list[TokenBlock]:
    source: Any = "source"
    encoder: Any = "encoder"
    given = {"seed": 3, "order_files": True, **more}
    return list(iter_token_blocks(source, encoder, windowing, **given))


@pytest.mark.parametrize("buffer", [0, 1, 3])
@pytest.mark.parametrize("stride", [2, 4])
@pytest.mark.parametrize("total", [0, 4, 5, 6, *range(17, 40, 3)])
def test_blocks_are_cut_when_a_whole_window_is_there_for_the_next(
    monkeypatch: pytest.MonkeyPatch, total: int, stride: int, buffer: int
) -> None:
    sizes = [size for size in (7, 1, 9, 0, 5, total) if size <= total]
    sizes = [*sizes[:-1], total - sum(sizes[:-1])] if sum(sizes[:-1]) <= total else [total]
    texts_of(monkeypatch, sizes)
    windowing = Windowing(seq_len=4, stride=stride, buffer_windows=buffer)
    windows = max(1, buffer)
    expected, begin, held = [], 0, 0
    for size in sizes:
        held += size
        while held - begin >= windows * stride + 5:
            count = windows_before(1, windowing, seed=3) if not expected else windows
            expected.append((begin, begin + (count - 1) * stride + 5, count))
            begin += count * stride
    if held - begin >= 5:
        expected.append((begin, held, windowing.count_windows(held - begin)))
    found = blocks_of(windowing)
    shown = [(int(one.tokens[0]), int(one.tokens[-1]) + 1, one.num_windows) for one in found]
    assert shown == expected
    assert [one.start.number for one in found] == list(range(len(found)))
    for one in found:
        assert (one.windowing, one.seed) == (windowing, 3)
        assert one.tokens.tolist() == list(range(int(one.tokens[0]), int(one.tokens[-1]) + 1))


@pytest.mark.parametrize("buffer", [1, 2, 5])
def test_a_block_is_read_again_from_its_start(monkeypatch: pytest.MonkeyPatch, buffer: int) -> None:
    asked = texts_of(monkeypatch, [7, 1, 9, 0, 5, 30, 2, 2, 40])
    windowing = Windowing(seq_len=4, stride=4, buffer_windows=buffer)
    whole = blocks_of(windowing, max_documents=50)
    assert asked[-1] == {"seed": 3, "place": None, "max_documents": 50}
    for number, block in enumerate(whole):
        again = blocks_of(windowing, start=block.start, max_documents=50, order_files=False)
        shown = [(one.start, one.num_windows, one.tokens.tolist()) for one in again]
        assert shown == [
            (one.start, one.num_windows, one.tokens.tolist()) for one in whole[number:]
        ]
        assert asked[-1] == {
            "seed": None, "place": block.start.place,
            "max_documents": 50 - block.start.documents,
        }  # fmt: skip
    blocks_of(windowing)
    assert asked[-1]["max_documents"] is None


def test_the_order_of_a_block_is_that_of_its_number() -> None:
    tokens = np.arange(41, dtype=np.int32)
    for number in (0, 4):
        block = TokenBlock(BlockStart(number=number), tokens, 10, Windowing(4, 4, 2), seed=5)
        inputs, targets = np.zeros((2, 6, 4), np.int32)
        block.fill(3, inputs, targets)
        seed = derive_seed(5, f"block {number}")
        order = order_indices("shuffle", seed=seed, size=10, first=3, count=6).tolist()
        assert inputs[:, 0].tolist() == [4 * place for place in order]
        assert targets[:, 0].tolist() == [4 * place + 1 for place in order]
