"""Optimizers: fused AdamW, 8-bit AdamW (bitsandbytes), Muon; steps guarded on the device.

In:      a GPT with gradients
Out:     new weights; steps whose gradients are not finite change nothing, without asking the host
Memory:  AdamW 8 bytes a parameter, 8-bit AdamW 2, Muon 4 (matrices) plus one stack of equal shapes
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from lowtide.errors import UsageError
from lowtide.model.gpt import GPT, Attention, SwiGLU
from lowtide.training.distributed import shard_like

__all__ = ["LossScale", "Muon", "OptimizerSet", "build_optimizers", "orthogonalize"]

_torch: Any = torch  # operations on lists of tensors are private by their names only
_STACK_BYTES = 256 << 20
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
# bitsandbytes keeps smaller tensors in 32 bits: norms and biases, a thousandth of the model.
_SMALLEST_8BIT = 4096
_MOMENTS = "moments."


class OptimizerSet:
    """The optimizers of one model, stepped, saved and loaded together."""

    def __init__(
        self, optimizers: list[torch.optim.Optimizer], *, model: nn.Module | None = None
    ) -> None:
        self.optimizers = optimizers
        named = {} if model is None else {id(p): name for name, p in model.named_parameters()}
        parameters = [p for optimizer in optimizers for p in _parameters(optimizer)]
        self._names = {
            id(p): named.get(id(p), f"parameter_{number}") for number, p in enumerate(parameters)
        }
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group.setdefault("peak_lr", group["lr"])

    def set_factor(self, factor: float) -> None:
        """Set every learning rate to this share of its peak."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * factor

    def set_momentum(self, momentum: float) -> None:
        """Set the momentum of Muon; AdamW's betas stay."""
        for optimizer in self.optimizers:
            if isinstance(optimizer, Muon):
                for group in optimizer.param_groups:
                    group["momentum"] = momentum

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def step(self, *, divisor: Tensor, skip: Tensor) -> None:
        """Update with gradients divided by `divisor`; do nothing where `skip` is 1.

        torch's fused kernels and our Muon take both as tensors, as they do for float16 scaling, so
        clipping costs no pass over the gradients and a bad step no wait; others ask on the host.
        """
        for optimizer in self.optimizers:
            if getattr(optimizer, "_step_supports_amp_scaling", False):
                optimizer.grad_scale = divisor  # pyright: ignore[reportAttributeAccessIssue]
                optimizer.found_inf = skip  # pyright: ignore[reportAttributeAccessIssue]
                optimizer.step()
                del optimizer.grad_scale, optimizer.found_inf  # pyright: ignore[reportAttributeAccessIssue]
            elif not bool(skip.item()):
                gradients = [p.grad for p in _parameters(optimizer) if p.grad is not None]
                for gradient in gradients:
                    gradient.div_(divisor)
                optimizer.step()

    def moments(self) -> dict[str, Tensor]:
        """The tensors of all optimizers' states, as `moments.PARAMETER.KEY`."""
        found: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, key, value in self._iter_state():
            if isinstance(value, Tensor):
                # Quantization maps of 8-bit states are one tensor for all parameters; a file of
                # tensors has each by itself.
                place = 0 if isinstance(value, DTensor) else value.data_ptr()
                is_shared = place != 0 and place in seen
                seen.add(place)
                found[f"{_MOMENTS}{name}.{key}"] = value.clone() if is_shared else value
        return found

    def numbers(self) -> list[dict[str, Any]]:
        """What of the states is no tensor, and the kind of each optimizer, for JSON."""
        rows: list[dict[str, Any]] = []
        for optimizer in self.optimizers:
            row: dict[str, Any] = {"kind": type(optimizer).__name__, "values": {}}
            rows.append(row)
            for name, key, value in self._iter_state(optimizer):
                if isinstance(value, Tensor):
                    continue
                if not isinstance(value, bool | int | float | str | None):
                    raise UsageError(
                        f"{row['kind']} keeps {key!r} as a {type(value).__name__}, which a "
                        "checkpoint cannot hold: tensors and numbers can be saved",
                        next_step="use another optimizer",
                    )
                row["values"].setdefault(name, {})[key] = value
        return rows

    def _iter_state(
        self, only: torch.optim.Optimizer | None = None
    ) -> Iterator[tuple[str, str, Any]]:
        for optimizer in self.optimizers if only is None else [only]:
            for parameter in _parameters(optimizer):
                for key, value in optimizer.state.get(parameter, {}).items():
                    yield self._names[id(parameter)], key, value

    def load(self, tensors: Mapping[str, Tensor], numbers: list[dict[str, Any]]) -> None:
        """Take a state back, parameter by parameter; rates, decay and betas stay as they are here.

        Tensors go to where the parameters are, divided as they are.
        """
        kinds = [type(optimizer).__name__ for optimizer in self.optimizers]
        saved = [row["kind"] for row in numbers]
        if kinds != saved:
            raise UsageError(
                f"the run has moments of {' and '.join(saved)}, these settings make "
                f"{' and '.join(kinds)}",
                next_step="give the optimizer the run began with, or start another run from its "
                "weights: --init-from-model",
            )
        keys: dict[str, list[str]] = {}
        for full in tensors:
            name, _, key = full.removeprefix(_MOMENTS).rpartition(".")
            keys.setdefault(name, []).append(key)
        for optimizer, row in zip(self.optimizers, numbers, strict=True):
            state: dict[int, dict[str, Any]] = {}
            for index, parameter in enumerate(_parameters(optimizer)):
                name = self._names[id(parameter)]
                found = {
                    key: _placed(tensors[f"{_MOMENTS}{name}.{key}"], parameter)
                    for key in keys.get(name, [])
                }
                found.update(row["values"].get(name, {}))
                if found:
                    state[index] = found
            self._load(optimizer, state)

    def load_old(self, states: list[dict[str, Any]]) -> None:
        """Take back what torch's own files held, where parameters are numbers."""
        for optimizer, saved in zip(self.optimizers, states, strict=True):
            self._load(
                optimizer,
                {
                    index: {
                        key: _placed(value, parameter)
                        for key, value in saved["state"][index].items()
                    }
                    for index, parameter in enumerate(_parameters(optimizer))
                    if index in saved["state"]
                },
            )

    def _load(self, optimizer: torch.optim.Optimizer, state: dict[int, dict[str, Any]]) -> None:
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})

    def state_bytes(self) -> int:
        """Give the bytes that moments take."""
        tensors = [
            value
            for optimizer in self.optimizers
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]
        # Quantization maps of 8-bit states are one tensor shared by all parameters.
        return sum({t.data_ptr(): t.numel() * t.element_size() for t in tensors}.values())


