"""Optimizers: fused AdamW, 8-bit AdamW (bitsandbytes), Muon; steps guarded on the device.

In:      a torch module with gradients
Out:     new weights; steps whose gradients are not finite change nothing, without a device sync
Memory:  AdamW 8 bytes a parameter, 8-bit AdamW 2, Muon 4 (matrices) plus one stack of equal shapes
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lowtide.errors import UsageError
from lowtide.packages import import_package
from lowtide.training.adamw import TO_FIRST, AdamW
from lowtide.training.choosing import require_muons, require_same_moments
from lowtide.training.distributed import is_divided, shard_like
from lowtide.training.muon import Muon, matrix_splits
from lowtide.training.sharedrows import SharedRows

__all__ = ["LossScale", "OptimizerSet", "build_optimizers", "inner_matrices", "moment_bytes"]

# bitsandbytes keeps smaller tensors in 32 bits: norms and biases, a thousandth of the model.
_SMALLEST_8BIT = 4096
_MOMENTS = "moments."
_TOKEN_TABLES = ("embedding.weight", "head.weight")  # of our networks: a row for each token


class OptimizerSet:
    """The optimizers of one model, stepped, saved and loaded together."""

    def __init__(
        self,
        optimizers: list[torch.optim.Optimizer],
        *,
        model: nn.Module | None = None,
        decay_power: float = 1.0,
    ) -> None:
        self.optimizers, self._decay_power = optimizers, decay_power
        named = {} if model is None else {id(p): name for name, p in model.named_parameters()}
        parameters = [p for optimizer in optimizers for p in _parameters(optimizer)]
        self._names = {
            id(p): named.get(id(p), f"parameter_{number}") for number, p in enumerate(parameters)
        }
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group.setdefault("peak_lr", group["lr"])
                group.setdefault("peak_decay", group.get("weight_decay", 0.0))

    def set_factor(self, factor: float) -> None:
        """Set every learning rate to this share of its peak.

        A step's decay is rate times decay, and proportional to the share's power `decay_power`.
        """
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * factor
                if self._decay_power != 1 and factor > 0:
                    group["weight_decay"] = group["peak_decay"] * factor ** (self._decay_power - 1)

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

    def step(self, *, divisor: Tensor | None = None, skip: Tensor | None = None) -> None:
        """Update with gradients divided by `divisor`; do nothing where `skip` is 1.

        Without them gradients are used unchanged.

        torch's fused kernels and our Muon take both as tensors, as for float16 scaling, so clipping
        needs no pass over the gradients and a skipped step no sync; other optimizers check on the
        host.
        """
        for optimizer in self.optimizers:
            if divisor is None or skip is None:
                optimizer.step()
            elif getattr(optimizer, "_step_supports_amp_scaling", False):
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
                # All parameters share one quantization map of 8-bit states; a file stores it for
                # each.
                place = 0 if is_divided(value) else value.data_ptr()
                is_shared = place != 0 and place in seen
                seen.add(place)
                found[f"{_MOMENTS}{name}.{key}"] = value.clone() if is_shared else value
        return found

    def numbers(self) -> list[dict[str, Any]]:
        """The parts of the states that are not tensors, and each optimizer's kind, for JSON."""
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
        """Restore a state, parameter by parameter; rates, decay and betas are not restored.

        Tensors go to the parameters' devices, sharded like them.
        """
        kinds = [type(optimizer).__name__ for optimizer in self.optimizers]
        require_same_moments([row["kind"] for row in numbers], kinds)
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
        """Restore a state of torch's old format, in which parameters are numbered."""
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
        """Return the bytes that moments take."""
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
    """Shard a moment like its parameter; a copy, because the loaded tensor is a mapped file."""
    return shard_like(value.clone(), parameter) if isinstance(value, Tensor) else value


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


