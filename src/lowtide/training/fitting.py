"""Choose the micro-batch of a run before it starts: the largest that fits its budget.

In:      a network, settings, the budget
Out:     rows, or None if nothing has to be smaller, or if it is unknown (a torch module)
"""

from __future__ import annotations

from typing import Any

from lowtide.errors import BudgetError, UsageError
from lowtide.loader.streaming import StreamingDataLoader
from lowtide.memory import format_size, parse_size, return_large_blocks
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.model.program import Program, program_here
from lowtide.training.backends import Backend, Group, Model
from lowtide.training.footprint import fit_device_batch, fit_micro_batch, planned_bytes
from lowtide.training.settinggroups import BatchSettings
from lowtide.training.settings import TrainSettings

__all__ = ["rows_in_budget", "rows_of_process", "rows_on_device"]

# Freed tensors of 1 to 32 MiB leave gaps between the others, which logits of small micro-batches
# reuse: up to 28 % of a run of 326 MiB (measured). A budget with half as much to spare keeps them,
# which is faster; otherwise freed memory is returned to the system.
_ROOM = 1.5


def rows_of_process(batch: BatchSettings, group: Group) -> int:
    """The rows of a step that one process has."""
    rows, rest = divmod(batch.rows_per_step, group.world_size)
    if rest:
        raise UsageError(
            f"{batch.rows_per_step} rows a step cannot be shared by {group.world_size} processes",
            next_step="make batch size times accumulation a multiple of the processes",
        )
    return rows


def rows_on_device(
    model: Model, settings: TrainSettings, *, on_cpu: bool, host_bytes: int
) -> int | None:
    """The micro-batch that fits a GPU, if its memory or the host's is limited."""
    vram, config = settings.machine.vram, model.config
    if on_cpu or (vram is None and settings.machine.offload == "none"):
        return None
    if isinstance(config, ModuleConfig):  # out of memory, its step halves the micro-batch
        return None
    return fit_device_batch(
        config,
        settings,
        device_bytes=None if vram is None else parse_size(vram),
        host_bytes=host_bytes,
    )


def rows_in_budget(
    backend: Backend,
    model: Model,
    settings: TrainSettings,
    *,
    data: Any,
    program: Program | None,
    budget_bytes: int,
    has_own_optimizer: bool = False,
) -> int | None:
    """The micro-batch that fits the budget on a CPU."""
    config = model.config
    held = backend.held_bytes(model)
    program = program or program_here(
        held, device=settings.machine.device, backend=settings.computing.backend
    )
    if isinstance(config, ModuleConfig):
        wrapped: Any = model
        states = wrapped.training_bytes(
            settings.learning,
            tokens_per_step=settings.tokens_per_step,
            has_own_optimizer=has_own_optimizer,
        )
        _require_states(states, program.imported_bytes, budget_bytes)
        return None
    # A stream in the settings is already part of their estimate.
    given = data if settings.data.dataset_id is None else None
    data_bytes = given.memory_bytes if isinstance(given, StreamingDataLoader) else 0
    rows = fit_micro_batch(
        config,
        settings,
        budget_bytes,
        program=program,
        is_running=True,
        data_bytes=data_bytes,
    )
    plan = planned_bytes(config, settings, micro_batch=rows, program=program, data_bytes=data_bytes)
    if budget_bytes < _ROOM * plan.total_bytes:
        return_large_blocks()
    return rows


def _require_states(state_bytes: int, program_bytes: int, budget_bytes: int) -> None:
    """Refuse a module whose weights, gradients and moments alone exceed the budget."""
    needed = program_bytes + state_bytes
    if needed > budget_bytes:
        raise BudgetError(
            f"this module needs {format_size(needed)} before its first batch (weights, gradients "
            f"and moments {format_size(state_bytes)}, program {format_size(program_bytes)}), "
            f"the budget is {format_size(budget_bytes)}",
            next_step=f"give more than memory='{-(-needed // (1 << 20))}MiB', or a smaller module",
        )
