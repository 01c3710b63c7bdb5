"""Fused CPU kernels for operations between matrix products, one pass each, forward and backward.

In:      float32 tensors on the CPU (see `can_fuse`)
Out:     the same numbers as torch's operations to rounding, and their gradients
Memory:  for the backward pass the input, and one number per row of a norm

torch needs five to fifteen passes for a norm, a rotation or a gate on a CPU: a third of a step of a
small network. The kernels are in native/model/row_kernels.cpp; sums are the same on any number of
threads.
"""

# Methods of autograd functions are untyped in torch.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from lowtide import _native

__all__ = ["can_fuse", "gelu", "loss_and_error", "rms_norm", "swiglu", "turn_heads"]

_PLAIN = (Tensor, nn.Parameter)


def can_fuse(*tensors: Tensor) -> bool:
    """True if the kernels support all tensors.

    torch.compile fuses plain operations itself; torch.jit.trace, and tensors of a class of their
    own, such as those without numbers (FakeTensorMode), would not see what native code does.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        return False
    return all(type(x) in _PLAIN and x.is_cpu and x.dtype == torch.float32 for x in tensors)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalize the last dimension: x / sqrt(mean(x^2) + eps) * weight."""
    return _apply(_RMSNorm, x, weight, eps)


def swiglu(x: Tensor) -> Tensor:
    """Return silu(gate) * up of [..., gate and up]."""
    return _apply(_SwiGLU, x)


def gelu(x: Tensor) -> Tensor:
    """Return GELU in its tanh form."""
    return _apply(_GELU, x)


def turn_heads(
    x: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split [B, T, (H + 2K) E] into queries, keys and values [B, heads, T, E].

    Queries and keys are normalized by head and rotated by the angles [T, E/2] of their tokens.
    """
    return _apply(_TurnHeads, x, query_weight, key_weight, cos, sin, num_heads, num_kv_heads, eps)


def loss_and_error(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of logits [N, V], which become softmax minus one-hot."""
    targets = wanted.contiguous()
    _require(logits, targets)
    num_rows, vocab_size = logits.shape
    assert targets.dtype == torch.int64 and targets.numel() == num_rows
    total = _native.cross_entropy(
        logits.data_ptr(), targets.data_ptr(), num_rows, vocab_size, torch.get_num_threads()
    )
    return torch.tensor(total, dtype=torch.float32, device=logits.device), logits


def _apply(function: Any, *arguments: Any) -> Any:
    return function.apply(*arguments)


def _require(*tensors: Tensor) -> None:
    """Check types here, because native code only gets addresses."""
    for tensor in tensors:
        assert tensor.is_cpu and tensor.is_contiguous()
        assert tensor.dtype in (torch.float32, torch.int64)


class _RMSNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x, weight = x.contiguous(), weight.detach().contiguous()
        _require(x, weight)
        width = x.shape[-1]
        assert weight.shape == (width,)
        y, scales = torch.empty_like(x), x.new_empty(x.numel() // max(width, 1))
        _native.rms_norm(
            x.data_ptr(),
            weight.data_ptr(),
            eps,
            y.data_ptr(),
            scales.data_ptr(),
            scales.numel(),
            width,
            torch.get_num_threads(),
        )
        ctx.save_for_backward(x, weight, scales)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scales = ctx.saved_tensors
        gradient = gradient.contiguous()
        _require(gradient)
        x_gradient, weight_gradient = torch.empty_like(x), torch.zeros_like(weight)
        _native.rms_norm_backward(
            gradient.data_ptr(),
            x.data_ptr(),
            weight.data_ptr(),
            scales.data_ptr(),
            x_gradient.data_ptr(),
            weight_gradient.data_ptr(),
            scales.numel(),
            x.shape[-1],
            torch.get_num_threads(),
        )
        return x_gradient, weight_gradient, None


class _SwiGLU(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        _require(x)
        width, odd = divmod(x.shape[-1], 2)
        assert not odd
        y = x.new_empty((*x.shape[:-1], width))
        _native.swiglu(
            x.data_ptr(), y.data_ptr(), y.numel() // max(width, 1), width, torch.get_num_threads()
        )
        ctx.save_for_backward(x)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gradient = gradient.contiguous()
        _require(gradient)
        x_gradient, width = torch.empty_like(x), gradient.shape[-1]
        _native.swiglu_backward(
            gradient.data_ptr(),
            x.data_ptr(),
            x_gradient.data_ptr(),
            gradient.numel() // max(width, 1),
            width,
            torch.get_num_threads(),
        )
        return x_gradient


class _GELU(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        _require(x)
        y = torch.empty_like(x)
        _native.gelu(x.data_ptr(), y.data_ptr(), x.numel(), torch.get_num_threads())
        ctx.save_for_backward(x)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gradient = gradient.contiguous()
        _require(gradient)
        x_gradient = torch.empty_like(x)
        _native.gelu_backward(
            gradient.data_ptr(),
            x.data_ptr(),
            x_gradient.data_ptr(),
            x.numel(),
            torch.get_num_threads(),
        )
        return x_gradient


class _TurnHeads(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        query_weight: Tensor,
        key_weight: Tensor,
        cos: Tensor,
        sin: Tensor,
        num_heads: int,
        num_kv_heads: int,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, tokens, width = x.shape
        head_dim = width // (num_heads + 2 * num_kv_heads)
        x = x.contiguous()
        tables = [t.detach().contiguous() for t in (query_weight, key_weight, cos, sin)]
        _require(x, *tables)
        assert width == (num_heads + 2 * num_kv_heads) * head_dim
        assert tables[0].numel() == tables[1].numel() == head_dim
        assert cos.shape == sin.shape == (tokens, head_dim // 2)
        outputs = [x.new_empty(rows, tokens, n, head_dim) for n in (num_heads, num_kv_heads)]
        outputs.append(torch.empty_like(outputs[1]))
        sizes = (rows, tokens, num_heads, num_kv_heads, head_dim)
        _native.turn_heads(
            x.data_ptr(),
            _addresses(tables),
            eps,
            sizes,
            _addresses(outputs),
            torch.get_num_threads(),
        )
        ctx.save_for_backward(x, *tables)
        ctx.sizes, ctx.eps = sizes, eps
        query, key, value = (output.transpose(1, 2) for output in outputs)
        return query, key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *tables = ctx.saved_tensors
        given = [g if g.stride(3) == 1 else g.contiguous() for g in gradients]
        strides = [g.stride(dim) for g in given for dim in (0, 2, 1)]  # row, token, head
        for gradient in given:
            assert gradient.is_cpu and gradient.dtype == torch.float32
        x_gradient = torch.empty_like(x)
        query_gradient, key_gradient = torch.zeros_like(tables[0]), torch.zeros_like(tables[1])
        _native.turn_heads_backward(
            _addresses(given),
            strides,
            x.data_ptr(),
            _addresses(tables),
            ctx.eps,
            ctx.sizes,
            x_gradient.data_ptr(),
            query_gradient.data_ptr(),
            key_gradient.data_ptr(),
            torch.get_num_threads(),
        )
        return x_gradient, query_gradient, key_gradient, None, None, None, None, None


def _addresses(tensors: list[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]
