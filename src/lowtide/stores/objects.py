"""Read and write objects through obstore, with retries, and errors that name the object.

In:      URLs; credentials from the environment, the instance or a profile, never from a flag
Out:     sizes and ETags of objects, lists of them, ranges of bytes; objects created and uploaded
Memory:  the requested bytes; one page of a list (1,000 names); UPLOAD_BYTES while a file is
         uploaded; about 5 MiB for obstore

A range is requested with the ETag that the object had when it was opened, so that a changed object
is an error instead of a mixture. refusals.py decides which errors are retried.

A store returns the same error to a second writer and to a first writer whose response was lost and
who retries. So `create` reads the existing object, and compares.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lowtide.errors import DataError, LowtideError, UsageError, warn
from lowtide.packages import import_package
from lowtide.quickclasses import dataclass
from lowtide.stores.credentials import needs_profile, profile_credentials
from lowtide.stores.refusals import (
    ObjectMissingError,
    StoreDownError,
    describe_reason,
    find_refusal,
    object_changed,
)
from lowtide.stores.urls import StoreURL

__all__ = [
    "UPLOAD_BYTES",
    "ObjectInfo",
    "Store",
    "open_store",
]

ResultT = TypeVar("ResultT")

_ATTEMPTS = 10
_PART_BYTES = 5 << 20  # the minimum of S3
_MOST_PARTS = 9000  # S3 allows 10,000
UPLOAD_BYTES = 3 * _PART_BYTES
"""Memory for uploading a file: the part being read, and the one being sent."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 30.0
_TOLD_WAIT_S = 3.0
_REQUEST_S = 60


@dataclass(frozen=True)
class ObjectInfo:
    """An object as it was when it was opened."""

    url: StoreURL
    size: int
    tag: str
    """Its ETag, or its modification time if a store has none."""
    has_etag: bool = True


