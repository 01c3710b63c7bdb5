from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import UsageError
from lowtide.loader import ordering
from lowtide.loader.ordering import (
    check_order,
    derive_seed,
    epoch_shifts,
    order_indices,
    permuted_index,
)

SEEDS = st.integers(0, 2**64 - 1)


@given(seed=SEEDS, size=st.integers(1, 5000), epoch=st.integers(0, 3))
def test_every_index_appears_once_per_epoch(seed: int, size: int, epoch: int) -> None:
    indices = order_indices("shuffle", seed=seed, size=size, first=epoch * size, count=size)
    assert np.array_equal(np.sort(indices), np.arange(size))


@given(
    seed=SEEDS,
    size=st.one_of(st.integers(1, 600), st.integers(1, 2**50)),
    epoch=st.integers(0, 1000),
    place=st.floats(0, 1, exclude_max=True),
)
def test_native_order_equals_the_reference(seed: int, size: int, epoch: int, place: float) -> None:
    index = min(int(place * size), size - 1)
    native = order_indices("shuffle", seed=seed, size=size, first=epoch * size + index, count=1)
    assert native[0] == permuted_index(index, seed=seed, epoch=epoch, size=size)


@given(seed=SEEDS, size=st.integers(1, 3000), first=st.integers(0, 9000), count=st.integers(0, 300))
def test_any_piece_of_the_order_is_the_same_piece(
    seed: int, size: int, first: int, count: int
) -> None:
    for order in ("shuffle", "random", "sequential"):
        whole = order_indices(order, seed=seed, size=size, first=0, count=first + count)
        piece = order_indices(order, seed=seed, size=size, first=first, count=count)
        assert np.array_equal(whole[first:], piece)


def test_huge_sizes_stay_inside() -> None:
    for size in (2**32 + 1, 2**48 - 5, 2**60):
        indices = order_indices("shuffle", seed=5, size=size, first=3 * size - 500, count=1000)
        assert int(indices.max()) < size
        assert len(np.unique(indices[:500])) == 500


