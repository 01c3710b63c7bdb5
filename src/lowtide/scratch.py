"""Temporary folders and files that are removed later if their process is killed.

In:      a purpose, which becomes part of the name
Out:     a folder of this process alone, in the temporary folder (TMPDIR) or a given one; a file
          without a name; FullScratchError if the disk is full
Memory:  none

A process holds a lock on its folder while it lives; the system releases the lock when the process
ends, however it ends. The next command, and the next process that creates a folder, removes all
folders without an owner.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO

from lowtide.errors import DataError, FullScratchError

__all__ = [
    "ScratchFolder",
    "naming_full_disk",
    "remove_leftovers",
    "scratch_file",
    "scratch_folder",
    "temporary_root",
]

_OURS = re.compile(r"\.?lowtide\.[a-z-]+\.[a-z0-9_]{8}")


def temporary_root() -> Path:
    """The temporary folder: TMPDIR, or the first writable one of the usual folders."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # from tempfile, which tries each of them
        raise DataError(
            "no folder for temporary files can be written",
            path=os.environ.get("TMPDIR", "/tmp"),
            next_step="free some space, or set TMPDIR to a folder that can be written",
        ) from None


@contextlib.contextmanager
def naming_full_disk(folder: Path | None = None) -> Generator[None]:
    """Within this context, report a full disk as one that holds temporary files.

    This applies to errors that name no file, or one in `folder`.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not (
            error.filename is None or (folder and Path(error.filename).is_relative_to(folder))
        ):
            raise
        place = tempfile.gettempdir()
        raise FullScratchError(error.errno, os.strerror(error.errno), place) from error


class ScratchFolder:
    """A folder that `remove` deletes, or after a kill the next process that creates one."""

    def __init__(self, purpose: str, *, inside: Path | None = None) -> None:
        root = temporary_root() if inside is None else inside
        remove_leftovers(root)
        self._pid = os.getpid()
        prefix = f"{'' if inside is None else '.'}lowtide.{purpose}."
        while True:
            with naming_full_disk(root if inside is None else None):
                self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
            descriptor = _lock(self.path)
            if descriptor is not None:
                self._descriptor = descriptor
                return
            # Another process took it for a leftover before it was locked, and removes it.

    def remove(self) -> None:
        """Remove the folder with its content; nothing happens in a forked process."""
        if self._pid != os.getpid():  # as finalizers and contexts end there too
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextlib.contextmanager
def scratch_folder(purpose: str, *, inside: Path | None = None) -> Generator[Path]:
    """A folder for the block; hidden if it is in `inside`.

    >>> with scratch_folder("example") as folder:
    ...     _ = (folder / "a.txt").write_text("a")
    >>> folder.exists()
    False
    """
    folder = ScratchFolder(purpose, inside=inside)
    try:
        with naming_full_disk(folder.path) if inside is None else contextlib.nullcontext():
            yield folder.path
    finally:
        folder.remove()


@contextlib.contextmanager
def scratch_file() -> Generator[IO[bytes]]:
    """A file for the block, without a name, in the temporary folder."""
    with naming_full_disk(), tempfile.TemporaryFile(dir=temporary_root()) as file:
        yield file


def _lock(path: Path) -> int | None:
    """Lock an existing folder; None if it does not exist or is locked by another process.

    On a disk without locks, a descriptor is returned anyway: nothing is ever removed there.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        return descriptor
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False)):
            return descriptor
    os.close(descriptor)
    return None


def remove_leftovers(root: Path | None = None) -> None:
    """Remove the folders of killed processes, by default in the temporary folder."""
    for path in _iter_ours(root):
        descriptor = _lock(path)
        if descriptor is None:
            continue
        with contextlib.suppress(OSError):
            # Locked by us now. On a disk without locks anyone succeeds: remove nothing there.
            second = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(second)
        os.close(descriptor)


def _iter_ours(root: Path | None) -> Iterator[Path]:
    """Folders of this user with a name in our format."""
    with contextlib.suppress(OSError), os.scandir(root or tempfile.gettempdir()) as entries:
        for entry in entries:
            if (
                _OURS.fullmatch(entry.name)
                and entry.is_dir(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
            ):
                yield Path(entry.path)
