"""Products of normalized activations with weights of blocks in float8; gradients in 16 bits.

The output of a norm is bounded by the root of its width times the gain, so a fixed scale always
fits, and no pass over the activations for their largest value is needed. The norm's kernel writes
the float8 copy beside the one for the backward pass.

In:      activations [..., D] right after a norm, a matrix [F, D], a bias [F] or none
Out:     [..., F], like a linear layer
Memory:  a float8 copy of the activations and of the matrix, while they are multiplied
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lowtide.model.float8 import LARGEST_E4M3, multiply

__all__ = ["normed_linear"]

# Numbers after a norm are around 1, at most 27.7 for a width of 768 and a gain of 1: eight times
# that is in the middle of what e4m3 holds exactly (0.016 to 448).
_SCALE = 8.0


class _NormedLinear(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight.to(x.dtype))
        ctx.weight_dtype, ctx.has_bias = weight.dtype, bias is not None
        limit = LARGEST_E4M3
        scale = weight.abs().amax().float().clamp(min=1e-12) / limit
        result = multiply(
            (x.flatten(0, -2).float() * _SCALE).clamp(-limit, limit).to(torch.float8_e4m3fn),
            (weight.float() / scale).clamp(-limit, limit).to(torch.float8_e4m3fn),
            torch.full_like(scale, 1 / _SCALE),
            scale,
            x.dtype,
            fast=True,
            bias=bias,
        )
        return result.unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        weight_gradient = (rows.t() @ x.flatten(0, -2)).to(ctx.weight_dtype)
        bias_gradient = rows.sum(0, dtype=ctx.weight_dtype) if ctx.has_bias else None
        return gradient @ weight, weight_gradient, bias_gradient


def normed_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x @ weight.T + bias` for activations right after a norm."""
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return multiply_normed(x, weight, bias)


def multiply_normed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product alone: one call in a compiled graph (graphs.py)."""
    return _NormedLinear.apply(x, weight, bias)  # pyright: ignore[reportReturnType]
