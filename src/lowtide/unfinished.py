"""Unfinished files: their hidden names, and the removal of those that killed writers left.

In:      the path of an output, a folder or a file
Out:     names beside it; unfinished files removed, unless a process is writing them
Memory:  the names in one folder

A writer holds a shared lock on its unfinished file; removing it needs an exclusive lock, which the
system grants once the writer has closed the file or is dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Generator, Iterator
from pathlib import Path

__all__ = [
    "list_leftovers",
    "listing_folders_once",
    "mark_used",
    "remove_leftovers",
    "unused_name",
]

_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{16}\.partial")
_UNFINISHED_NAME = re.compile(r"\.(.+)\.[0-9a-f]{16}\.([a-z]+)")
_listed: dict[Path, dict[tuple[str, str], list[str]]] | None = None


def unused_name(path: str | os.PathLike[str], suffix: str) -> Path:
    """A hidden, unpredictable name beside `path`.

    >>> unused_name("a.npy", "partial").name.startswith(".a.npy.")
    True
    """
    path = Path(path)
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.{suffix}")


def remove_leftovers(path: Path) -> None:
    """Remove unfinished files of killed writers beside a file, or in a folder and its folders."""
    for leftover in _iter_leftovers(path):
        _remove_unused(leftover)


def _iter_leftovers(path: Path) -> Iterator[Path]:
    """Unfinished files of killed writers beside a file, or in a folder and its subfolders."""
    if not path.is_dir():
        yield from list_leftovers(path, "partial")
        return
    for folder in [path, *(item for item in path.iterdir() if _is_plain_folder(item))]:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            yield from (folder / row.name for row in entries if _LEFTOVER.fullmatch(row.name))


def list_leftovers(path: Path, suffix: str) -> list[Path]:
    """Hidden files beside `path` that an interrupted command left (see unused_name)."""
    folder = path.parent
    names = None if _listed is None else _listed.get(folder)
    if names is None:
        names = dict[tuple[str, str], list[str]]()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if found := _UNFINISHED_NAME.fullmatch(entry.name):
                    names.setdefault((found[1], found[2]), []).append(entry.name)
        if _listed is not None:
            _listed[folder] = names
    return [folder / name for name in names.get((path.name, suffix), ())]


@contextlib.contextmanager
def listing_folders_once() -> Generator[None]:
    """Within this context, a folder is listed once, however many of its files are written.

    Otherwise a folder of 200,000 files would be listed 200,000 times.
    """
    global _listed
    before, _listed = _listed, {}
    try:
        yield
    finally:
        _listed = before


def _is_plain_folder(path: Path) -> bool:
    return not path.name.startswith(".") and path.is_dir() and not path.is_symlink()


def _remove_unused(path: Path) -> None:
    """Remove an unfinished file, unless a process holds its lock to write it."""
    if not _LEFTOVER.fullmatch(path.name):
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        finally:
            os.close(descriptor)


def mark_used(descriptor: int) -> None:
    """Lock an unfinished file with a shared lock; its removal needs an exclusive one."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
