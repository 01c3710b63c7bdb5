"""AdamW with blockwise 8-bit moments, in the format of bitsandbytes.

In:      gradients; codes (uint8) and the largest size of every 256 numbers
Out:     new weights, codes and sizes
Memory:  2 bytes a parameter; the numbers of one layer's tensor while it is updated

Blocks lie within one layer's tensor, never across layers of a stack. A code is an index into a
table of 256 numbers from -1 to 1 (from 0 to 1 for squares) that are denser near zero (Dettmers,
2015): seven powers of ten, each divided evenly.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["code_table", "is_small", "num_blocks", "step_stack"]

Array = Any

_BLOCK = 256
_SMALLEST = 4096
"""Tensors with fewer numbers keep their moments in float32."""
_EXPONENTS = 7


def code_table(*, signed: bool) -> np.ndarray[Any, Any]:
    """Return the 256 numbers that codes are indexes of, in order."""
    values = [0.0, 1.0]
    for exponent in range(_EXPONENTS):
        count = 2 ** (exponent if signed else exponent + 1)
        ends = np.linspace(0.1, 1, count + 1, dtype=np.float32)
        means = (ends[:-1] + ends[1:]) / np.float32(2)
        scaled = (means * np.float32(10.0 ** (exponent - _EXPONENTS + 1))).tolist()
        values += scaled + ([-value for value in scaled] if signed else [])
    return np.sort(np.array(values, np.float32))


def num_blocks(count: int) -> int:
    """Return the blocks of so many numbers."""
    return -(-count // _BLOCK)


def _decode(codes: Array, sizes: Array, table: Array) -> Array:
    """Return the numbers [N] of codes."""
    count = codes.size
    values = table[codes.reshape(-1).astype(jnp.int32)]
    filled = jnp.pad(values, (0, sizes.size * _BLOCK - count)).reshape(-1, _BLOCK)
    return (filled * sizes[:, None]).reshape(-1)[:count]


def _encode(values: Array, table: np.ndarray[Any, Any]) -> tuple[Array, Array]:
    """Return the codes [N] nearest to numbers, and the largest size of each block."""
    count = values.size
    blocks = jnp.pad(values, (0, num_blocks(count) * _BLOCK - count)).reshape(-1, _BLOCK)
    sizes = jnp.abs(blocks).max(axis=-1)
    scaled = blocks / jnp.where(sizes == 0, 1, sizes)[:, None]
    return _nearest(scaled.reshape(-1)[:count], table).astype(jnp.uint8), sizes


def _nearest(values: Array, table: np.ndarray[Any, Any]) -> Array:
    """Return the indexes in the table nearest to numbers, by an unrolled binary search.

    jnp.searchsorted's loop takes twice the time; its unrolled form takes seconds to compile.
    """
    middles = (table[1:] + table[:-1]) / 2
    places = jnp.where(values > middles[127], 128, 0)
    middles = jnp.asarray(middles)
    for size in (64, 32, 16, 8, 4, 2, 1):
        places = places + jnp.where(values > middles[places + size - 1], size, 0)
    return places


def step_stack(
    weights: Array,
    gradients: Array,
    state: dict[str, Array],
    *,
    stacked: bool,
    is_good: Array,
    learning_rate: Array,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
    corrections: tuple[Array, Array],
    divisor: Array | float,
) -> tuple[Array, dict[str, Array]]:
    """Update a tensor, or each layer of a stack one after another, in place."""
    tables = (code_table(signed=True), code_table(signed=False))
    names = ("state1", "absmax1", "state2", "absmax2")

    def one(weight: Array, gradient: Array, *moments: Array) -> tuple[Array, ...]:
        first = _decode(moments[0], moments[1], jnp.asarray(tables[0]))
        second = _decode(moments[2], moments[3], jnp.asarray(tables[1]))
        flat = gradient.reshape(-1) / divisor
        first = first * betas[0] + flat * (1 - betas[0])
        second = second * betas[1] + jnp.square(flat) * (1 - betas[1])
        change = first / (jnp.sqrt(second) / corrections[1] + eps)
        change = (learning_rate / corrections[0]) * change.reshape(weight.shape)
        new = weight * (1 - learning_rate * weight_decay) - change
        codes1, sizes1 = _encode(first, tables[0])
        codes2, sizes2 = _encode(second, tables[1])
        shape = moments[0].shape
        found = (new, codes1.reshape(shape), sizes1, codes2.reshape(shape), sizes2)
        old = (weight, *moments)
        return tuple(jnp.where(is_good, a, b) for a, b in zip(found, old, strict=True))

    if not stacked:
        new, *moments = one(weights, gradients, *(state[name] for name in names))
        return new, dict(zip(names, moments, strict=True))

    def body(layer: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        old = [lax.dynamic_index_in_dim(stack, layer, keepdims=False) for stack in carry]
        gradient = lax.dynamic_index_in_dim(gradients, layer, keepdims=False)
        found = one(old[0], gradient, *old[1:])
        return tuple(
            lax.dynamic_update_index_in_dim(stack, value, layer, 0)
            for stack, value in zip(carry, found, strict=True)
        )

    start = (weights, *(state[name] for name in names))
    new, *moments = lax.fori_loop(0, weights.shape[0], body, start)
    return new, dict(zip(names, moments, strict=True))


def is_small(shape: tuple[int, ...]) -> bool:
    """True if a tensor keeps its moments in float32."""
    return math.prod(shape) < _SMALLEST
