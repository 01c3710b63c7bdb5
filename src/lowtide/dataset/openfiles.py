"""Limits of open files: of the process, and of work files that are kept open."""

from __future__ import annotations

import contextlib
import resource

__all__ = ["MAX_OPEN_FILES", "ask_for_open_files"]

MAX_OPEN_FILES = 1 << 14
"""Work files that all workers of a process keep open together, if its limit is twice as high."""


def ask_for_open_files(wanted: int) -> None:
    """Raise this process's limit of open files, as far as it is permitted."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
