"""Products of float32 matrices on a CPU, where native ones are quicker than torch's.

In:      float32 tensors on the CPU
Out:     the same numbers as torch's to rounding, the same on any number of threads; their gradients
Memory:  0.8 MB, and 0.1 MB a thread, during a product

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

# With fewer rows, as when a token is generated, copying the matrix takes longer than the product:
# torch's takes a seventh of the time for one row, half for 16, and as long for 32.
_LEAST_ROWS = 32


def has_quick_products(*tensors: Tensor) -> bool:
    """True if native products of these tensors are quicker than torch's."""
    if torch.compiler.is_compiling() or not _native.has_quick_products():
        return False
    return can_fuse(*tensors) and not torch.is_autocast_enabled("cpu")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if has_quick_products(*tensors):
        fits = weight.numel() > 0 and x.shape[-1] == weight.shape[-1]  # else torch says so
        if fits and x.numel() >= _LEAST_ROWS * x.shape[-1]:
            return quick_linear(x, weight, bias)
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """torch's linear layer, by the quicker product."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices, or of each pair of two stacks [S, R, D] and [S, D, C]."""
    wants_gradients = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if wants_gradients or not has_quick_products(a, b):
        return a @ b
    return quick_multiply(a, b, a.new_empty(*a.shape[:-1], b.shape[-1]))


def quick_multiply(
    a: Tensor, b: Tensor, out: Tensor, *, adds: bool = False, bits: int | None = None
) -> Tensor:
    """Compute a @ b, or add it to `out`; with vectors of so many bits (default: the widest).

    Matrices or stacks of them; without gradients.
    """
    for tensor in (a, b, out):
        assert tensor.is_cpu and tensor.dtype == torch.float32 and tensor.ndim in (2, 3)
    *stack, rows, depth = a.shape
    columns = b.shape[-1]
    assert b.shape == (*stack, depth, columns) and out.shape == (*stack, rows, columns)
    if out.numel() == 0:
        return out
    if depth == 0:
        return out if adds else out.zero_()
    a, b = a.resolve_neg(), b.resolve_neg()  # imaginary parts, whose sign torch turns when read
    _native.multiply(
        a.data_ptr(),
        b.data_ptr(),
        out.data_ptr(),
        (*_distances(a), *_distances(b), *_distances(out)),
        (stack[0] if stack else 1, rows, depth, columns),
        adds,
        torch.get_num_threads(),
        bits or _native.vector_bits(),
    )
    return out


def _distances(tensor: Tensor) -> tuple[int, ...]:
    """Numbers between the matrices of a stack, between rows, and between columns."""
    return tensor.stride() if tensor.ndim == 3 else (0, *tensor.stride())


def quick_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` by native products."""
    return _apply(x, weight, bias) if torch.is_grad_enabled() else _compute(x, weight, bias)


def _compute(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = x.new_empty(*x.shape[:-1], len(weight))
    if bias is not None:
        out.copy_(bias)
    lines = out.view(-1, len(weight))
    quick_multiply(x.reshape(-1, x.shape[-1]), weight.t(), lines, adds=bias is not None)
    return out


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        wants_x, wants_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if wants_weight else None, weight if wants_x else None)
        return _compute(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        given = gradient.reshape(-1, gradient.shape[-1])
        x_gradient = weight_gradient = bias_gradient = None
        if weight is not None:
            x_gradient = weight.new_empty(*gradient.shape[:-1], weight.shape[1])
            quick_multiply(given, weight, x_gradient.view(-1, weight.shape[1]))
        if x is not None:
            weight_gradient = x.new_empty(gradient.shape[-1], x.shape[-1])
            quick_multiply(given.t(), x.reshape(-1, x.shape[-1]), weight_gradient)
        if ctx.needs_input_grad[2]:
            bias_gradient = given.sum(0)
        return x_gradient, weight_gradient, bias_gradient


def _apply(*arguments: Any) -> Any:
    return _Linear.apply(*arguments)
