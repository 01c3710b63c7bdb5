"""The environment of a run: command, machine, versions, and the FLOPs of a step.

In:      a run's shape and settings
Out:     one row of metrics.jsonl, from which reports compare runs
"""

from __future__ import annotations

import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import psutil

from lowtide.counts import counted
from lowtide.memory import format_size, usable_cores
from lowtide.model.config import GPTConfig
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.model.sizing import count_parameters, flops_per_token
from lowtide.packages import installed_version
from lowtide.training.settings import TrainSettings

__all__ = ["describe_environment", "peak_flops"]

_PACKAGES = {"torch": ("torch", "triton"), "jax": ("jax", "jaxlib")}
# Published bfloat16 FLOP/s, without sparsity.
_PEAK_FLOPS = {
    "A100": 312e12,
    "H100 80GB HBM3": 989.4e12,
    "H100 PCIe": 756e12,
    "H200": 989.4e12,
}


def describe_environment(
    config: GPTConfig | ModuleConfig, settings: TrainSettings, *, on_cpu: bool, world_size: int
) -> dict[str, Any]:
    """Return the row; a run that is resumed elsewhere writes another one."""
    device = "" if on_cpu else _device_name()
    peak = peak_flops(device)
    packages = ("lowtide", "numpy", *_PACKAGES[settings.computing.backend])
    versions = {name: found for name in packages if (found := installed_version(name))}
    return {
        "event": "environment",
        "command": _command(),
        "hardware": f"{world_size} x {device}" if device else _describe_cpu(),
        "versions": {"python": platform.python_version(), **versions},
        "num_parameters": count_parameters(config),
        "tokens_per_step": settings.tokens_per_step,
        "flops_per_token": flops_per_token(config, settings.model.seq_len),
        **({} if peak is None else {"peak_flops": peak * world_size}),
    }


def peak_flops(device: str) -> float | None:
    """Peak bfloat16 FLOP/s of a GPU; None if not published.

    >>> peak_flops("NVIDIA H200"), peak_flops("some other")
    (989400000000000.0, None)
    """
    return next((flops for name, flops in _PEAK_FLOPS.items() if name in device), None)


def _command() -> str:
    """The command line of this process."""
    words = list(getattr(sys, "orig_argv", sys.argv))
    if Path(sys.argv[0]).name in ("lowtide", "__main__.py"):
        words = ["lowtide", *sys.argv[1:]]
    return shlex.join(words)


def _device_name() -> str:
    """The GPU's name, from its backend, which is loaded by now or was never needed."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return "" if jax is None else str(jax.devices()[0].device_kind)


def _describe_cpu() -> str:
    name = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        with cpuinfo.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    name = line.partition(":")[2].strip()
                    break
    return (
        f"{name}, {counted(usable_cores(), 'core')}, {format_size(psutil.virtual_memory().total)}"
    )
