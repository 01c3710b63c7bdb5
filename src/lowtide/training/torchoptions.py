"""Options that exclude each other: what only torch has, what --offload cannot do; a table each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from lowtide.errors import UsageError
from lowtide.flags import flag_name
from lowtide.flatsettings import setting_values
from lowtide.model.families import FAMILIES
from lowtide.training.settinggroups import OptimizerName

if TYPE_CHECKING:
    from lowtide.training.settings import TrainSettings

__all__ = ["refuse_options"]

# Layouts whose blocks are not alike from the outside: they read the embedding as well.
_REREADING = tuple(name for name, family in FAMILIES.items() if family.rereads_embedding)
# JAX and --offload have optimizers of their own: what they do not know is torch's.
_OTHER_OPTIMIZERS = tuple(
    name for name in get_args(OptimizerName) if name not in ("auto", "muon", "adamw")
)
_TORCH_ONLY = {
    "layout": _REREADING,
    "optimizer": _OTHER_OPTIMIZERS,
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
_NOT_OFFLOADED = {
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
    "save_in_background": (True,),
}
"""By field the values that --offload cannot do: blocks come one by one and have packed states of
their own, which are saved out of their places."""


def refuse_options(settings: TrainSettings) -> None:
    """Refuse everything in a table at once, for JAX and for --offload."""
    values = setting_values(settings)
    offload = settings.machine.offload
    # auto leaves them as they are where nothing has to be offloaded.
    refused = {"backend": ("jax",)} if offload == "auto" else _NOT_OFFLOADED
    if offload != "none" and (found := _find(values, refused)):
        raise UsageError(
            f"{', '.join(found)}: not with --offload {offload}",
            next_step="leave it out, or leave --offload out",
        )
    if settings.computing.backend != "jax":
        return
    found = _find(values, _TORCH_ONLY)
    found += [flag_name(name) for name in _TORCH_ONLY_ABOVE_ZERO if values[name] > 0]
    found += ["--vram"] if values["vram"] is not None else []
    if found:
        raise UsageError(
            f"{', '.join(found)}: only torch has {'it' if len(found) == 1 else 'them'}, and "
            "--backend is jax",
            next_step="leave it out, or give --backend torch",
        )


def _find(values: Mapping[str, Any], table: Mapping[str, tuple[Any, ...]]) -> list[str]:
    return [
        flag_name(name) + ("" if value is True else f" {value}")
        for name, only in table.items()
        if (value := values[name]) in only
    ]
