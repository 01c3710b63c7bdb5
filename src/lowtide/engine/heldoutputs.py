"""Lock the output that a task writes; while another process holds it, the task waits its turn.

In:      an output folder
Out:     a lock (files), or HeldOutputError, which blames no task
Memory:  none

A lease is taken over when its owner looks dead, but the lock of an output stays with a process that
is only stopped, and for a while with a machine that a network disk has lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.files import hold_lock

__all__ = ["HeldOutputError", "hold_output"]


class HeldOutputError(UsageError):
    """Another process has the lock of a task's output."""


@contextlib.contextmanager
def hold_output(path: Path, *, create_folder: bool = False) -> Generator[None]:
    """Hold the lock of an output within a `with` block."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(path, create_folder=create_folder))
        except UsageError as error:
            raise HeldOutputError(
                error.message, path=error.path, next_step=error.next_step
            ) from None
        yield
