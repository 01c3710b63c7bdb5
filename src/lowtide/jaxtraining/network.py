"""The network as a function of its weights: embedding, blocks under one scan, norm, and its loss.

Letters in shapes: B rows, T tokens of a row, D width, K key/value heads, G queries of each, E
head_dim, L layers, C context.

In:      a tree of weights (trees.py), ids [B, T]
Out:     hidden states [B, T, D], normalized; logits of the last token; keys and values of a cache
Memory:  the products with weights of each layer; with `again` one D per token and layer
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lowtide.jaxtraining.loss import weighted_loss
from lowtide.jaxtraining.trees import LAYERS, Tree
from lowtide.model.config import GPTConfig
from lowtide.model.rope import frequencies, table_factor
from lowtide.quickclasses import dataclass

__all__ = [
    "Form",
    "can_fuse",
    "hidden_states",
    "loss_of",
    "new_cache",
    "next_logits",
    "output_matrix",
]

Array = Any  # of JAX, traced or not

_TRIED_TOKENS = 256  # tokens of the row on which cuDNN's attention is tried
_NEAR = 0.03
_FUSED_HEADS = 8  # cuDNN supports heads of multiples of this size
_FUSED_FORWARD = "dot_product_attention_fwd"  # JAX's name of it


@dataclass(frozen=True)
class Form:
    """The compile-time constants of a network: its shape, and how it is computed."""

    config: GPTConfig
    dtype: str = "float32"
    """float32, or bfloat16 for products and the residual stream; weights stay in float32."""
    again: bool = False
    """Compute the activations of a block again in the backward pass."""
    chunk_tokens: int = 1 << 30
    """Tokens whose logits exist at once."""
    dropout: float = 0.0
    """In training only."""
    fused: bool = False
    """Attention by cuDNN, which never holds the scores (see `can_fuse`)."""
    unrolled: bool = False
    """Unroll the loop over layers: tensors for the backward pass are not copied to stacks, and the
    compiler may keep more of them. Takes more memory than a loop."""


def loss_of(
    params: Tree, ids: Array, targets: Array, weights: Array, key: Array | None, form: Form
) -> Array:
    """Return the sum of the losses of all tokens, those of row b times weights[b]."""
    x = hidden_states(params, ids, form, key)
    return weighted_loss(x, output_matrix(params), targets, weights, form.chunk_tokens)


def output_matrix(params: Tree) -> Array:
    """The matrix [V, D] that turns the last hidden state into logits."""
    return params.get("head.weight", params["embedding.weight"])


def hidden_states(params: Tree, ids: Array, form: Form, key: Array | None = None) -> Array:
    """Return the final hidden states [B, T, D], normalized; with dropout only if `key` is given."""
    config, dtype = form.config, jnp.dtype(form.dtype)
    tokens = ids.shape[1]
    share = form.dropout if key is not None else 0.0
    x, cos, sin = _embed(params, ids, form, 0, tokens)
    if config.family.learned_positions and share:
        x = _drop(x, share, key, 0)

    def block(x: Array, layer: tuple[Array, Array, Tree]) -> tuple[Array, None]:
        number, window, weights = layer
        own = None if key is None or not share else jax.random.fold_in(key, number + 1)

        def attend(query: Array, keys: Array, values: Array) -> Array:
            inner = share if config.family.attention_dropout else 0.0
            if form.fused and not inner:
                return _attend_fused(query, keys, values)
            return _attend(query, keys, values, None, window, inner, own)

        return _block(x, weights, config, cos, sin, attend, share, own), None

    kept = jax.checkpoint_policies.nothing_saveable if form.again else _is_kept
    block = jax.checkpoint(block, prevent_cse=False, policy=kept)
    layers = {name.removeprefix(LAYERS): v for name, v in params.items() if name.startswith(LAYERS)}
    every = (jnp.arange(config.num_layers), _windows(config), layers)
    x, _ = lax.scan(block, x, every, unroll=form.unrolled)
    return _norm(x.astype(dtype), params, "final_norm", config)


def _is_kept(primitive: Any, *given: Any, **options: Any) -> bool:
    """Whether a result is kept for the backward pass, not recomputed.

    Products with weights and the output of cuDNN's attention are kept; norms, gates and scores,
    which are cheap or large, are recomputed.
    """
    by_weights = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    is_attention = primitive.name.startswith(_FUSED_FORWARD)
    return is_attention or by_weights(primitive, *given, **options)


def _embed(
    params: Tree, ids: Array, form: Form, start: Array | int, tokens: int
) -> tuple[Array, Array | None, Array | None]:
    """The initial residual stream, and the angles of its positions."""
    config, dtype = form.config, jnp.dtype(form.dtype)
    x = params["embedding.weight"][ids]
    if config.family.learned_positions:
        positions = lax.dynamic_slice_in_dim(params["positions.weight"], start, tokens)
        return (x + positions).astype(dtype), None, None
    cos, sin = (
        lax.dynamic_slice_in_dim(jnp.asarray(table), start, tokens).astype(dtype)[:, None]
        for table in _rotary_tables(config)
    )
    return x.astype(dtype), cos, sin


def _rotary_tables(config: GPTConfig) -> tuple[Any, Any]:
    """Cosines and sines [C, E/2] in float32, as NumPy computes them."""
    if config.family.float32_turns and config.rope_scaling is None:  # as gpt.py rounds them
        exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim
        turns = (config.rope_theta**-exponents).astype(np.float32)
    else:
        found = frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        turns = np.array(found, np.float32)
    angles = np.outer(np.arange(config.context_length, dtype=np.float32), turns)
    factor = np.float32(table_factor(config.rope_scaling))
    return np.cos(angles) * factor, np.sin(angles) * factor


def _block(
    x: Array,
    weights: Tree,
    config: GPTConfig,
    cos: Array | None,
    sin: Array | None,
    attend: Any,
    share: float,
    key: Array | None,
) -> Array:
    """Attention, then MLP, each on a normed copy and added back; or normed before it is added."""

    def attention(x: Array) -> Array:
        query, keys, values = _heads(x, weights, config, cos, sin)
        mixed = attend(query, keys, values)
        return _linear(mixed.reshape(*mixed.shape[:2], -1), weights, "attention.output")

    def around(part: Any, name: str, x: Array) -> Array:
        if config.family.norms_after:
            return _norm(part(x), weights, name, config)
        return part(_norm(x, weights, name, config))

    x = x + _drop(around(attention, "attention_norm", x), share, key, 1)
    mlp = around(functools.partial(_mlp, weights=weights, config=config), "mlp_norm", x)
    return x + _drop(mlp, share, key, 2)


def _windows(config: GPTConfig) -> Array:
    """The window of each layer [L]; the whole context if it has none."""
    found = [config.window_of(layer) or 1 << 30 for layer in range(config.num_layers)]
    return jnp.array(found, jnp.int32)


def _heads(
    x: Array, weights: Tree, config: GPTConfig, cos: Array | None, sin: Array | None
) -> tuple[Array, Array, Array]:
    """Return queries [B, T, K, G, E], keys and values [B, T, K, E], normalized and rotated."""
    head = config.head_dim
    query_size, key_size = config.num_heads * head, config.num_kv_heads * head
    both = _linear(x, weights, "attention.query_key_value")
    query, keys, values = jnp.split(both, [query_size, query_size + key_size], axis=-1)
    norms = config.family.query_key_norm
    if norms == "whole":  # of all heads of a token together
        query, keys = _norm_heads(query, keys, weights, config)
    query, keys, values = (
        part.reshape(*part.shape[:2], -1, head) for part in (query, keys, values)
    )
    if norms == "head":
        query, keys = _norm_heads(query, keys, weights, config)
    if cos is not None and sin is not None:
        query, keys = _rotate(query, cos, sin), _rotate(keys, cos, sin)
    grouped = (*query.shape[:2], config.num_kv_heads, -1, head)
    return query.reshape(grouped), keys, values


def _norm_heads(query: Array, keys: Array, weights: Tree, config: GPTConfig) -> tuple[Array, Array]:
    gains = (weights["attention.query_norm.weight"], weights["attention.key_norm.weight"])
    eps = config.norm_eps
    return _rms_norm(query, gains[0], eps), _rms_norm(keys, gains[1], eps)


def _attend(
    query: Array,
    keys: Array,
    values: Array,
    start: Array | None,
    window: Array,
    share: float = 0.0,
    key: Array | None = None,
) -> Array:
    """Attention of each query [B, T, K, G, E] to the keys [B, S, K, E] up to its own position.

    `start` is the position of the first query, None for 0; `window` how many tokens a query attends
    to, itself included.
    """
    places = jnp.arange(query.shape[1])[:, None] + (0 if start is None else start)
    others = jnp.arange(keys.shape[1])[None]
    allowed = (others <= places) & (others > places - window)
    scores = _scores(query, keys) * (1 / math.sqrt(query.shape[-1]))
    shares = jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), axis=-1).astype(query.dtype)
    shares = _drop(shares, share, key, 3)
    return jnp.einsum("bkgts,bske->btkge", shares, values)


@jax.custom_vjp
def _scores(query: Array, keys: Array) -> Array:
    """The products [B, K, G, T, S] of queries and keys, summed and kept in float32.

    Their gradients are multiplied in the precision of the queries, like all others: by default JAX
    multiplies them in float32, for which GPUs have no matrix units.
    """
    return jnp.einsum("btkge,bske->bkgts", query, keys, preferred_element_type=jnp.float32)


def _scores_forward(query: Array, keys: Array) -> tuple[Array, tuple[Array, Array]]:
    return _scores(query, keys), (query, keys)


def _scores_backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    query, keys = kept
    gradient = gradient.astype(query.dtype)
    of_query = jnp.einsum("bkgts,bske->btkge", gradient, keys)
    return of_query, jnp.einsum("bkgts,btkge->bske", gradient, query)


_scores.defvjp(_scores_forward, _scores_backward)


def _attend_fused(query: Array, keys: Array, values: Array, *, by: Any = "cudnn") -> Array:
    """The same for all keys up to a query's own position, by one kernel.

    Heads are padded with zeros to a supported size, which changes neither scores nor values.
    """
    head = query.shape[-1]
    filled = [
        jnp.pad(part, ((0, 0),) * (part.ndim - 1) + ((0, -head % _FUSED_HEADS),))
        for part in (query.reshape(*query.shape[:2], -1, head), keys, values)
    ]
    mixed = jax.nn.dot_product_attention(
        *filled, is_causal=True, scale=1 / math.sqrt(head), implementation=by
    )
    return mixed[..., :head].reshape(query.shape)


def can_fuse(config: GPTConfig, tokens: int, dtype: str) -> bool:
    """True if cuDNN is available and computes this attention correctly, in both directions.

    Its kernels are for half precision, heads of some sizes and no window. They are tried on a short
    row, and results compared, since a driver or a version may fail only when it runs.
    """
    if any(config.window_of(layer) for layer in range(config.num_layers)):
        return False
    shape = (1, min(tokens, _TRIED_TOKENS), config.num_kv_heads)
    groups = config.num_heads // config.num_kv_heads
    sizes = (
        (*shape, groups, config.head_dim),
        (*shape, config.head_dim),
        (*shape, config.head_dim),
    )
    given = [
        jax.random.normal(jax.random.key(number), size, dtype) for number, size in enumerate(sizes)
    ]

    def value_and_gradients(attend: Callable[..., Array]) -> Any:
        def total(query: Array, keys: Array, values: Array) -> Array:
            return (attend(query, keys, values).astype(jnp.float32) ** 2).sum()

        return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))(*given)

    try:
        found = jax.block_until_ready(value_and_gradients(_attend_fused))
    except (NotImplementedError, RuntimeError, ValueError):
        return False

    def plain(query: Array, keys: Array, values: Array) -> Array:
        return _attend(query, keys, values, None, jnp.int32(tokens))

    wanted = value_and_gradients(plain)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return all(_is_near(one, other) for one, other in pairs)


def _is_near(one: Array, other: Array) -> bool:
    """Whether arrays differ by no more than half precision's rounding."""
    one, other = one.astype(jnp.float32), other.astype(jnp.float32)
    return bool(((one - other) ** 2).sum() <= _NEAR**2 * (other**2).sum())