def _placed(value: Any, parameter: Tensor) -> Any:
    """Divide a moment as its parameter is; a copy, because what was loaded is a mapped file."""
    return shard_like(value.clone(), parameter) if isinstance(value, Tensor) else value


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


def build_optimizers(
    model: GPT,
    *,
    name: str,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.95),
    use_8bit: bool = False,
    momentum: float = 0.95,
) -> OptimizerSet:
    """Make the optimizers for a model: matrices decay, gains and biases do not.

    With `muon`, matrices inside the blocks go to Muon, everything else to AdamW.
    """
    splits = _matrix_splits(model)
    inner = {id(p) for p in model.blocks.parameters() if p.ndim == 2}
    parameters = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in parameters if id(p) in inner] if name == "muon" else []
    rest = [p for p in parameters if name != "muon" or id(p) not in inner]
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    adamw = _adamw_8bit if use_8bit else _adamw_fused
    optimizers: list[torch.optim.Optimizer] = [adamw(groups, learning_rate, betas)]
    if matrices:
        muon = Muon(
            matrices,
            lr=learning_rate,
            momentum=momentum,
            weight_decay=weight_decay,
            splits=[splits.get(id(p), (p.shape[0],)) for p in matrices],
        )
        optimizers.append(muon)
    return OptimizerSet(optimizers, model=model)


