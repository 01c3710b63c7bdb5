"""Options that only torch has: one table, and one error where JAX is to train."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.errors import UsageError
from lowtide.flatsettings import setting_values

if TYPE_CHECKING:
    from lowtide.training.settings import TrainSettings

__all__ = ["refuse_torch_options"]

_TORCH_ONLY = {
    "layout": ("tide",),
    "compile": (True,),
    "compile_whole": (True,),
    "attention": ("cudnn", "flash"),
    "float8_head": (True,),
    "float8_blocks": (True,),
    "precision": ("fp16",),
    "device": ("mps",),
    "tensorboard": (True,),
    "slurm": (True,),
}
"""By field the values that JAX cannot do: its compiler is always there and has its own kernels,
bfloat16 needs no scale, TensorBoard's writer and the processes of a cluster are torch's."""
_TORCH_ONLY_ABOVE_ZERO = ("ahead_weight",)


def refuse_torch_options(settings: TrainSettings) -> None:
    """Refuse, for JAX, everything in the table at once."""
    if settings.computing.backend != "jax":
        return
    values = setting_values(settings)
    found = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
        for name, only in _TORCH_ONLY.items()
        if (value := values[name]) in only
    ]
    found += [f"--{name.replace('_', '-')}" for name in _TORCH_ONLY_ABOVE_ZERO if values[name] > 0]
    if found:
        raise UsageError(
            f"{', '.join(found)}: only torch has {'it' if len(found) == 1 else 'them'}, and "
            "--backend is jax",
            next_step="leave it out, or give --backend torch",
        )
