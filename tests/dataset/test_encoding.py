"""Keys of the shuffle: a pure function, spread evenly, different for every seed."""

from __future__ import annotations

import numpy as np

from lowtide import _native


def keys_of(seed: int, *, inputs: int = 4, rows: int = 5000) -> np.ndarray:
    keys = [
        _native.testing.shuffle_key(seed, index, row)
        for index in range(inputs)
        for row in range(rows)
    ]
    return np.array(keys, dtype=np.uint64)


def test_keys_are_different_and_known() -> None:
    keys = keys_of(0)
    assert len(np.unique(keys)) == len(keys)
    # Datasets on disk depend on these numbers: they must never change.
    assert _native.testing.shuffle_key(0, 0, 0) == 9467373207687813366
    assert _native.testing.shuffle_key(0, 1, 7) == 12599236417288752389


def test_keys_are_spread_evenly() -> None:
    for seed in (0, 1, 12345):
        counts = np.bincount((keys_of(seed) >> np.uint64(56)).astype(np.int64), minlength=256)
        expected = counts.sum() / 256
        chi_squared = float(((counts - expected) ** 2 / expected).sum())
        assert 180 < chi_squared < 345  # 255 degrees of freedom, within one in ten thousand


def test_order_has_no_memory_of_the_input() -> None:
    ranks = np.argsort(np.argsort(keys_of(3)))
    order = np.arange(len(ranks))
    correlation = float(np.corrcoef(ranks, order)[0, 1])
    neighbours = float(np.corrcoef(ranks[1:], ranks[:-1])[0, 1])
    other_seed = float(np.corrcoef(ranks, np.argsort(np.argsort(keys_of(4))))[0, 1])
    assert max(map(abs, (correlation, neighbours, other_seed))) < 0.03
