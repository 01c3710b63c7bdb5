"""The order of samples, as a pure function of the seed and the number of the sample.

In:      seed, number of items, sample numbers (0, 1, 2 … over the whole run)
Out:     indices; sample g belongs to epoch g // size
Memory:  only the requested indices: the permutation is computed, not stored

`permuted_index` is the same permutation in plain Python, one index at a time: the reference that
the native code is tested against.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from lowtide import _native
from lowtide.errors import UsageError
from lowtide.files import checksum_bytes

__all__ = ["Order", "check_order", "derive_seed", "epoch_shifts", "order_indices", "permuted_index"]

Order = Literal["shuffle", "shifted", "blocks", "random", "sequential"]
Indices = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 8
_TABLE_SIZE = 256
_MIN_BITS = 14


def check_order(order: str) -> None:
    """Refuse an unknown order."""
    if order not in get_args(Order):
        raise UsageError(f"order {order!r} is not one of {', '.join(get_args(Order))}")


def order_indices(order: Order, *, seed: int, size: int, first: int, count: int) -> Indices:
    """Return the indices of samples `first` to `first + count`.

    `shuffle` and `shifted` take every index once per epoch, each epoch in another order; `random`
    draws with replacement; `sequential` counts up.

    >>> order_indices("shuffle", seed=1, size=5, first=0, count=5)
    array([2, 3, 1, 0, 4], dtype=uint64)
    """
    indices = np.empty(count, dtype=np.uint64)
    if order in ("shuffle", "shifted"):
        _native.shuffled_indices(seed & _MASK, size, first, indices)
    elif order == "random":
        _native.random_indices(seed & _MASK, size, first, indices)
    elif order == "sequential":
        indices[:] = np.arange(first, first + count, dtype=np.uint64) % np.uint64(size)
    else:
        raise UsageError(f"order {order!r} is not one of single windows (see shuffledblocks)")
    return indices


def epoch_shifts(*, seed: int, size: int, stride: int, first: int, count: int) -> Indices:
    """The shift in tokens, below stride, of the windows of samples `first` to `first + count`.

    One number for all windows of an epoch; 0 in the first epoch, so that data seen once is cut as
    without shifts.
    """
    first_epoch, last_epoch = first // size, max(first, first + count - 1) // size
    drawn = order_indices(
        "random",
        seed=derive_seed(seed, "shift"),
        size=stride,
        first=first_epoch,
        count=last_epoch - first_epoch + 1,
    )
    if first_epoch == 0:
        drawn[0] = 0
    return drawn[np.arange(first, first + count) // size - first_epoch]


def derive_seed(seed: int, name: str) -> int:
    """Return an independent seed for a name, such as a source of a mixture."""
    return int(checksum_bytes(f"{seed}\n{name}".encode())[:16], 16)


def permuted_index(index: int, *, seed: int, epoch: int, size: int) -> int:
    """Return the item at position `index` of an epoch: the slow, simple reference."""
    key = _mix(_mix(seed + _GOLDEN) ^ _mix(epoch + 2 * _GOLDEN))
    if size <= _TABLE_SIZE:
        return _shuffled_table(key, size)[index]
    index = _encrypt(index, key, size)
    while index >= size:  # out of range: follow the cycle until it is in range again
        index = _encrypt(index, key, size)
    return index


def _mix(value: int) -> int:
    """Scramble 64 bits (the finalizer of splitmix64)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _shuffled_table(key: int, size: int) -> list[int]:
    """Shuffle a small range (Fisher-Yates), with random numbers that depend only on the key."""
    table = list(range(size))
    for last in range(size - 1, 0, -1):
        draw = (_mix(key + _GOLDEN * last) * (last + 1)) >> 64
        table[last], table[draw] = table[draw], table[last]
    return table


def _encrypt(index: int, key: int, size: int) -> int:
    """Permute the numbers with as many bits as `size` needs, by a Feistel network."""
    bits = max(_MIN_BITS, (size - 1).bit_length())
    right_bits = bits // 2
    left_bits = bits - right_bits
    left, right = index >> right_bits, index & ((1 << right_bits) - 1)
    for number in range(1, _ROUNDS + 1):
        mask = (1 << left_bits) - 1
        left, right = right, left ^ (_mix(right ^ _mix(key + _GOLDEN * number)) & mask)
        left_bits, right_bits = right_bits, left_bits
    return (left << right_bits) | right