class Store:
    """One bucket; may be shared by threads, not by processes."""

    def __init__(self, root: StoreURL) -> None:
        self._root = root
        self._down = threading.Event()
        """Set from when a request was given up until one is answered: meanwhile others are tried
        only once, so that a program whose reader failed does not wait for its other threads."""
        self._obstore = import_package("obstore", f"{root.scheme}://", path=str(root))
        self._client = self._retrying(root, lambda: self._connect(root))

    def _connect(self, root: StoreURL) -> Any:
        from datetime import timedelta  # takes 1.2 ms, not needed by commands on local disks

        stores = import_package("obstore.store", f"{root.scheme}://")
        options: dict[str, Any] = {"timeout": f"{_REQUEST_S}s", "connect_timeout": "10s"}
        if _allows_http(root):
            options["allow_http"] = True  # obstore drops it if other options are given
        more: dict[str, Any] = {}
        if root.scheme in ("s3", "s3a") and needs_profile():
            more["credential_provider"] = profile_credentials(root)
        return stores.from_url(
            root.root,
            client_options=options,
            # Retries and error messages are done here, for all requests.
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=_REQUEST_S)},
            **more,
        )

    def head(self, url: StoreURL) -> ObjectInfo:
        """Return the size and tag of an object."""
        return _info(url, self._retrying(url, lambda: self._obstore.head(self._client, url.key)))

    def read(self, info: ObjectInfo, start: int, count: int) -> Any:
        """Return bytes `start` to `start + count` of an object, as a buffer."""
        if count == 0:
            return b""
        options: dict[str, Any] = {"range": (start, start + count)}
        if info.has_etag:
            options["if_match"] = f'"{info.tag}"'

        def ask() -> Any:
            found = self._obstore.get(self._client, info.url.key, options=options)
            if _info(info.url, found.meta) != info:  # a store without If-Match
                raise object_changed(info.url)
            data = found.bytes()
            if len(data) != count:
                raise ConnectionError(f"{len(data)} of {count} bytes came")
            return data

        return self._retrying(info.url, ask)

    def read_whole(self, url: StoreURL, *, most_bytes: int) -> tuple[ObjectInfo, Any]:
        """Return a small object."""

        def ask() -> tuple[ObjectInfo, Any]:
            found = self._obstore.get(self._client, url.key)
            info = _info(url, found.meta)
            if info.size > most_bytes:
                raise DataError(
                    f"an object of {info.size} bytes, expected {most_bytes} at most", path=str(url)
                )
            data = found.bytes()
            if len(data) != info.size:
                raise ConnectionError(f"{len(data)} of {info.size} bytes came")
            return info, data

        return self._retrying(url, ask)

    def create(self, url: StoreURL, data: bytes) -> str | None:
        """Create a small object and return its tag; None if a different one exists.

        An existing one with the same bytes is assumed to be our own: if it matters who was first,
        the bytes of two writers have to differ.
        """
        exists = self._obstore.exceptions.AlreadyExistsError

        def ask() -> str | None:
            try:
                return _tag(self._obstore.put(self._client, url.key, data, mode="create"))
            except exists:
                return None

        for attempt in range(1, _ATTEMPTS + 1):
            tag = self._retrying(url, ask, writes=True)
            if tag is not None:
                return tag
            try:
                info, found = self.read_whole(url, most_bytes=max(len(data), 1 << 20))
                return info.tag if bytes(found) == data else None
            except ObjectMissingError:  # two concurrent writes that both failed; or removed again
                _wait(attempt, url, "created elsewhere at the same moment", self._down)
        raise DataError("this object was stored and removed again and again", path=str(url))

    def replace(self, url: StoreURL, data: bytes, tag: str) -> str | None:
        """Replace a small object that has this tag; return the new one, None if it had another.

        Not retried, because the owner of a lease renews it again soon.
        """
        return self._retrying(url, self._replacing(url, data, tag), writes=True, attempts=1)

    def exchange(self, url: StoreURL, data: bytes, tag: str) -> str | None:
        """Replace an object that has this tag, and verify it; None if another writer replaced it.

        After a refusal or without a response the object is read: one with these bytes is ours.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            found = self._retrying(url, self._replacing(url, data, tag), writes=True)
            if found is not None:
                return found
            try:
                info = self.head(url)
            except ObjectMissingError:
                return None
            if info.tag != tag:
                return info.tag if self._holds(info, data) else None
            # S3: both concurrent writes failed.
            _wait(attempt, url, "replaced elsewhere at the same moment", self._down)
        raise DataError("this object could not be replaced", path=str(url))

    def _holds(self, info: ObjectInfo, data: bytes) -> bool:
        """True if an object has these bytes; read by ranges."""
        return info.size == len(data) and all(
            bytes(self.read(info, start, min(_PART_BYTES, info.size - start)))
            == data[start : start + _PART_BYTES]
            for start in range(0, info.size, _PART_BYTES)
        )

    def _replacing(self, url: StoreURL, data: bytes, tag: str) -> Callable[[], str | None]:
        """A function that tries a replacement once; returns None for an object with another tag."""

        def ask() -> str | None:
            try:
                mode = self._expect(url, tag)
                whole = {"use_multipart": False}  # multipart uploads would ignore the condition
                return mode and _tag(
                    self._obstore.put(self._client, url.key, data, mode=mode, **whole)
                )
            except (FileNotFoundError, self._obstore.exceptions.PreconditionError):
                return None

        return ask

    def _expect(self, url: StoreURL, tag: str) -> Any:
        """The condition that an object has a tag; None if it is known to have another.

        GCS compares generations instead of tags, so the generation of the object with this tag is
        requested.
        """
        if url.scheme != "gs":
            return {"e_tag": f'"{tag}"'}
        found = self._obstore.head(self._client, url.key)
        return {"version": found["version"]} if _tag(found) == tag else None

    def upload(self, url: StoreURL, path: Path) -> None:
        """Upload a file of any size; the object appears when it is complete."""
        size = path.stat().st_size
        options: dict[str, Any] = {"use_multipart": False}
        if size > _PART_BYTES:
            part = max(_PART_BYTES, -(-size // _MOST_PARTS))
            options = {"use_multipart": True, "chunk_size": part, "max_concurrency": 1}

        def ask() -> None:
            self._obstore.put(self._client, url.key, path, **options)

        self._retrying(url, ask, writes=True)

    def copy(self, source: StoreURL, target: StoreURL) -> None:
        """Copy an object within the bucket, replacing the target; its bytes are not downloaded."""

        def ask() -> None:
            self._obstore.copy(self._client, source.key, target.key)

        self._retrying(source, ask, writes=True)

    def delete(self, urls: Sequence[StoreURL]) -> None:
        """Remove objects; missing ones are ignored."""
        keys = [url.key for url in urls]
        for first in range(0, len(keys), 1000):
            some = keys[first : first + 1000]

            def ask(some: list[str] = some) -> None:
                self._delete(some)

            self._retrying(urls[first], ask, writes=True)

    def _delete(self, keys: list[str]) -> None:
        try:
            self._obstore.delete(self._client, keys)
        except FileNotFoundError:  # Azure and GCS report a missing object, S3 does not
            if len(keys) == 1:
                return
            for key in keys:
                self._delete([key])

    def iter_objects(self, prefix: StoreURL) -> Iterator[ObjectInfo]:
        """Yield the objects under a prefix in order of their names, a page at a time.

        An empty object `PREFIX/`, which consoles create as a folder, is left out: obstore reports
        it as PREFIX.
        """
        last: str | None = None
        pages: Iterator[Any] | None = None

        def next_page() -> Any:
            nonlocal pages
            if pages is None:  # the first; after a lost connection from the last name on
                pages = iter(
                    self._obstore.list(
                        self._client, prefix.key or None, offset=last, chunk_size=1000
                    )
                )
            try:
                return next(pages, None)
            except Exception:
                pages = None
                raise

        while (page := self._retrying(prefix, next_page)) is not None:
            for row in page:
                last = str(row["path"])
                if last == prefix.key:
                    continue
                yield _info(StoreURL(prefix.scheme, prefix.bucket, last), row)

    def list_names(self, prefix: StoreURL) -> list[str]:
        """The names directly under a prefix: of objects, and of longer prefixes."""

        def ask() -> Any:
            return self._obstore.list_with_delimiter(self._client, prefix.key or None)

        found = self._retrying(prefix, ask)
        paths = [*found["common_prefixes"], *(row["path"] for row in found["objects"])]
        return sorted(
            str(path).rstrip("/").rpartition("/")[2] for path in paths if path != prefix.key
        )

    def find_time(self, url: StoreURL) -> float:
        """When an object was stored, in seconds by the store's clock."""
        row = self._retrying(url, lambda: self._obstore.head(self._client, url.key))
        return row["last_modified"].timestamp()

    def _retrying(
        self,
        url: StoreURL,
        ask: Callable[[], ResultT],
        *,
        writes: bool = False,
        attempts: int = _ATTEMPTS,
    ) -> ResultT:
        """Call `ask` until it succeeds; permanent errors are raised at once, as our own."""
        began, reason, attempt = time.monotonic(), "", 0
        for attempt in range(1, attempts + 1):
            try:
                answer = ask()
            except LowtideError:
                self._down.clear()
                raise
            except Exception as error:  # its errors and OSError have no narrower common class
                refusal = find_refusal(error, url, writes=writes)
                if refusal is not None:
                    self._down.clear()
                    raise refusal from None
                reason = describe_reason(error)
            else:
                self._down.clear()
                return answer
            if attempt == attempts or self._down.is_set():
                break
            _wait(attempt, url, reason, self._down)
        if attempts > 1:
            self._down.set()
        raise StoreDownError(
            f"no answer from the store in {attempt} attempts over "
            f"{time.monotonic() - began:.0f} s: {reason}",
            path=str(url),
            next_step="check the network and that the store is up, then give the same command "
            "again: it goes on where it stopped",
        )


