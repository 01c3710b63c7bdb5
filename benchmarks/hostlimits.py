"""A limit on the host memory of a process and its descendants, by a new control group.

In:      a name, bytes
Out:     a function that puts a new process under the limit; the peak of its group
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_PEAKS = ("memory.peak", "memory.max_usage_in_bytes")


def _group(name: str) -> tuple[int, Path]:
    """The kind of control groups on this machine (0 is version 2), and the folder of one."""
    if (ROOT / "cgroup.controllers").is_file():
        return 0, ROOT / name
    return 1, ROOT / "memory" / name


def limit_memory(name: str, limit_bytes: int) -> Callable[[], object] | None:
    """Return a function to call at the start of the new process; None if no limit can be set.

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
    """Remove a group whose processes have ended; return its peak, if the kernel reports it."""
    kind, group = _group(name)
    try:
        peak = int((group / _PEAKS[kind]).read_text())
        group.rmdir()
    except (OSError, ValueError):
        return None
    return peak


def drop_caches() -> None:
    """Free cached file pages, if this process may."""
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError as error:
        print(f"file pages stay: {error}", flush=True)
