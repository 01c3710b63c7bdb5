"""Muon's element-wise passes on a GPU as two kernels: one before the matrix products, one after.

torch runs some twenty kernels, some of them for each matrix. Here each number is read and written
once: a step of Muon for 124 million parameters takes 5.6 ms on an H200 instead of 10.8, matrix
products included (decision 0058).

In:      gradients, momenta and weights: whole contiguous rows
Out:     new momenta and the Nesterov update of each; new weights
Memory:  nothing
"""

# pyright: basic, reportUndefinedVariable=false, reportMissingImports=false
# ruff: noqa: N803, F821  (Triton's constants are capitals; its names are known inside kernels only)

from __future__ import annotations

import functools
import importlib.util
from typing import Any

from torch import Tensor

__all__ = ["has_muon_kernels", "subtract_updates", "write_updates"]

_BLOCK = 1024


def has_muon_kernels(parameters: list[Tensor]) -> bool:
    """True if the kernels support the matrices' device and memory layout."""
    on_gpu = all(p.is_cuda and p.is_contiguous() for p in parameters)
    return on_gpu and importlib.util.find_spec("triton") is not None


def write_updates(
    gradient: Tensor,
    momentum: Tensor,
    update: Tensor,
    *,
    beta: float,
    divisor: Tensor,
    skip: Tensor,
) -> None:
    """Update the momentum and write the Nesterov update; if `skip` is 1, keep the old momentum.

    The gradient is divided by `divisor`; if the step is skipped it may hold anything.
    """
    numbers = gradient.numel()
    assert gradient.is_contiguous() and momentum.is_contiguous() and update.is_contiguous()
    assert momentum.numel() == update.numel() == numbers
    _kernels()["write"][(-(-numbers // _BLOCK),)](
        gradient, momentum, update, divisor, skip, beta, numbers, BLOCK=_BLOCK
    )


def subtract_updates(
    weights: Tensor, update: Tensor, factors: Tensor, *, decay: float, skip: Tensor, cautious: bool
) -> None:
    """Decay weights [R, C] and subtract the update, each row of it times its factor.

    With `cautious` only weights that the update makes smaller decay.
    """
    rows, columns = weights.shape
    assert weights.is_contiguous() and update.is_contiguous() and factors.is_contiguous()
    assert update.numel() == weights.numel() and factors.numel() == rows
    _kernels()["subtract"][(rows,)](
        weights, update, factors, skip, decay, columns, CAUTIOUS=cautious, BLOCK=_BLOCK
    )


@functools.cache
def _kernels() -> dict[str, Any]:
    """Make the kernels; Triton is imported only if there is a GPU."""
    import triton
    import triton.language as tl

    # Triton compiles the sources, and looks this name up in the module.
    globals()["tl"] = tl
    return {"write": triton.jit(_write_updates), "subtract": triton.jit(_subtract_rows)}


def _write_updates(
    gradient, momentum, update, divisor, skip, beta, numbers, BLOCK: tl.constexpr
):  # type: ignore[name-defined]  # fmt: skip
    where = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = where < numbers
    old = tl.load(momentum + where, mask=inside, other=0.0).to(tl.float32)
    given = tl.load(gradient + where, mask=inside, other=0.0).to(tl.float32) / tl.load(divisor)
    given = tl.where(tl.load(skip) != 0, old, given)
    new = old + (1 - beta) * (given - old)
    tl.store(momentum + where, new, mask=inside)
    tl.store(update + where, given + beta * (new - given), mask=inside)


def _subtract_rows(
    weights, update, factors, skip, decay, columns, CAUTIOUS: tl.constexpr, BLOCK: tl.constexpr
):  # type: ignore[name-defined]  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    factor = tl.load(factors + row)
    share = decay * (1.0 - tl.load(skip))
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < columns
        where = row * columns + column
        step = tl.load(update + where, mask=inside, other=0.0).to(tl.float32) * factor
        weight = tl.load(weights + where, mask=inside, other=0.0).to(tl.float32)
        decayed = weight * (1.0 - share)
        if CAUTIOUS:
            decayed = tl.where(weight * step >= 0, decayed, weight)
        tl.store(weights + where, decayed - step, mask=inside)