def _mlp(x: Array, weights: Tree, config: GPTConfig) -> Array:
    if not config.family.gated_mlp:
        inner = jax.nn.gelu(_linear(x, weights, "mlp.up"), approximate=True)
    else:
        gate, up = jnp.split(_linear(x, weights, "mlp.gate_up"), 2, axis=-1)
        inner = jax.nn.silu(gate) * up
    return _linear(inner, weights, "mlp.down")


def _linear(x: Array, weights: Tree, name: str) -> Array:
    """Multiply by a matrix [out, in] in the precision of x, and add the bias where there is one."""
    y = jnp.einsum("...i,oi->...o", x, weights[f"{name}.weight"].astype(x.dtype))
    bias = weights.get(f"{name}.bias")
    return y if bias is None else y + bias.astype(x.dtype)


def _norm(x: Array, weights: Tree, name: str, config: GPTConfig) -> Array:
    gain = weights[f"{name}.weight"]
    if config.family.norm == "rms":
        return _rms_norm(x, gain, config.norm_eps)
    values = x.astype(jnp.float32)
    values = values - values.mean(axis=-1, keepdims=True)
    values = values * lax.rsqrt(jnp.square(values).mean(axis=-1, keepdims=True) + config.norm_eps)
    return (values * gain + weights[f"{name}.bias"]).astype(x.dtype)


