"""An initial embedding from co-occurrence counts: tokens with the same neighbours start alike.

In:      a TokenDataset or a Mixture, a GPTConfig, a seed
Out:     the embedding's initial rows, each with the norm of a random one before `frequency`
Memory:  8 bytes a number of the embedding for counts, 4 for its rows; some squares of 2 * width

A random embedding needs thousands of steps to learn which tokens are similar, which counting shows
in seconds. The 2 * width most frequent tokens are columns; a token's row counts how often each of
them occurs up to four positions before or after it, with weights that fall with distance. Counts
become positive pointwise mutual information (columns' frequencies to the power of 0.75: Levy,
Goldberg and Dagan, 2015), of which the leading directions are kept, each scaled by the fourth root
of its size. A random rotation spreads them over all coordinates, so that every head and gate sees
something of all of them. Rows of tokens that do not occur are random.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lowtide.errors import DataError
from lowtide.loader.mixtures import Mixture
from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig

__all__ = ["first_embedding", "first_embedding_bytes"]

Array = np.ndarray[Any, Any]

_STD = 0.02  # of random initial weights
_REACH = 4
_WEIGHT = 12  # of a neighbour; a half, a third and a quarter of it are whole numbers too
_FLATTENED = 0.75
_SIZE_POWER = 0.25
# Along the direction of frequencies: what all tokens have, in lengths of a row, and how much logits
# differ by, as a multiple of the logarithms of counts, where a row lies along it as a whole.
_COMMON = 0.3
_STRENGTH = 3.0
_UNSEEN = 0.5  # the count of tokens that do not occur
# Tokens to count: so many for each of the vocabulary, out of stretches all over the text.
_TOKENS_EACH = 512
_MOST_TOKENS = 1 << 26
_NUM_STRETCHES = 64
_READ_TOKENS = 1 << 18
_ROWS_AT_ONCE = 4096


def first_embedding_bytes(config: GPTConfig) -> int:
    """Peak memory of `first_embedding`."""
    columns = _num_columns(config)
    rows = 4 * config.vocab_size * (columns + config.width)
    return rows + 5 * 8 * columns**2 + 8 * _ROWS_AT_ONCE * columns + 32 * _READ_TOKENS


def first_embedding(
    data: TokenDataset | Mixture,
    config: GPTConfig,
    *,
    seed: int,
    frequency: bool = False,
    tokens_each: int = _TOKENS_EACH,
) -> Array:
    """Return float32 rows [vocabulary, width] computed from the co-occurrences in `data`."""
    datasets = list(data.datasets.values()) if isinstance(data, Mixture) else [data]
    frequencies = _count_tokens(datasets, config.vocab_size, tokens_each)
    counts = _count_neighbours(datasets, config, frequencies, tokens_each)
    shares = counts.sum(axis=0, dtype=np.float64) ** _FLATTENED
    shares /= max(float(shares.sum()), 1.0)
    information = _inform(counts, shares)
    directions = _leading_directions(information, config.width)
    draws = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(draws.standard_normal((config.width, directions.shape[1])))
    directions = (directions @ turn.T).astype(np.float32)
    rows = np.empty((config.vocab_size, config.width), np.float32)
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        part = information[first : first + _ROWS_AT_ONCE] @ directions
        random = draws.standard_normal(part.shape, np.float32) * np.float32(_STD)
        length = np.linalg.norm(part, axis=1, keepdims=True)
        scale = np.float32(_STD * config.width**0.5) / np.maximum(length, 1e-6)
        rows[first : first + _ROWS_AT_ONCE] = np.where(length > 1e-6, part * scale, random)
    if frequency:
        _add_frequencies(rows, frequencies, draws)
    return rows


def _add_frequencies(rows: Array, frequencies: Array, draws: np.random.Generator) -> None:
    """Move rows, which keep their length across it, along one direction by the logs of counts."""
    width = rows.shape[1]
    direction = draws.standard_normal(width)
    direction = (direction / np.linalg.norm(direction)).astype(np.float32)
    logs = np.log(np.maximum(frequencies, _UNSEEN))
    logs -= logs.mean()
    length = _STD * width**0.5
    # A logit is the product of a row and of a normalized vector, whose length is sqrt(width).
    along = (length * _COMMON + logs * (_STRENGTH / width**0.5)).astype(np.float32)
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[first : first + _ROWS_AT_ONCE]
        before = np.linalg.norm(part, axis=1, keepdims=True)
        part -= np.outer(part @ direction, direction)
        part *= before / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12)
        part += np.outer(along[first : first + _ROWS_AT_ONCE], direction)


def _num_columns(config: GPTConfig) -> int:
    return min(2 * config.width, config.vocab_size)


def _iter_stretches(
    datasets: list[TokenDataset], vocab_size: int, tokens_each: int
) -> Iterator[Array]:
    """Yield stretches of ids from all parts of the text, as many as are to be counted."""
    total = sum(data.num_tokens for data in datasets)
    share = min(1.0, tokens_each * vocab_size / total, _MOST_TOKENS / total)
    for data in datasets:
        step = data.num_tokens if share == 1.0 else max(1, data.num_tokens // _NUM_STRETCHES)
        wanted = max(1, int(step * share))
        for start in range(0, data.num_tokens, step):
            end = min(start + wanted, data.num_tokens)
            for first in range(start, end, _READ_TOKENS):
                ids = data.read_tokens(first, min(_READ_TOKENS, end - first)).astype(np.int64)
                if ids.max() >= vocab_size:
                    raise DataError(
                        f"token {ids.max()} is beyond the {vocab_size} ids of the network",
                        path=data.source.place,
                        next_step="prepare the text with the network's tokenizer",
                    )
                yield ids


def _count_tokens(datasets: list[TokenDataset], vocab_size: int, tokens_each: int) -> Array:
    """Count how often each token occurs."""
    frequencies = np.zeros(vocab_size, np.int64)
    for ids in _iter_stretches(datasets, vocab_size, tokens_each):
        frequencies += np.bincount(ids, minlength=vocab_size)
    return frequencies


def _count_neighbours(
    datasets: list[TokenDataset], config: GPTConfig, frequencies: Array, tokens_each: int
) -> Array:
    """Count [vocabulary, columns] how often each frequent token occurs near each token."""
    size, width = config.vocab_size, _num_columns(config)
    frequent = np.argsort(-frequencies, kind="stable")[:width]
    columns = np.full(size, -1, np.int64)
    columns[frequent] = np.arange(width)
    counts = np.zeros(size * width, np.uint32)
    for ids in _iter_stretches(datasets, size, tokens_each):
        for distance in range(1, _REACH + 1):
            weight = np.uint32(_WEIGHT // distance)
            for tokens, beside in (
                (ids[:-distance], ids[distance:]),
                (ids[distance:], ids[:-distance]),
            ):
                column = columns[beside]
                cells = tokens * width + column
                np.add.at(counts, cells[column >= 0], weight)
    return counts.reshape(size, width)


def _inform(counts: Array, shares: Array) -> Array:
    """Turn counts into positive pointwise mutual information, in place."""
    for first in range(0, len(counts), _ROWS_AT_ONCE):
        part = counts[first : first + _ROWS_AT_ONCE]
        values = part.astype(np.float32)
        values /= np.maximum(values.sum(axis=1, keepdims=True), 1)
        values /= np.maximum(shares, 1e-12).astype(np.float32)
        part.view(np.float32)[:] = np.log(np.maximum(values, 1, out=values), out=values)
    return counts.view(np.float32)


def _leading_directions(information: Array, width: int) -> Array:
    """Return [columns, at most width] by which a row of information is multiplied."""
    products = np.zeros((information.shape[1],) * 2)
    for first in range(0, len(information), _ROWS_AT_ONCE):
        part = information[first : first + _ROWS_AT_ONCE]
        products += part.T @ part
    squares, directions = np.linalg.eigh(products)
    squares, directions = squares[-width:], directions[:, -width:]
    largest = directions[np.abs(directions).argmax(axis=0), np.arange(directions.shape[1])]
    sizes = np.sqrt(np.maximum(squares, 1e-6))
    return directions * np.sign(largest) * sizes ** (_SIZE_POWER - 1)
