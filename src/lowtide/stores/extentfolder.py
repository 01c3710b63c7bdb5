"""The folder of the cache: its extents, its size, and eviction.

In:      extents to open, to add, to evict
Out:     open files of extents; the bytes in use, counted for all processes that share the folder
Disk:    `max_bytes`: extents, and copies of a dataset's small files
Memory:  about 200 bytes for each extent in the folder

The bytes in use are counted in a file under a lock, before they are written. A process recounts
them when it opens the cache, and before it reports that the cache is full: a killed process leaves
bytes that it counted and never wrote. An extent has a shared lock while it is fetched or read; a
locked extent is not evicted. Only files that the cache wrote are ever removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import threading
from collections.abc import Callable, Generator
from pathlib import Path

from lowtide.errors import BudgetError, from_os_error
from lowtide.files import checksum_bytes, free_disk_bytes, write_bytes
from lowtide.memory import format_size
from lowtide.quickclasses import dataclass
from lowtide.stores.extentfiles import (
    EXTENT_BYTES,
    EXTENT_NAME,
    TRAILER_BYTES,
    Extent,
    UnfinishedExtent,
    count_unfinished,
    disk_bytes,
    find_version,
    is_whole,
    remove_unlocked,
    try_lock,
)
from lowtide.stores.objects import Store
from lowtide.stores.urls import StoreURL

__all__ = ["Count", "ExtentFolder", "Rank", "about_cache"]

_SPARE_SHARE = 128  # freed at once in a large cache, because choosing scans all its extents
_MANY = 4096
_READ_EXTENTS = 25  # reading in order needs room for 24 (loader.storeahead)
_CLOSED = -1  # no descriptor

Rank = Callable[[str], tuple[float, bool]]
"""Returns how far away an extent's next use is; of equal ones, those with True go first."""


@dataclass
class Count:
    """The bytes in use, while this process has the exclusive lock on them."""

    bytes: int


