"""Show a plan: as text with tables, or as JSON.

In:      Plan
Out:     text for stdout
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from lowtide.counts import counted
from lowtide.errors import BudgetError
from lowtide.memory import format_size
from lowtide.model.sizing import count_parameters
from lowtide.packages import first_missing
from lowtide.planning.choices import Choice
from lowtide.planning.machine import Machine
from lowtide.planning.needs import StageNeed, has_disk
from lowtide.planning.plan import Plan
from lowtide.planning.speed import SpeedEstimate
from lowtide.progress import format_count
from lowtide.settings import settings_as_json
from lowtide.training.choosing import choose_optimizer
from lowtide.training.footprint import planned_bytes

__all__ = ["describe_plan", "plan_as_json", "plan_error"]

_YEAR_SECONDS = 365 * 86400


def describe_plan(plan: Plan) -> str:
    """Return the plan as people read it."""
    machine, shown = plan.machine, plan.chosen or plan.asked
    lines = [
        f"machine   {machine.describe()}",
        f"budget    {format_size(machine.budget_bytes)} for each command"
        + (
            f", {format_size(machine.vram_budget_bytes)} on the {machine.accelerator}"
            if machine.has_gpu
            else ""
        ),
        f"data      {plan.data.description}",
        f"model     {_describe_model(shown)}",
        "",
        *_stage_table(plan),
        "",
        *_training_table(shown, machine),
        "",
        *_verdict(plan),
        "",
        *_compute_lines(plan),
        "",
        f"{format_count(_num_tokens(plan))} tokens in memory, by the way they are loaded:",
        *_rows(
            [(way.way, format_size(way.memory_bytes), way.note) for way in plan.ways], align="<><"
        ),
    ]
    if plan.commands:
        lines += ["", "commands:", *plan.commands, *_notes(plan)]
    return "\n".join(lines)


def _notes(plan: Plan) -> list[str]:
    """Notes that follow the commands."""
    if not plan.machine.is_tpu or plan.chosen is None or plan.data.streams:
        return []
    settings = plan.chosen.settings
    folder = shlex.split(plan.commands[-1])[3]
    return [
        "",
        "TPUs have not been tried (docs/jax.md). A loop of your own takes the same batches:",
        f'  data = TokenDataset("{folder}", seq_len={settings.model.seq_len}, '
        'output_dtype="int32")',
        f"  for inputs, targets in BatchLoader(data, batch_size={settings.batch.rows_per_step}): …",
    ]


def _num_tokens(plan: Plan) -> int:
    return plan.data.train_tokens or plan.compute.planned_tokens


def _describe_model(choice: Choice) -> str:
    config = choice.config
    return (
        f"{format_count(count_parameters(config))} parameters: "
        f"{counted(config.num_layers, 'layer')}, width {config.width}, "
        f"{counted(config.num_heads, 'head')}, context {config.context_length}, vocabulary "
        f"{config.vocab_size:,} ({config.layout})"
    )


def _stage_table(plan: Plan) -> list[str]:
    head = ("stage", "peak", "smallest budget", "disk", "fits", "")
    rows = [
        (
            need.stage,
            format_size(need.memory_bytes),
            format_size(need.least_bytes),
            format_size(need.disk_bytes) if need.disk_bytes else "-",
            "yes" if need.fits else "NO",
            need.note,
        )
        for need in plan.needs
    ]
    return _rows([head, *rows], align="<>>><<")


def _training_table(choice: Choice, machine: Machine) -> list[str]:
    settings, need = choice.settings, choice.footprint
    packed = need.offloaded is not None
    rows = [
        ("weights", need.weights, "24 bits" if packed else "float32"),
        ("gradients", need.gradients, "bfloat16" if packed else "float32"),
        ("optimizer states", need.optimizer, _describe_optimizer(choice)),
        (
            "activations",
            need.activations,
            f"{counted(settings.batch.batch_size, 'row')} of {settings.model.seq_len} tokens"
            + (", bfloat16" if settings.computing.use_mixed_precision else "")
            + (", computed again" if settings.computing.activation_checkpointing else ""),
        ),
        ("logits", need.loss, "one chunk, with the gradient of the output matrix"),
        ("update", need.update, "of the optimizer, when activations are gone: the larger counts"),
        ("batches", need.batches, f"{settings.machine.num_workers} ahead, on the host"),
        ("tokenizer", need.tokenizer, "on the host"),
        ("framework", need.program, _describe_program(settings.computing.backend)),
    ]
    where = f"on the {machine.accelerator}" if machine.has_gpu else "in all"
    total = need.device_bytes if machine.has_gpu else need.total_bytes
    limit = machine.vram_budget_bytes if machine.has_gpu else machine.budget_bytes
    table = [("training", "", "")]
    table += [(f"  {name}", format_size(size), note) for name, size, note in rows if size]
    table.append((f"  {where}", format_size(total), f"of {format_size(limit)}, a tenth to spare"))
    if need.offloaded is not None and machine.has_gpu:
        of = f"of {format_size(machine.budget_bytes)}"
        table.append(("  on the host", format_size(need.host_bytes), of))
    if need.offloaded is not None and need.offloaded.file:
        free = machine.free_disk_bytes
        of = "how much is free is not known" if free is None else f"of {format_size(free)}"
        table.append(("  in a file", format_size(need.offloaded.file), of))
    return _rows(table, align="<><")


def _describe_program(backend: str) -> str:
    if first_missing(backend) is None:
        return f"interpreter and {backend}, as measured here, on the host"
    return f"interpreter and {backend} for CPUs, as they usually are: none is installed here"


def _describe_optimizer(choice: Choice) -> str:
    name = choose_optimizer(
        choice.settings.learning, choice.config, choice.settings.tokens_per_step
    )
    eight = choice.settings.learning.use_8bit_optimizer or choice.footprint.offloaded is not None
    return f"{name}, 8 bits" if eight else name


def _verdict(plan: Plan) -> list[str]:
    machine = plan.machine
    lacking = [_describe_lack(row, machine) for row in plan.needs if not row.fits]
    if plan.chosen is None and plan.asked.settings.run.init_from_model is not None:
        return [
            f"does not fit: training this model needs {_describe_need(plan)}, and no smaller "
            "batch, shorter rows or other saving is enough"
        ]
    if plan.chosen is None:
        return [
            f"does not fit: training needs {_describe_need(plan)}, and no smaller model with this "
            "vocabulary fits either; a smaller --vocab-size may"
        ]
    if not plan.asked_fits:
        lines = [
            f"does not fit as asked: training needs {_describe_need(plan)}.",
            f"nearest that fits: {', '.join(plan.chosen.changes)}",
        ]
        return [*lines, f"but {'; '.join(lacking)}"] if lacking else lines
    if lacking:
        return [f"does not fit: {'; '.join(lacking)}"]
    lines = [f"fits, with {', '.join(plan.chosen.changes)}" if plan.chosen.changes else "fits"]
    if plan.chosen.settings.computing.use_mixed_precision and not machine.has_gpu:
        lines.append("note: most CPUs emulate bfloat16, which is many times slower")
    return lines


def plan_error(plan: Plan) -> BudgetError | None:
    """The error of a plan that does not fit, for the exit code of the command; None if it fits."""
    if plan.fits:
        return None
    lacks_disk = [
        row.disk_bytes
        for row in plan.needs
        if not (row.fits or has_disk(row.disk_bytes, plan.machine))
    ]
    step = "take a smaller model or --vocab-size, or a machine with more memory"
    if plan.chosen is not None and lacks_disk:
        step = f"free {format_size(max(lacks_disk))} of disk, or take fewer tokens, a smaller model"
    return BudgetError(_verdict(plan)[-1], next_step=step)


def _describe_need(plan: Plan) -> str:
    """How much the request exceeds each memory, with micro-batches of one row if necessary."""
    asked, machine = plan.asked, plan.machine
    need, rows = asked.footprint, ""
    if not plan.named_batch:
        rows = " even one row at a time"
        need = planned_bytes(
            asked.config,
            asked.settings,
            micro_batch=1,
            on_gpu=machine.has_gpu,
            cpu_threads=machine.cpu_threads,
        )
    file = need.offloaded.file if need.offloaded else 0
    parts = [("of memory", need.budget_bytes, machine.budget_bytes)]
    if machine.has_gpu:
        on_device = (f"of the {machine.accelerator}", need.device_budget_bytes)
        parts = [(*on_device, machine.vram_budget_bytes)]
        parts.append(("of the host", need.host_bytes, machine.budget_bytes))
    if machine.free_disk_bytes is not None:
        parts.append(("of disk", file, machine.free_disk_bytes))
    return (
        ", ".join(
            f"{format_size(wanted)} {where} ({format_size(there)})"
            for where, wanted, there in parts
            if wanted > there
        )
        + rows
    )


def _describe_lack(row: StageNeed, machine: Machine) -> str:
    """What a stage that does not fit needs, and what the machine has."""
    lacks: list[str] = []
    if row.least_bytes > machine.budget_bytes:
        lacks.append(f"{format_size(row.least_bytes)} of memory")
    if machine.free_disk_bytes is not None and row.disk_bytes > machine.free_disk_bytes:
        free = format_size(machine.free_disk_bytes)
        lacks.append(f"{format_size(row.disk_bytes)} of disk, {free} are free")
    return f"{row.stage} needs {' and '.join(lacks) or 'more memory'}"


def _compute_lines(plan: Plan) -> list[str]:
    compute = plan.compute
    count = compute.parameters
    lines = [
        "how long:",
        *_rows(
            [
                ("20 tokens per parameter", format_count(compute.optimal_tokens), "tokens"),
                (
                    "fitted law of losses",
                    format_count(compute.fitted_tokens),
                    f"tokens, {compute.fitted_tokens / count:.0f} per parameter",
                ),
                (
                    "planned here",
                    format_count(compute.planned_tokens),
                    f"tokens, {compute.steps:,} steps, {compute.flops:.1e} operations",
                ),
            ],
            align="<><",
        ),
    ]
    if compute.epochs is not None and compute.train_tokens is not None:
        lines.append(
            f"  {compute.epochs:.2f} times the {format_count(compute.train_tokens)} tokens there "
            f"are: {compute.describe_epochs()}"
        )
        repetition = compute.describe_repetition()
        lines += [] if repetition is None else [f"  {repetition}"]
        lines.append(f"  {compute.describe_best_size()}")
    lines.append(f"  {_describe_time(plan)}")
    return [*lines, *_speed_lines(plan), *_wear_lines(plan)]


def _speed_lines(plan: Plan) -> list[str]:
    """The speed of a GPU, and the cost of offloading, by measured, given or typical rates."""
    speed = plan.speed
    if speed is None:
        return []
    offloads = (plan.chosen or plan.asked).footprint.offloaded is not None
    duration = _duration(plan.compute.planned_tokens / speed.tokens_per_second)
    lines = [
        f"  about {format_count(speed.tokens_per_second)} tokens/s"
        + (" with --offload" if offloads else "")
        + f" by {_describe_rates(speed, offloads=offloads)}: {duration}"
    ]
    if offloads:
        lines.append(
            f"  a step: computing {speed.compute_seconds:.1f} s, copies beside it "
            f"{speed.copy_seconds:.1f} s, states {speed.update_seconds:.1f} s; nearly free from "
            f"{format_count(speed.free_from_tokens)} tokens a step"
        )
    return lines


def _wear_lines(plan: Plan) -> list[str]:
    written = plan.disk_bytes_per_step
    if not written:
        return []
    return [
        f"  the disk is written {format_size(written)} a step, "
        f"{format_size(written * plan.compute.steps)} in all: it wears by that (a drive of 1 TB is "
        "usually warranted for 600 TB)"
    ]


def _describe_rates(speed: SpeedEstimate, *, offloads: bool) -> str:
    """The rates that matter, and which of them are typical ones (neither given nor measured)."""
    rates = speed.rates
    used = [(f"{rates.flops / 1e12:.0f} TFLOP/s", rates.is_assumed)]
    if offloads:
        used.append((f"{rates.link_bytes / 1e9:.0f} GB/s each way", rates.is_link_assumed))
    if speed.disk_bytes_per_step:
        used.append((f"disk {rates.disk_bytes / 1e9:.1f} GB/s", rates.is_disk_assumed))
    if all(assumed for _, assumed in used):
        return f"usual rates ({', '.join(rate for rate, _ in used)})"
    described = [rate + (" as usual" if assumed else "") for rate, assumed in used]
    return f"rates given or measured ({', '.join(described)})"


def _describe_time(plan: Plan) -> str:
    compute, trial = plan.compute, plan.trial
    if compute.seconds is not None and compute.tokens_per_second is not None:
        return (
            f"{format_count(compute.tokens_per_second)} tokens/s measured here: about "
            f"{_duration(compute.seconds)}"
        )
    if trial is not None:
        return f"time not known: {trial.problem}"
    if plan.speed is not None:
        return "time not measured; estimated:"
    if not plan.machine.is_this:
        return "time not known: the machine is only described (lowtide plan on it measures)"
    return "time not measured"


def _duration(seconds: float) -> str:
    """Return a long time in the unit people think of.

    >>> _duration(90), _duration(7200), _duration(300_000), _duration(10**8)
    ('2 minutes', '2.0 hours', '3.5 days', '3.2 years')
    """
    if seconds > 2 * _YEAR_SECONDS:
        return f"{seconds / _YEAR_SECONDS:.1f} years"
    if seconds < 5400:
        return counted(max(1, round(seconds / 60)), "minute")
    return f"{seconds / 3600:.1f} hours" if seconds < 172_800 else f"{seconds / 86400:.1f} days"


def _rows(rows: Sequence[tuple[str, ...]], *, align: str) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan for other programs."""
    shown = plan.chosen or plan.asked
    return {
        "fits": plan.fits,
        "machine": settings_as_json(plan.machine),
        "data": settings_as_json(plan.data),
        "model": settings_as_json(shown.config) | {"parameters": count_parameters(shown.config)},
        "stages": [settings_as_json(need) for need in plan.needs],
        "training": settings_as_json(shown.footprint)
        | {
            "device_bytes": shown.footprint.device_bytes,
            "total_bytes": shown.footprint.total_bytes,
            "program_is_measured": first_missing("torch") is None,
        },
        "changes": list(shown.changes),
        "compute": settings_as_json(plan.compute)
        | {"epochs": plan.compute.epochs, "seconds": plan.compute.seconds},
        "loading": [settings_as_json(way) for way in plan.ways],
        "speed": None if plan.speed is None else settings_as_json(plan.speed),
        "disk_bytes_per_step": plan.disk_bytes_per_step,
        "commands": plan.commands,
    }
