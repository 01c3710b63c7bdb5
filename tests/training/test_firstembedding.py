"""A first embedding out of the text: rows alike where neighbours are, in bounded memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.errors import DataError
from lowtide.loader.mixtures import Mixture
from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.training import firstembedding
from lowtide.training.firstembedding import first_embedding, first_embedding_bytes

SHAPE = GPTConfig(64, 16, num_layers=1, width=16, num_heads=1)


def sentences(count: int = 4000, seed: int = 0) -> np.ndarray:
    """Of `0 A 2 A`, A being 10 to 19, and `1 B 3 B`, 20 to 29; 40 and above do not occur."""
    draws = np.random.default_rng(seed)
    kind = draws.integers(0, 2, (count, 1))
    words = draws.integers(10, 20, (count, 2)) + 10 * kind
    ids = np.concatenate([kind, words[:, :1], kind + 2, words[:, 1:]], axis=1)
    return ids.astype(np.uint16).ravel()


def alike(rows: np.ndarray, first: int, second: int) -> float:
    a, b = rows[first], rows[second]
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_tokens_of_one_kind_begin_alike() -> None:
    rows = first_embedding(TokenDataset(sentences(), split="all", seq_len=16), SHAPE, seed=1)
    assert rows.shape == (64, 16) and rows.dtype == np.float32
    same = [alike(rows, a, b) for a in range(10, 20) for b in range(10, a)]
    other = [alike(rows, a, b) for a in range(10, 20) for b in range(20, 30)]
    assert np.mean(same) > np.mean(other) + 0.3
    lengths = np.linalg.norm(rows, axis=1)
    assert np.allclose(lengths[:4], 0.02 * 4) and np.allclose(lengths[10:30], 0.02 * 4)
    assert 0.01 < rows[40:].std() < 0.03 and len(np.unique(lengths[40:])) == 24  # drawn


@pytest.mark.parametrize("frequency", [False, True])
def test_a_seed_decides_and_nothing_else_does(frequency: bool) -> None:
    data = TokenDataset(sentences(), split="all", seq_len=16)
    rows = first_embedding(data, SHAPE, seed=1, frequency=frequency)
    assert np.array_equal(rows, first_embedding(data, SHAPE, seed=1, frequency=frequency))
    turned = first_embedding(data, SHAPE, seed=2, frequency=frequency)
    assert not np.allclose(rows, turned)
    assert alike(rows, 10, 11) == pytest.approx(alike(turned, 10, 11), abs=1e-4)  # turned only


def test_a_mixture_is_counted_as_its_parts_are() -> None:
    parts = np.split(sentences(), 2)
    data = {
        name: TokenDataset(ids, split="all", seq_len=16)
        for name, ids in zip("ab", parts, strict=True)
    }
    whole = first_embedding(TokenDataset(sentences(), split="all", seq_len=16), SHAPE, seed=1)
    mixed = first_embedding(Mixture(data), SHAPE, seed=1)
    # Only the neighbours across the cut are missing.
    assert abs(alike(mixed, 10, 20) - alike(whole, 10, 20)) < 0.02


def test_neighbours_are_counted_by_how_far_they_are() -> None:
    """Against a count by hand; of the 40 ids the 32 most frequent have a column."""
    draws = np.random.default_rng(2)
    ids = np.minimum(draws.geometric(0.1, 3000) - 1, 39).astype(np.uint16)
    order = np.argsort(-np.bincount(ids, minlength=64), kind="stable")[:32]
    wanted = np.zeros((64, 64), np.int64)
    for at, token in enumerate(ids):
        for distance in range(1, 5):
            for other in (at - distance, at + distance):
                if 0 <= other < len(ids):
                    wanted[token, ids[other]] += 12 // distance
    data = TokenDataset(ids, split="all", seq_len=16)
    counts = firstembedding._count_tokens([data], 64, 1000)
    assert np.array_equal(counts, np.bincount(ids, minlength=64))
    found = firstembedding._count_neighbours([data], SHAPE, counts, 1000)
    assert np.array_equal(found, wanted[:, order])


def test_frequent_tokens_have_larger_logits_from_the_beginning() -> None:
    draws = np.random.default_rng(2)
    ids = np.minimum(draws.geometric(0.1, 30_000) - 1, 39).astype(np.uint16)
    data = TokenDataset(ids, split="all", seq_len=16)
    shape = GPTConfig(64, 16, num_layers=1, width=32, num_heads=1)
    plain, rows = (first_embedding(data, shape, seed=1, frequency=f) for f in (False, True))
    moved = rows - plain
    counts = np.maximum(np.bincount(ids, minlength=64), 0.5)
    logs = np.log(counts) - np.log(counts).mean()
    # One direction tells the counts; across it rows keep their direction and their length.
    along = np.linalg.svd(moved)[2][0]
    along *= np.sign(along @ rows[0])
    assert np.allclose(rows @ along, 0.3 * 0.02 * 32**0.5 + 3 * logs / 32**0.5, atol=2e-3)
    across = [r - np.outer(r @ along, along) for r in (plain, rows)]
    lengths = [np.linalg.norm(a, axis=1) for a in across]
    assert np.allclose((across[0] * across[1]).sum(axis=1), lengths[0] * lengths[1], atol=1e-4)
    assert np.allclose(lengths[1], np.linalg.norm(plain, axis=1), atol=1e-3)
    # The next token, whatever the last one, by a network that adds nothing yet.
    hidden = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True))
    others = (hidden @ rows.T)[:20].mean(axis=0)
    assert np.corrcoef(others, logs)[0, 1] > 0.9


def test_few_of_many_tokens_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = TokenDataset(sentences(10_000), split="all", seq_len=16)
    read: list[tuple[int, int]] = []
    monkeypatch.setattr(
        TokenDataset,
        "read_tokens",
        lambda self, first, count, was=TokenDataset.read_tokens: (
            read.append((first, count)) or was(self, first, count)
        ),
    )
    first_embedding(data, SHAPE, seed=1, tokens_each=100)
    counted = sum(count for _, count in read) / 2  # once for frequencies, once for neighbours
    assert 0.9 * 6400 < counted < 1.1 * 6400
    assert max(first for first, _ in read) > 0.95 * 40_000  # all over the text


def test_more_columns_than_tokens_and_wider_than_the_vocabulary() -> None:
    shape = GPTConfig(32, 16, num_layers=1, width=64, num_heads=1)
    rows = first_embedding(TokenDataset(sentences(), split="all", seq_len=16), shape, seed=1)
    assert rows.shape == (32, 64) and np.isfinite(rows).all()
    assert np.allclose(np.linalg.norm(rows[10:30], axis=1), 0.02 * 8)


def test_ids_beyond_the_network_are_named() -> None:
    data = TokenDataset(np.full(100, 70, np.uint16), split="all", seq_len=16)
    with pytest.raises(DataError, match="token 70 is beyond the 64 ids"):
        first_embedding(data, SHAPE, seed=1)


def test_memory_is_what_was_said(tmp_path: Path) -> None:
    shape = GPTConfig(8192, 16, num_layers=1, width=64, num_heads=1)
    peaks: list[int] = []
    for size in (200_000, 2_000_000):
        np.random.default_rng(0).integers(0, 8192, size, np.uint16).tofile(tmp_path / "ids.bin")
        data = TokenDataset(tmp_path / "ids.bin", split="all", seq_len=16, dtype="uint16")
        tracemalloc.start()
        first_embedding(data, shape, seed=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 8_000_000  # ten times the tokens, 3.6 MB more of them
    assert 0.5 * first_embedding_bytes(shape) < peaks[1] < first_embedding_bytes(shape)


class Noted:
    """Stands for a dataset of so many ids; notes what is read of it."""

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.read: list[tuple[int, int]] = []

    def read_tokens(self, first: int, count: int) -> Any:
        self.read.append((first, count))
        return np.zeros(count, np.uint16)


LARGE = 1 << 18  # what is read at once


@pytest.mark.parametrize(
    ("sizes", "tokens_each", "read"),
    [
        ([100], 10, [[(0, 100)]]),  # all of it: 640 are wanted
        ([640], 10, [[(0, 640)]]),
        ([641], 10, [[(start, 9) for start in range(0, 640, 10)] + [(640, 1)]]),
        ([1280], 10, [[(start, 10) for start in range(0, 1280, 20)]]),
        ([60, 580], 10, [[(0, 60)], [(0, 580)]]),
        (
            [60, 1220],
            10,
            [[(n, 1) for n in range(60)], [*((n, 9) for n in range(0, 1216, 19)), (1216, 4)]],
        ),
        ([2 * LARGE + 3], LARGE, [[(0, LARGE), (LARGE, LARGE), (2 * LARGE, 3)]]),
    ],
)
def test_which_stretches_are_read(sizes: list[int], tokens_each: int, read: Any) -> None:
    datasets: Any = [Noted(size) for size in sizes]
    found = list(firstembedding._iter_stretches(datasets, 64, tokens_each))
    expected = [part for parts in read for part in parts]
    assert [part for one in datasets for part in one.read] == expected
    assert [len(ids) for ids in found] == [count for _, count in expected]
    assert all(ids.dtype == np.int64 for ids in found)


def test_counts_become_positive_information() -> None:
    """Tokens that stand beside each other as often as by chance, or less, have none."""
    counts = np.array([[1, 0], [3, 1], [0, 0], [2, 6]], np.uint32)
    shares = np.array([0.4, 0.6])
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    wanted = np.log(np.maximum(counts / totals / shares, 1))
    np.testing.assert_allclose(firstembedding._inform(counts, shares), wanted, rtol=1e-6)


def test_directions_are_those_that_say_most_and_are_damped() -> None:
    information = np.random.default_rng(3).random((50, 6), np.float32)
    found = firstembedding._leading_directions(information, 4)
    assert found.shape == (6, 4)
    sizes = np.linalg.svd(information, compute_uv=False)
    damped = np.linalg.svd(information @ found, compute_uv=False)
    np.testing.assert_allclose(damped, sizes[:4] ** 0.25, rtol=1e-5)
    largest = np.abs(found).argmax(axis=0)
    assert (found[largest, np.arange(4)] > 0).all()