def _adamw_fused(groups: list[dict[str, Any]], lr: float, betas: tuple[float, float]) -> Any:
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=1e-8, fused=True)


def _adamw_8bit(groups: list[dict[str, Any]], lr: float, betas: tuple[float, float]) -> Any:
    try:
        bitsandbytes: Any = importlib.import_module("bitsandbytes")
    except ImportError:
        raise UsageError(
            "--use-8bit-optimizer needs the package bitsandbytes, which is not installed",
            next_step='pip install "lowtide[8bit]"',
        ) from None
    return bitsandbytes.optim.AdamW8bit(groups, lr=lr, betas=betas, min_8bit_size=_SMALLEST_8BIT)


def _matrix_splits(model: GPT) -> dict[int, tuple[int, ...]]:
    """Give for each fused parameter the rows of the matrices in it: Muon treats each by itself."""
    splits: dict[int, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, Attention):
            splits[id(module.query_key_value.weight)] = module.sizes
        elif isinstance(module, SwiGLU):
            rows = module.gate_up.out_features // 2
            splits[id(module.gate_up.weight)] = (rows, rows)
    return splits


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal (Jordan, 2024), for matrices; equal shapes are done in one batch.

    Updates are scaled by 0.2 * sqrt(larger side), which gives them the size of AdamW's, so that one
    learning rate serves both (Liu et al., 2025). Equals torch.optim.Muon matrix by matrix.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        splits: list[tuple[int, ...]],
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(parameters, defaults)
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
            keep, skip = 1.0, None  # nothing to be careful about, without asking a device
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            updates = self._momentum(parameters, group["momentum"], divisor, skip)
            stacks: dict[tuple[int, ...], list[_Part]] = {}
            for parameter, update in zip(parameters, updates, strict=True):
                start = 0
                for rows in self._splits[id(parameter)]:
                    where = slice(start, start + rows)
                    part = _Part(parameter, where, update[where])
                    stacks.setdefault(tuple(part.update.shape), []).append(part)
                    start += rows
            del updates
            for shape, parts in stacks.items():
                limit = max(1, _STACK_BYTES // (4 * shape[0] * shape[1]))
                for first in range(0, len(parts), limit):
                    _apply(group, parts[first : first + limit], keep)

    def _momentum(
        self,
        parameters: list[nn.Parameter],
        momentum: float,
        divisor: Tensor | None,
        skip: Tensor | None,
    ) -> list[Tensor]:
        """Update the momenta; give the whole (never sharded) Nesterov updates."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if "momentum" not in self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(gradient)
        buffers: list[Tensor] = [self.state[parameter]["momentum"] for parameter in parameters]
        updates: list[Tensor] = _torch._foreach_div(gradients, 1.0 if divisor is None else divisor)
        if skip is not None:
            # A bad gradient is replaced by the momentum, which then stays as it is.
            bad = skip.bool()
            for update, buffer in zip(updates, buffers, strict=True):
                update.copy_(torch.where(bad, buffer, update))
        _torch._foreach_lerp_(buffers, updates, 1 - momentum)
        _torch._foreach_lerp_(updates, buffers, momentum)
        return [u.full_tensor() if isinstance(u, DTensor) else u for u in updates]


@dataclass(frozen=True)
class _Part:
    """One matrix of a (perhaps fused) parameter, and what its momentum asks for."""

    parameter: nn.Parameter
    where: slice
    update: Tensor


def _apply(group: dict[str, Any], parts: list[_Part], keep: Tensor | float) -> None:
    """Make the updates of equal shapes orthogonal, all at once, and subtract them."""
    updates = orthogonalize(torch.stack([part.update for part in parts]))
    size = 0.2 * max(updates.shape[1:]) ** 0.5
    steps = updates.float().mul_(group["lr"] * size * keep).unbind()
    decay = 1 - group["lr"] * group["weight_decay"] * keep
    if isinstance(parts[0].parameter, DTensor):
        for part, step in zip(parts, steps, strict=True):
            _apply_sharded(part.parameter, part.where, step, decay)  # pyright: ignore[reportArgumentType]
        return
    targets = [part.parameter[part.where] for part in parts]
    _torch._foreach_mul_(targets, decay)
    _torch._foreach_sub_(targets, steps)


def _apply_sharded(parameter: DTensor, where: slice, step: Tensor, decay: Tensor | float) -> None:
    """Subtract from the rows `where` of a sharded matrix; every rank keeps its own part."""
    whole = torch.zeros(parameter.shape, dtype=step.dtype, device=step.device)
    whole[where] = step
    factors = torch.ones(parameter.shape[0], 1, dtype=step.dtype, device=step.device)
    factors[where] = decay
    mesh, placements = parameter.device_mesh, parameter.placements
    copies = [Replicate()] * mesh.ndim
    local = parameter.to_local()
    local.mul_(DTensor.from_local(factors, mesh, copies).redistribute(mesh, placements).to_local())
    local.sub_(DTensor.from_local(whole, mesh, copies).redistribute(mesh, placements).to_local())


def orthogonalize(matrices: Tensor, *, iterations: int = 5) -> Tensor:
    """Bring the singular values of each matrix [S, R, C] near 1 (Newton-Schulz, quintic)."""
    short, long = sorted(matrices.shape[1:])
    if not matrices.is_cuda and 2 * long >= 3 * short:
        return _orthogonalize_squares(matrices.float(), iterations)
    a, b, c = _NEWTON_SCHULZ
    # bfloat16 is what matrix units are fast at and is enough here; CPUs mostly emulate it.
    dtype = torch.bfloat16 if matrices.is_cuda else torch.float32
    x = matrices.to(dtype)
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    tall = x.shape[-2] >= x.shape[-1]
    for _ in range(iterations):
        square = x.mT @ x if tall else x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, *((x, polynomial) if tall else (polynomial, x)), beta=a)
    return x


def _orthogonalize_squares(x: Tensor, iterations: int) -> Tensor:
    """Do the same on X X^T, which is smaller where one side is longer; multiply once at the end.

    All factors are polynomials of one symmetric matrix and commute. For sides of 1 to 2.7 it takes
    three fifths of the time; in float32, since squaring costs half the digits.
    """
    a, b, c = _NEWTON_SCHULZ
    tall = x.shape[-2] > x.shape[-1]
    size = x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    square = (x.mT @ x if tall else x @ x.mT) / size**2
    product = None
    for left in reversed(range(iterations)):
        factor = torch.baddbmm(square, square, square, beta=b, alpha=c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        product = factor if product is None else factor @ product
        if left:
            square = factor @ (factor @ square)
    assert product is not None
    product = product / size
    return x @ product if tall else product @ x


class LossScale:
    """The factor that keeps float16 gradients from vanishing; always 1 where not needed.

    Halved after a step whose gradients overflowed, doubled after `growth_interval` good ones; kept
    on the device, so that nothing waits for it.
    """

    growth_interval = 2000

    def __init__(self, device: torch.device, *, enabled: bool, initial: float = 65536.0) -> None:
        self.enabled = enabled
        self.value = torch.full((), initial if enabled else 1.0, device=device)
        self.good_steps = torch.zeros((), device=device)

    def update(self, skip: Tensor) -> None:
        """Take note of whether the step was skipped."""
        if not self.enabled:
            return
        bad = skip.bool()
        good_steps = torch.where(bad, 0.0, self.good_steps + 1)
        grown = good_steps >= self.growth_interval
        factor = torch.where(bad, 0.5, torch.where(grown, 2.0, 1.0))
        self.value.mul_(factor)
        self.good_steps.copy_(torch.where(grown, 0.0, good_steps))

    def state_dict(self) -> dict[str, float]:
        """Give the scale and the count of good steps."""
        return {"value": self.value.item(), "good_steps": self.good_steps.item()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take them back."""
        self.value.fill_(state["value"])
        self.good_steps.fill_(state["good_steps"])
