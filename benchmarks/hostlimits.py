"""A limit on the host memory of a process and all it starts, by a control group of its own.

In:      a name, bytes
Out:     what puts a new process under the limit; the most that its group held
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_PEAKS = ("memory.peak", "memory.max_usage_in_bytes")


def _group(name: str) -> tuple[int, Path]:
    """Which of both kinds of control groups this machine has (0 is the second version), and one."""
    if (ROOT / "cgroup.controllers").is_file():
        return 0, ROOT / name
    return 1, ROOT / "memory" / name


def limit_memory(name: str, limit_bytes: int) -> Callable[[], object] | None:
    """Return what to call in the new process, before it begins; None where no limit can be set.

    File pages count too, as everywhere in a control group.
    """
    kind, group = _group(name)
    try:
        if kind == 0:
            (ROOT / "cgroup.subtree_control").write_text("+memory")
        group.mkdir(exist_ok=True)
        if not (group / _LIMITS[kind]).is_file():
            raise OSError(f"{group} has no {_LIMITS[kind]}")
        (group / _LIMITS[kind]).write_text(str(limit_bytes))
    except OSError as error:
        print(f"no limit: {error}", flush=True)
        return None
    return lambda: (group / "cgroup.procs").write_text(str(os.getpid()))


def end_group(name: str) -> int | None:
    """Remove a group whose processes have ended; return the most it held, if the kernel says so."""
    kind, group = _group(name)
    try:
        peak = int((group / _PEAKS[kind]).read_text())
        group.rmdir()
    except (OSError, ValueError):
        return None
    return peak


def drop_caches() -> None:
    """Let go of file pages, where this process may."""
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError as error:
        print(f"file pages stay: {error}", flush=True)
