"""The machine a plan is for: this one, or one described by its memory and cores.

Out:     Machine
"""

from __future__ import annotations

from pathlib import Path

import psutil

from lowtide.files import free_disk_bytes
from lowtide.gpus import CUDA_CONTEXT_BYTES, find_gpu
from lowtide.memory import available_bytes, format_size, parse_size, usable_cores
from lowtide.planning.settings import PlanSettings
from lowtide.quickclasses import dataclass

__all__ = ["Machine", "find_machine"]

# The rest is for the system and other programs (RAM), for CUDA's context and what the caching
# allocator cannot use of its blocks (VRAM).
_RAM_SHARE = 0.75
_VRAM_SHARE = 0.92
_USUAL_CORES = {8: 4, 16: 8, 32: 16}  # GiB of RAM to cores, where only the memory is named
_TPU_RAM, _TPU_MEMORY = "32GiB", "16GiB"  # a host and one core, where only the kind is named


@dataclass(frozen=True)
class Machine:
    """What a machine has, and how much of it a command may use."""

    ram_bytes: int
    budget_bytes: int
    """What one command may take of the RAM."""
    cores: int
    gpu_name: str | None
    vram_bytes: int
    """Memory of the GPU; 0 without one."""
    free_disk_bytes: int | None
    """None if the machine is only described, without its disk."""
    is_this: bool
    is_tpu: bool = False
    """Whether it wants all rows of a step at once, as accelerators for large matrices do."""

    @property
    def has_gpu(self) -> bool:
        """Whether training runs on a GPU or another accelerator."""
        return self.vram_bytes > 0

    @property
    def cpu_threads(self) -> int | None:
        """Those that compute on its CPU; None for as many as a command has here."""
        return None if self.is_this else self.cores

    @property
    def accelerator(self) -> str:
        """What trains, if not the CPU."""
        return "TPU core" if self.is_tpu else "GPU"

    @property
    def vram_budget_bytes(self) -> int:
        """What training may take of the GPU's memory."""
        return max(0, int(self.vram_bytes * _VRAM_SHARE) - CUDA_CONTEXT_BYTES)

    def describe(self) -> str:
        """Return the machine in one line."""
        parts = [
            f"{self.cores} core{'s' if self.cores > 1 else ''}",
            f"{format_size(self.ram_bytes)} of memory",
            f"{self.accelerator} with {format_size(self.vram_bytes)}" if self.has_gpu else "no GPU",
        ]
        if self.gpu_name:
            parts[2] = f"{self.gpu_name} with {format_size(self.vram_bytes)}"
        if self.free_disk_bytes is not None:
            parts.append(f"{format_size(self.free_disk_bytes)} of disk free")
        whose = "this machine" if self.is_this else "as described"
        return f"{', '.join(parts)} ({whose})"


def find_machine(settings: PlanSettings) -> Machine:
    """The machine that the settings describe, or this one if they describe none."""
    named = settings.names_a_machine
    given_ram = settings.ram or (_TPU_RAM if settings.tpu else None)
    given_vram = settings.vram or (_TPU_MEMORY if settings.tpu else None)
    ram = parse_size(given_ram) if given_ram is not None else psutil.virtual_memory().total
    usable = ram if given_ram is not None else available_bytes()
    name, vram = None, 0
    if given_vram is not None:
        vram = parse_size(given_vram)
    elif not named and (gpu := find_gpu()) is not None:
        name, vram = gpu.name, gpu.memory_bytes
    cores = settings.cores
    if cores is None:
        cores = _usual_cores(ram) if given_ram is not None else usable_cores()
    budget = parse_size(settings.memory) if settings.memory is not None else usable * _RAM_SHARE
    return Machine(
        ram_bytes=ram,
        budget_bytes=int(budget),
        cores=cores,
        gpu_name=name,
        vram_bytes=vram,
        free_disk_bytes=_disk_bytes(settings),
        is_this=not named,
        is_tpu=settings.tpu,
    )


def _disk_bytes(settings: PlanSettings) -> int | None:
    if settings.disk is not None:
        return parse_size(settings.disk)
    return None if settings.names_a_machine else free_disk_bytes(Path.cwd())


def _usual_cores(ram_bytes: int) -> int:
    """Return the cores that a machine with so much memory usually has."""
    gib = ram_bytes / (1 << 30)
    return next((cores for limit, cores in _USUAL_CORES.items() if gib <= limit), 16)
