"""The machine a plan is for: described, or this one with its GPU as the driver says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lowtide.gpus import Gpu
from lowtide.planning import machine
from lowtide.planning.machine import find_machine
from lowtide.planning.settings import PlanSettings

GIB = 1 << 30


@pytest.mark.parametrize(
    ("ram", "cores"),
    [("1GiB", 4), ("8GiB", 4), ("9GiB", 8), ("16GiB", 8), ("32GiB", 16), ("99GiB", 16)],
)
def test_cores_go_with_the_memory_where_none_are_named(ram: str, cores: int) -> None:
    found = find_machine(PlanSettings(ram=ram))
    assert found.cores == cores and not found.is_this
    assert found.budget_bytes == int(found.ram_bytes * 0.75)
    assert (found.gpu_name, found.vram_bytes, found.free_disk_bytes) == (None, 0, None)


def test_a_described_gpu_and_a_tpu() -> None:
    found = find_machine(PlanSettings(ram="8GiB", vram="10GiB", cores=3, memory="2GiB"))
    assert (found.cores, found.budget_bytes, found.vram_bytes) == (3, 2 * GIB, 10 * GIB)
    assert found.has_gpu and found.accelerator == "GPU"
    assert found.vram_budget_bytes == int(10 * GIB * 0.92) - (600 << 20)
    assert find_machine(PlanSettings(ram="8GiB", vram="100MiB")).vram_budget_bytes == 0
    tpu = find_machine(PlanSettings(tpu=True))
    assert (tpu.ram_bytes, tpu.vram_bytes, tpu.accelerator) == (32 * GIB, 16 * GIB, "TPU core")
    assert tpu.describe() == "16 cores, 32.0 GiB of memory, TPU core with 16.0 GiB (as described)"


def test_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * GIB))
    monkeypatch.setattr(machine, "available_bytes", lambda: 8 * GIB)
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)
    monkeypatch.setattr(machine, "free_disk_bytes", lambda path: 5 * GIB)
    monkeypatch.setattr(machine, "find_gpu", lambda: Gpu("A GPU", 2 * GIB, GIB))
    found = find_machine(PlanSettings())
    assert (found.ram_bytes, found.budget_bytes, found.cores) == (16 * GIB, 6 * GIB, 1)
    assert found.is_this and not found.is_tpu
    assert found.describe() == (
        "1 core, 16.0 GiB of memory, A GPU with 2.0 GiB, 5.0 GiB of disk free (this machine)"
    )
    named = find_machine(PlanSettings(cores=5))
    assert (named.cores, named.vram_bytes, named.free_disk_bytes) == (5, 0, None)
    assert named.describe() == "5 cores, 16.0 GiB of memory, no GPU (as described)"


def test_a_described_disk() -> None:
    found = find_machine(PlanSettings(ram="8GiB", disk="20GB"))
    assert found.free_disk_bytes == 20_000_000_000 and not found.is_this
    assert "18.6 GiB of disk free" in found.describe()
