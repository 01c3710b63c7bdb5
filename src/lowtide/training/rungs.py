"""Resolve --offload auto: the first rung that fits the machine's memories; without torch.

In:      TrainSettings and the network's shape; memory of GPU and host, space of the disk
Out:     the same settings with a rung, or BudgetError with the need of the smallest one
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lowtide.errors import BudgetError, UsageError
from lowtide.files import free_disk_bytes
from lowtide.flatsettings import replace_settings
from lowtide.gpus import CUDA_CONTEXT_BYTES, find_gpu
from lowtide.memory import available_bytes, default_budget_bytes, format_size, parse_size
from lowtide.model.config import GPTConfig
from lowtide.model.program import Program, find_program
from lowtide.quickclasses import dataclass
from lowtide.training.footprint import Footprint, planned_bytes
from lowtide.training.offloading import RUNGS
from lowtide.training.settinggroups import MachineSettings
from lowtide.training.settings import TrainSettings

__all__ = [
    "Limits",
    "choose_rung",
    "find_limits",
    "host_budget_bytes",
    "program_of",
    "smallest_rung",
]

_HOST_SHARE = 0.9  # of the free host memory, if a GPU offloads to it


@dataclass(frozen=True)
class Limits:
    """How much of each memory a run may take."""

    on_gpu: bool
    device_bytes: int
    """Of the GPU, or of host memory if a CPU trains."""
    host_bytes: int
    disk_bytes: int | None
    """None if unknown."""

    def hold(self, need: Footprint) -> bool:
        """Whether a run fits."""
        file = need.offloaded.file if need.offloaded else 0
        on_disk = self.disk_bytes is None or file <= self.disk_bytes
        if not self.on_gpu:
            return on_disk and need.budget_bytes <= self.device_bytes
        on_device = need.device_budget_bytes + CUDA_CONTEXT_BYTES <= self.device_bytes
        return on_disk and on_device and need.host_bytes <= self.host_bytes


def program_of(settings: TrainSettings) -> Program:
    """The program's memory with everything that a run of these settings imports."""
    return find_program(
        settings.machine.device,
        use_8bit=settings.learning.use_8bit_optimizer,
        compiles=settings.computing.compile,
        recomputes=settings.computing.activation_checkpointing,
        backend=settings.computing.backend,
    )


def host_budget_bytes(machine: MachineSettings, *, on_gpu: bool) -> int:
    """The budget of host memory: as given, else half of the free memory, 0.9 if offloading."""
    if machine.memory is not None:
        return parse_size(machine.memory)
    if on_gpu and machine.offload != "none":
        return int(available_bytes() * _HOST_SHARE)
    return default_budget_bytes()


def find_limits(settings: TrainSettings, program: Program) -> Limits:
    """This machine's memories, as far as the settings allow to use them."""
    on_gpu = program.device != "cpu"
    host = host_budget_bytes(settings.machine, on_gpu=on_gpu)
    device = host
    if on_gpu:
        _, _, number = settings.machine.device.partition(":")
        gpu = find_gpu(int(number or 0))
        device = gpu.free_bytes if gpu is not None else 0
        if program.device == "mps":  # it uses the machine's memory
            device = available_bytes()
        if settings.machine.vram is not None:
            device = parse_size(settings.machine.vram)
    folder = settings.machine.offload_dir or settings.run.checkpoints_dir
    there = next((path for path in (folder, *folder.parents) if path.is_dir()), Path())
    return Limits(on_gpu, device, host, free_disk_bytes(there))


def choose_rung(
    settings: TrainSettings,
    config: GPTConfig,
    *,
    rungs: Sequence[str] = RUNGS,
    program: Program | None = None,
    limits: Limits | None = None,
) -> TrainSettings:
    """Return the settings with the first of the rungs that fits, with one row at a time if needed.

    The free memory of a GPU becomes --vram, which limits the run's micro-batches and its allocator.
    """
    program = program or program_of(settings)
    limits = limits or find_limits(settings, program)
    if program.device == "cuda" and settings.machine.vram is None:
        if limits.device_bytes == 0:
            raise UsageError(
                "--offload auto: how much of the GPU is free is not known, nvidia-smi does not say",
                next_step="give --vram, such as --vram 8GiB",
            )
        settings = replace_settings(settings, vram=str(limits.device_bytes))
    if program.device == "mps":
        rungs = RUNGS[:1]  # Apple's GPUs have no separate memory to offload from
    needs: list[Footprint] = []
    for tried in _with_rungs(settings, rungs):
        need = planned_bytes(config, tried, micro_batch=1, on_gpu=limits.on_gpu, program=program)
        if limits.hold(need):
            return tried
        needs.append(need)
    if not needs:
        raise UsageError("--offload auto: none of its rungs is possible with the other settings")
    # A CPU has one memory; with a GPU the last rung takes least of both.
    smallest = needs[-1] if limits.on_gpu else min(needs, key=lambda need: need.budget_bytes)
    raise _nothing_fits(smallest, limits)


def _with_rungs(settings: TrainSettings, rungs: Sequence[str]) -> Iterator[TrainSettings]:
    """The settings with each compatible rung."""
    for rung in rungs:
        changes = {"offload": rung, **({} if rung.startswith("disk") else {"offload_dir": None})}
        try:
            yield replace_settings(settings, **changes)
        except UsageError:  # such as 8-bit products, which no rung supports
            continue


def smallest_rung(settings: TrainSettings, config: GPTConfig, program: Program) -> TrainSettings:
    """The settings with the compatible rung that takes the least memory on a CPU.

    That can be none, if a step has many tokens and the model few parameters: rungs keep the inputs
    of blocks for every row of a step.
    """
    return min(
        _with_rungs(settings, RUNGS),
        key=lambda tried: planned_bytes(config, tried, micro_batch=1, program=program).total_bytes,
    )


def _nothing_fits(need: Footprint, limits: Limits) -> BudgetError:
    file = need.offloaded.file if need.offloaded else 0
    parts = [f"{format_size(need.budget_bytes)} of memory ({format_size(limits.device_bytes)})"]
    if limits.on_gpu:
        device = need.device_budget_bytes + CUDA_CONTEXT_BYTES
        parts = [
            f"{format_size(device)} of the GPU ({format_size(limits.device_bytes)})",
            f"{format_size(need.host_bytes)} of the host ({format_size(limits.host_bytes)})",
        ]
    if file:
        there = "unknown" if limits.disk_bytes is None else format_size(limits.disk_bytes)
        parts.append(f"{format_size(file)} of disk ({there})")
    flags = f"--memory {-(-need.budget_bytes // (1 << 20))}MiB"
    if limits.on_gpu:
        flags = f"--memory {-(-need.host_bytes // (1 << 20))}MiB and so much of a GPU"
    return BudgetError(
        "no rung of --offload fits: the smallest, one row at a time, takes "
        f"{', '.join(parts)}; in parentheses what there is",
        next_step=f"give at least {flags}, or a smaller model or --seq-len",
    )
