"""A prefix of an object store as the work folder that workers share.

In:      names within the prefix
Out:     PREFIX/STAGE/NAME.done and other small objects, created if absent; PREFIX/out/STAGE/… for
         results of any size; PREFIX/leases
Memory:  a small object; UPLOAD_BYTES while a result is uploaded

A multipart upload cannot be conditional on the object being absent, so a result is named by its
checksum: writers of the same bytes write the same object, writers of other bytes another one, and
the record, which is created once, names the valid one. Scratch files are on a local disk (TMPDIR).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import field
from pathlib import Path
from typing import IO

from lowtide import files
from lowtide.engine.folders import Lease, SeenLease, parse_note
from lowtide.errors import DataError, UsageError
from lowtide.quickclasses import dataclass
from lowtide.scratch import scratch_folder, temporary_root
from lowtide.stores.objects import Store, open_store
from lowtide.stores.paths import StorePath
from lowtide.stores.refusals import ObjectMissingError, StoreDownError
from lowtide.stores.urls import StoreURL

__all__ = ["StoreFolder", "is_left_probe", "refuse_overwriting", "refuse_replacing"]

_MOST_SMALL_BYTES = 64 << 20
_BUFFER_BYTES = 1 << 20
_OUT = "out"
_PROBE = "probe"
_PROBES = 3
_PROBE_TIME = re.compile(r"([0-9]+)-[0-9a-f]{16}$")
_PROBE_SECONDS = 3600  # stores reject requests if the clocks differ by a quarter of it


def refuse_overwriting(prefix: StoreURL, probe: str) -> None:
    """Test with a probe object that a store does not overwrite an existing object on creation."""

    def fails(store: Store, url: StoreURL) -> bool:
        is_created = store.create(url, b"first") is not None
        is_replaced = store.create(url, b"second") is not None
        return not is_created or is_replaced

    if _ever(fails, prefix, probe):
        raise DataError(
            "this store replaces an object that it was asked only to create, so workers could "
            "overwrite each other's results",
            path=str(prefix),
            next_step="use a store with conditional writes (S3, GCS, Azure, R2), or a disk",
        )


def refuse_replacing(prefix: StoreURL, probe: str) -> None:
    """Test that a store replaces an object only if its ETag matches."""

    def fails(store: Store, url: StoreURL) -> bool:
        first = store.create(url, b"first") or ""
        is_replaced = store.exchange(url, b"second", first) is not None
        is_replaced_again = store.exchange(url, b"third", first) is not None
        return not is_replaced or is_replaced_again

    if _ever(fails, prefix, probe):
        raise DataError(
            "this store does not replace an object under its ETag alone, so two commands could "
            "overwrite each other's metadata",
            path=str(prefix),
            next_step="copy the dataset to a disk, or to a store with conditional writes (S3, GCS, "
            "Azure, R2), and add the text there",
        )


def _ever(fails: Callable[[Store, StoreURL], bool], prefix: StoreURL, probe: str) -> bool:
    """True if a test fails in one of several tries, each with a new object."""
    store = open_store(prefix)
    for _ in range(_PROBES):
        url = prefix / f"{probe}{int(time.time())}-{secrets.token_hex(8)}"
        failed = fails(store, url)
        store.delete([url])
        if failed:
            return True
    return False


def is_left_probe(name: str) -> bool:
    """True if a killed worker left this probe; probes of workers that are starting are younger."""
    begun = _PROBE_TIME.search(name)
    return begun is None or time.time() - int(begun[1]) > _PROBE_SECONDS


class StoreFolder:
    """A prefix of a store that workers share."""

    longest_pause = 5.0  # a check takes several requests, which cost money
    least_committers = 1
    more_names: Collection[str] = (_OUT, _PROBE)

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = temporary_root()
        self._url = StorePath(path).url
        if not self._url.key:
            raise UsageError(
                f"{self._url} is a whole bucket", next_step=f"name a prefix: {self._url}/work"
            )

    @property
    def _store(self) -> Store:
        return open_store(self._url)

    def _at(self, name: str) -> StoreURL:
        return self._url / name if name else self._url

    def prepare(self) -> None:
        """Refuse a store that overwrites an existing object on conditional creation."""
        refuse_overwriting(self._url, f"{_PROBE}/")

    def exists(self, name: str) -> bool:
        """True if there is an object of this name."""
        try:
            self._store.head(self._at(name))
        except ObjectMissingError:
            return False
        return True

    def read(self, name: str) -> bytes:
        """Read a small object."""
        url = self._at(name)
        try:
            return bytes(self._store.read_whole(url, most_bytes=_MOST_SMALL_BYTES)[1])
        except ObjectMissingError:
            raise FileNotFoundError(str(url)) from None

    def list_names(self, under: str = "") -> list[str]:
        """The names directly under a prefix; those of a stage, a thousand per request."""
        url = self._at(under)
        if not under:
            return self._store.list_names(url)
        start = len(url.key) + 1
        names = (info.url.key[start:] for info in self._store.iter_objects(url))
        return list(dict.fromkeys(name.partition("/")[0] for name in names))

    def find_time(self, name: str) -> float:
        """When an object was stored."""
        url = self._at(name)
        try:
            return self._store.find_time(url)
        except ObjectMissingError:
            raise FileNotFoundError(str(url)) from None

    def create(self, name: str, data: bytes) -> bool:
        """Create a small object; False if it exists already, with other bytes."""
        return self._store.create(self._at(name), data) is not None

    def scratch_folder(self) -> contextlib.AbstractContextManager[Path]:
        """A folder on this machine's disk."""
        return scratch_folder("work")

    @contextlib.contextmanager
    def scratch_file(self, stage: str) -> Generator[tuple[Path, IO[bytes]]]:
        """A file on this machine's disk."""
        with self.scratch_folder() as folder:
            partial = folder / "result"
            with os.fdopen(files.create_file(partial), "w+b", buffering=_BUFFER_BYTES) as file:
                yield partial, file

    def publish(self, partial: Path, stage: str, task: str, checksum: str) -> str | None:
        """Upload a finished file under a name made from its checksum."""
        name = f"{task}-{checksum}.out"
        url = self._at(f"{_OUT}/{stage}/{name}")
        size = partial.stat().st_size
        with contextlib.suppress(ObjectMissingError):
            if self._store.head(url).size == size:
                return name
        self._store.upload(url, partial)
        return name

    def output_path(self, stage: str, name: str) -> Path:
        """The path, apart from the records, which are listed repeatedly."""
        return self.path / _OUT / stage / name

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects, and all under a name; keep the probes of workers that are starting."""
        for name in names:
            url = self._at(name)
            self._store.delete([url])
            waiting: list[StoreURL] = []
            for info in self._store.iter_objects(url):
                if name == _PROBE and not is_left_probe(info.url.name):
                    continue
                waiting.append(info.url)
                if len(waiting) == 1000:
                    self._store.delete(waiting)
                    waiting.clear()
            if waiting:
                self._store.delete(waiting)

    def create_lease(self, name: str, content: bytes) -> Lease | None:
        """Create a lease; its bytes are unique to this process."""
        tag = self._store.create(self._at(name), content)
        return None if tag is None else _StoreLease(self._store, self._at(name), tag)

    def read_lease(self, name: str) -> SeenLease | None:
        """Read a lease."""
        try:
            info, content = self._store.read_whole(self._at(name), most_bytes=_MOST_SMALL_BYTES)
        except ObjectMissingError:
            return None
        return SeenLease(bytes(content), info.tag)

    def replace_lease(self, name: str, content: bytes, seen: SeenLease) -> Lease | None:
        """Replace a lease if it is still the one that was seen; None if there was no response."""
        try:
            tag = self._store.replace(self._at(name), content, seen.tag)
        except StoreDownError:
            return None
        return None if tag is None else _StoreLease(self._store, self._at(name), tag)


@dataclass
class _StoreLease:
    store: Store
    url: StoreURL
    tag: str | None
    """None once it is released or taken over."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def renew(self, content: bytes) -> None:
        # A lease that cannot be renewed only looks expired to others.
        with self.lock, contextlib.suppress(DataError):
            if self.tag is not None:
                tag = self.store.replace(self.url, content, self.tag)
                self.tag = tag or self._find_own(content)

    def _find_own(self, content: bytes) -> str | None:
        """The tag of the lease if it is still ours, after the response to its renewal was lost."""
        try:
            info, found = self.store.read_whole(self.url, most_bytes=_MOST_SMALL_BYTES)
        except ObjectMissingError:
            return None
        nonce = parse_note(content).get("nonce")
        return info.tag if nonce and parse_note(bytes(found)).get("nonce") == nonce else None

    def release(self) -> None:
        with self.lock, contextlib.suppress(DataError):
            if self.tag is not None and self.store.head(self.url).tag == self.tag:
                self.store.delete([self.url])
            self.tag = None
