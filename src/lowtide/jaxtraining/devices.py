"""Devices of JAX: which a setting means, rows divided over all of them, weights copied or divided.

In:      a name such as auto, cpu, gpu, cuda:1 or tpu; --parallel ddp or fsdp
Out:     JaxGroup: a mesh with one axis, and where arrays lie on it
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

# Before JAX starts: it would take three quarters of a GPU at once, whatever the model needs.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lowtide import ranks
from lowtide.errors import UsageError
from lowtide.jaxtraining.trees import LAYERS

__all__ = ["JaxGroup", "memory_of", "open_group", "pick_devices"]

# float32 means float32, on GPUs and TPUs too; --use-mixed-precision is what makes products cheaper.
jax.config.update("jax_default_matmul_precision", "highest")

_AXIS = "data"
_NAMES = {"cuda": "gpu", "gpu": "gpu", "cpu": "cpu", "tpu": "tpu"}


@dataclass(frozen=True)
class JaxGroup:
    """This process and the devices it computes on."""

    devices: tuple[Any, ...]

    rank = 0
    world_size = 1
    is_first = True
    pins_memory = False

    @property
    def platform(self) -> str:
        """cpu, gpu or tpu."""
        return self.devices[0].platform

    @property
    def on_cpu(self) -> bool:
        """Whether host memory is what training takes."""
        return self.platform == "cpu"

    @property
    def saves_beside(self) -> bool:
        """Whether checkpoints are written while training goes on, where nobody says."""
        return not self.on_cpu

    def any(self, flag: bool) -> bool:
        """Return whether any process says yes."""
        return flag

    def first_says(self, value: Any) -> Any:
        """Return to all processes what the first one has."""
        return value

    def wait(self) -> None:
        """Wait until all processes are here."""

    @property
    def mesh(self) -> Mesh:
        """All devices on one axis."""
        return Mesh(self.devices, (_AXIS,))

    def rows_sharding(self, axis: int) -> NamedSharding:
        """Where a batch lies: its rows, which are at `axis`, divided over the devices."""
        return NamedSharding(self.mesh, PartitionSpec(*[None] * axis, _AXIS))

    def weight_sharding(self, name: str, shape: tuple[int, ...], *, divided: bool) -> NamedSharding:
        """Where a tensor lies: whole on every device, or its longest axis divided over them."""
        spec: list[str | None] = [None] * len(shape)
        first = 1 if name.startswith(LAYERS) else 0  # layers are computed one after the other
        fits = [a for a in range(first, len(shape)) if shape[a] % len(self.devices) == 0]
        if divided and fits and math.prod(shape) >= len(self.devices):
            spec[max(fits, key=lambda axis: shape[axis])] = _AXIS
        return NamedSharding(self.mesh, PartitionSpec(*spec))


def pick_devices(name: str) -> tuple[Any, ...]:
    """Return the devices of this process that a setting means; one that is not there is refused."""
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
    """Take the devices of this process; several processes are refused."""
    if ranks.world_size() > 1:
        raise UsageError(
            "--backend jax trains in one process, on all devices of this machine; torchrun has "
            f"started {ranks.world_size()}",
            next_step="start it without torchrun",
        )
    yield JaxGroup(pick_devices(device))


def memory_of(group: JaxGroup) -> Callable[[], tuple[int, int]] | None:
    """Return a function that tells what the first device holds, and its size; None on a CPU."""
    device = group.devices[0]
    if group.on_cpu or not device.memory_stats():
        return None
    return lambda: (
        int(device.memory_stats()["bytes_in_use"]),
        int(device.memory_stats().get("bytes_limit", 0)),
    )
