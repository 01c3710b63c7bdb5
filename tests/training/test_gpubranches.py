"""What is decided by the kind of device, with stand-ins for GPUs that are not here."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from lowtide.errors import UsageError
from lowtide.ladder.engine import LadderEngine
from lowtide.model import devices, float8
from lowtide.training import distributed
from lowtide.training.distributed import ProcessGroup
from lowtide.training.stepping import Stepper

CPU, GPU, MPS = torch.device("cpu"), torch.device("cuda:1"), torch.device("mps")
GIB = 1 << 30


def test_a_group_says_what_its_device_wants():
    said = {
        device.type: (group.on_cpu, group.pins_memory, group.saves_beside)
        for device in (CPU, GPU, MPS)
        for group in (ProcessGroup(0, 1, device),)
    }
    nothing = (False, False, False)
    assert said == {"cpu": (True, False, False), "cuda": (False, True, True), "mps": nothing}
    assert [ProcessGroup(rank, 2, CPU).is_first for rank in (0, 1)] == [True, False]


@pytest.mark.parametrize("engine", [Stepper, LadderEngine])
def test_peaks_are_those_of_a_gpu(engine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 77)
    for device, peak in ((CPU, None), (GPU, 77)):
        stand_in = SimpleNamespace(_group=SimpleNamespace(device=device))
        assert engine.device_peak_bytes(stand_in) == peak


def test_memory_of_a_gpu_is_told_and_capped(monkeypatch):
    capped = []
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=8 * GIB)
    )
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 5)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda *given: capped.append(given)
    )
    assert devices.device_memory(CPU) is devices.device_memory(MPS) is None
    assert devices.device_memory(GPU)() == (5, 8 * GIB)
    devices.cap_device_memory(CPU, None)
    with pytest.raises(UsageError, match="vram is 2GiB, and training is on cpu"):
        devices.cap_device_memory(CPU, "2GiB")
    for vram in ("1KiB", "4GiB", "8GiB", "80GiB"):
        devices.cap_device_memory(GPU, vram)
    context = devices.CUDA_CONTEXT_BYTES
    shares = [0.0, (4 * GIB - context) / (8 * GIB), (8 * GIB - context) / (8 * GIB), 1.0]
    assert capped == [(share, GPU) for share in shares]


@pytest.mark.parametrize(
    ("device", "capability", "hip", "has"),
    [(CPU, (9, 0), None, False), (GPU, (8, 8), None, False), (GPU, (8, 9), None, True),
     (GPU, (9, 0), None, True), (GPU, (9, 0), "6.2", False)],
)  # fmt: skip
def test_which_gpus_multiply_eight_bits(monkeypatch, device, capability, hip, has):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(float8.importlib.util, "find_spec", lambda name: name)
    assert float8.has_float8(device) is has
    monkeypatch.setattr(float8.importlib.util, "find_spec", lambda name: None)
    assert float8.has_float8(device) is False


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(("kind", "by"), [("cpu", "gloo"), ("cuda", "nccl")])
def test_processes_talk_by_what_their_devices_have(monkeypatch, started, kind, by):
    noted = []
    monkeypatch.setattr(distributed.ranks, "world_size", lambda: 2)
    monkeypatch.setattr(distributed.ranks, "by_torchrun", lambda: True)
    monkeypatch.setattr(distributed.ranks, "local_rank", lambda: 1)
    monkeypatch.setattr(distributed, "pick_device", torch.device)
    monkeypatch.setattr(torch.cuda, "set_device", noted.append)
    dist = SimpleNamespace(
        is_initialized=lambda: started, init_process_group=noted.append, get_rank=lambda: 1,
        destroy_process_group=lambda: noted.append("left"),
    )  # fmt: skip
    monkeypatch.setattr(distributed, "dist", dist)
    with contextlib.suppress(KeyError), distributed.open_process_group(kind) as group:
        assert group == ProcessGroup(1, 2, GPU if kind == "cuda" else CPU)
        raise KeyError
    assert noted == [*([GPU] * (kind == "cuda")), *([] if started else [by, "left"])]
