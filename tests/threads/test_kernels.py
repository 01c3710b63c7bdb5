"""Products and attention with eight threads, from several Python threads: the same bits as one.

`make sanitize-threads` runs this file on a build that stops at the first race. Memory comes from
NumPy: torch's own threads are not built to be watched.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lowtide import _native

WORKERS = 8


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def same_for_all(compute) -> None:
    """`compute(num_threads)` gives the same arrays alone, on threads, and from callers at once."""
    alone = compute(1)
    with ThreadPoolExecutor(3) as callers:
        for found in (compute(WORKERS), *callers.map(compute, [WORKERS, 2, WORKERS, 3])):
            for one, other in zip(alone, found, strict=True):
                np.testing.assert_array_equal(one, other)


# The first is divided by rows and columns, in parts of the depth; the second by matrices.
@pytest.mark.parametrize("sizes", [(2, 210, 300, 800), (300, 30, 40, 50)])
def test_products(sizes: tuple[int, int, int, int]) -> None:
    count, rows, depth, columns = sizes
    a, b = numbers(count, rows, depth), numbers(count, depth, columns)
    distances = (rows * depth, depth, 1, depth * columns, columns, 1, rows * columns, columns, 1)

    def multiply(num_threads: int) -> list[np.ndarray]:
        out = np.zeros((count, rows, columns), np.float32)
        addresses = (a.ctypes.data, b.ctypes.data, out.ctypes.data)
        bits = _native.vector_bits()
        _native.multiply(*addresses, distances, sizes, False, num_threads, bits)
        return [out]

    same_for_all(multiply)


def test_attention() -> None:
    rows, tokens, heads, kv_heads, head_dim = 3, 50, 4, 2, 20
    sizes = (rows, tokens, tokens, heads, kv_heads, head_dim, 30)
    query, given = numbers(2, rows, tokens, heads, head_dim)
    key, value = numbers(2, rows, tokens, kv_heads, head_dim)
    addresses = [heads.ctypes.data for heads in (query, key, value)]
    strides = [stride // 4 for x in (query, key, value) for stride in x.strides[:3]]

    def attend(num_threads: int) -> list[np.ndarray]:
        out, log_sums = np.zeros_like(query), np.zeros((rows, heads, tokens), np.float32)
        gradients = [np.zeros_like(x) for x in (query, key, value)]
        bits = _native.vector_bits()
        room = out.ctypes.data, log_sums.ctypes.data
        _native.attend(addresses, strides, sizes, *room, num_threads, bits)
        wanted = [x.ctypes.data for x in gradients]
        own = given.ctypes.data, strides[:3], addresses, strides
        _native.attend_backward(*own, sizes, *room, wanted, num_threads, bits)
        return [out, log_sums, *gradients]

    same_for_all(attend)
