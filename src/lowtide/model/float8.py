"""The output matrix in float8: logits, loss and both gradients of a chunk of tokens.

Hopper GPUs multiply 8-bit floats twice as fast as bfloat16, and the output matrix is a third of a
small network's arithmetic. Hidden states and weights are e4m3, scaled by their largest value; the
loss's gradient is e5m2, whose range covers the small probabilities of a vocabulary of a million.
Products read both operands along the summed dimension, so each is written in both layouts at once.

In:      hidden states [N, D], the output matrix [V, D], targets [N, 1]
Out:     the sum of the losses, the gradient of the hidden states and of the matrix, unscaled
Memory:  4 bytes a logit (2 of them the logits), 2 a weight
"""

# pyright: basic, reportUndefinedVariable=false, reportMissingImports=false
# ruff: noqa: N803, F821  (Triton's constants are capitals; its names are known inside kernels only)

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor

from lowtide.model.targets import plain_loss_and_error

__all__ = ["LARGEST_E4M3", "Float8Head", "fits_float8", "has_float8", "multiply"]

_torch: Any = torch  # its product of scaled numbers has the name of a private function
_E4M3, _E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LARGEST_E4M3 = 448.0
# Softmax minus one-hot is between -1 and 1, with targets further ahead 1.75; the largest e5m2 is
# 57344, which is 1.75 times this, the smallest 2 ** -16.
_ERROR_SCALE = 32768.0
# Columns a kernel reads at once for sums, rows whose targets one program corrects, and the sides of
# the tiles that are written twice.
_BLOCK, _TARGET_ROWS = 2048, 128
_TILE, _ERROR_TILE = {"ROWS": 64, "COLUMNS": 64}, {"ROWS": 64, "COLUMNS": 128}


def has_float8(device: torch.device) -> bool:
    """True if a device multiplies float8 (NVIDIA's since Ada and Hopper) and Triton is there."""
    if device.type != "cuda" or torch.version.hip or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)


def fits_float8(num_rows: int, weight: Tensor) -> bool:
    """True if all sides are multiples of 16, which float8 products need."""
    return all(side % 16 == 0 for side in (num_rows, *weight.shape))


