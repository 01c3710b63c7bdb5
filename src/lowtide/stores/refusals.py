"""Classify a store's errors: which can be retried, and what to do about the others.

In:      errors of obstore, whose status and code are text
Out:     our own errors, or None for errors that can be retried (lost connections, 429, 5xx)
"""

from __future__ import annotations

import re

from lowtide.errors import DataError
from lowtide.stores.credentials import how_to_sign_in
from lowtide.stores.urls import StoreURL

__all__ = [
    "ObjectChangedError",
    "ObjectMissingError",
    "StoreDownError",
    "describe_reason",
    "find_refusal",
    "object_changed",
]

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]{1,80})</Code>")
_NAME = re.compile(
    r'(?:Encountered object with invalid path|Could not parse path): .*Path "([^"]*)'
)
_PASSING = {408, 425, 429, 500, 502, 503, 504}
# Metadata servers of cloud machines: asked for credentials only if there are no others.
_INSTANCE = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")


class ObjectMissingError(DataError):
    """There is no object of this name."""


class ObjectChangedError(DataError):
    """An object is not the version that was opened."""


class StoreDownError(DataError):
    """The store denies access or does not respond; the request itself is valid."""


def object_changed(url: StoreURL) -> ObjectChangedError:
    """The error for an object that is not the version that was opened."""
    return ObjectChangedError(
        "this object changed while it was read",
        path=str(url),
        next_step="leave it alone until the command has ended, then give the same command again",
    )


def find_refusal(error: Exception, url: StoreURL, *, writes: bool = False) -> DataError | None:
    """The error to raise if retrying cannot help; None if it may."""
    text = str(error)
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    path = str(url)
    if any(place in text for place in _INSTANCE) or "Account must be specified" in text:
        return StoreDownError(
            "no credentials for this store: none in the environment, and this machine has none of "
            "its own",
            path=path,
            next_step=how_to_sign_in(url.scheme),
        )
    if "NoSuchBucket" in text:
        return DataError(
            f"there is no bucket {url.bucket}", path=path, next_step="check the URL for typing "
            "errors, and which account and endpoint the environment names",
        )  # fmt: skip
    if name := _NAME.search(text):
        return DataError(
            f"an object is called {name[1]!r}, a name that cannot be read: it has empty parts "
            "(//), parts . or .., or control characters",
            path=path,
            next_step="rename it, or name a prefix that it is not under",
        )
    if isinstance(error, FileNotFoundError) or status == 404:
        return ObjectMissingError(
            "no such object", path=path, next_step="check the URL for typing errors"
        )
    if status in (401, 403) or "PermissionDenied" in type(error).__name__:
        return StoreDownError(
            f"the store denies {'writing' if writes else 'access'} ({describe_reason(error)})",
            path=path,
            next_step="check that these credentials may write and delete under this prefix"
            if writes
            else "check that these credentials may read (and list) this prefix; a public bucket "
            "is read without any with AWS_SKIP_SIGNATURE=true",
        )
    if status in (412, 416):
        return object_changed(url)
    if 300 <= status < 400 or "incorrectly configured region" in text:
        return DataError(
            "the bucket is in another region",
            path=path,
            next_step="set AWS_REGION to the region of the bucket",
        )
    if status and status not in _PASSING:
        return DataError(f"the store refuses ({describe_reason(error)})", path=path)
    if "URL" in text and "recognise" in text:
        return DataError("not an address of an object store", path=path)
    return None


def describe_reason(error: Exception) -> str:
    """A store's message in one line, without URL queries, which may contain a signature."""
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    if status is not None:
        return f"HTTP {status[1]}{' ' + code[1] if code else ''}"
    lines = text.splitlines()
    line = lines[0] if lines else type(error).__name__
    return re.sub(r"\?\S+", "", line.rpartition(" - ")[2])[:200]
