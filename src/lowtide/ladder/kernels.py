"""Optimizer steps over packed states as GPU kernels, bit-identical to the native code.

In:      packed states, bfloat16 gradients, the step's numbers on the device
Out:     packed states, in place
Memory:  none
"""

# pyright: basic, reportUndefinedVariable=false, reportMissingImports=false
# ruff: noqa: N803, F821  (Triton's constants are capitals; its names are known inside kernels only)

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor

__all__ = ["adamw_on_gpu", "has_kernel", "momentum_on_gpu", "move_on_gpu"]

_ROWS = 8  # blocks of 128 numbers that one program updates


def has_kernel(tensor: Tensor) -> bool:
    """True if the kernel can be used on a tensor's device."""
    return tensor.is_cuda and importlib.util.find_spec("triton") is not None


def adamw_on_gpu(
    weights: Tensor, chunk: Any, gradients: Tensor, numbers: Any, *, position: int
) -> None:
    """Update one chunk; see packing.take_step."""
    rows = weights.numel() // 128
    _kernel(_step_rows)[(-(-rows // _ROWS),)](
        weights.view(torch.int16),
        chunk.low_bits,
        chunk.first,
        chunk.second,
        chunk.first_scales,
        chunk.second_scales,
        gradients.view(torch.int16),
        numbers.scalars,
        numbers.beta1,
        1.0 - numbers.beta1,
        numbers.beta2,
        1.0 - numbers.beta2,
        numbers.eps,
        _signed(numbers.seed),
        _signed(position),
        rows,
        ROWS=_ROWS,
        num_warps=4,
        # Two roundings, as on a CPU: a fused multiply-add has only one.
        enable_fp_fusion=False,
    )


def momentum_on_gpu(
    codes: Tensor, scales: Tensor, gradients: Tensor, scalars: Tensor, momentum: float
) -> None:
    """Update Muon's momentum; see packing.take_momentum."""
    rows = codes.numel() // 128
    _kernel(_momentum_rows)[(-(-rows // _ROWS),)](
        codes, scales, gradients.view(torch.int16), scalars, momentum, 1.0 - momentum, rows,
        ROWS=_ROWS, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def move_on_gpu(
    weights: Tensor, low_bits: Tensor, steps: Tensor, numbers: Any, *, position: int
) -> None:
    """Subtract steps from weights; see packing.move_weights."""
    count = weights.numel()
    _kernel(_move_numbers)[(-(-count // 1024),)](
        weights.view(torch.int16), low_bits, steps.view(torch.int16), numbers.scalars,
        _signed(numbers.seed), _signed(position), count,
        CAUTIOUS=numbers.cautious, SIZE=1024, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def _signed(number: int) -> int:
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number


@functools.cache
def _kernel(function: Any) -> Any:
    """Make a kernel; Triton is imported only if there is a GPU."""
    import triton
    import triton.language as tl

    # Triton compiles the source, and looks these names up in the module.
    globals()["tl"] = tl
    return triton.jit(function)


def _step_rows(
    weights, low_bits, first_codes, second_codes, first_scales, second_scales, gradients, scalars,
    beta1, rest1, beta2, rest2, eps, seed, position, num_rows,
    ROWS: tl.constexpr,
):  # type: ignore[name-defined]  # fmt: skip
    goes = tl.load(scalars + 1)
    factor = tl.load(scalars)
    step_size = tl.load(scalars + 2)
    root_factor = tl.load(scalars + 3)
    kept = tl.load(scalars + 4)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows * goes.to(tl.int32)  # none of them in a step that is skipped
    # 64 bits: the offset of a chunk may exceed 2^31 bytes.
    places = rows.to(tl.int64)[:, None] * 128 + tl.arange(0, 128)[None, :]
    mask = inside[:, None]
    bits = tl.load(gradients + places, mask=mask, other=0).to(tl.int32) << 16
    g = bits.to(tl.float32, bitcast=True) * factor
    first_scale = tl.load(first_scales + rows, mask=inside, other=0.0)
    second_scale = tl.load(second_scales + rows, mask=inside, other=0.0)
    code = tl.load(first_codes + places, mask=mask, other=0).to(tl.float32) * 0.007874015718698502
    m = tl.div_rn(code, 2.0 - tl.abs(code)) * first_scale[:, None]
    first = beta1 * m + rest1 * g
    root = tl.load(second_codes + places, mask=mask, other=0).to(tl.float32) * 0.003921568859368563
    root = root * root
    v = root * root * second_scale[:, None]
    second = beta2 * v + rest2 * (g * g)
    # The weights.
    high = tl.load(weights + places, mask=mask, other=0).to(tl.int32) << 8
    rest = tl.load(low_bits + places, mask=mask, other=0).to(tl.int32)
    weight = ((high + rest) << 8).to(tl.float32, bitcast=True)
    divisor = tl.sqrt_rn(second) * root_factor + eps
    weight = weight * kept - step_size * tl.div_rn(first, divisor)
    # Random bits for stochastic rounding: the same hash as in native code.
    x = (places.to(tl.int32) + position) * -1640531535
    x = (x ^ seed).to(tl.uint32, bitcast=True)
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    x = (x ^ (x >> 16)) & 0xFF
    bits = (weight.to(tl.int32, bitcast=True) + x.to(tl.int32)) >> 8
    high = (bits + 0x80) >> 8
    tl.store(weights + places, high.to(tl.int16), mask=mask)
    tl.store(low_bits + places, (bits - (high << 8)).to(tl.int8), mask=mask)
    # The moments.
    first_max = tl.max(tl.abs(first), 1)
    second_max = tl.max(second, 1)
    tl.store(first_scales + rows, first_max, mask=inside)
    tl.store(second_scales + rows, second_max, mask=inside)
    first_by = tl.where(first_max > 0.0, first_max, 1.0)[:, None]
    second_by = tl.where(second_max > 0.0, second_max, 1.0)[:, None]
    x = tl.div_rn(first, tl.broadcast_to(first_by, first.shape))
    bent = tl.div_rn(x + x, 1.0 + tl.abs(x)) * 127.0
    whole = (bent + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
    tl.store(first_codes + places, whole.to(tl.int8), mask=mask)
    share = tl.div_rn(second, tl.broadcast_to(second_by, second.shape))
    bent = tl.sqrt_rn(tl.sqrt_rn(share)) * 255.0
    whole = (bent + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
    whole = tl.where((whole == 0) & (second > 0.0), 1, whole)
    tl.store(second_codes + places, whole.to(tl.uint8), mask=mask)


def _momentum_rows(
    codes, scales, gradients, scalars, momentum, rest, num_rows, ROWS: tl.constexpr
):  # type: ignore[name-defined]  # fmt: skip
    goes = tl.load(scalars + 1)
    factor = tl.load(scalars)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    moved = rows < num_rows * goes.to(tl.int32)
    places = rows.to(tl.int64)[:, None] * 128 + tl.arange(0, 128)[None, :]
    mask = inside[:, None]
    scale = tl.load(scales + rows, mask=inside, other=0.0)
    code = tl.load(codes + places, mask=mask, other=0).to(tl.float32) * 0.007874015718698502
    m = tl.div_rn(code, 2.0 - tl.abs(code)) * scale[:, None]
    bits = tl.load(gradients + places, mask=mask, other=0).to(tl.int32) << 16
    # Gradients of a skipped step may be NaN, but the input of orthogonalization must be finite.
    g = tl.where(goes > 0.0, bits.to(tl.float32, bitcast=True) * factor, m)
    first = momentum * m + rest * g
    update = (rest * g + momentum * first).to(tl.uint32, bitcast=True)
    update = (update + 0x7FFF + ((update >> 16) & 1)) >> 16
    tl.store(gradients + places, update.to(tl.int16), mask=mask)
    largest = tl.max(tl.abs(first), 1)
    tl.store(scales + rows, largest, mask=moved)
    by = tl.where(largest > 0.0, largest, 1.0)[:, None]
    x = tl.div_rn(first, tl.broadcast_to(by, first.shape))
    bent = tl.div_rn(x + x, 1.0 + tl.abs(x)) * 127.0
    whole = (bent + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
    tl.store(codes + places, whole.to(tl.int8), mask=moved[:, None])


def _move_numbers(
    weights, low_bits, steps, scalars, seed, position, count,
    CAUTIOUS: tl.constexpr, SIZE: tl.constexpr,
):  # type: ignore[name-defined]  # fmt: skip
    goes = tl.load(scalars + 1)
    rate = tl.load(scalars + 2)
    kept = tl.load(scalars + 3)
    places = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = places < count * goes.to(tl.int32)
    high = tl.load(weights + places, mask=mask, other=0).to(tl.int32) << 8
    rest = tl.load(low_bits + places, mask=mask, other=0).to(tl.int32)
    old = ((high + rest) << 8).to(tl.float32, bitcast=True)
    bits = tl.load(steps + places, mask=mask, other=0).to(tl.int32) << 16
    step = bits.to(tl.float32, bitcast=True)
    left = tl.where(old * step < 0.0, 1.0, kept) if CAUTIOUS else kept
    weight = old * left - rate * step
    # As in a step of AdamW.
    x = (places.to(tl.int32) + position) * -1640531535
    x = (x ^ seed).to(tl.uint32, bitcast=True)
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    x = (x ^ (x >> 16)) & 0xFF
    bits = (weight.to(tl.int32, bitcast=True) + x.to(tl.int32)) >> 8
    high = (bits + 0x80) >> 8
    tl.store(weights + places, high.to(tl.int16), mask=mask)
    tl.store(low_bits + places, (bits - (high << 8)).to(tl.int8), mask=mask)
