"""Outputs of heads of the tide layout, without own values, gated, joined: GPU kernels, both passes.

The plain code is in tide_blocks. torch.compile makes about six kernels per layer of it, and keeps
their intermediate results; here each number is read and written once, by one kernel forward and one
backward. A program computes some pairs of a token and a key/value head, with all heads of a token
adjacent as in memory, and loops over the query heads of each pair.

With own = v / |v|, along = f . own and g the gradient times the gate, the heads are f - along own,
times the gate. The gradient of f is g - (g . own) own =: h, and that of v is
-(along h + (g . own) (f - along own)) / |v|. |v| is at least 1e-12, so nothing is divided by zero.

In:      outputs of heads [B, H, T, E], values [B, K, T, E], logits of the gates [B, T, H]; any
         strides
Out:     heads concatenated [B, T, H * E]; gradients in the layout of their tensors
Memory:  the heads; only the inputs are kept, and the backward pass recomputes directions
"""

# pyright: basic, reportUndefinedVariable=false, reportMissingImports=false
# ruff: noqa: N803, F821  (Triton's constants are capitals; its names are known inside kernels only)

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

__all__ = ["gated_without_own"]

# Numbers of a tensor per program, and its warps.
_FORWARD_NUMBERS, _FORWARD_WARPS = 2048, 8
_BACKWARD_NUMBERS, _BACKWARD_WARPS = 2048, 4
_LEAST_NORM = 1e-12  # as in F.normalize


@torch.library.custom_op("lowtide::gated_without_own", mutates_args=())
def gated_without_own(found: Tensor, value: Tensor, logits: Tensor) -> Tensor:
    """Return heads [B, T, H * E] without own values' directions, times 2 * sigmoid(logits)."""
    heads = _empty_heads(found, value, logits)
    grid, sizes = _sizes(found, value, _FORWARD_NUMBERS)
    _kernels()["forward"][grid](
        found, value, logits, heads, *found.stride(), *value.stride(), *logits.stride(),
        found.shape[2], **sizes, num_warps=_FORWARD_WARPS,
    )  # fmt: skip
    return heads


@gated_without_own.register_fake
def _empty_heads(found: Tensor, value: Tensor, logits: Tensor) -> Tensor:
    rows, heads, tokens, size = found.shape
    return found.new_empty(rows, tokens, heads * size)


