"""The torch device of a setting, and the memory in use on it.

In:      a name such as auto, cpu or cuda:1
Out:     torch.device; bytes in use on a GPU
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from lowtide.errors import UsageError
from lowtide.gpus import CUDA_CONTEXT_BYTES
from lowtide.memory import parse_size

__all__ = ["cap_device_memory", "device_memory", "pick_device"]

_KNOWN = ("cpu", "cuda", "mps")


def pick_device(name: str) -> torch.device:
    """Return the device of a setting; auto is a GPU if there is one.

    A missing device is refused now, not when the first tensor is moved to it.
    """
    if name != "auto":
        return _named_device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def _named_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in _KNOWN:
        raise UsageError(
            f"device is {name!r}, expected auto, cpu, cuda, cuda:N or mps",
            next_step="for a TPU give --backend jax --device tpu",
        )
    number = device.index or 0
    is_there = {
        "cuda": torch.cuda.is_available() and number < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not is_there.get(device.type, True):
        raise UsageError(
            f"device is {name!r}, but torch {torch.__version__} finds no such device here",
            next_step="leave --device out to take what there is; nvidia-smi shows NVIDIA's GPUs",
        )
    return device


def device_memory(device: torch.device) -> Callable[[], tuple[int, int]] | None:
    """Return a function for this process's memory on its GPU; None without one."""
    if device.type != "cuda":
        return None
    total = int(torch.cuda.get_device_properties(device).total_memory)
    return lambda: (torch.cuda.memory_reserved(device), total)


def cap_device_memory(device: torch.device, vram: str | None) -> None:
    """Limit this process's GPU memory to `vram`, including CUDA's own."""
    if vram is None:
        return
    if device.type != "cuda":
        raise UsageError(
            f"vram is {vram}, and training is on {device.type}",
            next_step="leave --vram out; --memory is the budget of a CPU",
        )
    total = int(torch.cuda.get_device_properties(device).total_memory)
    allowed = max(0, parse_size(vram) - CUDA_CONTEXT_BYTES)
    torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total), device)
