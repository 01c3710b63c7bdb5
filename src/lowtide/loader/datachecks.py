"""Verify the checksums of the data files that a run reads, in a background thread.

In:      datasets: shards with checksums in their metadata, .npy files with checksums in a record
Out:     a DataError for the first damaged file; the number of files verified
Memory:  one buffer of 256 KiB, and about 100 bytes a file

The thread uses disk and processor for a tenth of the time, so that it does not slow the run: some
500 MB a second if files are in the page cache. At the end of a run it continues without pauses for
a moment. An intact file is not read again until it changes (checkedfiles.py). An object in a store
is verified once all of it is in the cache; nothing is fetched for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import xxhash

from lowtide import ranks
from lowtide.counts import counted
from lowtide.dataset.tokenfiles.intact import damaged_file
from lowtide.errors import DataError, LowtideError, from_os_error
from lowtide.files import open_file
from lowtide.loader.checkedfiles import CheckedFiles
from lowtide.loader.sources import TokenSource
from lowtide.quickclasses import dataclass
from lowtide.stores.extentfiles import CachedObject
from lowtide.stores.extents import ExtentCache

__all__ = ["FINISH_SECONDS", "DataCheck"]

FINISH_SECONDS = 5.0
"""How long a command waits at its end for the remaining files."""
_BUFFER_BYTES = 1 << 18
_SLICE_SECONDS = 0.01
_PAUSES_PER_SLICE = 9
_LOOK_AGAIN_SECONDS = 1.0
_NEXT_STEP = (
    "bring it back from a copy, or make it again from its text; --no-check-data reads it as it is. "
    "A run that was trained on it has learned from the damage: --overwrite starts anew"
)


class _Group(Protocol):
    def any(self, flag: bool) -> bool: ...


@dataclass(frozen=True)
class _LocalFile:
    path: Path
    checksum: str

    def is_there(self) -> bool:
        return True

    def pieces(self, buffer: memoryview) -> Iterator[memoryview]:
        with open_file(self.path) as file:
            while count := file.readinto(buffer):
                yield buffer[:count]


@dataclass(frozen=True)
class _StoredFile:
    source: CachedObject
    cache: ExtentCache
    checksum: str

    @property
    def path(self) -> str:
        return str(self.source.info.url)

    def is_there(self) -> bool:
        extents = self.source.extents(0, self.source.info.size)
        return all(extent.name in self.cache.folder.known for extent in extents)

    def pieces(self, buffer: memoryview) -> Iterator[memoryview]:
        for extent in self.source.extents(0, self.source.info.size):
            for start in range(0, extent.size, len(buffer)):
                piece = buffer[: min(len(buffer), extent.size - start)]
                self.cache.read_into(extent, start, piece)
                yield piece


class DataCheck:
    """Verification of files during a run, from `start` on; its thread lives within the context.

    One process per machine does it, because disks may be shared by machines or not. If they are,
    and the user's cache folder too, each machine starts at another file and skips files that others
    have verified.
    """

    def __init__(
        self,
        datasets: Iterable[Any],
        *,
        wanted: bool = True,
        known: CheckedFiles | None = None,
    ) -> None:
        is_wanted = wanted and ranks.local_rank() == 0
        files = list(_files_of(datasets)) if is_wanted else []
        first = len(files) * ranks.rank() // max(1, ranks.world_size())
        self._files = files[first:] + files[:first]
        self._known = known or CheckedFiles()
        self._num_checked = 0
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopped = False
        self._slice_began = 0.0
        self.problem: LowtideError | None = None
        """The error for the first damaged file."""

    def __enter__(self) -> DataCheck:
        return self

    def __exit__(self, *details: object) -> None:
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_LOOK_AGAIN_SECONDS)  # do not wait for a disk that does not respond

    def start(self) -> None:
        """Start the thread; without files nothing is done."""
        if self._files and self._thread is None:
            self._thread = threading.Thread(target=self._work, name="lowtide-check", daemon=True)
            self._thread.start()

    def finish(self, seconds: float) -> str | None:
        """Continue without pauses for a limited time; report what could not be verified by then."""
        self.start()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(seconds)
        rest = len(self._files) - self._num_checked
        if not rest or self.problem is not None:
            return None
        return (
            f"{rest} of {counted(len(self._files), 'file')} of ids could not be compared with "
            "their checksums meanwhile; lowtide verify DATASET reads all of them"
        )

    def require_whole(self, group: _Group | None = None) -> None:
        """Raise the error that was found; in all processes of a group, if one of them found it."""
        found = self.problem is not None
        if found if group is None else group.any(found):
            raise self.problem or DataError(
                "another process found a damaged file of ids, and has named it"
            )

    def _work(self) -> None:
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        pending: list[_LocalFile | _StoredFile] = self._files
        self._slice_began = time.perf_counter()
        try:
            while pending and not self._stopped:
                began = time.perf_counter()
                pending = [file for file in pending if not self._check(file, buffer)]
                if pending and self._wake.is_set():
                    return
                # The status of very many objects takes a moment too.
                looked = (time.perf_counter() - began) * _PAUSES_PER_SLICE
                self._wake.wait(max(_LOOK_AGAIN_SECONDS, looked) if pending else 0)
        except OSError as error:
            self.problem = from_os_error(error)
        except LowtideError as error:
            self.problem = error

    def _check(self, file: _LocalFile | _StoredFile, buffer: memoryview) -> bool:
        """Verify a file; False if it is not complete yet, or there is no time left for it."""
        if self._stopped or not file.is_there():
            return False
        if isinstance(file, _LocalFile) and self._known.holds(file.path, file.checksum):
            self._num_checked += 1
            return True
        status = file.path.stat() if isinstance(file, _LocalFile) else None
        digest = xxhash.xxh3_128()
        for piece in file.pieces(buffer):
            digest.update(piece)
            self._pause()
            if self._stopped:
                return False
        if (found := digest.hexdigest()) != file.checksum:
            raise damaged_file(file.path, found, file.checksum, next_step=_NEXT_STEP)
        if isinstance(file, _LocalFile) and status is not None:
            self._known.add(file.path, file.checksum, status)
        self._num_checked += 1
        return True

    def _pause(self) -> None:
        spent = time.perf_counter() - self._slice_began
        if spent >= _SLICE_SECONDS:
            self._wake.wait(spent * _PAUSES_PER_SLICE)
            self._slice_began = time.perf_counter()


def _files_of(datasets: Iterable[Any]) -> Iterable[_LocalFile | _StoredFile]:
    """The files with checksums of datasets, mixtures and loaders, each once."""
    found: dict[Path | str, _LocalFile | _StoredFile] = {}
    for data in datasets:
        data = getattr(data, "dataset", data)  # of a loader
        parts = getattr(data, "datasets", {"": data})  # of a mixture
        for part in parts.values():
            source = getattr(part, "source", None)
            if isinstance(source, TokenSource):
                found.update((file.path, file) for file in _files_of_source(source))
    return found.values()


def _files_of_source(source: TokenSource) -> Iterator[_LocalFile | _StoredFile]:
    if source.stored is not None:
        cache = source.stored.cache.open()
        for shard in source.stored.shards:
            if shard.tokens.checksum is not None:
                yield _StoredFile(shard.tokens, cache, shard.tokens.checksum)
        return
    for shard in source.shards:
        if shard.checksum is not None:
            yield _LocalFile(shard.path, shard.checksum)
        if shard.ends_path is not None and shard.ends_checksum is not None:
            yield _LocalFile(shard.ends_path, shard.ends_checksum)