def _rms_norm(x: Array, gain: Array, eps: float) -> Array:
    """Divide by the root of the mean square, in float32, times a gain in the precision of x."""
    values = x.astype(jnp.float32)
    values = values * lax.rsqrt(jnp.square(values).mean(axis=-1, keepdims=True) + eps)
    return (values * gain.astype(x.dtype)).astype(x.dtype)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate the pairs (i, i + E/2) of [B, T, H, E] by the angles of their positions (RoPE)."""
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def _drop(x: Array, share: float, key: Array | None, number: int) -> Array:
    """Dropout of x; the mask depends on the key and the number of the call site."""
    if not share or key is None:
        return x
    kept = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - share, x.shape)
    return jnp.where(kept, x / (1 - share), 0).astype(x.dtype)


def new_cache(form: Form, rows: int) -> tuple[Array, Array]:
    """Keys and values of no tokens yet, [L, B, C, K, E] each."""
    config = form.config
    shape = (
        config.num_layers, rows, config.context_length, config.num_kv_heads, config.head_dim,
    )  # fmt: skip
    return jnp.zeros(shape, form.dtype), jnp.zeros(shape, form.dtype)


def next_logits(
    params: Tree, cache: tuple[Array, Array], ids: Array, start: Array, last: Array, form: Form
) -> tuple[Array, tuple[Array, Array]]:
    """Return the logits [B, V] after token number `last` of ids, whose first is at `start`."""
    config = form.config
    x, cos, sin = _embed(params, ids, form, start, ids.shape[1])

    def block(x: Array, layer: Any) -> tuple[Array, tuple[Array, Array]]:
        weights, window, old_keys, old_values = layer
        kept: list[Array] = []

        def attend(query: Array, keys: Array, values: Array) -> Array:
            for old, new in ((old_keys, keys), (old_values, values)):
                kept.append(lax.dynamic_update_slice_in_dim(old, new, start, axis=1))
            return _attend(query, kept[0], kept[1], start, window)

        x = _block(x, weights, config, cos, sin, attend, 0.0, None)
        return x, (kept[0], kept[1])

    layers = {name.removeprefix(LAYERS): v for name, v in params.items() if name.startswith(LAYERS)}
    x, cache = lax.scan(block, x, (layers, _windows(config), *cache))
    x = lax.dynamic_index_in_dim(x, last, axis=1, keepdims=False)
    x = _norm(x, params, "final_norm", config)
    return jnp.einsum("bd,vd->bv", x, output_matrix(params).astype(x.dtype)), cache
