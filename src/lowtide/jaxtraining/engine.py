"""A training step in JAX: one compiled pass over the micro-batches, one compiled update.

In:      a JaxGPT, one batch on the host
Out:     new weights, and the step's loss, gradient norm and whether it was skipped, on the device
Memory:  weights, gradients, moments, activations of one micro-batch, one chunk of logits
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lowtide.jaxtraining import optimizers
from lowtide.jaxtraining.devices import JaxGroup
from lowtide.jaxtraining.evaluation import LossSums
from lowtide.jaxtraining.generation import generate_text
from lowtide.jaxtraining.muon import half_precision
from lowtide.jaxtraining.network import Form, can_fuse, loss_of
from lowtide.jaxtraining.optimizers import Rules
from lowtide.jaxtraining.trees import JaxGPT, Tree, iter_named
from lowtide.model.sizing import loss_chunk_tokens
from lowtide.tokenizer import Tokenizer
from lowtide.training.checkpoints import RunFolder
from lowtide.training.choosing import (
    adam_betas,
    choose_optimizer,
    embedding_rate,
    muon_momentum,
    peak_learning_rate,
)
from lowtide.training.microbatches import halve_micro_batch
from lowtide.training.schedule import momentum_at
from lowtide.training.settings import TrainSettings
from lowtide.training.state import RunState
from lowtide.training.unusedsettings import refuse_unused_by

__all__ = ["Counters", "JaxEngine", "compute_gradients", "gradients_on"]

Array = Any

# By default XLA tries kernels of Triton and of cuBLAS for each product, and uses hardly any of the
# former; but operations that it sets apart for them are then not fused with others. Without them, a
# pass of 124 million parameters took 61.2 ms on an H200 instead of 65.0, one of 10 million 22.1
# instead of 24.2 (benchmarks/jax_profile.py).
_GPU_OPTIONS = {"xla_gpu_enable_triton_gemm": False}


def _gradients(
    params: Tree, ids: Array, targets: Array, weights: Array, key: Array, *, form: Form
) -> tuple[Array, Tree]:
    """Return the loss of a batch [M, B, T] and its gradients, B rows at a time."""
    loss_and_gradients = jax.value_and_grad(loss_of)

    def one(number: Array | int, rows: tuple[Array, Array, Array]) -> tuple[Array, Tree]:
        own = jax.random.fold_in(key, number) if form.dropout else None
        return loss_and_gradients(params, *rows, own, form)

    if ids.shape[0] == 1:
        return one(0, (ids[0], targets[0], weights[0]))

    def add(carry: Any, part: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, carry, one(*part)), None

    start = (jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, params))
    parts = (jnp.arange(ids.shape[0]), (ids, targets, weights))
    return lax.scan(add, start, parts)[0]


compute_gradients = jax.jit(_gradients, static_argnames=("form",))


@functools.cache
def gradients_on(platform: str) -> Callable[..., tuple[Array, Tree]]:
    """Return `compute_gradients` compiled for a platform; cached, so that all runs share it."""
    if platform != "gpu" or not _are_known(_GPU_OPTIONS):
        return compute_gradients
    return jax.jit(_gradients, static_argnames=("form",), compiler_options=_GPU_OPTIONS)


def _are_known(options: dict[str, Any]) -> bool:
    """Whether this version of the compiler has some options, which may be removed."""
    try:
        jax.jit(_itself, compiler_options=options)(np.float32(0))
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _itself(value: Array) -> Array:
    return value


@functools.partial(
    jax.jit, static_argnames=("rules", "places"), donate_argnames=("params", "moments")
)
def take_step(
    params: Tree,
    moments: Any,
    gradients: Tree,
    loss: Array,
    learning_rate: Array,
    momentum: Array,
    *,
    rules: Rules,
    places: Callable[[str, tuple[int, ...]], Any] | None,
) -> tuple[Tree, Any, Array, Array]:
    """Update weights and moments in place; `places` is how they are sharded, if they are."""
    params, moments, norm, skip = optimizers.update(
        params, moments, gradients, loss, learning_rate, momentum, rules=rules
    )
    if places is not None:
        params = {n: lax.with_sharding_constraint(v, places(n, v.shape)) for n, v in params.items()}
        moments = {
            n: {k: lax.with_sharding_constraint(v, places(n, v.shape)) for k, v in state.items()}
            for n, state in moments.items()
        }
    return params, moments, norm, skip


class JaxEngine:
    """One run's network and optimizer on their devices."""

    def __init__(
        self,
        model: JaxGPT,
        settings: TrainSettings,
        state: RunState,
        group: JaxGroup,
        *,
        rows: int,
        note: Callable[[str], None],
    ) -> None:
        self.model, self.state = model, state
        self._settings, self._group, self._rows, self._note = settings, group, rows, note
        config, computing, learning = model.config, settings.computing, settings.learning
        optimizer = choose_optimizer(learning, config, settings.tokens_per_step)
        self.learning_rate = peak_learning_rate(settings, config, optimizer)
        self.rules = Rules(
            config.replace(dropout=0.0),
            optimizer,
            use_8bit=learning.use_8bit_optimizer,
            weight_decay=learning.weight_decay,
            betas=adam_betas(settings, config, optimizer),
            cautious=learning.cautious_decay,
            embedding_rate=embedding_rate(settings, config, optimizer),
            embedding_decay=learning.embedding_decay,
            grad_clip=learning.grad_clip,
            half=half_precision(group.platform),
        )
        refuse_unused_by(optimizer, settings)
        dtype = "bfloat16" if computing.use_mixed_precision else "float32"
        self.form = Form(
            config.replace(dropout=0.0),
            dtype=dtype,
            again=computing.activation_checkpointing,
            chunk_tokens=computing.loss_chunk_tokens
            or loss_chunk_tokens(config.vocab_size, on_gpu=not group.on_cpu),
            dropout=config.dropout,
            fused=group.platform == "gpu" and can_fuse(config, settings.model.seq_len, dtype),
            # In a loop over layers a GPU copies all kept tensors to stacks of layers and back.
            unrolled=group.platform == "gpu" and not computing.activation_checkpointing,
        )
        self._compute_gradients = gradients_on(group.platform)
        is_divided = settings.machine.parallel == "fsdp" and len(group.devices) > 1
        self._places = functools.partial(group.weight_sharding, divided=is_divided)
        # One function for all runs of a process, so that they share the compiled code.
        self._constraint = _divided_over(group) if is_divided else None
        model.params = {n: self._put(n, model.params.pop(n)) for n in list(model.params)}
        self._moments: Any = None  # made when the first step needs them
        self._gradients: Tree | None = None
        self._last: Any = None

    def _put(self, name: str, value: Any) -> Array:
        return self._group.place(value, self._places(name, value.shape))

    def _put_moments(self, moments: Any) -> Any:
        def put(name: str, value: Any) -> Array:
            if isinstance(value, tuple):
                shape, dtype = value
                return jnp.zeros(shape, dtype, device=self._places(name, shape))
            return self._put(name, value)

        return {n: {k: put(n, v) for k, v in state.items()} for n, state in moments.items()}

    @property
    def optimizer_state(self) -> Any:
        """The moments by parameter and key; zeros before the first step."""
        if self._moments is None:
            self._moments = self._put_moments(optimizers.new_moments(self.rules))
        return self._moments

    # -- a step ------------------------------------------------------------------------------

    def compute(self, inputs: Any, targets: Any, *, share_done: float = 0.0) -> Array:
        """Compute the gradients of a batch, in halves when memory runs out; return the loss."""
        while True:
            try:
                return self._compute(inputs, targets)
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
            # Several processes must compute equally many rows: one alone cannot take fewer.
            group = self._group
            can_halve = group.world_size == 1 and self.state.micro_batch > len(group.devices)
            halve_micro_batch(
                self.state, self._settings, rows=self._rows, can_halve=can_halve, note=self._note
            )

    def _compute(self, inputs: Any, targets: Any) -> Array:
        ids, wanted, weights = self._micro_batches(inputs, targets)
        key = jax.random.key(self._settings.learning.seed)
        loss, self._gradients = self._compute_gradients(
            self.model.params,
            *self._on_devices(ids, wanted, weights),
            jax.random.fold_in(key, self.state.step),
            form=self.form,
        )
        if self._last is not None:  # never more than a step ahead of the devices
            jax.block_until_ready(self._last)
        return loss

    def _micro_batches(self, inputs: Any, targets: Any) -> tuple[Any, Any, Any]:
        """Cut a batch into equal micro-batches [M, B, …]; the last is padded with rows of weight 0.

        These are this process's rows: the weights over all processes add up to 1.
        """
        rows, tokens = inputs.shape
        micro = _rounded_up(min(self.state.micro_batch, rows), len(self._group.own_devices))
        whole = _rounded_up(rows, micro)
        weights = np.zeros(whole, np.float32)
        weights[:rows] = 1 / (rows * self._group.world_size * tokens)
        return (
            _filled(inputs, whole).reshape(-1, micro, tokens),
            _filled(targets, whole).reshape(-1, micro, tokens),
            weights.reshape(-1, micro),
        )

    def _on_devices(self, *arrays: Any) -> tuple[Array, ...]:
        return tuple(self._group.place_rows(array, axis=1) for array in arrays)

    def update(self, loss: Array, learning_rate_factor: float) -> tuple[Array, Array]:
        """Take the step if all gradients are finite; return their norm, and 1 if it was skipped."""
        settings = self._settings
        momentum = momentum_at(
            self.state.step,
            momentum=muon_momentum(settings, self.model.config),
            warmup_steps=settings.learning.momentum_warmup,
        )
        assert self._gradients is not None
        gradients, self._gradients = self._gradients, None
        self.model.params, self._moments, norm, skip = take_step(
            self.model.params,
            self.optimizer_state,
            gradients,
            loss,
            np.float32(self.learning_rate * learning_rate_factor),
            np.float32(momentum),
            rules=self.rules,
            places=self._constraint,
        )
        self._last = norm
        return norm, skip

    # -- called by the loop --------------------------------------------------------------------

    @property
    def notes(self) -> list[str]:
        """On how many devices it runs, of how many processes."""
        devices, world_size = self._group.devices, self._group.world_size
        how = "divided" if self._constraint is not None else "a copy on each"
        if len(devices) == 1:
            return []
        of = f" of {world_size} processes" if world_size > 1 else ""
        return [f"{len(devices)} devices ({devices[0].platform}){of}: rows divided, weights {how}"]

    def weights(self) -> dict[str, Any]:
        """The weights under our names."""
        return dict(iter_named(self.model.params))

    def moments(self) -> dict[str, Any]:
        """The optimizers' tensors by name."""
        return optimizers.name_moments(self.optimizer_state, self.rules)

    def numbers(self) -> dict[str, Any]:
        """The parts of the state that are not tensors; there is no loss scale in bfloat16."""
        steps = int(np.asarray(self.optimizer_state["steps"][""]))
        return {
            "loss_scale": {"value": 1.0, "good_steps": 0.0},
            "optimizers": optimizers.optimizer_rows(self.rules, steps),
        }

    def load_state(self, run: RunFolder, numbers: dict[str, Any]) -> Path:
        """Restore the moments of the newest checkpoint, written by either backend."""
        folder, tensors, _ = run.load()
        found = optimizers.load_moments(tensors, numbers["optimizers"], self.rules)
        self._moments = self._put_moments(found)
        return folder

    @contextlib.contextmanager
    def eval_sums(self, tokenizer: Tokenizer | None, *, batch_size: int) -> Generator[LossSums]:
        """Sums of losses with the current weights, in the run's precision."""
        yield LossSums(
            self.model.params, self.form, self._group, tokenizer=tokenizer, batch_size=batch_size
        )

    def sample(self, tokenizer: Tokenizer) -> str:
        """Continue the run's sample prompt; the run's own random numbers are not affected."""
        settings = self._settings
        return generate_text(
            self.model if self._group.world_size == 1 else self.model.here(),
            tokenizer,
            settings.output.sample_prompt,
            max_new_tokens=settings.output.sample_tokens,
            seed=settings.learning.seed,
        )

    def device_peak_bytes(self) -> int | None:
        """Peak memory on the first device; None on a CPU."""
        stats = None if self._group.on_cpu else self._group.own_devices[0].memory_stats()
        return None if not stats else int(stats.get("peak_bytes_in_use", 0))

    def wait(self) -> None:
        """Wait until the devices have finished all queued work."""
        jax.block_until_ready((self.model.params, self.optimizer_state))

    def finish(self) -> None:
        """Do nothing: the network's weights are already the saved ones."""


