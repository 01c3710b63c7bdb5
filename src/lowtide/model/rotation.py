"""Norm and rotary positions of queries and keys, in one kernel per direction on a GPU.

torch.compile makes several kernels of it, and one more that joins the gradients of queries, keys
and values for the matrix they come from; here each number is read and written once.

In:      queries, keys and values as one matrix product gives them [B, T, (H + 2K) * E]
Out:     queries [B, T, H, E], keys and values [B, T, K, E]
Memory:  queries and keys; values are a view, and the backward pass computes norms again
"""

# pyright: basic, reportUndefinedVariable=false, reportMissingImports=false
# ruff: noqa: N803, F821  (Triton's constants are capitals; its names are known inside kernels only)

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor

__all__ = ["has_fused_rotation", "norm_and_rotate"]

_BLOCK_TOKENS = 32
_HAS_TRITON = importlib.util.find_spec("triton") is not None  # read while compiling


def has_fused_rotation(tensor: Tensor, head_dim: int, *, has_triton: bool = _HAS_TRITON) -> bool:
    """True if the kernels can be used on a tensor's device, for heads of this size."""
    whole = head_dim >= 16 and head_dim & (head_dim - 1) == 0
    return whole and tensor.is_cuda and has_triton


class _NormAndRotate(torch.autograd.Function):
    """Queries and keys by the kernels; values are a view of the input.

    It wraps two custom operations, because an operation must not return a view of its input.
    """

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        joint: Tensor,
        query_gain: Tensor,
        key_gain: Tensor,
        cos: Tensor,
        sin: Tensor,
        num_heads: int,
        num_kv_heads: int,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(joint, query_gain, key_gain, cos, sin)
        ctx.eps = eps
        query, key = _turned(joint, query_gain, key_gain, cos, sin, num_heads, num_kv_heads, eps)
        values = joint[..., -num_kv_heads * query_gain.shape[0] :]
        return query, key, values.unflatten(-1, (num_kv_heads, -1))

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Any, ...]:
        found = _gradients(query, key, value, *ctx.saved_tensors, ctx.eps)
        return (*found, None, None, None, None, None)


