"""The backend of a run with --offload: torch's devices and batches, a packed network.

In:      shapes, settings, folders with weights
Out:     BACKEND, which the training loop calls (training/backends.py)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lowtide.errors import LowtideError, UsageError
from lowtide.files import free_disk_bytes
from lowtide.ladder.engine import LadderEngine
from lowtide.ladder.kernels import has_kernel
from lowtide.ladder.network import PackedGPT
from lowtide.memory import format_size
from lowtide.model.arrayfiles import iter_portable
from lowtide.model.config import GPTConfig
from lowtide.model.devices import cap_device_memory, device_memory, pick_device
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import Tokenizer
from lowtide.training.batchsources import BatchSource
from lowtide.training.counters import Counters
from lowtide.training.distributed import ProcessGroup, open_process_group
from lowtide.training.feeding import Feed
from lowtide.training.offloading import offload_bytes
from lowtide.training.settings import TrainSettings
from lowtide.training.state import RunState

__all__ = ["BACKEND"]


@dataclass(frozen=True)
class _Alone(ProcessGroup):
    """A group of one process; checkpoints are written from stored tensors, without copies."""

    @property
    def saves_beside(self) -> bool:
        return False


class _InPlace:
    """No copies: tensors are read from where they are stored, while no step changes them."""

    def take(self, value: Any) -> tuple[Any, Callable[[], None]]:
        return value, lambda: None

    def close(self) -> None:
        pass


def _require_device(group: ProcessGroup) -> None:
    """Refuse devices that cannot compute packed states, and runs of several processes."""
    if group.world_size > 1:
        raise UsageError(
            f"--offload trains in one process, and these are {group.world_size}",
            next_step="start it without torchrun, or leave out --offload",
        )
    if not group.on_cpu and not has_kernel(torch.empty(0, device=group.device)):
        raise UsageError(
            f"--offload on {group.device.type} needs an NVIDIA GPU and Triton",
            next_step="pip install triton, or give --device cpu, or leave out --offload",
        )


def _require_disk(config: GPTConfig, settings: TrainSettings, *, on_gpu: bool) -> None:
    """Refuse a disk too small for all scratch files together, before the first is made."""
    wanted = offload_bytes(config, settings, rows=1, on_gpu=on_gpu).file
    folder = settings.machine.offload_dir or settings.run.folder
    if wanted and (free := free_disk_bytes(folder)) < wanted:
        raise LowtideError(
            f"the scratch files of --offload {settings.machine.offload} take "
            f"{format_size(wanted)}, the disk has {format_size(free)} free",
            path=folder,
            next_step="give --offload-dir on a larger disk",
        )


class _LadderBackend:
    """Packed networks; the methods are documented in Backend."""

    def device_kind(self, device: str) -> str:
        return pick_device(device).type

    @contextmanager
    def open_group(self, device: str) -> Generator[ProcessGroup]:
        with open_process_group(device) as group:
            yield _Alone(group.rank, group.world_size, group.device)

    def device_memory(self, group: ProcessGroup) -> Callable[[], tuple[int, int]] | None:
        return device_memory(group.device)

    def new_model(self, config: GPTConfig, *, seed: int, zero_init: bool = False) -> PackedGPT:
        return PackedGPT(config, seed=seed, zero_init=zero_init)

    def set_embedding(self, model: PackedGPT, rows: np.ndarray[Any, Any]) -> None:
        model.first_embedding = torch.from_numpy(rows)

    def load_weights(self, model: PackedGPT, folder: Path, *, verify: bool = True) -> None:
        model.load_weights(folder, verify=verify)

    def held_bytes(self, model: PackedGPT) -> int:
        return 0  # no memory is taken before the engine calls `settle`

    def make_engine(
        self,
        model: Any,
        settings: TrainSettings,
        state: RunState,
        group: ProcessGroup,
        *,
        rows: int,
        given: Any,
        note: Callable[[str], None],
        tokenizer: Tokenizer | None = None,
    ) -> LadderEngine:
        if not isinstance(model, PackedGPT):
            raise UsageError(
                f"offload is {settings.machine.offload!r}, which trains a network of its own, not "
                f"a {type(model).__name__} that is there already",
                next_step="lowtide.train(offload=…, …), or `lowtide train --offload`",
            )
        _require_device(group)
        _require_disk(model.config, settings, on_gpu=not group.on_cpu)
        cap_device_memory(group.device, settings.machine.vram)
        return LadderEngine(model, settings, state, group, rows=rows, note=note)

    def make_counters(self, group: ProcessGroup) -> Counters:
        return Counters.zeros(group.device)

    def make_feed(self, source: BatchSource, group: ProcessGroup, config: GPTConfig) -> Feed:
        return Feed(source, group.device)

    def make_snapshot(self) -> _InPlace:
        return _InPlace()

    def portable(self, weights: Mapping[str, Any], config: GPTConfig) -> dict[str, Any]:
        return dict(iter_portable(weights, config))


BACKEND = _LadderBackend()
