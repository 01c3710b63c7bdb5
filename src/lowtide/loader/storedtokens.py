"""Open a prepared dataset in an object store: only its metadata is copied into the cache.

In:      the URL of a dataset, the folder and size of the cache
Out:     StoredTokens: the objects of a split, with their ETags when the dataset was opened
Memory:  a row of about 600 bytes per shard; one page of the list of objects
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lowtide.dataset.layout import DatasetInfo, load_dataset_info
from lowtide.dataset.storeddatasets import ShardObjects, match_objects, no_dataset
from lowtide.dataset.tokenfiles.shards import ID_BYTES, ShardInfo, shard_from_row
from lowtide.errors import UsageError
from lowtide.filenames import METADATA_NAME, TOKENIZER_NAME
from lowtide.memory import parse_size
from lowtide.quickclasses import dataclass
from lowtide.stores.extentfiles import CachedObject, Extent
from lowtide.stores.extents import ExtentCache, open_cache
from lowtide.stores.objects import Store, open_store
from lowtide.stores.refusals import ObjectMissingError
from lowtide.stores.urls import StoreURL

__all__ = [
    "DEFAULT_CACHE_SIZE",
    "CacheSettings",
    "ShardRow",
    "StoredDataset",
    "StoredShard",
    "StoredTokens",
    "fetch_tokenizer",
    "open_stored_dataset",
]

DEFAULT_CACHE_SIZE = "16GiB"
_MOST_METADATA_BYTES = 1 << 30


@dataclass(frozen=True)
class CacheSettings:
    """The cache on this machine's disk."""

    folder: Path | None = None
    """Its folder; default: lowtide's folder in the user's cache."""
    size: str | int = DEFAULT_CACHE_SIZE
    """Its size limit."""

    def open(self) -> ExtentCache:
        """Open the cache."""
        return open_cache(self.folder, parse_size(self.size))


@dataclass(frozen=True)
class StoredShard:
    """A shard in a store."""

    tokens: CachedObject
    num_tokens: int
    documents: CachedObject | None
    """The object with the ends of its documents, if there is one."""
    num_documents: int
    begins_document: bool = False
    """True if a document that the shard before leaves open does not go on in this one."""


@dataclass(frozen=True)
class ShardRow:
    """Consecutive shards, as one stream of tokens."""

    shards: tuple[StoredShard, ...]
    ends: tuple[int, ...]
    """The end of each shard in the stream."""

    @classmethod
    def of(cls, shards: Iterable[StoredShard]) -> ShardRow:
        """Make a row of shards in this order; those without tokens are left out."""
        kept = tuple(shard for shard in shards if shard.num_tokens)
        return cls(kept, tuple(itertools.accumulate(shard.num_tokens for shard in kept)))

    def spans(self, begin: int, end: int) -> Iterator[tuple[StoredShard, int, int]]:
        """The tokens from `begin` to `end`, as a range within each shard."""
        number = bisect_right(self.ends, begin)
        while begin < end:
            shard = self.shards[number]
            start = self.ends[number] - shard.num_tokens
            stop = min(end, self.ends[number])
            yield shard, begin - start, stop - start
            begin, number = stop, number + 1

    def extents(self, begin: int, end: int, item_bytes: int) -> Iterator[Extent]:
        """The extents with the tokens from `begin` to `end`."""
        for shard, first, stop in self.spans(begin, end):
            yield from shard.tokens.extents(first * item_bytes, stop * item_bytes)


@dataclass(frozen=True)
class StoredTokens:
    """The shards of a split in a store, and the cache they are read through."""

    url: StoreURL
    shards: tuple[StoredShard, ...]
    cache: CacheSettings


@dataclass(frozen=True)
class StoredDataset:
    """A dataset in a store: its metadata, and its objects by split."""

    info: DatasetInfo
    """Its root is the copy of its small files in the cache."""
    shards: Mapping[str, tuple[StoredShard, ...]]


def open_stored_dataset(url: StoreURL, settings: CacheSettings) -> StoredDataset:
    """Copy the dataset's metadata and tokenizer, and compare the objects with the metadata."""
    if url.key.endswith((".npy", ".bin")):
        raise UsageError(
            f"{url} is a file of ids; only prepared datasets are read from an object store",
            next_step="copy it to a disk, or make a dataset of it with lowtide convert",
        )
    store, cache = open_store(url), settings.open()
    root = _keep_metadata(store, cache, url)
    _keep_tokenizer(store, cache, url)
    found: dict[str, tuple[StoredShard, ...]] = {}

    def find_shards(split: str, metadata: Mapping[str, Any]) -> Iterator[ShardInfo]:
        rows = [shard_from_row(root, row) for row in metadata["shards"].get(split, [])]
        matched = match_objects(store, url / split, rows, ID_BYTES[metadata["dtype"]])
        found[split] = tuple(map(_stored_shard, matched))
        return iter(rows)

    return StoredDataset(load_dataset_info(root, find_shards=find_shards), found)


def fetch_tokenizer(url: StoreURL, settings: CacheSettings) -> Path | None:
    """Copy a dataset's tokenizer; return its folder, None if the dataset has none.

    The copy of its metadata, which names the tokenizer, is updated too.
    """
    store, cache = open_store(url), settings.open()
    _keep_metadata(store, cache, url)
    return _keep_tokenizer(store, cache, url)


def _keep_tokenizer(store: Store, cache: ExtentCache, url: StoreURL) -> Path | None:
    try:
        path = cache.folder.keep_file(store, url / TOKENIZER_NAME, most_bytes=_MOST_METADATA_BYTES)
    except ObjectMissingError:
        return None
    return path.parent


def _keep_metadata(store: Store, cache: ExtentCache, url: StoreURL) -> Path:
    try:
        path = cache.folder.keep_file(store, url / METADATA_NAME, most_bytes=_MOST_METADATA_BYTES)
    except ObjectMissingError:
        raise no_dataset(store, url) from None
    return path.parent


def _stored_shard(row: ShardObjects) -> StoredShard:
    shard = row.shard
    return StoredShard(
        tokens=CachedObject(row.tokens, head_checksum=shard.head, checksum=shard.checksum),
        num_tokens=shard.num_tokens,
        documents=row.documents and CachedObject(row.documents, checksum=shard.ends_checksum),
        num_documents=shard.num_documents,
    )