class ExtentFolder:
    """A folder of extents; threads of this process share `mutex`, processes a lock on a file."""

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        *,
        many: int = _MANY,
        spare_share: int = _SPARE_SHARE,
    ) -> None:
        self._many, self._spare_share = many, spare_share
        self.path = path
        self.max_bytes = max_bytes
        self.mutex = threading.Condition()
        self.known: dict[str, int] = {}
        """Names of extents and their sizes on disk."""
        self._checked: dict[str, int] = {}
        """Extents that were intact, and the version of their files then."""
        self._fetching: set[str] = set()
        """Names of this process's unfinished files."""
        self._lock_file = _CLOSED
        self._make_folder()

    def make_again(self) -> None:
        """Create a removed folder again."""
        with self.mutex:
            self.close()
            self._checked.clear()
            self._make_folder()

    def _make_folder(self) -> None:
        with about_cache(self.path):
            (self.path / "extents").mkdir(parents=True, exist_ok=True)
            self._lock_file = os.open(self.path / "usage", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            with self.counting() as count:
                count.bytes = self._count_all()

    def _list_extents(self) -> None:
        known: dict[str, int] = {}
        with os.scandir(self.path / "extents") as entries:
            for entry in entries:
                if match := EXTENT_NAME.fullmatch(entry.name):
                    known[entry.name] = disk_bytes(int(match[1]))
        self.known = known

    def _count_all(self) -> int:
        """Count the files in the folder, and remove unfinished files of killed processes."""
        self._list_extents()
        total = sum(self.known.values())
        for folder, _, names in os.walk(self.path):
            for name in names:
                if name in self.known:
                    continue
                path = Path(folder) / name
                unfinished = count_unfinished(path, is_mine=name in self._fetching)
                total += disk_bytes(path.stat().st_size) if unfinished is None else unfinished
        return total

    @contextlib.contextmanager
    def counting(self) -> Generator[Count]:
        """The bytes in use, locked for this thread."""
        with self.mutex:
            try_lock(self._lock_file, fcntl.LOCK_EX)
            try:
                text = os.pread(self._lock_file, 32, 0).strip()
                count = Count(int(text) if text.isdigit() else self._count_all())
                before = count.bytes if text.isdigit() else None
                yield count
                if count.bytes != before:
                    os.pwrite(self._lock_file, f"{max(0, count.bytes):<31}\n".encode(), 0)
            finally:
                try_lock(self._lock_file, fcntl.LOCK_UN)

    def used_bytes(self) -> int:
        """Bytes in use, by all processes."""
        with about_cache(self.path), self.counting() as count:
            return count.bytes

    def removable_bytes(self) -> int:
        """Bytes of extents; other files stay until the folder is removed."""
        with about_cache(self.path), self.counting():
            self._list_extents()
            return sum(self.known.values())

    def begin(self, count: Count, extent: Extent) -> UnfinishedExtent:
        """Create the unfinished file of an extent that is to be fetched, and count its bytes."""
        unfinished = UnfinishedExtent(self.path / "extents", extent.size)
        self._fetching.add(unfinished.path.name)
        count.bytes += disk_bytes(extent.size)
        return unfinished

    def end(self, unfinished: UnfinishedExtent, extent: Extent, *, is_whole: bool) -> None:
        """Give the file of a fetched extent its name, unless there is one; remove one in parts."""
        path = self.path / "extents" / extent.name
        with self.counting() as count:
            self._fetching.discard(unfinished.path.name)
            try:
                if is_whole and not path.exists():
                    with contextlib.suppress(FileNotFoundError):  # else its reader fetches it again
                        unfinished.path.rename(path)
                        self._add(extent, unfinished.version)
                        return
                count.bytes -= disk_bytes(extent.size)
                unfinished.path.unlink(missing_ok=True)
            finally:
                unfinished.close()

    def keep_file(self, store: Store, url: StoreURL, *, most_bytes: int) -> Path:
        """Copy a small object, and return its path; it stays until the cache is removed."""
        _, data = store.read_whole(url, most_bytes=most_bytes)
        prefix = url.key.rpartition("/")[0]
        folder = self.path / "datasets" / checksum_bytes(f"{url.root}/{prefix}".encode())[:16]
        path = folder / url.name
        with about_cache(self.path), self.counting() as count:
            old = disk_bytes(path.stat().st_size) if path.is_file() else 0
            self.make_room(count, disk_bytes(len(data)) - old)
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes(path, bytes(data), sync_folder=False)
            count.bytes += disk_bytes(len(data)) - old
        return path

    def open_extent(self, extent: Extent) -> int | None:
        """Open and lock an extent; its checksum is compared if its file is new or has changed."""
        name = extent.name
        path = self.path / "extents" / name
        try:
            with about_cache(self.path, but=FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self.forget(name)
            return None
        whole = False
        try:
            try_lock(descriptor, fcntl.LOCK_SH)
            with about_cache(self.path):
                version = find_version(descriptor)
                is_known = self._checked.get(name) == version
                whole = is_known or is_whole(descriptor, extent.size)
        finally:
            if not whole:
                os.close(descriptor)
        if not whole:
            self.forget(name, remove=True)
            return None
        if not is_known:
            self._add(extent, version)
        return descriptor

    def forget(self, name: str, *, remove: bool = False) -> None:
        with about_cache(self.path), self.counting() as count:
            self.known.pop(name, None)
            self._checked.pop(name, None)
            if remove:
                with contextlib.suppress(FileNotFoundError):
                    path = self.path / "extents" / name
                    size = path.stat().st_size
                    path.unlink()
                    count.bytes -= disk_bytes(max(0, size - TRAILER_BYTES))

    def make_room(
        self, count: Count, size: int, rank: Rank | None = None, *, beyond: float = -1.0
    ) -> bool:
        """Remove extents until `size` more bytes fit, those with the next use farthest away first.

        With a limit `beyond`, only those farther away; return True if that was enough. Without it,
        too little room is an error.
        """
        if count.bytes + size <= self.max_bytes:
            return True
        for _ in range(2):
            self.evict(count, count.bytes + size - self.max_bytes, rank, beyond=beyond)
            if count.bytes + size <= self.max_bytes:
                return True
            if beyond >= 0:
                return False
            # Extents added by other processes, and bytes that killed ones counted.
            count.bytes = self._count_all()
        # The advised size must be enough for the next command, which continues from here: usage
        # grows when the dataset is opened, and its reading order is not known yet.
        wanted = count.bytes + max(size, _READ_EXTENTS * disk_bytes(EXTENT_BYTES))
        raise BudgetError(
            f"the cache of {format_size(self.max_bytes)} is full of what is being read or cannot "
            f"be removed: {format_size(count.bytes)} are in use",
            path=self.path,
            next_step=f"give --cache-size {-(-wanted // (1 << 20))}MiB or more, or a "
            "--cache-dir that no other run uses",
        )

    def evict(
        self, count: Count, size: int, rank: Rank | None = None, *, beyond: float = -1.0
    ) -> None:
        """Remove about `size` bytes of extents that are not being read."""
        if len(self.known) > self._many:
            size = max(size, self.max_bytes // self._spare_share)
        rank = rank or (lambda name: (0.0, True))
        far = sorted(
            ((rank(name), name) for name in self.known), key=lambda row: row[0], reverse=True
        )
        for _, name in itertools.takewhile(lambda row: row[0][0] > beyond, far):
            if size <= 0:
                return
            path = self.path / "extents" / name
            removed = remove_unlocked(path)
            if removed or not path.exists():
                freed = self.known.pop(name)
                self._checked.pop(name, None)
                if removed:
                    count.bytes -= freed
                    size -= freed

    def _add(self, extent: Extent, version: int) -> None:
        """Register an extent as present and intact."""
        with self.mutex:
            self.known[extent.name] = disk_bytes(extent.size)
            self._checked[extent.name] = version

    def require_disk(self, needed_bytes: int) -> None:
        """Refuse a disk without room for what a run needs in the cache."""
        free = free_disk_bytes(self.path)
        if free + self.used_bytes() < needed_bytes:
            raise BudgetError(
                f"the disk of the cache has {format_size(free)} free, reading needs "
                f"{format_size(needed_bytes)}",
                path=self.path,
                next_step="free some space, give a --cache-size that fits, or name a folder on "
                "another disk with --cache-dir",
            )

    def close(self) -> None:
        """Close the file that counts."""
        if self._lock_file >= 0:
            os.close(self._lock_file)
        self._lock_file = _CLOSED


@contextlib.contextmanager
def about_cache(folder: Path, *, but: type[OSError] | None = None) -> Generator[None]:
    """Make OSErrors within name the cache and the next step, except those of type `but`."""
    try:
        yield
    except OSError as error:
        if but is not None and isinstance(error, but):
            raise
        found = from_os_error(error)
        raise type(found)(
            f"the cache cannot be read or written: {found.message}",
            path=error.filename or folder,
            next_step="free some space, give a smaller --cache-size, or name a folder on another "
            "disk with --cache-dir",
        ) from error
