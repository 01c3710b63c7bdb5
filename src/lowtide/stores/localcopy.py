"""Local copies of objects, for code that maps files into memory.

In:      the URL of an object
Out:     a file, and the checksum of its contents
Memory:  one range
"""

from __future__ import annotations

from pathlib import Path

import xxhash

from lowtide.stores.objects import Store
from lowtide.stores.urls import StoreURL

__all__ = ["copy_object"]

_RANGE_BYTES = 4 << 20


def copy_object(store: Store, url: StoreURL, path: Path, *, range_bytes: int = _RANGE_BYTES) -> str:
    """Copy the current version of an object, by ranges with its ETag; return its xxh3-128."""
    info = store.head(url)
    digest = xxhash.xxh3_128()
    with path.open("wb") as file:
        for start in range(0, info.size, range_bytes):
            data = store.read(info, start, min(range_bytes, info.size - start))
            digest.update(data)
            file.write(data)
    return digest.hexdigest()
