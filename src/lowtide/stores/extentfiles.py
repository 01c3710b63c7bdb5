"""Files of cached extents: naming, writing, verifying, locking and removing them.

In:      bytes of an object
Out:     a separate file for each extent, with its checksum at the end
Memory:  256 KiB while a file is verified

While an extent is fetched it has an unfinished file, locked by its process and named by its size,
so that other processes count its bytes; one without a lock was left by a killed process.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from lowtide.errors import DataError
from lowtide.quickclasses import dataclass
from lowtide.stores.objects import ObjectInfo

__all__ = [
    "EXTENT_BYTES",
    "EXTENT_NAME",
    "CachedObject",
    "Extent",
    "UnfinishedExtent",
    "compare_extent",
    "count_unfinished",
    "disk_bytes",
    "find_version",
    "is_whole",
    "remove_unlocked",
    "try_lock",
    "write_extent",
]

EXTENT_BYTES = 2 << 20
TRAILER_BYTES = 16
EXTENT_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]+\.(\d+)")
_UNFINISHED_NAME = re.compile(r"(\d+)\.[0-9a-f]+\.fetching")
_BLOCK_BYTES = 4096  # file system block size
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@dataclass(frozen=True)
class CachedObject:
    """An object that is read through the cache."""

    info: ObjectInfo
    head_checksum: str | None = None
    """xxh3-64 of its first 4096 bytes, if the dataset records it."""
    checksum: str | None = None
    """xxh3-128 of the whole object; compared if one extent is the whole object."""

    @functools.cached_property
    def key(self) -> str:
        """Identifies this version of the object."""
        identity = f"{self.info.url}\n{self.info.tag}\n{self.info.size}"
        return xxhash.xxh3_64_hexdigest(identity.encode())

    def extents(self, start: int, stop: int) -> Iterator[Extent]:
        """The extents with bytes `start` to `stop`."""
        for number in range(start // EXTENT_BYTES, -(-stop // EXTENT_BYTES)):
            yield Extent(self, number)


class Extent(NamedTuple):
    """EXTENT_BYTES of an object; the last extent may be shorter."""

    object: CachedObject
    number: int

    @property
    def start(self) -> int:
        """Its offset in the object."""
        return self.number * EXTENT_BYTES

    @property
    def size(self) -> int:
        """Its bytes."""
        return min(EXTENT_BYTES, self.object.info.size - self.start)

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.object.key}-{self.number:x}.{self.size}"


def find_version(descriptor: int) -> int:
    """A number that changes with every change of an open file; kept for each extent."""
    status = os.fstat(descriptor)
    return hash((status.st_ino, status.st_size, status.st_ctime_ns))


def disk_bytes(size: int) -> int:
    """Disk space of an extent, or of another file of this size."""
    return -(-(size + TRAILER_BYTES) // _BLOCK_BYTES) * _BLOCK_BYTES


def write_extent(path: Path, data: Any) -> None:
    """Write the file of an extent, with its checksum at the end."""
    with path.open("wb", buffering=0) as file:
        for part in (memoryview(data), memoryview(xxhash.xxh3_128_digest(data))):
            done = 0
            while done < len(part):
                done += file.write(part[done:]) or 0


class UnfinishedExtent:
    """The file of an extent that is being fetched, locked until `close`."""

    def __init__(self, folder: Path, size: int) -> None:
        self.path = folder / f"{size}.{secrets.token_hex(8)}.fetching"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o666)
        try_lock(self._descriptor, fcntl.LOCK_SH)  # as readers do, once it has its name

    @property
    def version(self) -> int:
        """See `find_version`."""
        return find_version(self._descriptor)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def count_unfinished(path: Path, *, is_mine: bool) -> int | None:
    """Disk space for an extent that is being fetched; removes the file of a killed process.

    Returns None for other files. `is_mine`: this process is fetching it.
    """
    match = _UNFINISHED_NAME.fullmatch(path.name)
    if match is None:
        return None
    if not is_mine and (remove_unlocked(path) or not path.exists()):
        return 0
    return disk_bytes(int(match[1]))


def compare_extent(extent: Extent, data: Any) -> None:
    """Compare fetched bytes with the checksums of the dataset."""
    known = extent.object
    whole = extent.size == known.info.size
    wrong = (
        known.checksum is not None and whole and xxhash.xxh3_128_hexdigest(data) != known.checksum
    ) or (
        known.head_checksum is not None
        and extent.number == 0
        and xxhash.xxh3_64_hexdigest(memoryview(data)[:4096]) != known.head_checksum
    )
    if wrong:
        raise DataError(
            "this object is not the shard that dataset_metadata.json describes: its checksum is "
            "another",
            path=str(known.info.url),
            next_step="copy the dataset to the store again, all of it",
        )


def is_whole(descriptor: int, size: int) -> bool:
    """True if an extent's file is intact."""
    if os.fstat(descriptor).st_size != size + TRAILER_BYTES:
        return False
    digest, done = xxhash.xxh3_128(), 0
    while done < size:
        part = os.pread(descriptor, min(1 << 18, size - done), done)
        if not part:
            return False
        digest.update(part)
        done += len(part)
    return os.pread(descriptor, TRAILER_BYTES, size) == digest.digest()


def remove_unlocked(path: Path) -> bool:
    """Remove an extent unless it is being read; True if it was removed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not try_lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return False
        path.unlink()
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, how: int) -> bool:
    """Lock a file; a disk without locks counts as locked, so only one process may use it."""
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        return error.errno in _NO_LOCKS
    return True
