"""A size-limited cache of extents of objects on the local disk.

In:      objects (as they were opened), which extents of them will be needed, and when
Out:     bytes of objects
Disk:    `max_bytes` in `folder`: extents, and copies of a dataset's small files
Memory:  an extent for each thread that fetches; about 400 bytes for each extent in the cache

An extent is EXTENT_BYTES of one object, stored in a separate file with its checksum at the end and
renamed when complete: a killed process leaves no partial extents, and damage by a power cut is
detected. Its name contains the object's URL and ETag, so versions of an object are never mixed.

Several processes may share a folder (extentfolder.py). The extent whose next use is farthest in the
future is evicted first: readers announce when they will need an extent (`plan`), and extents that
nobody has announced are evicted before all others.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from lowtide.errors import DataError, LowtideError
from lowtide.quickclasses import dataclass
from lowtide.stores.extentfiles import (
    EXTENT_BYTES,
    Extent,
    compare_extent,
    disk_bytes,
    write_extent,
)
from lowtide.stores.extentfolder import ExtentFolder, about_cache
from lowtide.stores.objects import open_store

__all__ = [
    "FETCH_THREADS",
    "ExtentCache",
    "PlannedUse",
    "buffer_bytes",
    "close_caches",
    "default_cache_dir",
    "open_cache",
]

FETCH_THREADS = 4
_CLIENT_BYTES = 16 << 20  # obstore, its threads and connections
_MANY = 4096
_URGENT = -1  # the user whose extents have priority


def buffer_bytes() -> int:
    """The memory for reading from a store of any size."""
    return _CLIENT_BYTES + FETCH_THREADS * EXTENT_BYTES


def default_cache_dir() -> Path:
    """The default folder of extents."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "lowtide" / "objects"  # beside other files of lowtide


@dataclass(frozen=True)
class PlannedUse:
    """When a reader of this process needs an extent, in samples of its run."""

    owner: int
    until: int
    """Needed up to this sample."""
    again: float = math.inf
    """And again at this sample."""