@functools.cache
def _divided_over(group: JaxGroup) -> Callable[[str, tuple[int, ...]], Any]:
    return functools.partial(group.weight_sharding, divided=True)


def _rounded_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _filled(array: Any, rows: int) -> Any:
    """Pad with rows of weight 0."""
    return np.pad(array, ((0, rows - len(array)), (0, 0)))


class Counters:
    """Sums kept on the device, so that the loop never waits for them; read when a row is logged."""

    def __init__(self) -> None:
        self._values = jnp.zeros(5, jnp.float32)

    loss = property(lambda self: self._values[0])
    steps = property(lambda self: self._values[1])
    bad_in_a_row = property(lambda self: self._values[2])
    bad = property(lambda self: self._values[3])
    norm = property(lambda self: self._values[4])
    _NAMES = ("loss", "steps", "bad_in_a_row", "bad", "norm")

    def add(self, loss: Array, norm: Array, skip: Array) -> None:
        """Add a step; a skipped one is counted as bad, and its loss is ignored."""
        self._values = _count(self._values, *map(_here, (loss, norm, skip)))

    def mean_loss(self, group: JaxGroup) -> float:
        """The mean loss of the steps since the last row; NaN without any."""
        steps = self.steps.item()
        return self.loss.item() / steps if steps else math.nan

    def next_row(self) -> None:
        """Reset the sums for the next row."""
        self._values = self._values.at[:2].set(0.0)

    def state_dict(self) -> dict[str, float]:
        """Return all counts."""
        return dict(zip(self._NAMES, np.asarray(self._values).tolist(), strict=True))

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore all counts."""
        self._values = jnp.array([state[name] for name in self._NAMES], jnp.float32)


def _here(value: Array) -> Array:
    """A replicated number, read on this process."""
    return value if value.is_fully_addressable else value.addressable_data(0)


@jax.jit
def _count(values: Array, loss: Array, norm: Array, skip: Array) -> Array:
    total, steps, in_a_row, bad, _ = values
    good = jnp.where(skip > 0, 0.0, loss)
    return jnp.stack([total + good, steps + 1 - skip, (in_a_row + 1) * skip, bad + skip, norm])
