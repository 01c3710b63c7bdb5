"""Path-like access to objects: open, stat and glob.

In:      URLs, also with shell patterns
Out:     StorePath; open files that read by ranges; matches of a pattern, in order
Memory:  at most READ_AHEAD_BYTES for each open file; one page of a list

Code that reads inputs opens a path, and uses its size and times. Instead of times an object has an
ETag: `st_mtime_ns` and `st_ctime_ns` are numbers computed from it, which stay the same as long as
the object does. An open file reads with the ETag it was opened with.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import re
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path, PosixPath
from typing import Any

import xxhash

from lowtide.files import checksum_file
from lowtide.stores.objects import ObjectInfo, open_store
from lowtide.stores.refusals import ObjectMissingError
from lowtide.stores.urls import StoreURL, store_url

__all__ = [
    "READER_BYTES",
    "READ_AHEAD_BYTES",
    "StorePath",
    "checksum_path",
    "find_objects",
    "input_path",
    "is_stored",
    "tag_number",
]

READ_AHEAD_BYTES = 4 << 20
READER_BYTES = READ_AHEAD_BYTES + (4 << 20)
"""Memory of a reader of an object, with its part of the client."""
_FIRST_AHEAD_BYTES = 256 << 10
_BUFFER_BYTES = 64 << 10
_KEPT = 4096


class StorePath(PosixPath):
    """The path of an object; its text is its URL."""

    def __str__(self) -> str:
        return str(self.url)

    def __fspath__(self) -> str:
        return str(self.url)

    def __repr__(self) -> str:
        return f"StorePath({str(self)!r})"

    @property
    def url(self) -> StoreURL:
        """The URL of the object."""
        url = store_url("/".join(self.parts))
        assert url is not None
        return url

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """The object's size, and its ETag in place of times; always requested."""
        url = self.url
        try:
            if not url.key:  # requested as an object, a bucket would respond
                raise ObjectMissingError("a bucket is not an object", path=str(url))
            info = open_store(url).head(url)
        except ObjectMissingError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self)) from None
        keep_info(info)
        return _status(info)

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """True if the object exists; pathlib would check the local disk."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """True if the object exists."""
        return self.exists()

    def is_symlink(self) -> bool:
        """False: a store has no links."""
        return False

    def is_dir(self) -> bool:
        """False: a prefix is not a folder."""
        return False

    def expanduser(self) -> StorePath:
        """Itself."""
        return self

    def relative_to(self, *other: Any) -> Path:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The key after a prefix, as a plain path."""
        return Path(*super().relative_to(*other).parts)

    def absolute(self) -> StorePath:
        """Itself."""
        return self

    def open(self, mode: str = "rb", buffering: int = -1, *_: Any, **__: Any) -> Any:
        """Open the object for reading, in binary."""
        if mode != "rb":
            raise io.UnsupportedOperation(f"{self}: objects are only read")
        info = _infos.get(str(self))
        if info is None:
            self.stat()
            info = _infos[str(self)]
        raw = _RangeFile(info)
        size = _BUFFER_BYTES if buffering < 0 else buffering
        return io.BufferedReader(raw, size) if size else raw

    def read_bytes(self) -> bytes:
        """Read a whole small object."""
        with self.open(buffering=0) as file:
            return file.readall()


