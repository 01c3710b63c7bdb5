"""Weights in fewer bits, as llama.cpp stores them: blocks of 32 numbers with one scale.

In:      float32 numbers, a multiple of 32 of them
Out:     the bytes of their blocks, as its own reference writes them
Memory:  about six times the numbers given

q8_0, 34 bytes a block: the scale in float16, 32 signed bytes. q4_0, 18 bytes: the scale, and two
numbers a byte, the first half of the block in the low bits. Numbers are divided by the scale before
it is rounded to float16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["BLOCK", "quantize_q4_0", "quantize_q8_0"]

BLOCK = 32


def quantize_q8_0(numbers: npt.NDArray[np.float32]) -> bytes:
    """Blocks of signed bytes, rounded half away from zero."""
    blocks = numbers.reshape(-1, BLOCK)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * _inverse(scale)
    size = np.abs(scaled)
    whole = np.floor(size)
    rounded = np.copysign(whole + np.floor(2 * (size - whole)), scaled).astype(np.int8)
    return _join(scale, rounded.view(np.uint8))


def quantize_q4_0(numbers: npt.NDArray[np.float32]) -> bytes:
    """Blocks of four bits; the number of largest magnitude becomes -8."""
    blocks = numbers.reshape(-1, BLOCK)
    place = np.abs(blocks).argmax(axis=1, keepdims=True)
    scale = np.take_along_axis(blocks, place, axis=1) / np.float32(-8)
    whole = np.trunc(blocks * _inverse(scale) + np.float32(8.5))
    halves = whole.clip(0, 15).astype(np.uint8).reshape(-1, 2, BLOCK // 2)
    return _join(scale, halves[:, 0] | (halves[:, 1] << np.uint8(4)))


def _inverse(scale: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


def _join(scale: npt.NDArray[np.float32], numbers: npt.NDArray[np.uint8]) -> bytes:
    with np.errstate(over="ignore"):
        head = scale.astype("<f2").view(np.uint8)
    return np.concatenate([head, numbers], axis=1).tobytes()
