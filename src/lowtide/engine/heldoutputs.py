"""The shared output folder: tested for writing before the first task, and locked by one worker.

In:      an output folder
Out:     a lock (files), or HeldOutputError, which does not count as a failure of the task
Memory:  none

A lease is taken over when its owner seems dead, but the lock of an output stays with a process that
is only suspended, and for a while with a machine that lost its connection to a network disk.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.files import create_file, hold_lock, require_local
from lowtide.unfinished import unused_name

__all__ = ["HeldOutputError", "hold_output", "require_writable"]


class HeldOutputError(UsageError):
    """Another process has the lock of a task's output."""


def require_writable(path: Path) -> None:
    """Raise an error if a folder cannot be created or written to; none is created here."""
    require_local(path)
    path = path.absolute()
    place = next(part for part in (path, *path.parents) if part.exists() or part.is_symlink())
    trial = unused_name(place / "trial", "partial")
    try:
        os.close(create_file(trial))
    except OSError as error:
        error.filename = str(place)
        raise
    trial.unlink(missing_ok=True)  # the holder of the folder's lock may remove it as a leftover


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
