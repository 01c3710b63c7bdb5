"""Objects by ranges, through obstore: retried with growing waits, and named when they fail.

In:      URLs; credentials from the environment, the instance or a profile, never from a flag
Out:     sizes and tags of objects, lists of them, ranges of bytes
Memory:  what is asked for; a page of a list (1,000 names) at a time; about 5 MiB for obstore

A range is asked for under the tag the object had when it was opened, so that one that changed
meanwhile is refused instead of mixed. Errors of a store come as text: which of them pass with time
(lost connections, 429, 5xx) and which do not is decided here, in one place.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from lowtide.errors import DataError, LowtideError, UsageError, warn
from lowtide.packages import has_package, import_package
from lowtide.stores.urls import StoreURL

__all__ = [
    "ObjectChangedError",
    "ObjectInfo",
    "ObjectMissingError",
    "Store",
    "open_store",
]

ResultT = TypeVar("ResultT")

_ATTEMPTS = 10
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 30.0
_TOLD_WAIT_S = 3.0
_REQUEST_S = 60
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]{1,80})</Code>")
_PASSING = {408, 425, 429, 500, 502, 503, 504}
# Where clouds give credentials to their own machines: nobody asks there who has others.
_INSTANCE = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")


class ObjectMissingError(DataError):
    """There is no object of this name."""


class ObjectChangedError(DataError):
    """An object is not the one that was opened."""


@dataclass(frozen=True)
class ObjectInfo:
    """An object as it was when it was opened."""

    url: StoreURL
    size: int
    tag: str
    """Its ETag, or where a store has none, when it was written."""
    has_etag: bool = True


class Store:
    """One bucket; threads may share it, processes not."""

    def __init__(self, root: StoreURL) -> None:
        self._root = root
        self._obstore = import_package("obstore", f"{root.scheme}://", path=str(root))
        self._client = self._retrying(root, lambda: self._connect(root))

    def _connect(self, root: StoreURL) -> Any:
        stores = import_package("obstore.store", f"{root.scheme}://")
        options: dict[str, Any] = {"timeout": f"{_REQUEST_S}s", "connect_timeout": "10s"}
        if os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"):
            options["allow_http"] = True  # obstore forgets it where other options are given
        more: dict[str, Any] = {}
        if root.scheme in ("s3", "s3a") and _needs_profile():
            more["credential_provider"] = _profile_credentials(root)
        return stores.from_url(
            root.root,
            client_options=options,
            # Waiting and naming are ours: one place for all that is asked.
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
            if _info(info.url, found.meta) != info:  # a store that knows no If-Match
                raise _changed(info.url)
            data = found.bytes()
            if len(data) != count:
                raise ConnectionError(f"{len(data)} of {count} bytes came")
            return data

        return self._retrying(info.url, ask)

    def read_whole(self, url: StoreURL, *, most_bytes: int) -> tuple[ObjectInfo, Any]:
        """Return a small object."""
        info = self.head(url)
        if info.size > most_bytes:
            raise DataError(
                f"an object of {info.size} bytes, expected {most_bytes} at most", path=str(url)
            )
        return info, self.read(info, 0, info.size)

    def iter_objects(self, prefix: StoreURL) -> Iterator[ObjectInfo]:
        """Yield the objects under a prefix in order of their names, a page at a time."""
        last: str | None = None
        pages: Iterator[Any] | None = None

        def next_page() -> Any:
            nonlocal pages
            if pages is None:  # the first, or after a lost connection from the last name on
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
                yield _info(StoreURL(prefix.scheme, prefix.bucket, last), row)

    def _retrying(self, url: StoreURL, ask: Callable[[], ResultT]) -> ResultT:
        """Call `ask` until it answers; what will not pass is raised at once, in our words."""
        began, reason = time.monotonic(), ""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return ask()
            except LowtideError:
                raise
            except Exception as error:  # obstore's own share no narrower class with OSError
                refusal = _refusal(error, url)
                if refusal is not None:
                    raise refusal from None
                reason = _reason(error)
            if attempt < _ATTEMPTS:
                _wait(attempt, url, reason)
        raise DataError(
            f"no answer from the store in {_ATTEMPTS} attempts over "
            f"{time.monotonic() - began:.0f} s: {reason}",
            path=str(url),
            next_step="check the network and that the store is up, then give the same command "
            "again: it goes on where it stopped",
        )


_open: dict[tuple[int, str], Store] = {}


def open_store(url: StoreURL) -> Store:
    """Return the bucket of a URL; one client for it in this process, however many ask."""
    key = (os.getpid(), url.root)
    if key not in _open:
        if any(pid != key[0] for pid, _ in _open):
            # obstore's threads are not there after a fork, and it would wait for them for ever.
            raise UsageError(
                f"{url.root} cannot be read in a process forked from one that has read it",
                next_step="start workers anew (DataLoader: multiprocessing_context='spawn'), or "
                "use BatchLoader, which needs none",
            )
        _open[key] = Store(StoreURL(url.scheme, url.bucket, ""))
    return _open[key]


def _info(url: StoreURL, row: Any) -> ObjectInfo:
    etag = row["e_tag"]
    if etag is None or str(etag).startswith("W/"):  # a weak one matches nothing
        written = row["last_modified"].replace(microsecond=0).isoformat()
        return ObjectInfo(url, int(row["size"]), written, has_etag=False)
    return ObjectInfo(url, int(row["size"]), str(etag).strip('"'))  # lists may leave quotes out


def _changed(url: StoreURL) -> ObjectChangedError:
    return ObjectChangedError(
        "this object changed while it was read",
        path=str(url),
        next_step="leave it alone until the command has ended, then give the same command again",
    )


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def _wait(attempt: int, url: StoreURL, reason: str) -> None:
    """Wait twice as long each time, and not all processes alike."""
    seconds = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (attempt - 1)) * random.uniform(0.6, 1.0)
    if seconds >= _TOLD_WAIT_S:
        warn(f"{url}: {reason}; attempt {attempt} of {_ATTEMPTS}, the next in {seconds:.0f} s")
    _sleep(seconds)


def _refusal(error: Exception, url: StoreURL) -> DataError | None:
    """The error to raise for what waiting does not mend; None where it may."""
    text = str(error)
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    path = str(url)
    if any(place in text for place in _INSTANCE) or "Account must be specified" in text:
        return DataError(
            "no credentials for this store: none in the environment, and this machine has none of "
            "its own",
            path=path,
            next_step=_CREDENTIALS.get(url.scheme, _CREDENTIALS["az"]),
        )
    if "NoSuchBucket" in text:
        return DataError(
            f"there is no bucket {url.bucket}", path=path, next_step="check the URL for typing "
            "errors, and which account and endpoint the environment names",
        )  # fmt: skip
    if isinstance(error, FileNotFoundError) or status == 404:
        return ObjectMissingError(
            "no such object", path=path, next_step="check the URL for typing errors"
        )
    if status in (401, 403) or "PermissionDenied" in type(error).__name__:
        return DataError(
            f"the store denies access ({_reason(error)})",
            path=path,
            next_step="check that these credentials may read (and list) this prefix; a public "
            "bucket is read without any with AWS_SKIP_SIGNATURE=true",
        )
    if status in (412, 416):
        return _changed(url)
    if 300 <= status < 400 or "incorrectly configured region" in text:
        return DataError(
            "the bucket is in another region",
            path=path,
            next_step="set AWS_REGION to the region of the bucket",
        )
    if status and status not in _PASSING:
        return DataError(f"the store refuses ({_reason(error)})", path=path)
    if "URL" in text and "recognise" in text:
        return DataError("not an address of an object store", path=path)
    return None


_OTHER_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, or AWS_PROFILE with boto3 "
    "installed; for a public bucket AWS_SKIP_SIGNATURE=true",
    "s3a": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or: gcloud auth application-default login",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or: az login",
}


def _reason(error: Exception) -> str:
    """What a store said, in a line, without the query of a URL, which may hold a signature."""
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    if status is not None:
        return f"HTTP {status[1]}{' ' + code[1] if code else ''}"
    lines = text.splitlines()
    line = lines[0] if lines else type(error).__name__
    return re.sub(r"\?\S+", "", line.rpartition(" - ")[2])[:200]


def _needs_profile() -> bool:
    """True where credentials are in a profile's files, which obstore does not read by itself."""
    if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true"):
        return False
    if any(os.environ.get(name) for name in _OTHER_CREDENTIALS):
        return False
    if os.environ.get("AWS_PROFILE"):
        return True
    shared = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path.home() / ".aws" / "credentials"
    return has_package("boto3") and Path(shared).is_file()


def _profile_credentials(root: StoreURL) -> Any:
    if not has_package("boto3"):
        raise DataError(
            f"the profile {os.environ.get('AWS_PROFILE')} is read by the package boto3, which is "
            "not installed",
            path=str(root),
            next_step="pip install boto3, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    return import_package("obstore.auth.boto3", "AWS_PROFILE").Boto3CredentialProvider()
