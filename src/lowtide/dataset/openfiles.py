"""Limits of open files: of the process, and of work files that are kept open."""

from __future__ import annotations

import contextlib
import resource

__all__ = ["MAX_OPEN_FILES", "ask_for_open_files"]

MAX_OPEN_FILES = 1 << 14
"""Work files that all workers of a process keep open together, where it may have twice as many."""


def ask_for_open_files(wanted: int) -> None:
    """Raise how many files this process may have open, as far as it may do that itself."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
