"""Sizes of tasks for inputs of any size, on a disk and in a store."""

from __future__ import annotations

import itertools

import pytest

from lowtide.dataset.staged.plan import Sizes

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40


@pytest.mark.parametrize(
    ("total", "stored", "part", "partitions", "group"),
    [
        (0, False, 16 * MIB, 1, 16 * MIB),
        (GIB, False, 16 * MIB, 16, 16 * MIB),
        (GIB - 1, False, 16 * MIB, 15, 16 * MIB),
        (5 * GIB, False, 16 * MIB, 80, 80 * MIB),
        (100 * GIB, False, 16 * MIB, 256, 256 * MIB),
        (TIB, False, 35 * MIB, 256, 256 * MIB),
        (16 * TIB - 1, False, 560 * MIB, 256, 256 * MIB),
        (16 * TIB, False, 560 * MIB, 512, 256 * MIB),
        (1000 * TIB, False, 34_953 * MIB, 8192, 256 * MIB),
        (0, True, 32 * MIB, 1, GIB),
        (GIB, True, 32 * MIB, 1, GIB),
        (2 * GIB - 1, True, 32 * MIB, 1, GIB),
        (2 * GIB, True, 32 * MIB, 2, GIB),
        (100 * GIB, True, 32 * MIB, 100, GIB),
        (TIB, True, 263 * MIB, 256, GIB),
        (100 * TIB, True, 26_215 * MIB, 3072, GIB),
    ],
)
def test_sizes_grow_with_the_inputs(
    total: int, stored: bool, part: int, partitions: int, group: int
) -> None:
    found = Sizes.of(total, is_stored=stored)
    assert (found.part_bytes, found.num_partitions, found.group_bytes) == (part, partitions, group)
    assert found.num_buckets == 4096


@pytest.mark.parametrize(
    ("count", "unit", "shared"),
    [(1, 256, 0), (3, 256, 1), (64, 256, 6), (256, 256, 8), (257, 1, 8), (8192, 1, 13)],
)
def test_partitions_are_all_first_bits(count: int, unit: int, shared: int) -> None:
    """Up to 256 have whole first bytes; all have the same size, to within one unit."""
    sizes = Sizes(1, count)
    borders = sizes.partition_borders()
    assert len(borders) == count
    assert (borders[0][0], borders[-1][1]) == (0, 1 << 16)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(borders))
    widths = {last - first for first, last in borders}
    assert max(widths) - min(widths) <= unit
    assert all(width % unit == 0 for width in widths)
    assert sizes.shared_bits == shared
