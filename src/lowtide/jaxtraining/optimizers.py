"""AdamW, 8-bit AdamW and Muon, equal to those of training/optimizers.py to rounding.

In:      a tree of weights, gradients and moments; a parameter's name decides its rule
Out:     new weights and moments; a step that is not finite changes nothing, without a device sync
Memory:  AdamW 8 bytes a parameter, 8-bit AdamW 2, Muon 4 (matrices)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from lowtide.jaxtraining import eightbit, muon
from lowtide.jaxtraining.trees import LAYERS, Tree, iter_named, stacked_shapes
from lowtide.model.config import GPTConfig
from lowtide.quickclasses import dataclass
from lowtide.training.choosing import require_same_moments

__all__ = ["Rules", "load_moments", "name_moments", "new_moments", "optimizer_rows", "update"]

Array = Any
Moments = dict[str, dict[str, Any]]

_EPS = 1e-8
_MOMENTS = "moments."
_STEPS = "steps"
_OUTER = ("embedding.weight", "positions.weight", "head.weight")
_NOT_DECAYED = ("norm.weight", ".bias")


@dataclass(frozen=True)
class Rules:
    """Compile-time constants of an update: everything but the learning rate and the momentum."""

    config: GPTConfig
    optimizer: str
    use_8bit: bool = False
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    cautious: bool = False
    embedding_rate: float = 1.0
    embedding_decay: float | None = None
    grad_clip: float = 1.0
    half: bool = False
    """Make updates orthogonal in bfloat16: on GPUs and TPUs."""

    def kind_of(self, name: str) -> str:
        """Return muon, 8bit or adamw."""
        if self.optimizer == "muon" and muon.is_muons(name):
            return "muon"
        shape = stacked_shapes(self.config)[name]
        one = shape[1:] if name.startswith(LAYERS) else shape
        return "8bit" if self.use_8bit and not eightbit.is_small(one) else "adamw"

    def decay_of(self, name: str) -> float:
        """Return the decay: matrices have one, gains and biases do not."""
        if name.endswith(_NOT_DECAYED):
            return 0.0
        outer = name in _OUTER and self.embedding_decay is not None
        return self.embedding_decay or 0.0 if outer else self.weight_decay

    def rate_of(self, name: str) -> float:
        """Return the learning rate as a multiple of the others'."""
        return self.embedding_rate if name in _OUTER else 1.0

    @property
    def keys(self) -> tuple[str, str]:
        """The names of AdamW's moments in files."""
        return ("state1", "state2") if self.use_8bit else ("exp_avg", "exp_avg_sq")


def new_moments(rules: Rules) -> Moments:
    """Return initial moments, as shapes and types by parameter and key."""
    moments: Moments = {_STEPS: {"": np.zeros((), np.float32)}}
    for name, shape in stacked_shapes(rules.config).items():
        kind = rules.kind_of(name)
        if kind == "muon":
            rows = (*shape[:-1], 1)
            moments[name] = {"momentum": (shape, np.float32), "rows": (rows, np.float32)}
        elif kind == "8bit":
            lead, one = (shape[:1], shape[1:]) if name.startswith(LAYERS) else ((), shape)
            blocks = (*lead, eightbit.num_blocks(int(np.prod(one))))
            moments[name] = {
                "state1": (shape, np.uint8),
                "state2": (shape, np.uint8),
                "absmax1": (blocks, np.float32),
                "absmax2": (blocks, np.float32),
            }
        else:
            moments[name] = dict.fromkeys(rules.keys, (shape, np.float32))
    return moments


def update(
    params: Tree,
    moments: Moments,
    gradients: Tree,
    loss: Array,
    learning_rate: Array,
    momentum: Array,
    *,
    rules: Rules,
) -> tuple[Tree, Moments, Array, Array]:
    """Return new weights and moments, the gradient's norm, and 1 if the step was skipped."""
    squares = [jnp.sum(jnp.square(gradient)) for gradient in gradients.values()]
    norm = jnp.sqrt(jnp.sum(jnp.stack(squares)))
    is_good = jnp.isfinite(norm) & jnp.isfinite(loss)
    divisor = jnp.maximum(norm / rules.grad_clip, 1.0) if rules.grad_clip > 0 else 1.0
    steps = moments[_STEPS][""] + is_good
    corrections = _corrections(steps, rules.betas)
    new_params: Tree = {}
    found: Moments = {_STEPS: {"": steps}}
    for name, weights in params.items():
        gradient = gradients[name]
        rate = learning_rate * rules.rate_of(name)
        kind = rules.kind_of(name)
        if kind == "muon":
            splits = muon.matrix_splits(name, weights.shape[1], rules.config)
            options = {
                "learning_rate": rate,
                "momentum": momentum,
                "weight_decay": rules.weight_decay,
                "cautious": rules.cautious,
                "half": rules.half,
                "divisor": divisor,
            }
            new_params[name], found[name] = muon.step_stack(
                weights, gradient, moments[name], splits=splits, is_good=is_good, options=options
            )
        elif kind == "8bit":
            new_params[name], found[name] = eightbit.step_stack(
                weights,
                gradient,
                moments[name],
                stacked=name.startswith(LAYERS),
                is_good=is_good,
                learning_rate=rate,
                weight_decay=rules.decay_of(name),
                betas=rules.betas,
                eps=_EPS,
                corrections=corrections,
                divisor=divisor,
            )
        else:
            new_params[name], found[name] = _adamw(
                weights, gradient, moments[name], rules, rules.decay_of(name), rate, is_good,
                corrections, divisor,
            )  # fmt: skip
    return new_params, found, norm, 1.0 - is_good.astype(jnp.float32)


