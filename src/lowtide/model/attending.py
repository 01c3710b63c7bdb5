"""Causal attention on a CPU by native code, forward and backward.

In:      float32 heads of queries [B, H, T, E], keys and values [B, K, S, E] on the CPU
Out:     outputs of heads [B, H, T, E], as torch's to rounding, and their gradients
Memory:  for the backward pass the arguments, the outputs, and a number for each head and token;
         during a pass up to 4 MiB a thread

torch's takes 1.4 to 4 times as long, with a window 7 to 11 times (native/model/attention.hpp).
"""

# Methods of autograd functions are untyped in torch.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from lowtide import _native
from lowtide.model.attentionrooms import MOST_ROOM_BYTES
from lowtide.model.rowkernels import can_fuse

__all__ = ["attend", "can_attend"]

_LEAST_VECTOR_BITS = 256
# Numbers of all queries times keys: with fewer torch's takes half to all of the time.
_LEAST_WORK = 1 << 17


def can_attend(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """True if heads are supported, and many enough tokens to gain by it."""
    if not can_fuse(query, key, value):
        return False
    if query.shape[2] < 2 or query.numel() * key.shape[2] < _LEAST_WORK:
        return False
    if _native.vector_bits() < _LEAST_VECTOR_BITS:
        return False
    return _native.attention_room_bytes(_sizes(query, key, 0), True) <= MOST_ROOM_BYTES


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, window: int = 0, bits: int | None = None
) -> Tensor:
    """Return the outputs of heads; queries are those of the last tokens, each sees itself and
    earlier ones, or with a window so many in all.

    `bits` are those of the vectors (default: the widest of the processor).
    """
    return _apply(query, key, value, window, bits or _native.vector_bits())


def _sizes(query: Tensor, key: Tensor, window: int) -> tuple[int, ...]:
    """The fields of the native AttentionShape."""
    num_rows, num_heads, num_queries, head_dim = query.shape
    return num_rows, num_queries, key.shape[2], num_heads, key.shape[1], head_dim, window


def _strides(*tensors: Tensor) -> list[int]:
    return [tensor.stride(dim) for tensor in tensors for dim in (0, 2, 1)]  # row, token, head


class _Attend(Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, window: int, bits: int
    ) -> Tensor:
        heads = [t if t.stride(3) == 1 else t.contiguous() for t in (query, key, value)]
        num_rows, num_heads, num_queries, head_dim = query.shape
        for tensor in heads:
            assert tensor.is_cpu and tensor.dtype == torch.float32
        assert key.shape == value.shape == (num_rows, key.shape[1], key.shape[2], head_dim)
        out = query.new_empty(num_rows, num_queries, num_heads, head_dim)
        log_sums = query.new_empty(num_rows, num_heads, num_queries)
        ctx.sizes, ctx.bits = _sizes(query, key, window), bits
        if out.numel():
            _native.attend(
                [tensor.data_ptr() for tensor in heads],
                _strides(*heads),
                ctx.sizes,
                out.data_ptr(),
                log_sums.data_ptr(),
                torch.get_num_threads(),
                bits,
            )
        ctx.save_for_backward(*heads, out, log_sums)
        return out.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *heads, out, log_sums = ctx.saved_tensors
        given = gradient if gradient.stride(3) == 1 else gradient.contiguous()
        assert given.is_cpu and given.dtype == torch.float32
        # Keys that no query sees have a gradient of 0.
        make = out.new_empty if out.numel() else out.new_zeros
        gradients = [
            make(tensor.shape[0], tensor.shape[2], tensor.shape[1], tensor.shape[3])
            for tensor in heads
        ]
        if out.numel():
            _native.attend_backward(
                given.data_ptr(),
                _strides(given),
                [tensor.data_ptr() for tensor in heads],
                _strides(*heads),
                ctx.sizes,
                out.data_ptr(),
                log_sums.data_ptr(),
                [tensor.data_ptr() for tensor in gradients],
                torch.get_num_threads(),
                ctx.bits,
            )
        return *(tensor.transpose(1, 2) for tensor in gradients), None, None


def _apply(*arguments: Any) -> Any:
    return _Attend.apply(*arguments)
