"""The shared work folder: on a disk or at a prefix of an object store, behind one interface.

In:      names within the folder, as STAGE/NAME
Out:     small files that are created once, files of any size written atomically, leases
Memory:  one small file; a list of names

No file is ever replaced except leases, which only avoid duplicate work. On a disk `link` creates a
file or fails, also on network disks; a store needs conditional creation, which is tested before it
is used (storefolders).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import secrets
import shutil
import threading
from collections.abc import Collection, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from lowtide import files
from lowtide.errors import UsageError
from lowtide.filenames import WORK_NAME
from lowtide.quickclasses import dataclass
from lowtide.stores.paths import is_stored
from lowtide.unfinished import mark_used, remove_leftovers, unused_name

__all__ = [
    "DiskFolder",
    "Lease",
    "SeenLease",
    "SharedFolder",
    "open_folder",
    "parse_note",
    "work_folder_beside",
]

_BUFFER_BYTES = 1 << 20
_REMOVERS = 8
_REMOVED_AT_ONCE = 1024
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}


class SeenLease(NamedTuple):
    """A lease of any worker: its content, and a tag that changes when it is replaced."""

    content: bytes
    tag: str


class Lease(Protocol):
    """A lease that this process holds."""

    def renew(self, content: bytes) -> None:
        """Write it again, unless it was released or taken over, or cannot be written."""
        ...

    def release(self) -> None:
        """Remove it, unless it has a new owner."""
        ...


class SharedFolder(Protocol):
    """The operations on the shared folder that records and leases need."""

    path: Path
    """For messages, and for opening files in it."""
    disk: Path
    """Where files are written before they are published."""
    longest_pause: float
    """Seconds that a worker without a task may wait between two checks, at most."""
    least_committers: int
    """How many results may be committed at a time even if fewer tasks run; committing a result to a
    store takes memory, flushing it to a disk does not."""
    more_names: Collection[str]
    """Names in it that are not folders of stages."""

    def prepare(self) -> None:
        """Check before the first task that workers can rely on this folder."""
        ...

    def exists(self, name: str) -> bool:
        """True if there is a file of this name."""
        ...

    def read(self, name: str) -> bytes:
        """Read a small file; FileNotFoundError if it does not exist."""
        ...

    def list_names(self, under: str = "") -> list[str]:
        """The sorted names of the files and folders directly in a folder, without hidden ones."""
        ...

    def find_time(self, name: str) -> float:
        """When a file was written, by the folder's clock; FileNotFoundError if there is none."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Create a small file; False if it exists already, with other bytes."""
        ...

    def scratch_folder(self) -> contextlib.AbstractContextManager[Path]:
        """A folder on a disk for a task's temporary files."""
        ...

    def scratch_file(self, stage: str) -> contextlib.AbstractContextManager[tuple[Path, IO[bytes]]]:
        """A temporary file on a disk, removed on exit unless `publish` made it a result."""
        ...

    def publish(self, partial: Path, stage: str, task: str, checksum: str) -> str | None:
        """Publish a finished file, and return its name; None if another file has it."""
        ...

    def output_path(self, stage: str, name: str) -> Path:
        """The path of a published file."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove files and folders, one after the other, and the folder itself if it is empty."""
        ...

    def create_lease(self, name: str, content: bytes) -> Lease | None:
        """Create a lease; None if there is one already."""
        ...

    def read_lease(self, name: str) -> SeenLease | None:
        """Read a lease; None if it does not exist."""
        ...

    def replace_lease(self, name: str, content: bytes, seen: SeenLease) -> Lease | None:
        """Take over a lease; None if it has changed since it was seen."""
        ...


def open_folder(path: Path) -> SharedFolder:
    """The folder at a path on this machine, or at a URL of a store."""
    if is_stored(path):
        from lowtide.engine.storefolders import StoreFolder

        return StoreFolder(path)
    files.require_local(path)
    return DiskFolder(path)


def parse_note(data: bytes) -> dict[str, Any]:
    """The values of a lease or of a failure; empty if it is damaged, since no result needs them."""
    try:
        row = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def work_folder_beside(output: Path) -> Path:
    """The default work folder of an output: OUTPUT.work, also of one that is called `.` or `..`."""
    if output.name in ("", ".."):
        output = output.resolve()
    if not output.name:
        raise UsageError(
            "this folder has no name, and so no folder for the workers beside it",
            path=output,
            next_step="name another output, or a folder as --work-dir",
        )
    return output.with_name(output.name + WORK_NAME)


