"""Steps of shared parts of tokens (sharedrows.py) on a GPU, in three kernels.

torch needs three gathers of rows and a dozen passes over all parts or tokens: 4.4 ms for GPT-2's
vocabulary and a width of 768 on an H200, where this takes 0.7. Here a part's gradient is summed,
updates its moments and becomes a step in registers, and a token's steps are summed and subtracted
at once.

A program computes some columns of one part or token. Programs that start together have the same
columns of neighbouring parts, so together they gather from a slice of the table, which fits the L2
cache: each row is gathered 15 times. A part of many tokens (the leading space: half of the
vocabulary) is first summed in stretches by separate programs. Each sum has a fixed order, so its
bits are the same every time and in every process.

In:      a table of tokens, its gradient, moments of parts, which tokens have which parts
Out:     new moments, new rows
Memory:  in a step, the steps of all parts, and one row for each stretch of those with many tokens
"""

# pyright: basic, reportUndefinedVariable=false, reportMissingImports=false
# ruff: noqa: N803, F821  (Triton's constants are capitals; its names are known inside kernels only)
# ruff: noqa: SIM102  (compile-time and run-time conditions are kept apart)

from __future__ import annotations

import functools
import importlib.util
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lowtide.quickclasses import dataclass
from lowtide.training.spelling import Spelling

__all__ = ["PartBlocks", "PartLists", "has_part_kernels", "list_on_gpu", "step_rows"]

_STRETCH = 128

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class PartBlocks:
    """The tile of a program: columns, and rows of a list at a time.

    Both are powers of two.
    """

    columns: int = 128
    rows: int = 8
    num_warps: int = 1


@dataclass(frozen=True)
class PartLists:
    """Which tokens have which parts, on the device; see Spelling for the first five."""

    parts: Tensor
    part_ends: Tensor
    tokens: Tensor
    token_ends: Tensor
    scales: Tensor
    begins: Tensor
    """Where in `tokens` each stretch begins; parts of few tokens have none."""
    ends: Tensor
    firsts: Tensor
    """The first stretch of each part, and the end of the last."""


