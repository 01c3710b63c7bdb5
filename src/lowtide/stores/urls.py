"""Parse addresses of objects: s3://, gs:// and az://.

In:      a path given by a user
Out:     StoreURL, or None for a local path
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

from lowtide.errors import UsageError
from lowtide.quickclasses import dataclass

__all__ = ["StoreURL", "is_store_url", "show_path", "store_url"]

# A Path of "s3://bucket" has one slash; both forms are parsed, because settings hold Paths.
_URL = re.compile(r"(s3|s3a|gs|az|azure|abfs|abfss):/+([^/]*)/*(.*)", re.DOTALL)


@dataclass(frozen=True)
class StoreURL:
    """An object, or a prefix of objects."""

    scheme: str
    bucket: str
    key: str
    """Without slashes at its ends; empty for the whole bucket."""

    @property
    def root(self) -> str:
        """The bucket's own URL."""
        return f"{self.scheme}://{self.bucket}"

    def __str__(self) -> str:
        return f"{self.root}/{self.key}" if self.key else self.root

    def __truediv__(self, name: str) -> StoreURL:
        return replace(self, key=f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        """The last part of the key, or the bucket."""
        return self.key.rpartition("/")[2] or self.bucket


def store_url(path: str | os.PathLike[str] | None) -> StoreURL | None:
    """Parse a path as a URL; None for a local path.

    >>> str(store_url("s3:/bucket/data/"))
    's3://bucket/data'
    >>> store_url("data/s3") is None
    True
    """
    if path is None or (match := _URL.fullmatch(os.fspath(path))) is None:
        return None
    scheme, bucket, key = match.groups()
    if not bucket:
        raise UsageError(
            f"{os.fspath(path)!r} names no bucket", next_step=f"write {scheme}://BUCKET/PREFIX"
        )
    if "@" in bucket and ":" in bucket.partition("@")[0]:
        raise UsageError(
            f"{scheme}://… has a user name and a password in it: credentials are never given in a "
            "URL, which logs and metadata keep",
            next_step="set them in the environment (docs/object-stores.md)",
        )
    if ".." in key.split("/"):
        raise UsageError(
            f"{scheme}://{bucket}/{key} has .. in it, and a store has no folders to leave",
            next_step="write the name that is meant in full",
        )
    return StoreURL(scheme, bucket, key.strip("/"))


def is_store_url(path: str | os.PathLike[str] | None) -> bool:
    """True for a URL of an object store."""
    return store_url(path) is not None


def show_path(path: str | os.PathLike[str]) -> str:
    """A path for messages, a URL with both slashes."""
    return str(store_url(path) or os.fspath(path))
