"""Output matrix and cross entropy in one function, in chunks of tokens, to never hold all logits.

In:      the final hidden states [B, T, D], the output matrix [V, D], targets [B, T], weights [B]
Out:     the sum of the losses, each row's times its weight; gradients are computed with it
Memory:  logits of about `chunk_tokens` tokens; gradients of the hidden states and of the matrix

Chunks are cut along the tokens of rows, never by rows: if rows are sharded over devices, each chunk
has a part on every device.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["weighted_loss"]

Array = Any


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def weighted_loss(
    hidden: Array, matrix: Array, targets: Array, weights: Array, chunk_tokens: int
) -> Array:
    """Return the sum over rows of weights[b] times the sum of the row's losses."""
    head = matrix.astype(hidden.dtype)

    def add(total: Array, chunk: tuple[Array, Array, Array]) -> tuple[Array, None]:
        states, wanted, shares = chunk
        losses, _ = _losses(states, head, wanted)
        return total + jnp.sum(losses * shares), None

    total, _ = lax.scan(
        add, jnp.zeros((), jnp.float32), _cut(hidden, targets, weights, chunk_tokens)
    )
    return total


def _cut(hidden: Array, targets: Array, weights: Array, chunk_tokens: int) -> Any:
    """Cut rows into equal pieces, along a new first axis; the last one's padding has weight 0."""
    rows, tokens = targets.shape
    size = min(tokens, max(1, chunk_tokens // rows))
    count = -(-tokens // size)
    shares = jnp.broadcast_to(weights[:, None], targets.shape).astype(jnp.float32)

    def pieces(x: Array) -> Array:
        filled = jnp.pad(x, ((0, 0), (0, count * size - tokens)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(filled.reshape(rows, count, size, *x.shape[2:]), 1, 0)

    return pieces(hidden), pieces(targets), pieces(shares)


def _losses(states: Array, head: Array, wanted: Array) -> tuple[Array, Array]:
    """Return the loss of each token, and the logarithms of the softmax in float32."""
    logits = jnp.einsum("btd,vd->btv", states, head).astype(jnp.float32)
    logs = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    return -jnp.take_along_axis(logs, wanted[..., None], axis=-1)[..., 0], logs


def _forward(
    hidden: Array, matrix: Array, targets: Array, weights: Array, chunk_tokens: int
) -> tuple[Array, tuple[Array, Array]]:
    """Compute the gradients while a chunk's logits exist, so that they are not computed twice."""
    head = matrix.astype(hidden.dtype)

    def add(carry: tuple[Array, Array], chunk: tuple[Array, Array, Array]) -> Any:
        total, matrix_gradient = carry
        states, wanted, shares = chunk
        losses, logs = _losses(states, head, wanted)
        one_hot = wanted[..., None] == jnp.arange(head.shape[0])
        error = ((jnp.exp(logs) - one_hot) * shares[..., None]).astype(states.dtype)
        matrix_gradient += jnp.einsum(
            "btv,btd->vd", error, states, preferred_element_type=jnp.float32
        )
        return (total + jnp.sum(losses * shares), matrix_gradient), error @ head

    start = (jnp.zeros((), jnp.float32), jnp.zeros(matrix.shape, jnp.float32))
    chunks = _cut(hidden, targets, weights, chunk_tokens)
    (total, matrix_gradient), pieces = lax.scan(add, start, chunks)
    joined = jnp.moveaxis(pieces, 0, 1).reshape(hidden.shape[0], -1, hidden.shape[2])
    return total, (joined[:, : hidden.shape[1]], matrix_gradient)


def _backward(
    chunk_tokens: int, kept: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array, None, None]:
    hidden_gradient, matrix_gradient = kept
    scaled = (hidden_gradient.astype(jnp.float32) * gradient).astype(hidden_gradient.dtype)
    return scaled, matrix_gradient * gradient, None, None


weighted_loss.defvjp(_forward, _backward)