def norm_and_rotate(
    joint: Tensor,
    query_gain: Tensor,
    key_gain: Tensor,
    cos: Tensor,
    sin: Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return normalized and rotated queries and keys, and unchanged values."""
    return _NormAndRotate.apply(joint, query_gain, key_gain, cos, sin, num_heads, num_kv_heads, eps)  # pyright: ignore[reportReturnType]


@torch.library.custom_op("lowtide::norm_and_rotate", mutates_args=())
def _turned(
    joint: Tensor,
    query_gain: Tensor,
    key_gain: Tensor,
    cos: Tensor,
    sin: Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    joint, cos, sin = joint.contiguous(), cos.contiguous(), sin.contiguous()
    results = _empty_results(joint, query_gain, key_gain, cos, sin, num_heads, num_kv_heads, eps)
    tokens, sizes = _sizes(joint, query_gain, num_heads, num_kv_heads)
    _kernels()["forward"][_grid(tokens, num_heads + num_kv_heads)](
        joint, query_gain, key_gain, cos, sin, *results, tokens, joint.shape[1], eps, **sizes
    )
    return results


@_turned.register_fake
def _empty_results(
    joint: Tensor,
    query_gain: Tensor,
    key_gain: Tensor,
    cos: Tensor,
    sin: Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    rows, tokens, _ = joint.shape
    head_dim = query_gain.shape[0]
    query, key = (joint.new_empty(rows, tokens, n, head_dim) for n in (num_heads, num_kv_heads))
    return query, key


@torch.library.custom_op("lowtide::norm_and_rotate_backward", mutates_args=())
def _gradients(
    query_gradient: Tensor,
    key_gradient: Tensor,
    value_gradient: Tensor,
    joint: Tensor,
    query_gain: Tensor,
    key_gain: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    joint, cos, sin = joint.contiguous(), cos.contiguous(), sin.contiguous()
    num_heads, num_kv_heads = query_gradient.shape[2], key_gradient.shape[2]
    given = [_rows_together(g) for g in (query_gradient, key_gradient, value_gradient)]
    strides = [stride for gradient in given for stride in gradient.stride()[:3]]
    tokens, sizes = _sizes(joint, query_gain, num_heads, num_kv_heads)
    grid = _grid(tokens, num_heads + 2 * num_kv_heads)
    gradient = torch.empty_like(joint)
    # One row of sums a program: added up afterwards, always in the same order.
    sums = joint.new_empty(
        grid[0], num_heads + num_kv_heads, query_gain.shape[0], dtype=torch.float32
    )
    _kernels()["backward"][grid](
        *given, joint, query_gain, key_gain, cos, sin, gradient, sums,
        *strides, tokens, joint.shape[1], eps, **sizes, num_warps=2,
    )  # fmt: skip
    gains = sums.sum(0)
    query_sum, key_sum = gains[:num_heads].sum(0), gains[num_heads:].sum(0)
    return gradient, query_sum.to(query_gain.dtype), key_sum.to(key_gain.dtype)


@_gradients.register_fake
def _empty_gradients(
    query_gradient: Tensor,
    key_gradient: Tensor,
    value_gradient: Tensor,
    joint: Tensor,
    query_gain: Tensor,
    key_gain: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(joint, memory_format=torch.contiguous_format),
        torch.empty_like(query_gain),
        torch.empty_like(key_gain),
    )


def _rows_together(gradient: Tensor) -> Tensor:
    return gradient if gradient.stride(-1) == 1 else gradient.contiguous()


def _sizes(
    joint: Tensor, gain: Tensor, num_heads: int, num_kv_heads: int
) -> tuple[int, dict[str, int]]:
    sizes = {"HEADS": num_heads, "KV_HEADS": num_kv_heads, "HALF": gain.shape[0] // 2}
    return joint.shape[0] * joint.shape[1], {**sizes, "BLOCK": _BLOCK_TOKENS}


def _grid(tokens: int, heads: int) -> tuple[int, int]:
    return -(-tokens // _BLOCK_TOKENS), heads


@functools.cache
def _kernels() -> dict[str, Any]:
    """Make the kernels; Triton is imported only if there is a GPU."""
    import triton
    import triton.language as tl

    # Triton compiles the sources, and looks this name up in the module.
    globals()["tl"] = tl
    return {"forward": triton.jit(_forward_heads), "backward": triton.jit(_backward_heads)}


def _forward_heads(
    joint, query_gain, key_gain, cos, sin, query, key, num_tokens, row_tokens, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # type: ignore[name-defined]  # fmt: skip
    head = tl.program_id(1)
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = (token < num_tokens)[:, None]
    half = tl.arange(0, HALF)[None, :]
    start = token[:, None] * ((HEADS + 2 * KV_HEADS) * 2 * HALF) + head * 2 * HALF + half
    first = tl.load(joint + start, mask=inside, other=0.0)
    second = tl.load(joint + start + HALF, mask=inside, other=0.0)
    left, right = first.to(tl.float32), second.to(tl.float32)
    square = (tl.sum(left * left, 1) + tl.sum(right * right, 1)) / (2 * HALF)
    shrink = (1 / tl.sqrt(square + eps))[:, None]
    angle = (token % row_tokens)[:, None] * HALF + half
    across = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)
    if head < HEADS:
        left = left * shrink * tl.load(query_gain + half).to(tl.float32)
        right = right * shrink * tl.load(query_gain + HALF + half).to(tl.float32)
        place = query + (token[:, None] * HEADS + head) * 2 * HALF + half
    else:
        left = left * shrink * tl.load(key_gain + half).to(tl.float32)
        right = right * shrink * tl.load(key_gain + HALF + half).to(tl.float32)
        place = key + (token[:, None] * KV_HEADS + (head - HEADS)) * 2 * HALF + half
    tl.store(place, left * across - right * up, mask=inside)
    tl.store(place + HALF, right * across + left * up, mask=inside)


def _backward_heads(
    query_gradient, key_gradient, value_gradient, joint, query_gain, key_gain, cos, sin,
    gradient, sums, query_row, query_token, query_head, key_row, key_token, key_head,
    value_row, value_token, value_head, num_tokens, row_tokens, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # type: ignore[name-defined]  # fmt: skip
    head = tl.program_id(1)
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = (token < num_tokens)[:, None]
    half = tl.arange(0, HALF)[None, :]
    start = token[:, None] * ((HEADS + 2 * KV_HEADS) * 2 * HALF) + head * 2 * HALF + half
    row, position = (token // row_tokens)[:, None], (token % row_tokens)[:, None]
    if head >= HEADS + KV_HEADS:
        value_head = (head - HEADS - KV_HEADS) * value_head
        given = value_gradient + row * value_row + position * value_token + value_head + half
        tl.store(gradient + start, tl.load(given, mask=inside), mask=inside)
        tl.store(gradient + start + HALF, tl.load(given + HALF, mask=inside), mask=inside)
    else:
        if head < HEADS:
            place = query_gradient + row * query_row + position * query_token + head * query_head
            left_gain = tl.load(query_gain + half).to(tl.float32)
            right_gain = tl.load(query_gain + HALF + half).to(tl.float32)
        else:
            key_head = (head - HEADS) * key_head
            place = key_gradient + row * key_row + position * key_token + key_head
            left_gain = tl.load(key_gain + half).to(tl.float32)
            right_gain = tl.load(key_gain + HALF + half).to(tl.float32)
        turned_left = tl.load(place + half, mask=inside, other=0.0).to(tl.float32)
        turned_right = tl.load(place + HALF + half, mask=inside, other=0.0).to(tl.float32)
        angle = position * HALF + half
        across = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)
        left = turned_left * across + turned_right * up
        right = turned_right * across - turned_left * up
        first = tl.load(joint + start, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(joint + start + HALF, mask=inside, other=0.0).to(tl.float32)
        square = (tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF)
        shrink = (1 / tl.sqrt(square + eps))[:, None]
        first, second = first * shrink, second * shrink
        column = tl.arange(0, HALF)
        column += (tl.program_id(0) * (HEADS + KV_HEADS) + head) * 2 * HALF
        tl.store(sums + column, tl.sum(left * first, 0))
        tl.store(sums + HALF + column, tl.sum(right * second, 0))
        left, right = left * left_gain, right * right_gain
        along = ((tl.sum(left * first, 1) + tl.sum(right * second, 1)) / (2 * HALF))[:, None]
        tl.store(gradient + start, shrink * (left - first * along), mask=inside)
        tl.store(gradient + start + HALF, shrink * (right - second * along), mask=inside)