class _RangeFile(io.RawIOBase):
    """An object as a file; sequential reads are fetched in growing ranges."""

    def __init__(self, info: ObjectInfo) -> None:
        super().__init__()
        self._info = info
        self._store = open_store(info.url)
        self._position = self._next = 0
        self._ahead = _FIRST_AHEAD_BYTES
        self._start, self._held = 0, memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._info.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readall(self) -> bytes:
        return self.read(max(0, self._info.size - self._position)) or b""

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = min(len(view), self._info.size - self._position)
        done = 0
        while done < count:
            part = self._take(count - done)
            view[done : done + len(part)] = part
            done += len(part)
            self._position += len(part)
        self._next = self._position
        return max(0, done)

    def _take(self, count: int) -> memoryview:
        """At least one byte from the current position on."""
        inside = self._position - self._start
        if not 0 <= inside < len(self._held):
            size = count
            if self._position in (self._next, self._start + len(self._held)):
                size = max(count, self._ahead)
                self._ahead = min(2 * self._ahead, READ_AHEAD_BYTES)
            else:
                self._ahead = _FIRST_AHEAD_BYTES
            size = min(size, self._info.size - self._position)
            self._held = memoryview(b"")  # freed before the next is fetched
            self._held = memoryview(self._store.read(self._info, self._position, size))
            self._start, inside = self._position, 0
        return self._held[inside : inside + count]

    def renew(self) -> None:
        """Continue with the object's current version; for objects named by their content."""
        info = self._store.head(self._info.url)
        if info.size == self._info.size:
            self._info = info
            keep_info(info)

    def close(self) -> None:
        self._held = memoryview(b"")
        super().close()


# The last few thousand objects that were found, so that opening one needs no request.
_infos: OrderedDict[str, ObjectInfo] = OrderedDict()
_infos_lock = threading.Lock()


def keep_info(info: ObjectInfo, *, kept: int = _KEPT) -> None:
    """Cache the current info of an object."""
    with _infos_lock:
        _infos[str(info.url)] = info
        _infos.move_to_end(str(info.url))
        while len(_infos) > kept:
            _infos.popitem(last=False)


def tag_number(info: ObjectInfo) -> int:
    """A number computed from an object's ETag, in place of its modification time."""
    return xxhash.xxh3_64_intdigest(info.tag.encode()) >> 1


def _status(info: ObjectInfo) -> os.stat_result:
    number = tag_number(info)
    seconds = number // 10**9
    return os.stat_result(
        (stat.S_IFREG | 0o444, 0, 0, 1, 0, 0, info.size, seconds, seconds, seconds),
        {"st_mtime_ns": number, "st_ctime_ns": number, "st_atime_ns": number},
    )


def checksum_path(path: Path) -> str:
    """The xxh3-128 of a file or an object in hexadecimal."""
    if not is_stored(path):
        return checksum_file(path)
    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def is_stored(path: Path) -> bool:
    """True for an object, which native code cannot read."""
    return isinstance(path, StorePath)


def input_path(text: str | os.PathLike[str]) -> Path:
    """A local path, or one in a store."""
    return Path(text) if store_url(text) is None else StorePath(text)


def find_objects(pattern: StoreURL) -> Iterator[ObjectInfo]:
    """The objects of a URL: itself, all under it, or matches of its pattern.

    An object whose name is like a pattern matches its own name, as a file of that name does. Their
    infos are cached, so that they are opened as found here.
    """
    for info in _iter_objects(pattern):
        keep_info(info)
        yield info


def _iter_objects(pattern: StoreURL) -> Iterator[ObjectInfo]:
    store = open_store(pattern)
    key = pattern.key
    if not any(sign in key for sign in "*?["):
        with contextlib.suppress(ObjectMissingError):
            if key:  # a bucket has a head as well, and would be an object of 0 bytes
                yield store.head(pattern)
                return
        yield from store.iter_objects(pattern)
        return
    fixed = re.split(r"[*?\[]", key)[0].rpartition("/")[0]
    matches = _translate(key)
    for info in store.iter_objects(StoreURL(pattern.scheme, pattern.bucket, fixed)):
        if info.url.key == key or matches(info.url.key):
            yield info


@functools.lru_cache(maxsize=8)
def _translate(pattern: str) -> Any:
    """Compile a shell pattern: * within a name, ** across folders.

    >>> bool(_translate("a/**/*.txt")("a/b/c.txt")), bool(_translate("a/*.txt")("a/b/c.txt"))
    (True, False)
    """
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])", pattern)
    known = {"**/": r"(?:.*/)?", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}

    def one(part: str) -> str:
        if part.startswith("[") and part.endswith("]"):
            return part.replace("[!", "[^")
        return known.get(part) or re.escape(part)

    return re.compile("".join(map(one, parts)), re.DOTALL).fullmatch
