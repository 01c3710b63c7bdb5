"""Several processes under torchrun: rank, DDP or FSDP2 of the model, collective operations.

In:      the environment that torchrun sets; without it there is one process
Out:     the wrapped network; whole tensors for checkpoints, the same for any number of processes
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lowtide import ranks
from lowtide.errors import UsageError
from lowtide.model.devices import pick_device
from lowtide.quickclasses import dataclass

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = [
    "ProcessGroup",
    "cut_like",
    "is_divided",
    "open_process_group",
    "shard_like",
    "whole_tensors",
    "wrap_model",
]


@dataclass(frozen=True)
class ProcessGroup:
    """This process among the others."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    @property
    def on_cpu(self) -> bool:
        """Whether training runs in host memory."""
        return self.device.type == "cpu"

    @property
    def pins_memory(self) -> bool:
        """Whether batches are copied to a device from page-locked memory."""
        return self.device.type == "cuda"

    @property
    def saves_beside(self) -> bool:
        """Whether checkpoints are written in the background by default."""
        return self.device.type == "cuda"

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean of a tensor over all processes."""
        if self.world_size == 1:
            return value
        value = value.clone()
        dist.all_reduce(value)
        return value / self.world_size

    def any(self, flag: bool) -> bool:
        """True if any process passes True."""
        if self.world_size == 1:
            return flag
        votes = torch.tensor(float(flag), device=self.device)
        dist.all_reduce(votes)
        return bool(votes.item())

    def least(self, value: int) -> int:
        """Return the smallest value over all processes."""
        if self.world_size == 1:
            return value
        smallest = torch.tensor(value, device=self.device)
        dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
        return int(smallest.item())

    def all_say(self, value: Any) -> list[Any]:
        """Gather the value of each process, by rank."""
        if self.world_size == 1:
            return [value]
        said: list[Any] = [None] * self.world_size
        dist.all_gather_object(said, value)
        return said

    def first_says(self, value: Any) -> Any:
        """Broadcast the first process's value to all processes."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def wait(self) -> None:
        """Wait for all processes (barrier)."""
        if self.world_size > 1:
            dist.barrier()


@contextlib.contextmanager
def open_process_group(device_name: str) -> Generator[ProcessGroup]:
    """Join the process group of torchrun, or a group of one; leave it at the end."""
    world_size = ranks.world_size()
    if world_size == 1:
        yield ProcessGroup(0, 1, pick_device(device_name))
        return
    if not ranks.by_torchrun():
        raise UsageError(
            f"{ranks.JAX_NAMES[1]} is {world_size}, and --backend is torch, whose processes "
            "torchrun starts",
            next_step=f"unset {', '.join(ranks.JAX_NAMES)}, or give --backend jax",
        )
    device = pick_device(device_name)
    if device.type == "cuda":
        device = torch.device("cuda", ranks.local_rank())
        torch.cuda.set_device(device)
    started = not dist.is_initialized()
    if started:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield ProcessGroup(dist.get_rank(), world_size, device)
    finally:
        if started:
            dist.destroy_process_group()


def wrap_model(model: nn.Module, group: ProcessGroup, *, parallel: str) -> nn.Module:
    """Return the network to call: itself, replicated (DDP), or sharded block by block (FSDP2)."""
    if group.world_size == 1:
        return model
    if parallel == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(group.device.type, (group.world_size,))
        for block in getattr(model, "blocks", ()):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    if parallel != "ddp":
        raise UsageError(f"parallel is {parallel!r}, expected ddp or fsdp")
    ids = [group.device] if group.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)


@contextlib.contextmanager
def gradient_sync(network: nn.Module, *, wanted: bool) -> Generator[None]:
    """Reduce gradients over processes in this backward pass, or leave that to a later one."""
    if isinstance(network, DistributedDataParallel):
        with contextlib.nullcontext() if wanted else network.no_sync():
            yield
        return
    if hasattr(network, "set_requires_gradient_sync"):
        network.set_requires_gradient_sync(wanted)  # pyright: ignore[reportCallIssue]
    yield


def is_divided(value: Any) -> TypeGuard[DTensor]:
    """True for a DTensor, which is sharded over processes.

    Its class is not imported here, since that takes 40 MiB and most of a second: code with such
    tensors has imported it already.
    """
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(value, tensors.DTensor)


def whole_tensors(value: Any) -> Any:
    """Return the same structure with every sharded tensor gathered; all processes must call it."""
    if is_divided(value):
        return value.full_tensor()
    if isinstance(value, dict):
        return {key: whole_tensors(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole_tensors(item) for item in value]
    return value


def shard_like(value: Tensor, reference: Tensor) -> Tensor:
    """Shard a whole tensor like `reference`; every process takes its own part."""
    if not is_divided(reference) or value.shape != reference.shape:
        return value
    return cut_like(value.to(reference.device), reference)


def cut_like(value: Tensor, reference: DTensor) -> DTensor:
    """Shard along the same dimension as `reference`, for any shape."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh = reference.device_mesh
    copies = DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim)
    return copies.redistribute(mesh, reference.placements)
