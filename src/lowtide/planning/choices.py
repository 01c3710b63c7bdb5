"""Settings that fit the machine: as requested, or with the cheapest change that makes them fit.

In:      the requested options, the vocabulary, the machine
Out:     Choice: settings, shape, footprint, and what was changed and why
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

from lowtide.counts import counted
from lowtide.errors import UsageError
from lowtide.flatsettings import replace_settings
from lowtide.gpus import CUDA_CONTEXT_BYTES
from lowtide.model.config import (
    GPTConfig,
    find_model_dir,
    load_config,
    padded_vocab_size,
)
from lowtide.planning.compute import size_for_a_day, size_for_tokens, two_digits
from lowtide.planning.machine import Machine
from lowtide.quickclasses import dataclass
from lowtide.settings import build_settings
from lowtide.training.choosing import model_config
from lowtide.training.footprint import Footprint, planned_bytes
from lowtide.training.offloading import RUNGS
from lowtide.training.rungs import Limits
from lowtide.training.settings import TrainSettings

__all__ = ["Choice", "asked_for", "find_fitting", "usual_options", "usual_shuffle_buffer"]

# What a change costs, as a share of the run's time (measured on GPUs by others: notes in
# docs/memory-model.md); shorter rows change what the model can learn and come last.
_HALVING_COST = {"cpu": 0.01, "gpu": 0.05}
_EIGHT_BIT_COST = 0.08
_CHECKPOINTING_COST = 0.33
_SHORTER_ROWS_COST = 10.0
_FEWER_ROWS_COST, _STEP_HALVINGS = 0.2, 4
_OFFLOAD_COST = {
    "packed": 0.45, "gradients": 0.5, "optimizer": 0.6, "layers": 1.2, "disk": 4.0, "disk-all": 8.0,
}  # fmt: skip
_SMALLEST_ROWS = 64
_MICRO_BATCHES = "micro-batches"
# Tokens of a step by default, and of a micro-batch on a CPU.
_CPU_TOKENS, _CPU_MICRO_TOKENS, _GPU_TOKENS = 16_384, 4096, 131_072
_MANY_STEPS = 100
_TPU_ROWS, _TPU_ROW_TOKENS = 128, 128
# Windows in the shuffle buffer of a stream, by the machine's memory (GiB), as in the guides.
_SHUFFLE_BUFFERS = ((8, 5000), (16, 10_000), (math.inf, 50_000))
_TPU_SHUFFLE_BUFFER = 100_000


@dataclass(frozen=True)
class Choice:
    """One way to train, and what it needs."""

    options: dict[str, Any]
    """The options of the command."""
    settings: TrainSettings
    config: GPTConfig
    footprint: Footprint
    changes: tuple[str, ...]
    """The differences from the requested options."""
    fits: bool


def usual_options(
    options: dict[str, Any],
    machine: Machine,
    *,
    names_a_model: bool,
    train_tokens: int | None,
    context: int | None = None,
) -> dict[str, Any]:
    """Complete the requested options with values that suit the machine and the data.

    `context` is that of the model to start from, whose rows cannot be longer.
    """
    complete = dict(options)
    seq_len = _TPU_ROW_TOKENS if machine.is_tpu else 1024 if machine.has_gpu else 256
    seq_len = min(seq_len, context or seq_len)
    if not names_a_model:
        size = size_for_a_day(machine.cores, has_gpu=machine.has_gpu)
        complete["target_params"] = min(size, size_for_tokens(train_tokens))
    if machine.is_tpu:
        complete = {"seq_len": seq_len, "batch_size": _TPU_ROWS} | complete
        complete["backend"] = "jax"
    if complete.get("backend") == "jax":  # it compiles everything anyway
        complete.pop("compile", None)
    complete.setdefault("seq_len", seq_len)
    if machine.has_gpu:
        complete.setdefault("use_mixed_precision", True)
        if complete.get("backend") != "jax":
            complete.setdefault("compile", True)
    if "batch_size" not in complete:
        tokens = _GPU_TOKENS if machine.has_gpu else _CPU_TOKENS
        if train_tokens is not None and train_tokens < _MANY_STEPS * tokens:
            tokens = _CPU_MICRO_TOKENS  # larger steps would be too few
        rows = max(1, tokens // complete["seq_len"])
        if "gradient_accumulation_steps" in options:
            rows = max(1, rows // options["gradient_accumulation_steps"])
        elif not machine.has_gpu:
            # A CPU is as fast with few rows at once, and needs far less memory.
            micro = max(1, _CPU_MICRO_TOKENS // complete["seq_len"])
            complete["gradient_accumulation_steps"] = max(1, rows // micro)
            rows = min(rows, micro)
        complete["batch_size"] = rows
    return complete


def usual_shuffle_buffer(machine: Machine) -> int:
    """Return how many windows a stream should mix on a machine."""
    if machine.is_tpu:
        return _TPU_SHUFFLE_BUFFER
    gib = machine.ram_bytes / (1 << 30)
    return next(size for limit, size in _SHUFFLE_BUFFERS if gib <= limit)


def asked_for(options: dict[str, Any], vocab_size: int, machine: Machine) -> Choice:
    """What the options need as they are."""
    return _choice(options, vocab_size, machine, ())


def find_fitting(
    options: dict[str, Any], vocab_size: int, machine: Machine, *, named_batch: bool = True
) -> Choice | None:
    """Return the cheapest change that fits, a smaller model if no other does; None if nothing.

    A step may have fewer rows where they are offloaded and nobody asked for them (`named_batch`).
    """
    halvings = 1 if named_batch else _STEP_HALVINGS
    found = _cheapest(options, vocab_size, machine, step_halvings=halvings)
    if found is not None or options.get("init_from_model") is not None:
        return found  # a model to start from has a fixed shape
    return _smaller_model(options, vocab_size, machine, step_halvings=halvings)


def _cheapest(
    options: dict[str, Any], vocab_size: int, machine: Machine, *, step_halvings: int
) -> Choice | None:
    """The cheapest change with which this model fits."""
    candidates = _candidates(options, machine, step_halvings=step_halvings)
    for _, changed, changes in sorted(candidates, key=lambda row: row[0]):
        choice = _choice(changed, vocab_size, machine, changes)
        if choice.fits:
            return choice
    return None


def _choice(
    options: dict[str, Any], vocab_size: int, machine: Machine, changes: tuple[str, ...]
) -> Choice:
    settings = build_settings(TrainSettings, options)
    config = _shape(settings, padded_vocab_size(vocab_size))
    footprint = planned_bytes(
        config, settings, on_gpu=machine.has_gpu, cpu_threads=machine.cpu_threads
    )
    fits = _limits(machine).hold(footprint)
    return Choice(options, settings, config, footprint, changes, fits)


def _limits(machine: Machine) -> Limits:
    device = machine.budget_bytes
    if machine.has_gpu:
        device = machine.vram_budget_bytes + CUDA_CONTEXT_BYTES
    return Limits(machine.has_gpu, device, machine.budget_bytes, machine.free_disk_bytes)


def _shape(settings: TrainSettings, vocab_size: int) -> GPTConfig:
    """The network's shape, cached for settings that ask for the same one."""
    if settings.run.init_from_model is not None:
        folder = find_model_dir(settings.run.init_from_model, settings.run.checkpoints_dir)
        return load_config(folder).replace(dropout=settings.model.dropout)
    if settings.model.target_params is None:
        return model_config(settings.model, vocab_size)
    return _sized_shape(settings.model, vocab_size)


