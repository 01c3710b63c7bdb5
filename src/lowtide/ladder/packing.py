"""Weights in 24 bits and moments in 8: packing, unpacking, and updates by an optimizer step.

    weight  bfloat16 and a signed byte: float32 rounded to 24 bits; repeating it changes nothing
    first   mean of gradients: a byte, 2x / (1 + |x|) of x = m / scale
    second  mean of squared gradients: a byte, the fourth root of v / scale
    scales  the largest of each moment among 128 numbers, float32

AdamW has all of it; Muon has no second moment, and its first is written as AdamW's.

In:      float32 weights; packed states and bfloat16 gradients
Out:     packed states
Memory:  none

A step is defined to the bit: native code on a CPU and the kernel of a GPU give the same bytes
(native/model/packed_states.hpp). Weights are rounded stochastically, seeded by step and position,
so that steps too small for the last bit still count on average.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lowtide import _native
from lowtide.ladder.kernels import adamw_on_gpu, has_kernel, momentum_on_gpu, move_on_gpu
from lowtide.quickclasses import dataclass

__all__ = [
    "BLOCK",
    "Chunk",
    "MuonNumbers",
    "StepNumbers",
    "chunk_bytes",
    "momentum_bytes",
    "move_weights",
    "pack_weights",
    "take_momentum",
    "take_step",
    "unpack_weights",
    "view_chunk",
    "view_momentum",
]

BLOCK = 128
PIECE = 1 << 22


@dataclass(frozen=True)
class Chunk:
    """A run of numbers whose states lie together in memory."""

    low_bits: Tensor
    first: Tensor
    second: Tensor
    first_scales: Tensor
    second_scales: Tensor


def chunk_bytes(count: int, *, with_low_bits: bool = True) -> int:
    """Bytes of both moments and their scales, and of the low bits of the weights."""
    return (3 if with_low_bits else 2) * count + 2 * 4 * (count // BLOCK)


def view_chunk(memory: Tensor, count: int, *, low_bits: Tensor | None = None) -> Chunk:
    """The parts of a chunk of `count` numbers that lies in `memory` (bytes).

    Scales come first, then the moments, then the low_bits if they are not elsewhere.
    """
    blocks = count // BLOCK
    scales, codes = memory[: 8 * blocks].view(torch.float32), memory[8 * blocks :]
    return Chunk(
        codes[2 * count : 3 * count].view(torch.int8) if low_bits is None else low_bits,
        codes[:count].view(torch.int8),
        codes[count : 2 * count],
        scales[:blocks],
        scales[blocks:],
    )


def momentum_bytes(count: int) -> int:
    """Bytes of Muon's momentum and its scales."""
    return count + 4 * (count // BLOCK)


def view_momentum(memory: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Codes and scales of the momentum of `count` numbers in `memory` (bytes)."""
    blocks = count // BLOCK
    return memory[4 * blocks :].view(torch.int8), memory[: 4 * blocks].view(torch.float32)


def pack_weights(values: Tensor, weights: Tensor, low_bits: Tensor) -> None:
    """Round float32 numbers of the CPU to 24 bits, the nearest; write bfloat16 and rest."""
    _native.pack_weights(
        values.data_ptr(), weights.data_ptr(), low_bits.data_ptr(), values.numel(), _num_threads()
    )


def unpack_weights(weights: Tensor, low_bits: Tensor, out: Tensor) -> Tensor:
    """Write the float32 numbers that weights and low bits encode."""
    if weights.device.type == "cpu":
        _native.unpack_weights(
            weights.data_ptr(), low_bits.data_ptr(), out.data_ptr(), out.numel(), _num_threads()
        )
        return out
    return _unpack_by_torch(weights, low_bits, out)


def _unpack_by_torch(weights: Tensor, low_bits: Tensor, out: Tensor, piece: int = PIECE) -> Tensor:
    """The same on any device, a piece at a time."""
    for start in range(0, out.numel(), piece):
        part = slice(start, start + piece)
        high = weights[part].view(torch.int16).to(torch.int32) << 8
        out[part] = ((high + low_bits[part]) << 8).view(torch.float32)
    return out


@dataclass(frozen=True)
class StepNumbers:
    """The parameters of a step of AdamW."""

    beta1: float
    beta2: float
    eps: float
    seed: int
    """A number of 32 bits for the step."""
    scalars: Tensor
    """On the device, float32: factor of the gradients, 1 or 0 for a step that is skipped, learning
    rate over the first correction, 1 over the root of the second, what decay leaves."""


def take_step(
    weights: Tensor, chunk: Chunk, gradients: Tensor, numbers: StepNumbers, *, position: int
) -> None:
    """Update weights and moments of a chunk by a step; nothing if the step is skipped.

    `position` is the index of its first number in the model; it seeds the stochastic rounding.
    """
    if has_kernel(weights):
        adamw_on_gpu(weights, chunk, gradients, numbers, position=position)
        return
    factor, goes, step_size, root_factor, kept = numbers.scalars.tolist()
    if not goes:
        return
    states = (
        weights,
        chunk.low_bits,
        chunk.first,
        chunk.second,
        chunk.first_scales,
        chunk.second_scales,
    )
    _native.adamw_packed(
        [tensor.data_ptr() for tensor in states],
        gradients.data_ptr(),
        [
            factor,
            numbers.beta1,
            1.0 - numbers.beta1,
            numbers.beta2,
            1.0 - numbers.beta2,
            step_size,
            root_factor,
            numbers.eps,
            kept,
        ],
        numbers.seed,
        position & 0xFFFFFFFF,
        weights.numel(),
        _num_threads(),
    )


@dataclass(frozen=True)
class MuonNumbers:
    """The parameters of a step of Muon."""

    momentum: float
    cautious: bool
    """Whether only weights that the step makes smaller decay."""
    seed: int
    """A number of 32 bits for the step."""
    scalars: Tensor
    """On the device, float32: factor of the gradients, 1 or 0 for a step that is skipped, learning
    rate, what decay leaves."""


def take_momentum(codes: Tensor, scales: Tensor, gradients: Tensor, numbers: MuonNumbers) -> None:
    """Update the momentum; gradients are overwritten with Nesterov's updates.

    In a step that is skipped the momentum stays, and gradients become some finite numbers.
    """
    if has_kernel(codes):
        momentum_on_gpu(codes, scales, gradients, numbers.scalars, numbers.momentum)
        return
    factor, goes, _, _ = numbers.scalars.tolist()
    if not goes:
        gradients.zero_()
        return
    _native.momentum_packed(
        codes.data_ptr(),
        scales.data_ptr(),
        gradients.data_ptr(),
        [factor, numbers.momentum, 1.0 - numbers.momentum],
        codes.numel(),
        _num_threads(),
    )


def move_weights(
    weights: Tensor, low_bits: Tensor, steps: Tensor, numbers: MuonNumbers, *, position: int
) -> None:
    """Subtract steps (bfloat16) from weights, with decay; nothing if the step is skipped."""
    if has_kernel(weights):
        move_on_gpu(weights, low_bits, steps, numbers, position=position)
        return
    _, goes, rate, kept = numbers.scalars.tolist()
    if not goes:
        return
    _native.move_packed(
        weights.data_ptr(),
        low_bits.data_ptr(),
        steps.data_ptr(),
        [rate, kept],
        numbers.cautious,
        numbers.seed,
        position & 0xFFFFFFFF,
        weights.numel(),
        _num_threads(),
    )


def _num_threads() -> int:
    return torch.get_num_threads()