class Float8Head:
    """A quantized output matrix, for all chunks of one micro-batch."""

    def __init__(self, weight: Tensor) -> None:
        self._weight, self._turned, self._scale = quantize(weight.detach())

    def chunk(
        self,
        rows: Tensor,
        wanted: Tensor,
        total: Tensor,
        *,
        cap: float = 0.0,
        ahead: tuple[float, ...] = (),
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of some rows and their gradient; add the matrix's to `total`."""
        quantized, turned, scale = quantize(rows)
        half = torch.bfloat16
        logits = multiply(quantized, self._weight, scale, self._scale, half, fast=True)
        loss, error, error_turned = loss_and_float8_error(logits, wanted, cap=cap, ahead=ahead)
        del logits
        unit = scale.new_full((), 1 / _ERROR_SCALE)
        # Long sums: accumulated in float32, unlike the forward product's.
        rows_gradient = multiply(error, self._turned, unit, self._scale, half, fast=False)
        total += multiply(error_turned, turned, unit, scale, half, fast=False)
        return loss, rows_gradient


def multiply(
    left: Tensor,
    right: Tensor,
    left_scale: Tensor,
    right_scale: Tensor,
    dtype: torch.dtype,
    *,
    fast: bool,
    bias: Tensor | None = None,
) -> Tensor:
    """Multiply [M, K] by the transpose of [N, K]: the summed dimension is contiguous in both."""
    bias = None if bias is None else bias.to(dtype)
    if not left.is_cuda:
        result = (left.float() @ right.float().t() * (left_scale * right_scale)).to(dtype)
        return result if bias is None else result + bias
    return _torch._scaled_mm(
        left,
        right.t(),
        scale_a=left_scale,
        scale_b=right_scale,
        bias=bias,
        out_dtype=dtype,
        use_fast_accum=fast,
    )


def quantize(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return e4m3 numbers of a matrix, their transpose, and the scale to dequantize them."""
    largest = torch.linalg.vector_norm(values, torch.inf, dtype=torch.float32)
    scale = largest.clamp(min=1e-12) / LARGEST_E4M3
    if not _uses_kernels(values):
        small = (values.float() / scale).clamp(-LARGEST_E4M3, LARGEST_E4M3).to(_E4M3)
        return small, small.t().contiguous(), scale
    # Triton 3.6 wrote a wrong transpose for float32 on an H200, a right one for bfloat16.
    values = values.to(torch.bfloat16).contiguous()
    num_rows, num_columns = values.shape
    small = torch.empty(num_rows, num_columns, dtype=_E4M3, device=values.device)
    turned = torch.empty(num_columns, num_rows, dtype=_E4M3, device=values.device)
    _kernels()["quantize"][_grid(num_rows, num_columns, _TILE)](
        values, scale, small, turned, num_rows, num_columns, LARGEST_E4M3, **_TILE
    )
    return small, turned, scale


def loss_and_float8_error(
    logits: Tensor, wanted: Tensor, *, cap: float = 0.0, ahead: tuple[float, ...] = ()
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum of the losses, and their gradient times 32768, in both layouts."""
    if not _uses_kernels(logits):
        loss, error = plain_loss_and_error(logits.float(), wanted, cap=cap, ahead=ahead)
        small = (error * _ERROR_SCALE).half().to(_E5M2)  # through float16, like the kernel
        return loss, small, small.t().contiguous()
    num_rows, vocab_size = logits.shape
    assert logits.is_contiguous()
    wanted = wanted.contiguous()
    losses = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    log_totals = torch.empty_like(losses)
    targets = {"TARGETS": wanted.shape[1], "CAPPED": cap > 0}
    _kernels()["sums"][(num_rows,)](
        logits, wanted, losses, log_totals, cap,
        VOCAB=vocab_size, BLOCK=_BLOCK, **targets, num_warps=2,
    )  # fmt: skip
    second, third = (*ahead, 0.0, 0.0)[:2]
    small = torch.empty(num_rows, vocab_size, dtype=_E5M2, device=logits.device)
    turned = torch.empty(vocab_size, num_rows, dtype=_E5M2, device=logits.device)
    _kernels()["errors"][_grid(num_rows, vocab_size, _ERROR_TILE)](
        logits, wanted, log_totals, small.view(torch.uint8), turned.view(torch.int32),
        num_rows, vocab_size, _ERROR_SCALE, second, third, cap,
        **_ERROR_TILE, **targets, num_warps=8,
    )  # fmt: skip
    _kernels()["targets"][(-(-num_rows // _TARGET_ROWS),)](
        logits, wanted, log_totals, small.view(torch.uint8), turned.view(torch.uint8),
        num_rows, vocab_size, _ERROR_SCALE, second, third, cap,
        ROWS=_TARGET_ROWS, **targets, num_warps=4,
    )  # fmt: skip
    return losses.sum(), small, turned


def _uses_kernels(tensor: Tensor) -> bool:
    return tensor.is_cuda


def _grid(num_rows: int, num_columns: int, tile: dict[str, int]) -> tuple[int, int]:
    return -(-num_columns // tile["COLUMNS"]), -(-num_rows // tile["ROWS"])


@functools.cache
def _kernels() -> dict[str, Any]:
    """Make the kernels; Triton is imported only if there is a GPU."""
    import triton
    import triton.language as tl

    # Triton compiles the sources, and looks this name up in the module.
    globals()["tl"] = tl
    kernels = {
        "quantize": _quantize_tiles,
        "sums": _sum_rows,
        "errors": _write_errors,
        "targets": _mend_targets,
    }
    return {name: triton.jit(kernel) for name, kernel in kernels.items()}


def _quantize_tiles(
    values, scale, small, turned, num_rows, num_columns, largest,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # type: ignore[name-defined]  # fmt: skip
    # The tile's corner in 64 bits, offsets inside it in 32.
    first_row, first_column = tl.program_id(1).to(tl.int64) * ROWS, tl.program_id(0) * COLUMNS
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside = (row < num_rows - first_row)[:, None] & (column < num_columns - first_column)[None, :]
    corner = first_row * num_columns + first_column
    where = row[:, None] * num_columns + column[None, :]
    numbers = tl.load(values + corner + where, mask=inside, other=0.0).to(tl.float32)
    numbers = tl.minimum(tl.maximum(numbers / tl.load(scale), -largest), largest)
    small_numbers = numbers.to(small.dtype.element_ty)
    tl.store(small + corner + where, small_numbers, mask=inside)
    corner = first_column.to(tl.int64) * num_rows + first_row
    across = column[:, None] * num_rows + row[None, :]
    tl.store(turned + corner + across, tl.trans(small_numbers), mask=tl.trans(inside))


def _sum_rows(
    logits, wanted, losses, log_totals, cap,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, TARGETS: tl.constexpr, CAPPED: tl.constexpr,
):  # type: ignore[name-defined]  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * VOCAB
    offsets = tl.arange(0, BLOCK)
    largest = -float("inf")
    total = 0.0
    for first in range(0, VOCAB, BLOCK):
        inside = first + offsets < VOCAB
        values = tl.load(start + first + offsets, mask=inside, other=-float("inf")).to(tl.float32)
        if CAPPED:  # cap * tanh(value / cap)
            values = tl.where(inside, cap * (2 * tl.sigmoid(values * (2 / cap)) - 1), values)
        new_largest = tl.maximum(largest, tl.max(values, 0))
        total = total * tl.exp(largest - new_largest) + tl.sum(tl.exp(values - new_largest), 0)
        largest = new_largest
    log_total = largest + tl.log(total)
    tl.store(log_totals + row, log_total)
    reached = tl.load(start + tl.load(wanted + row * TARGETS)).to(tl.float32)
    if CAPPED:
        reached = cap * (2 * tl.sigmoid(reached * (2 / cap)) - 1)
    tl.store(losses + row, log_total - reached)


def _write_errors(
    logits, wanted, log_totals, small, turned, num_rows, vocab_size, scale, second, third, cap,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TARGETS: tl.constexpr, CAPPED: tl.constexpr,
):  # type: ignore[name-defined]  # fmt: skip
    # Both results are bytes here: e5m2 is the upper half of a float16, rounded. Bytes of four rows
    # are transposed together as one word, which moves a quarter as many. Targets are ignored here,
    # since comparing was a third of the time: `_mend_targets` rewrites their numbers afterwards.
    first_row, first_column = tl.program_id(1).to(tl.int64) * ROWS, tl.program_id(0) * COLUMNS
    group, column = tl.arange(0, ROWS // 4), tl.arange(0, COLUMNS)
    corner = first_row * vocab_size + first_column
    known = column < vocab_size - first_column
    words = tl.zeros([ROWS // 4, COLUMNS], tl.int32)
    for part in tl.static_range(4):
        row = 4 * group + part
        there = row < num_rows - first_row
        inside = there[:, None] & known[None, :]
        where = row[:, None] * vocab_size + column[None, :]
        values = tl.load(logits + corner + where, mask=inside, other=-float("inf")).to(tl.float32)
        log_total = tl.load(log_totals + first_row + row, mask=there, other=0.0)
        if CAPPED:
            values = cap * (2 * tl.sigmoid(values * (2 / cap)) - 1)
        targets = wanted + (first_row + row) * TARGETS
        weight = tl.full([ROWS // 4], 1.0, tl.float32)
        if TARGETS > 1:
            weight += tl.where(tl.load(targets + 1, mask=there, other=-1) >= 0, second, 0.0)
        if TARGETS > 2:
            weight += tl.where(tl.load(targets + 2, mask=there, other=-1) >= 0, third, 0.0)
        error = tl.exp(values - log_total[:, None]) * (weight * scale)[:, None]
        if CAPPED:
            error *= 1 - (values / cap) * (values / cap)
        bits = error.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
        byte = tl.where(
            error == error, (bits + 127 + ((bits >> 8) & 1)) >> 8, 127
        )  # or not a number
        tl.store(small + corner + where, byte.to(tl.uint8), mask=inside)
        words |= byte << (8 * part)
    groups = num_rows // 4
    corner = first_column.to(tl.int64) * groups + first_row // 4
    across = column[:, None] * groups + group[None, :]
    inside = known[:, None] & (group < groups - first_row // 4)[None, :]
    tl.store(turned + corner + across, tl.trans(words), mask=inside)


def _mend_targets(
    logits, wanted, log_totals, small, turned, num_rows, vocab_size, scale, second, third, cap,
    ROWS: tl.constexpr, TARGETS: tl.constexpr, CAPPED: tl.constexpr,
):  # type: ignore[name-defined]  # fmt: skip
    # Rewrite the numbers at a row's targets, in both layouts. Two targets may be the same token:
    # the same byte is then written twice.
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < num_rows
    log_total = tl.load(log_totals + row, mask=there, other=0.0)
    targets = wanted + row * TARGETS
    one = tl.load(targets, mask=there, other=-1)
    two, three = tl.full([ROWS], -1, one.dtype), tl.full([ROWS], -1, one.dtype)
    if TARGETS > 1:
        two = tl.load(targets + 1, mask=there, other=-1)
    if TARGETS > 2:
        three = tl.load(targets + 2, mask=there, other=-1)
    weight = 1.0 + tl.where(two >= 0, second, 0.0) + tl.where(three >= 0, third, 0.0)
    for which in tl.static_range(TARGETS):
        column = one if which == 0 else (two if which == 1 else three)
        inside = there & (column >= 0)
        values = tl.load(logits + row * vocab_size + column, mask=inside, other=0.0).to(tl.float32)
        if CAPPED:
            values = cap * (2 * tl.sigmoid(values * (2 / cap)) - 1)
        error = tl.exp(values - log_total) * weight
        error -= tl.where(one == column, 1.0, 0.0)
        error -= tl.where(two == column, second, 0.0)
        error -= tl.where(three == column, third, 0.0)
        error *= scale
        if CAPPED:
            error *= 1 - (values / cap) * (values / cap)
        bits = error.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
        byte = tl.where(error == error, (bits + 127 + ((bits >> 8) & 1)) >> 8, 127).to(tl.uint8)
        tl.store(small + row * vocab_size + column, byte, mask=inside)
        tl.store(turned + column * num_rows + row, byte, mask=inside)