def build_optimizers(
    model: nn.Module,
    *,
    name: str,
    learning_rate: float,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.95),
    use_8bit: bool = False,
    momentum: float = 0.95,
    cautious_decay: bool = False,
    embedding_rate: float = 1.0,
    embedding_decay: float | None = None,
    decays_to_first: bool = False,
    decay_power: float = 1.0,
    shared: SharedRows | None = None,
    inner: Iterable[nn.Parameter] | None = None,
) -> OptimizerSet:
    """Make the optimizers for a torch module: matrices decay, gains and biases do not.

    With `muon`, matrices inside the blocks go to Muon, everything else to AdamW. The learning rate
    of embeddings and of the output matrix is `embedding_rate` times that of the others; with
    `shared` their rows also take shared steps (sharedrows.py). With `decays_to_first` the rows of
    the embedding decay towards their initial values, not to zero; `decay_power` is OptimizerSet's.
    `inner` are the inner matrices; by default those of `model.blocks`, or, in a module without
    blocks, those of every nn.Linear but the last.
    """
    if name not in ("adamw", "muon"):
        raise UsageError(f"optimizer {name!r} is not adamw or muon")
    require_muons(name, cautious_decay=cautious_decay)
    splits = matrix_splits(model)
    inside = {id(p) for p in (inner_matrices(model) if inner is None else inner) if p.ndim == 2}
    parameters = [p for p in model.parameters() if p.requires_grad]
    _require_trainable(parameters)
    matrices = [p for p in parameters if id(p) in inside] if name == "muon" else []
    if name == "muon" and not matrices:
        raise UsageError(
            "muon trains matrices between embedding and output, and this module has none: no "
            "trained nn.Linear besides its output",
            next_step="take adamw, or name them: build_optimizers(module, inner=[…])",
        )
    rest = [p for p in parameters if name != "muon" or id(p) not in inside]
    groups = [
        *_decayed_groups(
            [p for p in rest if p.ndim >= 2],
            inside,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            embedding_rate=embedding_rate,
            embedding_decay=weight_decay if embedding_decay is None else embedding_decay,
            to_first=_named(model, _TOKEN_TABLES[:1]) if decays_to_first else [],
        ),
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    adamw: torch.optim.Optimizer | None = None
    if not groups:  # only matrices of Muon are trained
        pass
    elif use_8bit:
        adamw = _adamw_8bit(groups, learning_rate, betas)
    else:
        tables = {} if shared is None else {id(p): shared for p in _named(model, _TOKEN_TABLES)}
        adamw = AdamW(groups, lr=learning_rate, betas=betas, shared=tables)
    optimizers: list[torch.optim.Optimizer] = [adamw] if adamw is not None else []
    if matrices:
        muon = Muon(
            matrices,
            lr=learning_rate,
            momentum=momentum,
            weight_decay=weight_decay,
            splits=[splits.get(id(p), (p.shape[0],)) for p in matrices],
            cautious=cautious_decay,
        )
        optimizers.append(muon)
    return OptimizerSet(optimizers, model=model, decay_power=decay_power)


def _require_trainable(parameters: list[nn.Parameter]) -> None:
    """Refuse models that nothing can be trained of, or only to numbers without meaning."""
    if not parameters:
        raise UsageError(
            "no parameter of the model is trained: requires_grad is False for all of them",
            next_step="call requires_grad_() of the parameters that are to learn",
        )
    if any(parameter.dtype == torch.float16 for parameter in parameters):
        raise UsageError(  # second moments and their eps are 0 there, and steps as large as can be
            "parameters are in float16, which holds no second moments: the loss would rise",
            next_step="keep them in float32 (model.float()), and compute in float16 with "
            "use_mixed_precision=True, precision='fp16'",
        )


def inner_matrices(model: nn.Module) -> list[Tensor]:
    """The trained matrices between embedding and output, as far as they can be guessed."""
    blocks = getattr(model, "blocks", None)
    if isinstance(blocks, nn.Module):
        found: list[Tensor] = list(blocks.parameters())
    else:
        tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
        found = [weight for weight in linear[:-1] if id(weight) not in tables]
    return [parameter for parameter in found if parameter.ndim == 2 and parameter.requires_grad]


def moment_bytes(model: nn.Module, *, name: str, use_8bit: bool) -> int:
    """The bytes of moments of the optimizers that build_optimizers makes."""
    one_moment = {id(p) for p in inner_matrices(model)} if name == "muon" else set[int]()
    total = 0
    for parameter in model.parameters():
        count, size = parameter.numel(), parameter.element_size()
        if not parameter.requires_grad:
            continue
        if id(parameter) in one_moment:
            total += count * size
        elif use_8bit and count >= _SMALLEST_8BIT:
            total += 2 * count
        else:
            total += 2 * count * size
    return total


def _decayed_groups(
    matrices: list[nn.Parameter],
    inner: set[int],
    *,
    learning_rate: float,
    weight_decay: float,
    embedding_rate: float,
    embedding_decay: float,
    to_first: list[nn.Parameter],
) -> list[dict[str, Any]]:
    """AdamW's matrices: one group, or more if embeddings have another rate or decay."""
    if embedding_rate == 1 and embedding_decay == weight_decay and not to_first:
        return [{"params": matrices, "weight_decay": weight_decay}]
    apart = inner | {id(p) for p in to_first}
    own = {"weight_decay": embedding_decay, "lr": learning_rate * embedding_rate}
    return [
        {"params": to_first, **own, TO_FIRST: True},
        {"params": [p for p in matrices if id(p) not in apart], **own},
        {"params": [p for p in matrices if id(p) in inner], "weight_decay": weight_decay},
    ]


def _named(model: nn.Module, names: tuple[str, ...]) -> list[nn.Parameter]:
    return [parameter for name, parameter in model.named_parameters() if name in names]


def _adamw_8bit(groups: list[dict[str, Any]], lr: float, betas: tuple[float, float]) -> Any:
    # On some processors it warns, while it is imported, of missing kernels for 4 bits.
    log = logging.getLogger("bitsandbytes")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        bitsandbytes = import_package("bitsandbytes", "--use-8bit-optimizer")
    finally:
        log.setLevel(level)
    return bitsandbytes.optim.AdamW8bit(groups, lr=lr, betas=betas, min_8bit_size=_SMALLEST_8BIT)


class LossScale:
    """The loss scale that keeps float16 gradients from underflow; always 1 if not needed.

    Halved after a step whose gradients overflowed, doubled after `growth_interval` good ones; kept
    on the device, so that nothing waits for it.
    """

    growth_interval = 2000

    def __init__(self, device: torch.device, *, enabled: bool, initial: float = 65536.0) -> None:
        self.enabled = enabled
        initial = initial if enabled else 1.0
        self.value = torch.full((), initial, dtype=torch.float32, device=device)
        self.good_steps = torch.zeros((), dtype=torch.float32, device=device)

    def update(self, skip: Tensor) -> None:
        """Adapt the scale after a step, skipped or not."""
        if not self.enabled:
            return
        bad = skip.bool()
        good_steps = torch.where(bad, 0.0, self.good_steps + 1)
        grown = good_steps >= self.growth_interval
        factor = torch.where(bad, 0.5, torch.where(grown, 2.0, 1.0))
        self.value.mul_(factor)
        self.good_steps.copy_(torch.where(grown, 0.0, good_steps))

    def state_dict(self) -> dict[str, float]:
        """Return the scale and the count of good steps."""
        return {"value": self.value.item(), "good_steps": self.good_steps.item()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the scale and the count."""
        self.value.fill_(state["value"])
        self.good_steps.fill_(state["good_steps"])