_sized_shape = functools.lru_cache(maxsize=256)(model_config)


def _candidates(
    options: dict[str, Any], machine: Machine, *, step_halvings: int
) -> Iterator[tuple[float, dict[str, Any], tuple[str, ...]]]:
    """Return (cost, options, changes) of every combination, all with the same rows per step.

    Only those that offload may have fewer: the inputs of blocks for all rows of a step are on the
    host.
    """
    settings = build_settings(TrainSettings, options)
    given = settings.machine.offload
    rungs = _rungs(options, settings, machine)
    for cost, changed, changes in _savings(options, settings, machine):
        yield cost, changed, changes
        if any(changed.get(name) != options.get(name) for name in _SAVED_BY_RUNGS):
            continue
        for rung, fewer in itertools.product(rungs, range(step_halvings)):
            if rung == given and fewer == 0:
                continue  # as it is
            more = cost + fewer * _FEWER_ROWS_COST
            offloaded, words = {**changed, "offload": rung}, list(changes)
            if rung != given:
                more += _OFFLOAD_COST[rung]
                words.append(_OFFLOADED[rung])
            if fewer:
                rows = max(1, settings.batch.rows_per_step >> fewer)
                micro_batch = int(offloaded.get("batch_size", settings.batch.batch_size))
                split = _split_rows(rows, micro_batch)
                offloaded |= split
                words = [word for word in words if not word.startswith(_MICRO_BATCHES)]
                words.append(_describe_step(rows, split["gradient_accumulation_steps"]))
            yield more, offloaded, tuple(words)


_SAVED_BY_RUNGS = ("use_8bit_optimizer", "activation_checkpointing")


