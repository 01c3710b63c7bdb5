"""A limit on the host memory of a process and all it starts, by a control group of its own.

In:      a name, bytes
Out:     what puts a new process under the limit; the most that its group held
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def limit_memory(name: str, limit_bytes: int) -> Callable[[], object] | None:
    """Return what to call in the new process, before it begins; None where no limit can be set.

    File pages count too, as everywhere in a control group.
    """
    group = ROOT / name
    try:
        (ROOT / "cgroup.subtree_control").write_text("+memory")
        group.mkdir(exist_ok=True)
        (group / "memory.max").write_text(str(limit_bytes))
    except OSError as error:
        print(f"no limit: {error}", flush=True)
        return None
    return lambda: (group / "cgroup.procs").write_text(str(os.getpid()))


def peak_bytes(name: str) -> int | None:
    """Return the most that a group held; None where the kernel does not say."""
    try:
        return int((ROOT / name / "memory.peak").read_text())
    except (OSError, ValueError):
        return None


def drop_caches() -> None:
    """Let go of file pages, where this process may."""
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError as error:
        print(f"file pages stay: {error}", flush=True)
