"""GPUs as their drivers report them; no framework is imported.

Out:     Gpu: name, memory, and free memory (NVIDIA only); whether there is any accelerator
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lowtide.quickclasses import dataclass

__all__ = ["CUDA_CONTEXT_BYTES", "Gpu", "find_gpu", "has_accelerator"]

_OTHER_DEVICES = ("/dev/kfd", "/dev/accel0", "/dev/vfio/0")  # AMD's GPUs, TPUs
CUDA_CONTEXT_BYTES = 600 << 20
"""Memory of a process on a GPU before its first tensor."""


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine."""

    name: str
    memory_bytes: int
    free_bytes: int


def find_gpu(number: int = 0) -> Gpu | None:
    """Return a GPU by its number among those that CUDA may use; None if it does not exist."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if number < len(visible):
        query, number = [*query, f"--id={visible[number]}"], 0
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        name, total, free = found.stdout.splitlines()[number].rsplit(",", 2)
        return Gpu(name.strip(), int(total) << 20, int(free) << 20)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def has_accelerator() -> bool:
    """True if this machine has a GPU or a TPU that torch or JAX might use."""
    if sys.platform == "darwin" or any(Path(name).exists() for name in _OTHER_DEVICES):
        return True
    return os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and find_gpu() is not None
