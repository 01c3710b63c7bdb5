"""Reuse the file of a released lock for the next lock, if many small files are locked in turn.

Deleting a file makes ext4 slow at creating files for some seconds: with a lock for each of 2,000
small files, that was half of the time.

Memory:  a path and a descriptor for each released lock that is not reused yet
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

__all__ = ["give_up_lock", "reusing_locks", "take_spare_lock"]

_spare: list[tuple[Path, int]] | None = None


@contextlib.contextmanager
def reusing_locks() -> Generator[None]:
    """Within this context, the file of a released lock is reused for the next one."""
    global _spare
    before, _spare = _spare, []
    try:
        yield
    finally:
        left, _spare = _spare, before
        for lock, descriptor in left:
            _remove(lock, descriptor)


def take_spare_lock(lock: Path) -> int | None:
    """The descriptor of a released lock, renamed to this name; None if there is none."""
    if not _spare:
        return None
    before, descriptor = _spare.pop()
    try:
        os.link(before, lock, follow_symlinks=False)  # never replaces the lock of another command
        before.unlink()
    except OSError:
        _remove(before, descriptor)
        return None
    return descriptor


def give_up_lock(lock: Path, descriptor: int) -> None:
    """Release a lock: remove its file, or keep it, locked, for the next one."""
    if _spare is None:
        _remove(lock, descriptor)
    else:
        _spare.append((lock, descriptor))


def _remove(lock: Path, descriptor: int) -> None:
    with contextlib.suppress(OSError):
        lock.unlink()  # while locked: another process that has it open then sees that it is gone
    os.close(descriptor)
