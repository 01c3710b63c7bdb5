from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import UsageError
from lowtide.loader.ordering import order_indices
from lowtide.loader.shuffledblocks import GROUP_BLOCKS, BlockOrder

ORDERS = st.builds(
    BlockOrder,
    seed=st.integers(0, 2**64 - 1),
    size=st.integers(1, 800),
    block_windows=st.integers(1, 50),
)


@given(order=ORDERS, epoch=st.integers(0, 3))
def test_every_window_appears_once_per_epoch(order: BlockOrder, epoch: int) -> None:
    indices = order.indices(epoch * order.size, order.size)
    assert np.array_equal(np.sort(indices), np.arange(order.size))


@given(order=ORDERS, first=st.integers(0, 2000), count=st.integers(0, 300))
def test_any_piece_of_the_order_is_the_same_piece(
    order: BlockOrder, first: int, count: int
) -> None:
    whole = order.indices(0, first + count)
    assert np.array_equal(whole[first:], order.indices(first, count))


@given(order=ORDERS, sample=st.integers(0, 2000))
def test_a_sample_lies_in_the_runs_of_its_group(order: BlockOrder, sample: int) -> None:
    group = next(order.groups_from(sample))
    assert group.first_sample <= sample < group.first_sample + group.num_windows
    window = int(order.indices(sample, 1)[0])
    assert any(first <= window < first + count for first, count in group.runs)


def test_a_group_reads_a_few_blocks_and_mixes_them() -> None:
    order = BlockOrder(seed=3, size=10_000, block_windows=100)
    windows = order.indices(0, GROUP_BLOCKS * 100)
    blocks = windows // 100
    assert len(np.unique(blocks)) == GROUP_BLOCKS
    assert len(np.unique(blocks[:50])) > GROUP_BLOCKS // 2  # mixed, not block after block
    assert not np.array_equal(np.unique(blocks), np.arange(GROUP_BLOCKS))  # from anywhere
    other = order.indices(order.size, GROUP_BLOCKS * 100) // 100
    assert set(other.tolist()) != set(blocks.tolist())  # and others in the next epoch


def test_data_of_one_group_is_shuffled_whole() -> None:
    order = BlockOrder.of(seed=3, size=5000, stride=1024)
    assert order.num_groups == 1
    correlation = np.corrcoef(order.indices(0, 5000).astype(float), np.arange(5000))[0, 1]
    assert abs(correlation) < 0.1


def test_a_list_of_single_windows_knows_no_blocks() -> None:
    with pytest.raises(UsageError, match="blocks"):
        order_indices("blocks", seed=0, size=5, first=0, count=5)
