"""Muon: orthogonalized momentum with normalized rows (NorMuon).

In:      gradients of matrices, some of which are several matrices stacked by rows
Out:     new weights; a skipped step changes nothing, without a wait for the device
Memory:  4 bytes a parameter, 4 a row, and one stack of matrices of equal shape at a time

The update of a matrix is its Nesterov momentum with all singular values brought near 1 (Jordan,
2024), by the polynomials of Polar Express (Amsel et al., 2025). Rows of the result still differ
in norm, so each is divided by the root of a running mean of its squares, and the matrix rescaled
to its norm before (NorMuon, Li et al., 2025). Queries and keys are orthogonalized head by head:
heads are independent, and one matrix over all of them would couple them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lowtide.model.blocks import Attention, SwiGLU
from lowtide.model.products import has_quick_products, multiply
from lowtide.quickclasses import dataclass
from lowtide.training.adamw import EagerOptimizer
from lowtide.training.distributed import cut_like, is_divided
from lowtide.training.muonkernels import has_muon_kernels, subtract_updates, write_updates
from lowtide.training.muonnumbers import NORM_MARGIN, POLAR_EXPRESS, ROW_MEMORY, STACK_BYTES

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["Muon", "even_rows", "matrix_splits", "orthogonalize"]

_torch: Any = torch  # the operations on lists of tensors have names of private functions


def matrix_splits(model: nn.Module) -> dict[int, tuple[int, ...]]:
    """The rows of each matrix in every parameter that holds several, by the parameter's id."""
    splits: dict[int, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, Attention):
            queries, keys, values = module.sizes
            heads = (queries + keys) // module.head_dim
            splits[id(module.query_key_value.weight)] = (*[module.head_dim] * heads, values)
        elif isinstance(module, SwiGLU):
            rows = module.gate_up.out_features // 2
            splits[id(module.gate_up.weight)] = (rows, rows)
    return splits