def _savings(
    options: dict[str, Any], settings: TrainSettings, machine: Machine
) -> Iterator[tuple[float, dict[str, Any], tuple[str, ...]]]:
    """The same for savings other than rungs of --offload."""
    halving_cost = _HALVING_COST["gpu" if machine.has_gpu else "cpu"]
    halvings = range(settings.batch.batch_size.bit_length())
    # Most CPUs emulate bfloat16, 20 to 50 times slower: never advised there.
    precisions = {
        settings.computing.use_mixed_precision,
        settings.computing.use_mixed_precision or machine.has_gpu,
    }
    saves = {True} if settings.machine.offload == "none" else set()  # a rung includes both
    eights = {settings.learning.use_8bit_optimizer} | saves
    checkpointings = {settings.computing.activation_checkpointing} | saves
    shorter = range(max(1, (settings.model.seq_len // _SMALLEST_ROWS).bit_length()))
    for half, precise, eight, again, short in itertools.product(
        halvings, precisions, eights, checkpointings, shorter
    ):
        cost = half * halving_cost + short * _SHORTER_ROWS_COST
        changed, changes = dict(options), list[str]()
        if half:
            rows = max(1, settings.batch.batch_size >> half)
            steps = -(-settings.batch.rows_per_step // rows)
            changed |= {"batch_size": rows, "gradient_accumulation_steps": steps}
            changes.append(f"{_MICRO_BATCHES} of {counted(rows, 'row')}, {steps} a step")
        if precise != settings.computing.use_mixed_precision:
            changed["use_mixed_precision"] = True
            changes.append("bfloat16")
        if eight != settings.learning.use_8bit_optimizer:
            changed["use_8bit_optimizer"] = True
            changes.append("moments in 8 bits")
            cost += _EIGHT_BIT_COST
        if again != settings.computing.activation_checkpointing:
            changed["activation_checkpointing"] = True
            changes.append("activations computed again")
            cost += _CHECKPOINTING_COST
        if short:
            changed["seq_len"] = settings.model.seq_len >> short
            changes.append(f"rows of {changed['seq_len']} tokens")
        yield cost, changed, tuple(changes)


def _split_rows(rows: int, micro_batch: int) -> dict[str, int]:
    """The rows of a step in micro-batches of at most so many."""
    micro_batch = min(rows, micro_batch)
    return {"batch_size": micro_batch, "gradient_accumulation_steps": -(-rows // micro_batch)}


def _describe_step(rows: int, micro_batches: int) -> str:
    whole = f"steps of {counted(rows, 'row')}"
    return whole if micro_batches == 1 else f"{whole} in {micro_batches} {_MICRO_BATCHES}"


_OFFLOADED = {
    "packed": "states packed",
    "gradients": "states packed, gradients on the host",
    "optimizer": "gradients and states on the host",
    "layers": "all layers on the host",
    "disk": "states in a file",
    "disk-all": "all layers and states in a file",
}


def _rungs(options: dict[str, Any], settings: TrainSettings, machine: Machine) -> tuple[str, ...]:
    """The rungs to try: a given one only; on a CPU, which has one memory, there are two."""
    if settings.machine.offload != "none":
        return (settings.machine.offload,)
    if "offload" in options or machine.is_tpu:
        return ()
    try:
        replace_settings(settings, offload="packed")
    except UsageError:  # other settings do not go with it
        return ()
    return RUNGS[1:] if machine.has_gpu else ("packed", "disk")


def _smaller_model(
    options: dict[str, Any], vocab_size: int, machine: Machine, *, step_halvings: int
) -> Choice | None:
    """The largest model that fits with all savings at the same row length, in the cheapest way."""
    settings = build_settings(TrainSettings, options)
    rows = settings.batch.rows_per_step
    shapeless = {name: value for name, value in options.items() if name not in _SHAPE_OPTIONS}
    saving = {**shapeless, "batch_size": 1, "gradient_accumulation_steps": rows}
    rungs = _rungs(options, settings, machine)
    ways: list[dict[str, Any]] = [
        saving | {"use_8bit_optimizer": True, "activation_checkpointing": True}
    ]
    if rungs:
        saving["gradient_accumulation_steps"] = max(1, rows >> (step_halvings - 1))
        ways = [{**saving, "offload": rung} for rung in rungs]
    found = [_largest_model(way, vocab_size, machine) for way in ways]
    count = max((way.options["target_params"] for way in found if way is not None), default=None)
    if count is None:
        return None
    shapeless["target_params"] = count
    choice = _cheapest(shapeless, vocab_size, machine, step_halvings=step_halvings)
    if choice is None:
        return None
    change = f"a model of {count:,} parameters, the largest that fits"
    return dataclasses.replace(choice, changes=(change, *choice.changes))


def _largest_model(options: dict[str, Any], vocab_size: int, machine: Machine) -> Choice | None:
    low, high, best = 10_000, 20_000_000_000, None  # what shapes are known for
    while high > low * 1.02:
        middle = two_digits(int((low * high) ** 0.5), rounded=math.floor)
        if middle in (low, high):
            break
        try:
            choice = _choice({**options, "target_params": middle}, vocab_size, machine, ())
        except UsageError:  # no shape is as small with this vocabulary
            low = middle
            continue
        low, high, best = (middle, high, choice) if choice.fits else (low, middle, best)
    return best


_SHAPE_OPTIONS = ("target_params", "num_layers", "width", "num_heads", "num_kv_heads", "mlp_width")
