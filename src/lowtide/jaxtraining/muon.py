"""Muon as in training/muon.py: orthogonalized momentum with normalized rows.

In:      gradients of the blocks' matrices, stacked over layers; some hold several matrices
Out:     new weights, momenta and mean squares of rows; a skipped step changes nothing
Memory:  4 bytes a parameter, 4 a row; one layer's matrices at a time
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from lowtide.jaxtraining.trees import LAYERS
from lowtide.model.config import GPTConfig
from lowtide.training.muonnumbers import NORM_MARGIN, POLAR_EXPRESS, ROW_MEMORY

__all__ = ["half_precision", "is_muons", "matrix_splits", "orthogonalize", "step_stack"]

Array = Any

_NOT_MATRICES = ("norm.weight", ".bias")


def is_muons(name: str) -> bool:
    """Return whether a parameter of the tree is a matrix inside the blocks, by its name."""
    return name.startswith(LAYERS) and not name.endswith(_NOT_MATRICES)


def matrix_splits(name: str, rows: int, config: GPTConfig) -> list[tuple[int, int]]:
    """Return the (count, rows) of equal matrices that a parameter holds, one above the other.

    Queries and keys are one matrix per head, gate and up are two.
    """
    if name.endswith("attention.query_key_value.weight"):
        heads = config.num_heads + config.num_kv_heads
        return [(heads, config.head_dim), (1, config.num_kv_heads * config.head_dim)]
    if name.endswith("mlp.gate_up.weight"):
        return [(2, rows // 2)]
    return [(1, rows)]


def step_stack(
    weights: Array,
    gradients: Array,
    state: dict[str, Array],
    *,
    splits: list[tuple[int, int]],
    is_good: Array,
    options: dict[str, Any],
) -> tuple[Array, dict[str, Array]]:
    """Update the matrices [L, R, C] of all layers, one layer after another, in place.

    Momenta are updated first, all at once: in the loop, they would be copied whole at every layer.
    """
    divisor, momentum = options["divisor"], options["momentum"]
    before = state["momentum"]
    buffers = before + (1 - momentum) * (gradients * (1 / divisor) - before)
    buffers = jnp.where(is_good, buffers, before)

    def body(layer: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        old = [lax.dynamic_index_in_dim(stack, layer, keepdims=False) for stack in carry]
        buffer, gradient = (
            lax.dynamic_index_in_dim(stack, layer, keepdims=False) for stack in (buffers, gradients)
        )
        new = step_matrix(old[0], buffer, old[1], gradient, splits=splits, **options)
        kept = [jnp.where(is_good, after, before) for after, before in zip(new, old, strict=True)]
        first, second = (
            lax.dynamic_update_index_in_dim(stack, value, layer, 0)
            for stack, value in zip(carry, kept, strict=True)
        )
        return first, second

    weights, rows = lax.fori_loop(0, weights.shape[0], body, (weights, state["rows"]))
    return weights, {"momentum": buffers, "rows": rows}


def step_matrix(
    weights: Array,
    buffer: Array,
    rows: Array,
    gradient: Array,
    *,
    splits: list[tuple[int, int]],
    learning_rate: Array,
    momentum: Array,
    weight_decay: float,
    cautious: bool,
    half: bool,
    divisor: Array | float,
) -> tuple[Array, Array]:
    """Return new weights [R, C] and mean squares of rows [R, 1]; `buffer` is this step's."""
    gradient = gradient / divisor
    nesterov = gradient + momentum * (buffer - gradient)
    steps: list[Array] = []
    means: list[Array] = []
    start = 0
    for count, height in splits:
        where = slice(start, start + count * height)
        parts = nesterov[where].reshape(count, height, -1)
        own_rows = rows[where].reshape(count, height, 1)
        step, own_rows = _even_step(parts, own_rows, half=half)
        steps.append(step.reshape(count * height, -1))
        means.append(own_rows.reshape(count * height, 1))
        start += count * height
    change = learning_rate * jnp.concatenate(steps)
    decay = learning_rate * weight_decay
    if cautious:
        decay = decay * (weights * change >= 0)
    return weights * (1 - decay) - change, jnp.concatenate(means)


def _even_step(parts: Array, rows: Array, *, half: bool) -> tuple[Array, Array]:
    """Return the orthogonal updates [S, R, C] with normalized rows, and rows' new mean squares."""
    updates = orthogonalize(parts, half=half).astype(jnp.float32)
    squares = jnp.square(updates).sum(axis=-1, keepdims=True) / updates.shape[-1]
    rows = rows + (1 - ROW_MEMORY) * (squares - rows)
    factors = lax.rsqrt(jnp.maximum(rows, 1e-20))
    after = (squares * jnp.square(factors)).sum(axis=-2, keepdims=True)
    norm = squares.sum(axis=-2, keepdims=True) / jnp.maximum(after, 1e-20)
    size = 0.2 * max(updates.shape[1:]) ** 0.5
    return updates * (factors * jnp.sqrt(norm) * size), rows


def orthogonalize(matrices: Array, *, half: bool) -> Array:
    """Bring the singular values of each matrix [S, R, C] near 1.

    With `half` in bfloat16, which is fast on GPUs; else in float32, and on X X^T if X is not
    square, as in training/muon.py.
    """
    short, long = sorted(matrices.shape[1:])
    if not half and 2 * long >= 3 * short:
        return _orthogonalize_squares(matrices)
    x = matrices.astype(jnp.bfloat16 if half else jnp.float32)
    x = x / _upper_norm(x)
    tall = x.shape[-2] >= x.shape[-1]
    for a, b, c in POLAR_EXPRESS:
        square = x.mT @ x if tall else x @ x.mT
        polynomial = b * square + c * (square @ square)
        x = a * x + (x @ polynomial if tall else polynomial @ x)
    return x


def _upper_norm(x: Array) -> Array:
    norm = jnp.sqrt(jnp.square(x).sum(axis=(-2, -1), keepdims=True))
    return jnp.maximum(norm * NORM_MARGIN, 1e-7)


def _orthogonalize_squares(x: Array) -> Array:
    tall = x.shape[-2] > x.shape[-1]
    size = _upper_norm(x)
    square = (x.mT @ x if tall else x @ x.mT) / size**2
    identity = jnp.eye(square.shape[-1], dtype=square.dtype)
    product = None
    for number, (a, b, c) in enumerate(POLAR_EXPRESS, 1):
        factor = b * square + c * (square @ square) + a * identity
        product = factor if product is None else factor @ product
        if number < len(POLAR_EXPRESS):
            square = factor @ (factor @ square)
    assert product is not None
    product = product / size
    return x @ product if tall else product @ x


def half_precision(platform: str) -> bool:
    """True if a platform has matrix units for bfloat16."""
    return platform in ("gpu", "cuda", "rocm", "tpu")
