"""JAX devices of a setting: rows sharded over all of them, weights replicated or sharded.

In:      a name such as auto, cpu, gpu, cuda:1 or tpu; --parallel ddp or fsdp; this process's rank
         (ranks.py)
Out:     JaxGroup: a mesh of one axis over the devices of all processes, and shardings on it
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Generator
from typing import Any

# Before JAX starts: it would take three quarters of a GPU at once, whatever the model needs.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lowtide.errors import UsageError
from lowtide.jaxtraining import processes
from lowtide.jaxtraining.trees import LAYERS
from lowtide.quickclasses import dataclass

__all__ = ["JaxGroup", "memory_of", "open_group", "pick_devices"]

# Products of float32 stay exact on GPUs and TPUs too; --use-mixed-precision makes them faster.
jax.config.update("jax_default_matmul_precision", "highest")

_AXIS = "data"
_NAMES = {"cuda": "gpu", "gpu": "gpu", "cpu": "cpu", "tpu": "tpu"}


@dataclass(frozen=True)
class JaxGroup:
    """This process among the others, and the devices that all of them compute on."""

    devices: tuple[Any, ...]
    """Of all processes, those of each together."""
    rank: int = 0
    world_size: int = 1

    pins_memory = False

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    @property
    def own_devices(self) -> tuple[Any, ...]:
        """Those of this process."""
        count = len(self.devices) // self.world_size
        return self.devices[self.rank * count :][:count]

    @property
    def platform(self) -> str:
        """cpu, gpu or tpu."""
        return self.devices[0].platform

    @property
    def on_cpu(self) -> bool:
        """Whether training runs in host memory."""
        return self.platform == "cpu"

    @property
    def saves_beside(self) -> bool:
        """Whether checkpoints are written in the background by default."""
        return not self.on_cpu

    def any(self, flag: bool) -> bool:
        """True if any process passes True."""
        return flag if self.world_size == 1 else any(processes.all_say(flag))

    def least(self, value: int) -> int:
        """Return the smallest number of all processes."""
        return value if self.world_size == 1 else min(processes.all_say(value))

    def all_say(self, value: Any) -> list[Any]:
        """Gather the value of each process, by rank; values must fit into JSON."""
        return [value] if self.world_size == 1 else processes.all_say(value)

    def total(self, values: list[int]) -> list[int]:
        """Return the sums of numbers over all processes."""
        if self.world_size == 1:
            return values
        return [sum(parts) for parts in zip(*processes.all_say(values), strict=True)]

    def first_says(self, value: Any) -> Any:
        """Broadcast the first process's value to all: an array, or a value that fits into JSON."""
        return (
            value if self.world_size == 1 else processes.first_says(value, is_first=self.is_first)
        )

    def wait(self) -> None:
        """Wait for all processes (barrier)."""
        if self.world_size > 1:
            processes.all_say(None)

    @property
    def mesh(self) -> Mesh:
        """All devices on one axis."""
        return Mesh(self.devices, (_AXIS,))

    def rows_sharding(self, axis: int) -> NamedSharding:
        """The sharding of a batch: its rows, at `axis`, over the devices."""
        return NamedSharding(self.mesh, PartitionSpec(*[None] * axis, _AXIS))

    def place_rows(self, rows: Any, *, axis: int) -> Any:
        """Copy this process's rows to its devices: a part of the batch of all processes."""
        places = self.rows_sharding(axis)
        if self.world_size == 1:
            # A copy, because on a CPU JAX would keep using the memory of the given array.
            return jax.device_put(jnp.array(rows), places)
        return jax.make_array_from_process_local_data(places, np.array(rows))

    def place(self, value: Any, places: NamedSharding) -> Any:
        """Copy an array that every process has to the devices, whole or in parts."""
        if self.world_size == 1:
            return jax.device_put(jnp.array(value), places)
        return jax.make_array_from_callback(
            value.shape, places, lambda where: jnp.array(value[where])
        )

    def weight_sharding(self, name: str, shape: tuple[int, ...], *, divided: bool) -> NamedSharding:
        """The sharding of a tensor: whole on every device, or along its longest axis."""
        spec: list[str | None] = [None] * len(shape)
        first = 1 if name.startswith(LAYERS) else 0  # not by layer: they are computed in order
        fits = [a for a in range(first, len(shape)) if shape[a] % len(self.devices) == 0]
        if divided and fits and math.prod(shape) >= len(self.devices):
            spec[max(fits, key=lambda axis: shape[axis])] = _AXIS
        return NamedSharding(self.mesh, PartitionSpec(*spec))


def pick_devices(name: str) -> tuple[Any, ...]:
    """Return the devices of this process for a setting; a missing one is refused."""
    kind, _, number = name.partition(":")
    if name != "auto" and (kind not in _NAMES or (number and not number.isdigit())):
        raise UsageError(
            f"device is {name!r}, expected auto, cpu, gpu, tpu or gpu:N with --backend jax",
            next_step="leave --device out to take what there is",
        )
    try:
        found = jax.local_devices() if name == "auto" else jax.local_devices(backend=_NAMES[kind])
        return tuple(found) if not number else (found[int(number)],)
    except (RuntimeError, IndexError):
        there = ", ".join(f"{d.platform}:{d.id}" for d in jax.local_devices())
        raise UsageError(
            f"device is {name!r}, but jax {jax.__version__} finds no such device here ({there})",
            next_step="leave --device out to take what there is; jax for GPUs is "
            'pip install "jax[cuda13]", for TPUs "jax[tpu]"',
        ) from None


@contextlib.contextmanager
def open_group(device: str) -> Generator[JaxGroup]:
    """Open the devices of this process, and of all others if there are any."""
    if not processes.join():
        yield JaxGroup(pick_devices(device))
        return
    if ":" in device:
        raise UsageError(
            f"device is {device!r}, and there are several processes, each with all its devices",
            next_step="leave the number out; JAX_LOCAL_DEVICE_IDS=1 leaves a process one device",
        )
    kind = pick_devices(device)[0].platform
    found = sorted(jax.devices(kind), key=_place_of)
    counts = {jax.local_device_count(kind), len(found) // jax.process_count()}
    if len(counts) > 1:
        raise UsageError(
            f"this process has {jax.local_device_count(kind)} of {len(found)} devices, and there "
            f"are {jax.process_count()} processes: all need as many",
            next_step="start them on machines that are alike, or set JAX_LOCAL_DEVICE_IDS",
        )
    yield JaxGroup(tuple(found), jax.process_index(), jax.process_count())


def _place_of(device: Any) -> tuple[int, int]:
    return device.process_index, device.id


def memory_of(group: JaxGroup) -> Callable[[], tuple[int, int]] | None:
    """Return a function for the memory in use on the first device, and its size; None on a CPU."""
    device = group.own_devices[0]
    if group.on_cpu or not device.memory_stats():
        return None
    return lambda: (
        int(device.memory_stats()["bytes_in_use"]),
        int(device.memory_stats().get("bytes_limit", 0)),
    )
