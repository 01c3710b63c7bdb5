"""Options that exclude each other: tables of those that only torch has or --offload lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from lowtide.errors import UsageError
from lowtide.flags import flag_name, write_flags
from lowtide.flatsettings import setting_fields, setting_values
from lowtide.model.families import FAMILIES
from lowtide.training.learningsettings import OptimizerName

if TYPE_CHECKING:
    from lowtide.training.settings import TrainSettings

__all__ = ["refuse_options"]

# Layouts whose blocks need more inputs than the residual stream: they read the embedding as well.
_REREADING = tuple(name for name, family in FAMILIES.items() if family.rereads_embedding)
# JAX and --offload have their own optimizers: those that they lack exist in torch only.
_OTHER_OPTIMIZERS = tuple(
    name for name in get_args(OptimizerName) if name not in ("auto", "muon", "adamw")
)
_ABOVE_ZERO, _BELOW_ONE, _GIVEN = "above zero", "below one", "given"
"""Markers for numbers and sizes: any value is refused except the one that turns it off."""
_TORCH_ONLY: dict[str, tuple[Any, ...] | str] = {
    "layout": _REREADING,
    "optimizer": _OTHER_OPTIMIZERS,
    "compile": (True,),
    "compile_whole": (True,),
    "attention": ("cudnn", "flash"),
    "float8_head": (True,),
    "float8_blocks": (True,),
    "precision": ("fp16",),
    "device": ("mps",),
    "slurm": (True,),
    "ahead_weight": _ABOVE_ZERO,
    "early_cap": _ABOVE_ZERO,
    "confidence": _BELOW_ONE,
    "average_over": _ABOVE_ZERO,
    "spelling_rate": _ABOVE_ZERO,
    "embedding_decay_to": ("first",),
    "decay_schedule": ("root",),
    "vram": _GIVEN,
}
"""By field the values that JAX does not support: it always compiles, with its own kernels, bfloat16
needs no scale, its allocator has an environment variable for its share of a GPU, and the script for
SLURM starts torchrun. Every other field means the same there (tests/training/test_torchoptions.py
lists them)."""
_NOT_OFFLOADED: dict[str, tuple[Any, ...] | str] = {
    "layout": _REREADING,
    "optimizer": _OTHER_OPTIMIZERS,
    "use_8bit_optimizer": (True,),
    "compile_whole": (True,),
    "attention": ("cudnn", "flash"),
    "float8_head": (True,),
    "float8_blocks": (True,),
    "precision": ("fp16",),
    "backend": ("jax",),
    "device": ("mps",),
    "parallel": ("fsdp",),
    "average_over": _ABOVE_ZERO,
    "spelling_rate": _ABOVE_ZERO,
    "embedding_decay_to": ("first",),
    "decay_schedule": ("root",),
    "save_in_background": (True,),
}
"""By field the values that --offload does not support: blocks are fetched one by one, with their
own packed states, and saved directly from there."""
_NOT_BESIDE_ROWS: dict[str, tuple[Any, ...] | str] = {
    "use_8bit_optimizer": (True,),
    "parallel": ("fsdp",),
}
"""By field the values that --spelling-rate and --embedding-decay-to first do not support: their
states for the rows of the embedding are in 32 bits and whole in every process."""


def refuse_options(settings: TrainSettings) -> None:
    """Refuse everything in a table at once, for JAX and for --offload."""
    values = setting_values(settings)
    offload = settings.machine.offload
    # With auto they are allowed: if nothing has to be offloaded they are used.
    refused = {"backend": _NOT_OFFLOADED["backend"]} if offload == "auto" else _NOT_OFFLOADED
    if offload != "none" and (found := _find(values, refused)):
        raise UsageError(
            f"{', '.join(found)}: not with --offload {offload}",
            next_step=f"{_leave_out(settings, refused)}, or leave --offload out",
        )
    learning = settings.learning
    beside = [f"--spelling-rate {learning.spelling_rate}"] * (learning.spelling_rate > 0)
    beside += ["--embedding-decay-to first"] * (learning.embedding_decay_to == "first")
    if beside and (found := _find(values, _NOT_BESIDE_ROWS)):
        raise UsageError(
            f"{', '.join(found)}: not with {' and '.join(beside)}",
            next_step=f"{_leave_out(settings, _NOT_BESIDE_ROWS)}, or give --spelling-rate 0 and "
            "--embedding-decay-to zero",
        )
    if settings.computing.backend != "jax":
        return
    found = _find(values, _TORCH_ONLY)
    if found:
        raise UsageError(
            f"{', '.join(found)}: only torch has {'it' if len(found) == 1 else 'them'}, and "
            "--backend is jax",
            next_step=f"{_leave_out(settings, _TORCH_ONLY)}, or give --backend torch",
        )


def _find(values: Mapping[str, Any], table: Mapping[str, tuple[Any, ...] | str]) -> list[str]:
    """What is refused, as flags."""
    return [
        flag_name(name) + ("" if values[name] is True else f" {values[name]}")
        for name, refused in table.items()
        if _is_refused(values[name], refused)
    ]


def _leave_out(settings: TrainSettings, table: Mapping[str, tuple[Any, ...] | str]) -> str:
    """How to do without what is refused, also where a preset or a config file gives it."""
    fields, values = setting_fields(type(settings)), setting_values(settings)
    refused = (name for name, given in table.items() if _is_refused(values[name], given))
    flags = write_flags({name: fields[name].default for name in refused})
    return f"leave it out ({' '.join(flags)})" if flags else "leave it out"


def _is_refused(value: Any, refused: tuple[Any, ...] | str) -> bool:
    if refused == _ABOVE_ZERO:
        return value > 0
    if refused == _BELOW_ONE:
        return value < 1
    return value is not None if refused == _GIVEN else value in refused