def has_part_kernels(device: torch.device) -> bool:
    """True if the kernels can be used on a device."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def list_on_gpu(spelling: Spelling, device: torch.device, *, stretch: int = _STRETCH) -> PartLists:
    """Copy lists of parts and tokens to a device; lists longer than a stretch are split."""
    begins, ends, firsts = _cut_long_lists(spelling.token_ends, stretch)
    arrays = {
        "parts": spelling.parts,
        "part_ends": spelling.part_ends,
        "tokens": spelling.tokens,
        "token_ends": spelling.token_ends,
        "scales": spelling.scales,
        "begins": begins,
        "ends": ends,
        "firsts": firsts,
    }
    return PartLists(**{name: torch.from_numpy(a).to(device) for name, a in arrays.items()})


def step_rows(
    table: Tensor,
    gradient: Tensor,
    lists: PartLists,
    *,
    first: Tensor,
    second: Tensor,
    count: Tensor,
    rate: float,
    betas: tuple[float, float],
    eps: float,
    divisor: Tensor | None,
    skip: Tensor | None,
    blocks: PartBlocks | None = None,
) -> None:
    """Update a table, the moments of parts and the count of steps; nothing if `skip` is 1.

    The gradient is divided by `divisor`; if the step is skipped it may hold anything.
    """
    blocks = blocks or PartBlocks()
    gradient = gradient.contiguous()
    num_parts, width = first.shape
    assert table.is_contiguous() and first.is_contiguous() and second.is_contiguous()
    assert len(lists.firsts) == num_parts + 1 and len(lists.scales) == len(table)
    num_stretches, slices = len(lists.begins), -(-width // blocks.columns)
    sums = first.new_empty(num_stretches, width, dtype=torch.float32)
    steps = first.new_empty(num_parts, width, dtype=torch.float32)
    kernels = _kernels()
    options = {"COLUMNS": blocks.columns, "ROWS": blocks.rows, "num_warps": blocks.num_warps}
    if num_stretches:
        kernels["stretches"][(num_stretches, slices)](
            gradient, lists.tokens, lists.scales, lists.begins, lists.ends, sums, skip, width,
            **options,
        )  # fmt: skip
    kernels["parts"][(num_parts, slices)](
        gradient, lists.tokens, lists.scales, lists.token_ends, sums, lists.firsts,
        first, second, steps, count, divisor, skip,
        *(1.0 - beta for beta in betas), *map(_binary_logarithm, betas), eps, width,
        **options,
    )  # fmt: skip
    kernels["tokens"][(len(table), slices)](
        steps, lists.parts, lists.part_ends, lists.scales, table, count, skip, rate, width,
        **options,
    )  # fmt: skip


def _binary_logarithm(beta: float) -> float:
    return math.log2(beta) if beta > 0 else -math.inf


def _cut_long_lists(ends: Array, stretch: int) -> tuple[Array, Array, Array]:
    """Cut lists of more than a stretch; return where stretches begin and end, and each list's."""
    lengths = np.diff(ends)
    counts = np.where(lengths > stretch, -(-lengths // stretch), 0)
    firsts = np.concatenate([[0], np.cumsum(counts)])
    places = np.arange(firsts[-1]) - np.repeat(firsts[:-1], counts)
    begins = np.repeat(ends[:-1], counts) + stretch * places
    stops = np.minimum(begins + stretch, np.repeat(ends[1:], counts))
    return begins.astype(np.int32), stops.astype(np.int32), firsts.astype(np.int32)


@functools.cache
def _kernels() -> dict[str, Any]:
    """Make the kernels; Triton is imported only if there is a GPU."""
    import triton
    import triton.language as tl

    # Triton compiles the sources, and looks these names up in the module.
    globals().update(tl=tl, add_rows=triton.jit(_add_rows))
    kernels = {"stretches": _sum_stretches, "parts": _step_parts, "tokens": _move_tokens}
    return {name: triton.jit(kernel) for name, kernel in kernels.items()}


def _add_rows(
    rows, chosen, scales, begin, end, width, column, COLUMNS: tl.constexpr, ROWS: tl.constexpr
):  # type: ignore[name-defined]  # fmt: skip
    # Several loads of rows are in flight at a time. Beyond the end the last row is loaded again,
    # times 0, into one sum: masks, or several sums, would take so many registers that ptxas loads
    # only two or three rows at a time.
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in range(begin, end, ROWS):
        place = start + tl.arange(0, ROWS)
        row = tl.minimum(place, end - 1)
        if chosen is not None:
            row = tl.load(chosen + row)
        where = row.to(tl.int64)[:, None] * width + column[None, :]
        values = tl.load(rows + where, mask=(column < width)[None, :], other=0.0)
        scale = (place < end).to(tl.float32)
        if scales is not None:
            scale *= tl.load(scales + row)
        total += tl.sum(values.to(tl.float32) * scale[:, None], 0)
    return total


def _sum_stretches(
    gradient, tokens, scales, begins, ends, sums, skip, width,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # type: ignore[name-defined]  # fmt: skip
    stretch = tl.program_id(0)
    begin, end = tl.load(begins + stretch), tl.load(ends + stretch)
    if skip is not None:
        if tl.load(skip) != 0:
            return
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = add_rows(gradient, tokens, scales, begin, end, width, column, COLUMNS, ROWS)
    tl.store(sums + stretch.to(tl.int64) * width + column, total, mask=column < width)


def _step_parts(
    gradient, tokens, scales, token_ends, sums, firsts, first, second, steps, count, divisor, skip,
    share1, share2, logarithm1, logarithm2, eps, width, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # type: ignore[name-defined]  # fmt: skip
    part = tl.program_id(0)
    begin, end = tl.load(token_ends + part), tl.load(token_ends + part + 1)
    stretch, last = tl.load(firsts + part), tl.load(firsts + part + 1)
    if skip is not None:
        if tl.load(skip) != 0:
            return
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    where = part.to(tl.int64) * width + column
    # Loaded before the rows, to arrive meanwhile; evicted first, to leave the cache to gradients.
    mean = tl.load(first + where, mask=inside, other=0.0, eviction_policy="evict_first")
    square = tl.load(second + where, mask=inside, other=0.0, eviction_policy="evict_first")
    if stretch < last:
        total = add_rows(sums, None, None, stretch, last, width, column, COLUMNS, ROWS)
    else:
        total = add_rows(gradient, tokens, scales, begin, end, width, column, COLUMNS, ROWS)
    if divisor is not None:
        total = total / tl.load(divisor)
    number = tl.load(count) + 1
    corrected1 = tl.maximum(1 - tl.exp2(number * logarithm1), 1e-12)
    corrected2 = tl.maximum(1 - tl.exp2(number * logarithm2), 1e-12)
    mean = mean.to(tl.float32)
    square = square.to(tl.float32)
    mean += share1 * (total - mean)
    square += share2 * (total * total - square)
    step = mean / (corrected1 * (tl.sqrt(square / corrected2) + eps))
    tl.store(first + where, mean, mask=inside, eviction_policy="evict_first")
    tl.store(second + where, square, mask=inside, eviction_policy="evict_first")
    tl.store(steps + where, step, mask=inside, eviction_policy="evict_first")


def _move_tokens(
    steps, parts, part_ends, scales, table, count, skip, rate, width,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # type: ignore[name-defined]  # fmt: skip
    token = tl.program_id(0)
    begin, end = tl.load(part_ends + token), tl.load(part_ends + token + 1)
    size = rate * tl.load(scales + token)
    if skip is not None:
        if tl.load(skip) != 0:
            return
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    place = table + token.to(tl.int64) * width + column
    row = tl.load(place, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    total = add_rows(steps, parts, None, begin, end, width, column, COLUMNS, ROWS)
    tl.store(place, row - size * total, mask=inside, eviction_policy="evict_first")
    # Safe to overwrite: only the previous kernel reads it, no other program of this one.
    if token + tl.program_id(1) == 0:
        tl.store(count, tl.load(count) + 1)