class Muon(EagerOptimizer):
    """The Muon optimizer with normalized rows, for matrices; equal shapes are batched.

    Updates are scaled by 0.2 * sqrt(larger side), which gives them the size of AdamW's, so that one
    learning rate suits both (Liu et al., 2025). With `cautious` only weights that the update makes
    smaller decay (Chen et al., 2025).
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        splits: list[tuple[int, ...]],
        cautious: bool = False,
        stack_bytes: int = STACK_BYTES,
    ) -> None:
        self._stack_bytes = stack_bytes
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(parameters, {**defaults, "cautious": cautious})
        self._splits = {id(p): rows for p, rows in zip(parameters, splits, strict=True)}
        self._step_supports_amp_scaling = True

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every matrix that has a gradient."""
        divisor: Tensor | None = getattr(self, "grad_scale", None)
        skip: Tensor | None = getattr(self, "found_inf", None)
        keep = 1.0 if skip is None else 1.0 - skip
        if skip is not None and skip.is_cpu:
            if skip.item():
                return
            keep, skip = 1.0, None  # no checks needed, and no wait for a device
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            by_kernels = not is_divided(parameters[0]) and has_muon_kernels(parameters)
            updates = (
                {} if by_kernels else self._momentum(parameters, group["momentum"], divisor, skip)
            )
            stacks: dict[tuple[int, int], list[_Part]] = {}
            for parameter in parameters:
                for part in self._parts(parameter):
                    stacks.setdefault((part.num_rows, parameter.shape[1]), []).append(part)
            for shape, parts in stacks.items():
                limit = max(1, self._stack_bytes // (4 * shape[0] * shape[1]))
                for first in range(0, len(parts), limit):
                    stacked = parts[first : first + limit]
                    if by_kernels:
                        self._apply_by_kernels(group, shape, _runs(stacked), divisor, skip)
                    else:
                        _apply(group, stacked, updates, keep)

    def _momentum(
        self,
        parameters: list[nn.Parameter],
        momentum: float,
        divisor: Tensor | None,
        skip: Tensor | None,
    ) -> dict[int, Tensor]:
        """Update the momenta; return the Nesterov updates by id, gathered if sharded."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        buffers = [self._momentum_of(parameter) for parameter in parameters]
        updates: list[Tensor] = _torch._foreach_div(gradients, 1.0 if divisor is None else divisor)
        if skip is not None:
            # A gradient that is not finite is replaced by the momentum, which then does not change.
            bad = skip.bool()
            for update, buffer in zip(updates, buffers, strict=True):
                update.copy_(torch.where(bad, buffer, update))
        _torch._foreach_lerp_(buffers, updates, 1 - momentum)
        _torch._foreach_lerp_(updates, buffers, momentum)
        whole = [u.full_tensor() if is_divided(u) else u for u in updates]
        return {id(p): update for p, update in zip(parameters, whole, strict=True)}

    def _momentum_of(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        return state["momentum"]

    def _parts(self, parameter: nn.Parameter) -> list[_Part]:
        """The matrices of a parameter; the mean squares of its rows are whole in every process."""
        state = self.state[parameter]
        if "rows" not in state:
            state["rows"] = torch.zeros(
                (parameter.shape[0], 1), dtype=parameter.dtype, device=parameter.device
            )
        ends = itertools.accumulate(self._splits[id(parameter)], initial=0)
        between = itertools.pairwise(ends)
        return [_Part(parameter, start, end, state["rows"]) for start, end in between]

    def _apply_by_kernels(
        self,
        group: dict[str, Any],
        shape: tuple[int, int],
        runs: list[_Part],
        divisor: Tensor | None,
        skip: Tensor | None,
    ) -> None:
        """The whole step of matrices of equal shape, their momenta included, in two passes."""
        first = runs[0].parameter
        divisor = _number(1.0, first) if divisor is None else divisor
        skip = _number(0.0, first) if skip is None else skip
        stack = first.new_empty((sum(r.num_rows for r in runs), shape[1]), dtype=_dtype(first))
        pieces = stack.split([run.num_rows for run in runs])
        for run, piece in zip(runs, pieces, strict=True):
            assert run.parameter.grad is not None
            write_updates(
                run.of(run.parameter.grad).contiguous(),
                run.of(self._momentum_of(run.parameter)),
                piece,
                beta=group["momentum"],
                divisor=divisor,
                skip=skip,
            )
        updates = orthogonalize(stack.view(-1, *shape))
        factors = even_rows(updates, [run.of(run.rows) for run in runs], 1 - skip)
        factors.mul_((1 - skip) * (group["lr"] * _size(shape)))
        sizes = [run.num_rows for run in runs]
        steps, scales = (t.reshape(len(stack), -1).split(sizes) for t in (updates, factors))
        for run, step, scale in zip(runs, steps, scales, strict=True):
            subtract_updates(
                run.of(run.parameter.detach()),
                step,
                scale,
                decay=group["lr"] * group["weight_decay"],
                skip=skip,
                cautious=group["cautious"],
            )


@dataclass(frozen=True)
class _Part:
    """One matrix of a (perhaps fused) parameter, or several that follow each other."""

    parameter: nn.Parameter
    start: int
    end: int
    rows: Tensor
    """Running means of the squares of each row of the orthogonal update, of the parameter."""

    @property
    def num_rows(self) -> int:
        return self.end - self.start

    def of(self, tensor: Tensor) -> Tensor:
        """The same rows of a tensor as long as the parameter."""
        return tensor[self.start : self.end]


def _runs(parts: list[_Part]) -> list[_Part]:
    """Merge adjacent parts of one parameter, to process them together."""
    runs: list[_Part] = []
    for part in parts:
        if runs and runs[-1].parameter is part.parameter and runs[-1].end == part.start:
            runs[-1] = replace(runs[-1], end=part.end)
        else:
            runs.append(part)
    return runs


def _size(shape: tuple[int, ...]) -> float:
    """The factor that brings an orthogonal update to the size of AdamW's."""
    return 0.2 * max(shape) ** 0.5


def _apply(
    group: dict[str, Any], parts: list[_Part], whole: dict[int, Tensor], keep: Tensor | float
) -> None:
    """Orthogonalize the updates of equal shapes as one batch, and subtract them."""
    updates = orthogonalize(torch.stack([part.of(whole[id(part.parameter)]) for part in parts]))
    factors = even_rows(updates, [part.of(part.rows) for part in parts], keep)
    size = group["lr"] * _size(updates.shape[1:])
    steps = updates.float().mul_(factors.mul_(size * keep)).unbind()
    decay = group["lr"] * group["weight_decay"] * keep
    cautious: bool = group["cautious"]
    if is_divided(parts[0].parameter):
        for part, step in zip(parts, steps, strict=True):
            where = slice(part.start, part.end)
            _apply_sharded(part.parameter, where, step, decay, cautious=cautious)  # pyright: ignore[reportArgumentType]
        return
    targets = [part.of(part.parameter) for part in parts]
    if cautious:
        for target, step in zip(targets, steps, strict=True):
            target.mul_(1 - decay * (target * step >= 0))
    else:
        _torch._foreach_mul_(targets, 1 - decay)
    _torch._foreach_sub_(targets, steps)


def even_rows(updates: Tensor, rows: list[Tensor], keep: Tensor | float) -> Tensor:
    """The factor of each row [S, R, 1] that normalizes rows and keeps each matrix's norm.

    In the first steps the running mean is too small, but by the same factor for the whole matrix,
    which rescaling to the norm cancels, so no bias correction is needed.
    """
    squares = torch.linalg.vector_norm(updates, dim=-1, keepdim=True, dtype=torch.float32)
    squares = squares.square_().div_(updates.shape[-1])
    means = torch.cat(rows).float().view_as(squares)  # rows have the parameters' type
    means = means.lerp_(squares, (1 - ROW_MEMORY) * squares.new_ones(()) * keep)
    _torch._foreach_copy_(rows, list(means.view(-1, 1).split([len(row) for row in rows])))
    factors = means.clamp_(min=1e-20).rsqrt_()
    after = (squares * factors.square()).sum(dim=-2, keepdim=True)
    norm = squares.sum(dim=-2, keepdim=True) / after.clamp(min=1e-20)
    return factors.mul_(norm.sqrt_())


def _apply_sharded(
    parameter: DTensor, where: slice, step: Tensor, decay: Tensor | float, *, cautious: bool
) -> None:
    """Subtract from the rows `where` of a sharded matrix; every rank keeps its own part."""
    whole = torch.zeros(parameter.shape, dtype=step.dtype, device=step.device)
    whole[where] = step
    decays = torch.zeros(parameter.shape[0], 1, dtype=step.dtype, device=step.device)
    decays[where] = decay
    local = parameter.to_local()
    own_step, own_decays = (cut_like(value, parameter).to_local() for value in (whole, decays))
    if cautious:
        own_decays = own_decays * (local * own_step >= 0)
    local.mul_(1 - own_decays)
    local.sub_(own_step)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Bring the singular values of each matrix [S, R, C] near 1 (Polar Express, five quintics)."""
    short, long = sorted(matrices.shape[1:])
    if not matrices.is_cuda and 2 * long >= 3 * short:
        return _orthogonalize_squares(matrices.float())
    x = matrices.to(_dtype(matrices))
    x = x / _upper_norm(x)
    tall = x.shape[-2] >= x.shape[-1]
    for a, b, c in POLAR_EXPRESS:
        square = multiply(x.mT, x) if tall else multiply(x, x.mT)
        polynomial = _plus_product(square, square, square, beta=b, alpha=c)
        x = _plus_product(x, *((x, polynomial) if tall else (polynomial, x)), beta=a)
    return x


def _plus_product(
    x: Tensor, left: Tensor, right: Tensor, *, beta: float, alpha: float = 1.0
) -> Tensor:
    """Return beta * x + alpha * left @ right of each matrix."""
    if has_quick_products(x, left, right):
        return multiply(left, right).mul_(alpha).add_(x, alpha=beta)
    return torch.baddbmm(x, left, right, beta=beta, alpha=alpha)


def _number(value: float, like: Tensor) -> Tensor:
    return torch.full((), value, dtype=torch.float32, device=like.device)


def _dtype(matrices: Tensor) -> torch.dtype:
    """bfloat16 on GPUs, where it is fast and accurate enough; most CPUs only emulate it."""
    return torch.bfloat16 if matrices.is_cuda else torch.float32


def _upper_norm(x: Tensor) -> Tensor:
    return (x.norm(dim=(-2, -1), keepdim=True) * NORM_MARGIN).clamp(min=1e-7)


def _orthogonalize_squares(x: Tensor) -> Tensor:
    """The same iteration on X X^T, which is smaller if X is not square; one product at the end.

    All factors are polynomials of one symmetric matrix and commute. For sides of 1 to 2.7 it takes
    three fifths of the time; in float32, since squaring costs half the digits.
    """
    tall = x.shape[-2] > x.shape[-1]
    size = _upper_norm(x)
    square = (multiply(x.mT, x) if tall else multiply(x, x.mT)).div_(size**2)
    product = None
    for number, (a, b, c) in enumerate(POLAR_EXPRESS, 1):
        factor = _plus_product(square, square, square, beta=b, alpha=c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        product = factor if product is None else multiply(factor, product)
        if number < len(POLAR_EXPRESS):
            square = multiply(factor, multiply(factor, square))
    assert product is not None
    product = product / size
    return multiply(x, product) if tall else multiply(product, x)
