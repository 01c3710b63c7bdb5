"""Memory and cores that this process's cgroups (a container, a cluster job) allow.

In:      /proc/self/cgroup, and the files of cgroups of version 1 and 2
Out:     bytes, cores; None without a limit
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["headroom_bytes", "quota_cores"]

_UNLIMITED = 1 << 60  # version 1 writes "no limit" as a number near 2**63


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _folders(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """Return (version, folder) of each enclosing cgroup with `controller`, innermost first."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            version, base = 2, mount
        elif controller in controllers.split(","):
            version = 1
            base = mount / controllers if (mount / controllers).is_dir() else mount / controller
        else:
            continue
        # Inside a container the group's own path often does not exist: its files are at the mount.
        folder = base / group.lstrip("/")
        for place in [folder, *folder.parents]:
            yield version, place
            if place == base:
                break


def headroom_bytes(root: Path = Path("/")) -> int | None:
    """Return what the tightest enclosing cgroup (v1 or v2) still allows; None without a limit."""
    headroom: list[int] = []
    for version, folder in _folders("memory", root):
        if version == 2:
            # Above memory.high the kernel slows a group down to nearly nothing: in effect a limit.
            limits = [_read_number(folder / name) for name in ("memory.max", "memory.high")]
            used = _read_number(folder / "memory.current")
        else:
            limits = [_read_number(folder / "memory.limit_in_bytes")]
            used = _read_number(folder / "memory.usage_in_bytes")
        known = [limit for limit in limits if limit is not None and limit < _UNLIMITED]
        if known:
            held = max(0, (used or 0) - _reclaimable_bytes(folder / "memory.stat"))
            headroom.append(max(0, min(known) - held))
    return min(headroom, default=None)


def quota_cores(root: Path = Path("/")) -> float | None:
    """Return the CPU quota of the tightest enclosing cgroup in cores; None without one."""
    cores: list[float] = []
    for version, folder in _folders("cpu", root):
        if version == 2:
            try:
                quota_text, period_text = (folder / "cpu.max").read_text().split()
            except (OSError, ValueError):
                continue
            quota = int(quota_text) if quota_text.isdigit() else None
            period = int(period_text) if period_text.isdigit() else None
        else:
            quota = _read_number(folder / "cpu.cfs_quota_us")  # -1, not a number here: no limit
            period = _read_number(folder / "cpu.cfs_period_us")
        if quota and period:
            cores.append(quota / period)
    return min(cores, default=None)


def _reclaimable_bytes(stat_path: Path) -> int:
    """Return the page cache that a cgroup counts as used but gives back on demand."""
    try:
        rows = dict(line.split() for line in stat_path.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(rows.get("total_inactive_file", rows.get("inactive_file", 0)))