class DiskFolder:
    """A folder of a disk that workers share."""

    longest_pause = 1.0
    least_committers = 8
    more_names: Collection[str] = ("scratch",)

    def __init__(self, path: Path) -> None:
        self.path = self.disk = path

    def prepare(self) -> None:
        """Nothing to check: writing to an unwritable disk raises its own error."""

    def exists(self, name: str) -> bool:
        """True if there is a file of this name."""
        return (self.path / name).exists()

    def read(self, name: str) -> bytes:
        """Read a small file."""
        return files.read_whole(self.path / name)

    def list_names(self, under: str = "") -> list[str]:
        """The names in a folder; a listing may be out of date."""
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(self.path / under) as entries,
        ):
            return sorted(entry.name for entry in entries if entry.name[0] != ".")
        return []

    def find_time(self, name: str) -> float:
        """When a file was written."""
        try:
            return (self.path / name).stat().st_mtime_ns / 1e9
        except NotADirectoryError as error:
            raise FileNotFoundError(*error.args) from None

    def create(self, name: str, data: bytes) -> bool:
        """Create a small file; False if it exists already."""
        path = self.path / name
        with self._scratch(path) as (partial, file):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            # Its name is not flushed: a task whose record is lost is done again. The name of the
            # result before it is flushed with these bytes, since a disk keeps that order.
            return _create(partial, path)

    @contextlib.contextmanager
    def scratch_folder(self) -> Generator[Path]:
        """A new folder on the shared disk, which has the space."""
        folder = self.path / "scratch" / secrets.token_hex(8)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def scratch_file(self, stage: str) -> contextlib.AbstractContextManager[tuple[Path, IO[bytes]]]:
        """A hidden file beside the results of a stage."""
        return self._scratch(self.path / stage / "result")

    @contextlib.contextmanager
    def _scratch(self, path: Path) -> Generator[tuple[Path, IO[bytes]]]:
        """A hidden file beside `path`, removed on exit."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = unused_name(path, "partial")
        try:
            with os.fdopen(files.create_file(partial), "w+b", buffering=_BUFFER_BYTES) as file:
                mark_used(file.fileno())
                yield partial, file
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()

    def publish(self, partial: Path, stage: str, task: str, checksum: str) -> str | None:
        """Rename a finished file to the name of its task."""
        name = f"{task}.out"
        path = self.output_path(stage, name)
        files.flush_file(partial)
        is_new = _create(partial, path)
        return name if is_new or _is_same_file(partial, path) else None

    def output_path(self, stage: str, name: str) -> Path:
        """The path beside the stage's records."""
        return self.path / stage / name

    def remove(self, names: Iterable[str]) -> None:
        """Remove files and folders, and the folder if it is then empty."""
        with ThreadPoolExecutor(_REMOVERS, thread_name_prefix="lowtide-remover") as pool:
            for name in names:
                path = self.path / name
                if path.is_dir():
                    if not path.is_symlink():  # a link's target is kept, also by rmtree
                        _remove_files(path, pool)
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            remove_leftovers(self.path)  # a worker was killed while it committed the plan
            self.path.rmdir()

    def create_lease(self, name: str, content: bytes) -> Lease | None:
        """Create a lease; on some network disks its name is visible before its content."""
        path = self.path / name
        try:
            try:
                descriptor = files.create_file(path)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = files.create_file(path)
        except FileExistsError:
            return None
        return _DiskLease.begin(path, descriptor, content)

    def read_lease(self, name: str) -> SeenLease | None:
        """Read a lease; on a network disk it may be removed or replaced meanwhile."""
        try:
            return SeenLease((self.path / name).read_bytes(), "")
        except OSError:
            return None

    def replace_lease(self, name: str, content: bytes, seen: SeenLease) -> Lease | None:
        """Replace a lease."""
        path = self.path / name
        partial = unused_name(path, "partial")
        descriptor = files.create_file(partial)
        partial.replace(path)
        return _DiskLease.begin(path, descriptor, content)


@dataclass
class _DiskLease:
    path: Path
    descriptor: int | None
    """None once it is released: the number may then belong to another file."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def begin(cls, path: Path, descriptor: int, content: bytes) -> _DiskLease:
        lease = cls(path, descriptor)
        lease.renew(content)
        return lease

    def renew(self, content: bytes) -> None:
        # On a full disk the lease only looks expired to others.
        with self.lock, contextlib.suppress(OSError):
            if self.descriptor is not None:
                os.pwrite(self.descriptor, content, 0)

    def release(self) -> None:
        with self.lock:
            if self.descriptor is None:
                return
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(self.descriptor), self.path.stat()):
                    self.path.unlink()  # unless it is a new owner's
            os.close(self.descriptor)
            self.descriptor = None


def _create(partial: Path, path: Path) -> bool:
    """Rename a finished file; False if another file already has the name."""
    try:
        os.link(partial, path)
    except FileExistsError:
        # A network disk may repeat a request that succeeded: then the file has both names.
        return os.path.samestat(partial.stat(), path.stat())
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise UsageError(
            "the disk of this folder has no hard links, with which workers create results",
            path=path.parent,
            next_step="give a --work-dir on another disk or in an object store; a single machine "
            "needs none: leave out --engine",
        ) from None
    return True


def _remove_files(folder: Path, pool: ThreadPoolExecutor) -> None:
    """Remove the files directly in a folder, in parallel: each large one takes milliseconds.

    Their names are read one by one: there may be millions.
    """

    def remove(path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()

    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # others may remove it too
        while paths := [Path(entry) for entry in itertools.islice(entries, _REMOVED_AT_ONCE)]:
            list(pool.map(remove, paths))


def _is_same_file(mine: Path, other: Path) -> bool:
    return mine.stat().st_size == other.stat().st_size and files.checksum_file(
        mine
    ) == files.checksum_file(other)