class ExtentCache:
    """One folder of extents, for all threads of this process; see `open_cache`."""

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        *,
        fetch_threads: int = FETCH_THREADS,
        many_uses: int = _MANY,
    ) -> None:
        self._fetch_threads, self._many_uses = fetch_threads, many_uses
        self.folder = ExtentFolder(folder, max_bytes)
        self._mutex = self.folder.mutex
        self._uses: dict[str, PlannedUse] = {}
        self._positions: dict[int, int] = {}
        self._fetching: set[str] = set()
        self._queues: dict[int, Iterator[Extent]] = {}
        self._threads: list[threading.Thread] = []
        self._closed = False

    def close(self) -> None:
        """Stop fetching, and release the folder's locks."""
        with self._mutex:
            self._closed = True
            self._queues.clear()
            self._mutex.notify_all()
        for thread in self._threads:
            thread.join()
        self.folder.close()

    # -- reading --------------------------------------------------------------------------------

    def read_into(self, extent: Extent, start: int, out: memoryview) -> None:
        """Read bytes from `start` of an extent, which is fetched if it is not in the cache."""
        while True:
            descriptor = self.folder.open_extent(extent)
            if descriptor is None:
                self._fetch(extent)
                continue
            try:
                with about_cache(self.folder.path):
                    done = os.preadv(descriptor, [out], start)
            finally:
                os.close(descriptor)  # and release the lock
            if done == len(out):
                return
            self.folder.forget(extent.name, remove=True)

    # -- planned uses ----------------------------------------------------------------------------

    def plan(self, owner: int, position: int, wanted: Iterable[tuple[Extent, PlannedUse]]) -> None:
        """Announce the position of a run and the extents it will need, in order."""
        wanted = list(wanted)
        with self._mutex:
            self._positions[owner] = position
            if len(self._uses) > self._many_uses:
                self._forget_uses(owner)
            for extent, use in wanted:
                self._uses[extent.name] = use
        self.fetch_ahead(owner, (extent for extent, _ in wanted))

    def _forget_uses(self, owner: int) -> None:
        """Drop uses of extents that are neither in the cache nor awaited by another reader.

        If a removed extent is needed again, its plan announces it again.
        """
        known = self.folder.known
        self._uses = {
            name: use
            for name, use in self._uses.items()
            if (name in known or use.owner != owner)
            and (use.until > self._positions.get(use.owner, 0) or use.again < math.inf)
        }

    def fetch_ahead(self, owner: int, extents: Iterable[Extent]) -> None:
        """Let threads fetch extents, replacing this user's earlier requests."""
        with self._mutex:
            self._queues[owner] = iter(extents)
            while len(self._threads) < self._fetch_threads:
                name = f"lowtide-fetch-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
            self._mutex.notify_all()

    def fetch_now(self, extents: Iterable[Extent]) -> None:
        """Let threads fetch extents that are read next, before all others."""
        missing = [extent for extent in extents if extent.name not in self.folder.known]
        if len(missing) > 1:  # a single one is fetched by its reader
            with self._mutex:
                self.fetch_ahead(_URGENT, [*self._queues.get(_URGENT, ()), *missing])

    def wait_until_idle(self) -> None:
        """Wait until nothing is left to fetch."""
        with self._mutex:
            self._mutex.wait_for(lambda: not self._fetching and not self._queues)

    def _work(self) -> None:
        while True:
            with self._mutex:
                self._mutex.wait_for(lambda: self._closed or bool(self._queues))
                if self._closed:
                    return
                owner = min(self._queues)
                extent = next(self._queues[owner], None)
                if extent is None:
                    del self._queues[owner]
                    self._mutex.notify_all()
                    continue
                if extent.name in self.folder.known or extent.name in self._fetching:
                    continue
                use = self._uses.get(extent.name, PlannedUse(owner, 0))
                self._fetching.add(extent.name)  # atomically: else the queue is idle for a moment
            # An error is raised by the reader of the extent, which requests it again.
            with contextlib.suppress(LowtideError):
                self._fetch_claimed(extent, None if owner == _URGENT else use)

    # -- fetching -------------------------------------------------------------------------------

    def _fetch(self, extent: Extent) -> None:
        """Fetch an extent that is read now, or wait for the thread that is fetching it."""
        name = extent.name
        with self._mutex:
            if name in self._fetching:
                self._mutex.wait_for(lambda: name not in self._fetching)
                return
            self._fetching.add(name)
        self._fetch_claimed(extent, None)

    def _fetch_claimed(self, extent: Extent, ahead: PlannedUse | None) -> None:
        """Fetch an extent that is marked as being fetched, and remove the mark.

        With `ahead`, only extents needed later are evicted for it, else any that are not being
        read.
        """
        try:
            with about_cache(self.folder.path):
                self._fetch_where_room(extent, ahead)
        finally:
            with self._mutex:
                self._fetching.discard(extent.name)
                self._mutex.notify_all()

    def _fetch_where_room(self, extent: Extent, ahead: PlannedUse | None) -> None:
        try:
            self._fetch_alone(extent, ahead)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # The disk is smaller than the cache limit.
            beyond = -1.0 if ahead is None else self._distance(ahead)
            with self.folder.counting() as count:
                size = 2 * disk_bytes(extent.size)
                self.folder.evict(count, size, self._rank, beyond=beyond)
            self._fetch_alone(extent, ahead)

    def _fetch_alone(self, extent: Extent, ahead: PlannedUse | None) -> None:
        path = self.folder.path / "extents" / extent.name
        size = disk_bytes(extent.size)
        beyond = -1.0 if ahead is None else self._distance(ahead)
        with self.folder.counting() as count:
            if path.is_file():  # another process was faster
                self.folder.known[extent.name] = size
                return
            if not self.folder.make_room(count, size, self._rank, beyond=beyond):
                return
            unfinished = self.folder.begin(count, extent)
        whole = False
        try:
            info = extent.object.info
            data = open_store(info.url).read(info, extent.start, extent.size)
            compare_extent(extent, data)
            write_extent(unfinished.path, data)
            whole = True
        finally:
            self.folder.end(unfinished, extent, is_whole=whole)

    def _rank(self, name: str) -> tuple[float, bool]:
        """The eviction order: extents needed last first; among those not needed, our own first."""
        use = self._uses.get(name)
        return (math.inf, False) if use is None else (self._distance(use), True)

    def _distance(self, use: PlannedUse) -> float:
        position = self._positions.get(use.owner, 0)
        return max(0.0, (use.until if use.until > position else use.again) - position)


_caches: dict[tuple[int, str], ExtentCache] = {}
_caches_lock = threading.Lock()


def open_cache(folder: str | os.PathLike[str] | None, max_bytes: int) -> ExtentCache:
    """Return the cache of a folder; one per folder and process."""
    path = Path(folder or default_cache_dir()).absolute()
    if path.is_file():
        raise DataError("this is a file, expected a folder for the cache", path=path)
    key = (os.getpid(), str(path))  # threads and locks do not survive a fork
    with _caches_lock:
        cache = _caches.get(key)
        if cache is None:
            cache = _caches[key] = ExtentCache(path, max_bytes)
        elif not path.is_dir():
            cache.folder.make_again()  # removed meanwhile: readers of this cache continue
        cache.folder.max_bytes = max_bytes
        return cache


def close_caches() -> None:
    """Close all caches of this process; readers must open them again."""
    with _caches_lock:
        mine = [key for key in _caches if key[0] == os.getpid()]
        for key in mine:
            _caches.pop(key).close()