@torch.library.custom_op("lowtide::gated_without_own_backward", mutates_args=())
def _gradients(
    given: Tensor, found: Tensor, value: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    gradients = _empty_gradients(given, found, value, logits)
    grid, sizes = _sizes(found, value, _BACKWARD_NUMBERS)
    _kernels()["backward"][grid](
        given.contiguous(), found, value, logits, *gradients,
        *found.stride(), *value.stride(), *logits.stride(),
        *gradients[0].stride(), *gradients[1].stride(),
        found.shape[2], **sizes, num_warps=_BACKWARD_WARPS,
    )  # fmt: skip
    return gradients


@_gradients.register_fake
def _empty_gradients(
    given: Tensor, found: Tensor, value: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(found),  # in the layout that attention's backward pass needs: no copy
        torch.empty_like(value),
        torch.empty_like(logits, memory_format=torch.contiguous_format),
    )


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _gradients(given, *ctx.saved_tensors)


# Unlike in rotation.py, no operation returns a view of its input, so no autograd function around
# them is needed, and the compiler sees both operations without registration.
gated_without_own.register_autograd(_backward, setup_context=_keep)


def _sizes(found: Tensor, value: Tensor, numbers: int) -> tuple[tuple[int], dict[str, Any]]:
    rows, heads, tokens, size = found.shape
    kv_heads, block = value.shape[1], max(1, numbers // size)
    sizes = {"KV_HEADS": kv_heads, "GROUP": heads // kv_heads, "SIZE": size, "BLOCK": block}
    return (rows * -(-tokens * kv_heads // block),), {**sizes, "LEAST": _LEAST_NORM}


@functools.cache
def _kernels() -> dict[str, Any]:
    """Make the kernels; Triton is imported only if there is a GPU."""
    import triton
    import triton.language as tl

    # Triton compiles the sources, and looks this name up in the module.
    globals()["tl"] = tl
    return {"forward": triton.jit(_forward_pairs), "backward": triton.jit(_backward_pairs)}


def _forward_pairs(
    found, value, logits, heads, found_row, found_head, found_token, found_number,
    value_row, value_head, value_token, value_number, logits_row, logits_token, logits_head,
    num_tokens, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, LEAST: tl.constexpr,
):  # type: ignore[name-defined]  # fmt: skip
    blocks = tl.cdiv(num_tokens * KV_HEADS, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    pair = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < num_tokens * KV_HEADS
    token, kv_head = (pair // KV_HEADS).to(tl.int64), pair % KV_HEADS
    number, within = tl.arange(0, SIZE)[None, :], inside[:, None]
    start = row * value_row + token * value_token + kv_head * value_head
    place = value + start[:, None] + number * value_number
    own = tl.load(place, mask=within, other=0.0).to(tl.float32)
    own *= (1 / tl.maximum(tl.sqrt(tl.sum(own * own, 1)), LEAST))[:, None]
    for nth in range(GROUP):
        head = kv_head * GROUP + nth
        start = row * found_row + token * found_token + head * found_head
        place = found + start[:, None] + number * found_number
        rest = tl.load(place, mask=within, other=0.0).to(tl.float32)
        rest -= tl.sum(rest * own, 1)[:, None] * own
        start = row * logits_row + token * logits_token + head * logits_head
        opened = 2 * tl.sigmoid(tl.load(logits + start, mask=inside, other=0.0).to(tl.float32))
        start = ((row * num_tokens + token) * (KV_HEADS * GROUP) + head) * SIZE
        tl.store(heads + start[:, None] + number, rest * opened[:, None], mask=within)


def _backward_pairs(
    given, found, value, logits, found_gradient, value_gradient, logits_gradient,
    found_row, found_head, found_token, found_number,
    value_row, value_head, value_token, value_number, logits_row, logits_token, logits_head,
    to_found_row, to_found_head, to_found_token, to_found_number,
    to_value_row, to_value_head, to_value_token, to_value_number,
    num_tokens, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, LEAST: tl.constexpr,
):  # type: ignore[name-defined]  # fmt: skip
    blocks = tl.cdiv(num_tokens * KV_HEADS, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    pair = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < num_tokens * KV_HEADS
    token, kv_head = (pair // KV_HEADS).to(tl.int64), pair % KV_HEADS
    number, within = tl.arange(0, SIZE)[None, :], inside[:, None]
    start = row * value_row + token * value_token + kv_head * value_head
    place = value + start[:, None] + number * value_number
    own = tl.load(place, mask=within, other=0.0).to(tl.float32)
    shrink = (1 / tl.maximum(tl.sqrt(tl.sum(own * own, 1)), LEAST))[:, None]
    own *= shrink
    pull = tl.zeros((BLOCK, SIZE), dtype=tl.float32)
    for nth in range(GROUP):
        head = kv_head * GROUP + nth
        start = row * logits_row + token * logits_token + head * logits_head
        share = tl.sigmoid(tl.load(logits + start, mask=inside, other=0.0).to(tl.float32))
        start = row * found_row + token * found_token + head * found_head
        place = found + start[:, None] + number * found_number
        rest = tl.load(place, mask=within, other=0.0).to(tl.float32)
        start = (row * num_tokens + token) * (KV_HEADS * GROUP) + head
        place = given + (start * SIZE)[:, None] + number
        error = tl.load(place, mask=within, other=0.0).to(tl.float32)
        along, error_along = tl.sum(rest * own, 1), tl.sum(error * own, 1)
        # The product of the error and the ungated head, from sums that are available already.
        slope = tl.sum(error * rest, 1) - along * error_along
        tl.store(logits_gradient + start, slope * 2 * share * (1 - share), mask=inside)
        opened, along, error_along = 2 * share[:, None], along[:, None], error_along[:, None]
        rest -= along * own
        error = opened * (error - error_along * own)
        pull += along * error + opened * error_along * rest
        start = row * to_found_row + token * to_found_token + head * to_found_head
        place = found_gradient + start[:, None] + number * to_found_number
        tl.store(place, error, mask=within)
    start = row * to_value_row + token * to_value_token + kv_head * to_value_head
    place = value_gradient + start[:, None] + number * to_value_number
    tl.store(place, -pull * shrink, mask=within)
