"""GPUs as their driver tells of them, and the driver that says nothing of use."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide import gpus
from lowtide.gpus import Gpu, find_gpu

TWO = "A, 100 X, 24564, 24000\nB, 16, 1\n"


@pytest.mark.parametrize(
    ("answer", "number", "expected"),
    [
        (TWO, 0, Gpu("A, 100 X", 24564 << 20, 24000 << 20)),
        (TWO, 1, Gpu("B", 16 << 20, 1 << 20)),
        (TWO, 2, None),
        ("", 0, None),
        ("A, many, 1\n", 0, None),
        (subprocess.CalledProcessError(1, "x"), 0, None),
        (subprocess.TimeoutExpired("x", 10), 0, None),
        (OSError(), 0, None),
    ],
)
def test_a_gpu_as_its_driver_says(
    monkeypatch: pytest.MonkeyPatch, answer: Any, number: int, expected: Gpu | None
) -> None:
    asked: list[Any] = []

    def run(command: list[str], **options: Any) -> Any:
        asked.append((command[1:], options))
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(stdout=answer)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus.shutil, "which", lambda name: "/bin/nvidia-smi")
    monkeypatch.setattr(gpus.subprocess, "run", run)
    assert find_gpu(number) == expected
    query = ["--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    options = {"capture_output": True, "text": True, "timeout": 10, "check": True}
    assert asked == [(query, options)]
    monkeypatch.setattr(gpus.shutil, "which", lambda name: None)
    assert find_gpu() is None and len(asked) == 1


def test_numbers_are_those_that_cuda_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        asked.append(command[3:])
        return SimpleNamespace(stdout="B, 16, 1\n")

    monkeypatch.setattr(gpus.shutil, "which", lambda name: "/bin/nvidia-smi")
    monkeypatch.setattr(gpus.subprocess, "run", run)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    assert find_gpu(1) == find_gpu(0) == Gpu("B", 16 << 20, 1 << 20)
    assert asked == [["--id=GPU-5"], ["--id=3"]]


@pytest.mark.parametrize(
    ("platform", "device", "visible", "gpu", "there"),
    [
        ("darwin", False, None, None, True),
        ("linux", True, "-1", None, True),
        ("linux", False, None, None, False),
        ("linux", False, None, Gpu("a", 1, 1), True),
        ("linux", False, "0", Gpu("a", 1, 1), True),
        ("linux", False, "", Gpu("a", 1, 1), False),
        ("linux", False, "-1", Gpu("a", 1, 1), False),
    ],
)
def test_an_accelerator_is_one_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    platform: str,
    device: bool,
    visible: str | None,
    gpu: Gpu | None,
    there: bool,
) -> None:
    monkeypatch.setattr(gpus.sys, "platform", platform)
    monkeypatch.setattr(gpus.Path, "exists", lambda self: device)
    monkeypatch.setattr(gpus, "find_gpu", lambda: gpu)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.has_accelerator() is there