_open: dict[tuple[int, str], Store] = {}


def open_store(url: StoreURL) -> Store:
    """Return the bucket of a URL; one client per bucket and process."""
    key = (os.getpid(), url.root)
    if key not in _open:
        if any(pid != key[0] for pid, _ in _open):
            # obstore's threads do not exist after a fork, and it would wait for them forever.
            raise UsageError(
                f"{url.root} cannot be read in a process forked from one that has read it",
                next_step="start workers anew (DataLoader: multiprocessing_context='spawn'), or "
                "use BatchLoader, which needs none",
            )
        _open[key] = Store(StoreURL(url.scheme, url.bucket, ""))
    return _open[key]


def _allows_http(root: StoreURL) -> bool:
    """True if the environment allows requests without TLS, as for emulators."""
    cloud = {"s3": "AWS", "s3a": "AWS", "gs": "GOOGLE"}.get(root.scheme, "AZURE")
    return os.environ.get(f"{cloud}_ALLOW_HTTP", "").lower() in ("1", "true")


def _info(url: StoreURL, row: Any) -> ObjectInfo:
    etag = row["e_tag"]
    if etag is None or str(etag).startswith("W/"):  # a weak ETag never matches
        written = row["last_modified"].replace(microsecond=0).isoformat()
        return ObjectInfo(url, int(row["size"]), written, has_etag=False)
    return ObjectInfo(url, int(row["size"]), str(etag).strip('"'))  # lists may omit the quotes


def _tag(row: Any) -> str:
    """The tag of an object that was just stored; empty if the store does not return it."""
    return str(row["e_tag"] or "").strip('"')


def _sleep(seconds: float, ended: threading.Event) -> None:
    ended.wait(seconds)


def _wait(attempt: int, url: StoreURL, reason: str, ended: threading.Event) -> None:
    """Wait with exponential backoff and jitter, at most until `ended`."""
    seconds = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (attempt - 1)) * random.uniform(0.6, 1.0)
    if seconds >= _TOLD_WAIT_S:
        warn(f"{url}: {reason}; attempt {attempt} of {_ATTEMPTS}, the next in {seconds:.0f} s")
    _sleep(seconds, ended)
