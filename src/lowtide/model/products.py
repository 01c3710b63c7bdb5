"""Products of float32 matrices on a CPU, where native ones are quicker than torch's.

In:      float32 tensors on the CPU
Out:     the same numbers as torch's to rounding, the same on any number of threads; their gradients
Memory:  0.9 MB, and 0.1 MB a thread, during a product

torch's library (MKL) uses vectors of 256 bits on AMD's processors, also on those that have 512:
products take 2.2 to 2.4 times as long there, and with 256 bits 1.1 to 1.2 times. On Intel's it uses
all, and is used itself (native/model/products.hpp).
"""

# Methods of autograd functions are untyped in torch.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from lowtide import _native
from lowtide.model.rowkernels import can_fuse

__all__ = ["Linear", "has_quick_products", "linear", "multiply", "quick_linear", "quick_multiply"]

_PLAIN = (Tensor, nn.Parameter)


def has_quick_products(*tensors: Tensor) -> bool:
    """True if native products of these tensors are quicker than torch's."""
    if (
        torch.compiler.is_compiling()
        or not _native.has_quick_products()
        or torch.is_autocast_enabled("cpu")
    ):
        return False
    return all(type(tensor) in _PLAIN and can_fuse(tensor) for tensor in tensors)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias."""
    if has_quick_products(x, weight):
        return quick_linear(x, weight, bias)
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """torch's linear layer, by the quicker product."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices, or of each pair of two stacks [S, R, D] and [S, D, C]."""
    if not has_quick_products(a, b):
        return a @ b
    out = a.new_empty(*a.shape[:-1], b.shape[-1])
    if a.ndim == 2:
        return quick_multiply(a, b, out)
    for left, right, room in zip(a.unbind(), b.unbind(), out.unbind(), strict=True):
        quick_multiply(left, right, room)
    return out


def quick_multiply(
    a: Tensor, b: Tensor, out: Tensor, *, adds: bool = False, bits: int | None = None
) -> Tensor:
    """Compute a @ b, or add it to `out`; with vectors of so many bits (default: the widest)."""
    for tensor in (a, b, out):
        assert tensor.is_cpu and tensor.dtype == torch.float32 and tensor.ndim == 2
    rows, depth = a.shape
    columns = b.shape[1]
    assert b.shape[0] == depth and out.shape == (rows, columns)
    if rows == 0 or columns == 0:
        return out
    assert out.stride(1) == 1 or columns == 1
    if depth == 0:
        return out if adds else out.zero_()
    _native.multiply(
        a.data_ptr(),
        b.data_ptr(),
        out.data_ptr(),
        (*a.stride(), *b.stride(), out.stride(0)),
        (rows, depth, columns),
        adds,
        torch.get_num_threads(),
        bits or _native.vector_bits(),
    )
    return out


def quick_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` by native products."""
    return _apply(x, weight, bias)


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        rows = x.reshape(-1, x.shape[-1])
        out = x.new_empty(len(rows), len(weight))
        if bias is not None:
            out.copy_(bias)
        quick_multiply(rows, weight.t(), out, adds=bias is not None)
        return out.view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        given = gradient.reshape(-1, len(weight))
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        x_gradient = weight_gradient = bias_gradient = None
        if wants_x:
            x_gradient = x.new_empty(x.shape)
            quick_multiply(given, weight, x_gradient.view(-1, x.shape[-1]))
        if wants_weight:
            weight_gradient = weight.new_empty(weight.shape)
            quick_multiply(given.t(), x.reshape(-1, x.shape[-1]), weight_gradient)
        if wants_bias:
            bias_gradient = given.sum(0)
        return x_gradient, weight_gradient, bias_gradient


def _apply(*arguments: Any) -> Any:
    return _Linear.apply(*arguments)