def _corrections(steps: Array, betas: tuple[float, float]) -> tuple[Array, Array]:
    """Return 1 - beta1^t and the root of 1 - beta2^t, exact at the first steps too."""
    first, second = (
        -jnp.expm1(steps * np.float32(np.log(beta))) if beta else 1.0 for beta in betas
    )
    # If the first step is skipped, t is 0: nothing is divided by zero.
    return jnp.maximum(first, 1e-30), jnp.sqrt(jnp.maximum(second, 1e-30))


def _adamw(
    weights: Array,
    gradient: Array,
    state: dict[str, Array],
    rules: Rules,
    decay: float,
    rate: Array,
    is_good: Array,
    corrections: tuple[Array, Array],
    divisor: Array | float,
) -> tuple[Array, dict[str, Array]]:
    beta1, beta2 = rules.betas

    old = [state[key] for key in rules.keys]
    gradient = gradient * (1 / divisor)
    first = old[0] + (1 - beta1) * (gradient - old[0])
    second = beta2 * old[1] + (1 - beta2) * jnp.square(gradient)
    # Weights are computed from the stored moments: the compiler for CPUs then updates all three in
    # place. Computed from `first` and `second` above, they cost copies of both.
    first, second = (jnp.where(is_good, *pair) for pair in zip((first, second), old, strict=True))
    change = (rate / corrections[0]) * first / (jnp.sqrt(second) / corrections[1] + _EPS)
    new = weights * (1 - rate * decay) - change
    return jnp.where(is_good, new, weights), dict(zip(rules.keys, (first, second), strict=True))


# -- files ----------------------------------------------------------------------------------------


def optimizer_rows(rules: Rules, steps: int) -> list[dict[str, Any]]:
    """Return each optimizer's kind and the non-tensor parts of its state, as in torch's runs."""
    names = [name for name in stacked_shapes(rules.config) if rules.kind_of(name) != "muon"]
    row: dict[str, Any] = {"kind": "AdamW8bit" if rules.use_8bit else "AdamW", "values": {}}
    if rules.use_8bit and steps:
        row["values"] = {one: {"step": steps} for name in names for one in _layers(name, rules)}
    rows = [row]
    if rules.optimizer == "muon":
        rows.append({"kind": "Muon", "values": {}})
    return rows


def _layers(name: str, rules: Rules) -> Iterator[str]:
    if not name.startswith(LAYERS):
        yield name
        return
    for layer in range(rules.config.num_layers):
        yield name.replace("*", str(layer), 1)


def name_moments(moments: Moments, rules: Rules) -> dict[str, Any]:
    """Moments by their names in files, `moments.PARAMETER.KEY`; none before the first step."""
    steps = np.asarray(moments[_STEPS][""])
    if steps == 0:
        return {}
    tables = {"qmap1": eightbit.code_table(signed=True), "qmap2": eightbit.code_table(signed=False)}
    found: dict[str, Any] = {}
    for name, state in moments.items():
        if name == _STEPS:
            continue
        kind = rules.kind_of(name)
        for key, value in state.items():
            for one, array in iter_named({name: value}):
                found[f"{_MOMENTS}{one}.{key}"] = array
        for one in _layers(name, rules):
            if kind == "8bit":
                found.update({f"{_MOMENTS}{one}.{key}": table for key, table in tables.items()})
            elif kind == "adamw" and not rules.use_8bit:
                found[f"{_MOMENTS}{one}.step"] = steps
    return found


def load_moments(tensors: Mapping[str, Any], rows: list[dict[str, Any]], rules: Rules) -> Moments:
    """Read moments of a checkpoint, written by either backend, as arrays of the tree."""
    wanted = [row["kind"] for row in optimizer_rows(rules, 0)]
    require_same_moments([row["kind"] for row in rows], wanted)
    moments: Moments = {}
    for name, state in new_moments(rules).items():
        if name == _STEPS:
            continue
        moments[name] = {key: _gather(tensors, name, key, form) for key, form in state.items()}
    steps = _saved_steps(tensors, rows)
    moments[_STEPS] = {"": np.array(steps, np.float32)}
    return moments


def _gather(
    tensors: Mapping[str, Any], name: str, key: str, form: tuple[tuple[int, ...], Any]
) -> Any:
    shape, dtype = form
    value = np.zeros(shape, dtype)
    if not name.startswith(LAYERS):
        found = tensors.get(f"{_MOMENTS}{name}.{key}")
        return value if found is None else np.array(found, dtype).reshape(shape)
    for layer in range(shape[0]):
        found = tensors.get(f"{_MOMENTS}{name.replace('*', str(layer), 1)}.{key}")
        if found is not None:
            value[layer] = np.asarray(found).reshape(shape[1:])
    return value


def _saved_steps(tensors: Mapping[str, Any], rows: list[dict[str, Any]]) -> float:
    """Return how many steps AdamW has taken; one number serves all parameters."""
    for row in rows:
        for values in row["values"].values():
            return float(values["step"])
    return float(next((np.asarray(v) for n, v in tensors.items() if n.endswith(".step")), 0.0))