@pytest.mark.parametrize("size", [7, 64, 257, 1000, 4096])
def test_places_are_uniform_over_seeds(size: int) -> None:
    """Chi-squared of where the first, a middle and the last index go, over many seeds."""
    trials, bins = 4000, min(size, 32)
    for index in (0, size // 2, size - 1):
        places = [
            int(order_indices("shuffle", seed=seed, size=size, first=index, count=1)[0])
            for seed in range(trials)
        ]
        edges = np.linspace(0, size, bins + 1)
        counts, _ = np.histogram(places, bins=edges)
        expected = np.diff(np.ceil(edges)) * trials / size
        chi_squared = float(((counts - expected) ** 2 / expected).sum())
        # mean bins - 1, standard deviation sqrt(2 (bins - 1)); five of them is one in millions
        assert chi_squared < bins - 1 + 5 * np.sqrt(2 * (bins - 1))


def test_small_shuffles_take_every_permutation() -> None:
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(6000):
        order = tuple(order_indices("shuffle", seed=seed, size=4, first=0, count=4).tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 24
    assert max(abs(count - 250) for count in seen.values()) < 5 * np.sqrt(250)


@pytest.mark.parametrize("size", [300, 5000, 100_000])
def test_neighbours_in_order_are_not_neighbours_in_data(size: int) -> None:
    """Serial correlation, runs and fixed points of a long shuffle are those of a random one."""
    order = order_indices("shuffle", seed=11, size=size, first=0, count=size).astype(np.float64)
    bound = 5 / np.sqrt(size)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < bound
    assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < bound
    ascents = float((order[1:] > order[:-1]).mean())
    assert abs(ascents - 0.5) < bound
    adjacent = int((np.abs(np.diff(order)) == 1).sum())
    assert adjacent < 2 + 5 * np.sqrt(2)  # Poisson with mean 2


def test_epochs_and_seeds_give_unrelated_orders() -> None:
    size = 20_000
    first = order_indices("shuffle", seed=1, size=size, first=0, count=size).astype(np.float64)
    second = order_indices("shuffle", seed=1, size=size, first=size, count=size)
    other = order_indices("shuffle", seed=2, size=size, first=0, count=size)
    for order in (second, other):
        assert abs(np.corrcoef(first, order.astype(np.float64))[0, 1]) < 5 / np.sqrt(size)
        assert int((first == order).sum()) < 12  # Poisson with mean 1


def test_random_draws_are_uniform_and_repeat() -> None:
    size, count = 1000, 200_000
    draws = order_indices("random", seed=4, size=size, first=0, count=count)
    counts = np.bincount(draws.astype(np.int64), minlength=size)
    chi_squared = float(((counts - count / size) ** 2 / (count / size)).sum())
    assert abs(chi_squared - (size - 1)) < 5 * np.sqrt(2 * (size - 1))


def test_derived_seeds_differ() -> None:
    seeds = {derive_seed(seed, name) for seed in range(20) for name in ("a", "b", "ab")}
    assert len(seeds) == 60


def test_an_unknown_order_is_named() -> None:
    known = "shuffle, shifted, blocks, random, sequential"
    with pytest.raises(UsageError, match=f"'shuffled' is not one of {known}"):
        check_order("shuffled")


def test_windows_are_cut_elsewhere_in_every_later_epoch():
    def shifts(first, count, seed=3):
        return epoch_shifts(seed=seed, size=10, stride=64, first=first, count=count).tolist()

    whole = shifts(0, 60)
    epochs = [whole[start : start + 10] for start in range(0, 60, 10)]
    assert all(len(set(epoch)) == 1 for epoch in epochs)
    assert epochs[0] == [0] * 10
    assert len({epoch[0] for epoch in epochs[1:]}) > 2
    assert max(whole) < 64
    assert shifts(7, 30) == whole[7:37]
    assert shifts(19, 1) == [whole[19]]
    assert shifts(25, 0) == []
    assert shifts(10, 50, seed=4) != whole[10:]


@pytest.mark.parametrize("size", [255, 256, 257])
def test_the_border_between_tables_and_ciphers_is_the_native_one(size: int) -> None:
    assert ordering._TABLE_SIZE == 256
    for seed, epoch in ((3, 0), (2**63, 5)):
        native = order_indices("shuffle", seed=seed, size=size, first=epoch * size, count=size)
        plain = [permuted_index(n, seed=seed, epoch=epoch, size=size) for n in range(size)]
        assert native.tolist() == plain


@pytest.mark.parametrize("first", [0, 5, 9, 10, 25, 41])
@pytest.mark.parametrize("count", [0, 1, 5, 30])
def test_shifts_are_drawn_for_the_epochs_asked_for(
    monkeypatch: pytest.MonkeyPatch, first: int, count: int
) -> None:
    """As many draws as epochs, from the first of them on; none moves the first epoch."""
    drawn: list[tuple[int, int]] = []
    plain = ordering.order_indices

    def draw(order: str, **given: int) -> Any:
        assert (order, given["size"]) == ("random", 64)
        assert given["seed"] == derive_seed(3, "shift")
        drawn.append((given["first"], given["count"]))
        return plain("random", **given)

    monkeypatch.setattr(ordering, "order_indices", draw)
    found = epoch_shifts(seed=3, size=10, stride=64, first=first, count=count).tolist()
    epochs = [sample // 10 for sample in range(first, first + count)]
    last = max(epochs, default=first // 10)
    assert drawn == [(first // 10, last - first // 10 + 1)]
    whole = plain("random", seed=derive_seed(3, "shift"), size=64, first=0, count=9).tolist()
    assert found == [whole[epoch] if epoch else 0 for epoch in epochs]


@pytest.mark.parametrize("size", [(1 << 14) - 1, 1 << 14, (1 << 14) + 1, 1 << 15, (1 << 15) + 1])
def test_bits_of_large_sizes_are_the_native_ones(size: int) -> None:
    places = [0, 1, size // 2, size - 2, size - 1]
    for place in places:
        native = order_indices("shuffle", seed=5, size=size, first=3 * size + place, count=1)
        assert native.tolist() == [permuted_index(place, seed=5, epoch=3, size=size)]
