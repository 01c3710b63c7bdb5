"""Datasets in an object store: their metadata and their objects.

In:      the URL of a dataset
Out:     DatasetInfo with paths of objects; metadata; the tokenizer
Memory:  as for a dataset on a disk, and one page of the list of objects

The loader reads shards through its cache (loader.storedtokens); commands that read a dataset once,
or completely, read ranges of its objects directly.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lowtide.dataset.claims import Additions
from lowtide.dataset.layout import SPLITS, DatasetInfo, load_dataset_info, read_metadata
from lowtide.dataset.tokenfiles.intact import damaged_file
from lowtide.dataset.tokenfiles.shards import (
    DOCUMENTS_SUFFIX,
    ID_BYTES,
    ShardInfo,
    documents_path,
    shard_from_row,
)
from lowtide.errors import DataError
from lowtide.filenames import METADATA_NAME, TOKENIZER_NAME
from lowtide.scratch import scratch_folder
from lowtide.stores.localcopy import copy_object
from lowtide.stores.objects import ObjectInfo, Store, open_store
from lowtide.stores.paths import StorePath, is_stored
from lowtide.stores.urls import StoreURL

__all__ = [
    "ShardObjects",
    "load_any_info",
    "local_shard",
    "match_objects",
    "no_dataset",
    "open_small_files",
    "read_any_metadata",
]

_COPY_BYTES = 1 << 20


class ShardObjects(NamedTuple):
    """A shard, and its objects."""

    shard: ShardInfo
    tokens: ObjectInfo
    documents: ObjectInfo | None


@contextlib.contextmanager
def open_small_files(root: Path) -> Generator[Path]:
    """The folder with metadata and tokenizer of a dataset: its own, or one with copies of both."""
    if not is_stored(root):
        yield root
        return
    url = StorePath(root).url
    store = open_store(url)
    with scratch_folder("dataset") as folder:
        for name in (METADATA_NAME, TOKENIZER_NAME):
            path = StorePath(root / name)
            try:
                path.stat()  # fetched now, so that it is up to date
            except FileNotFoundError:
                if name == METADATA_NAME:
                    raise no_dataset(store, url) from None
                continue
            with path.open(buffering=0) as source, (folder / name).open("wb") as copy:
                shutil.copyfileobj(source, copy, _COPY_BYTES)  # has a row per input
        yield folder


@contextlib.contextmanager
def local_shard(shard: ShardInfo) -> Generator[ShardInfo]:
    """A shard that can be mapped: itself, or a copy in TMPDIR, checked by its checksums."""
    if not is_stored(shard.path):
        yield shard
        return
    names = {shard.path: shard.checksum}
    if shard.num_documents:
        names[documents_path(shard.path)] = shard.ends_checksum
    with scratch_folder("shard") as folder:
        for path, checksum in names.items():
            url = StorePath(path).url
            found = copy_object(open_store(url), url, folder / path.name)
            if checksum not in (None, found):
                raise damaged_file(path, found, checksum)
        here = folder / shard.path.name
        yield replace(shard, path=here, checksum=None, ends_checksum=None)


def read_any_metadata(root: Path) -> dict[str, Any]:
    """Read the metadata of a dataset on a disk or in a store."""
    with open_small_files(root) as folder:
        try:
            return read_metadata(folder)  # its open file outlives the copy
        except DataError as error:
            raise _named(error, folder, root) from None


def load_any_info(root: Path) -> DatasetInfo:
    """Read the metadata of a dataset on a disk or in a store, and check the shards' sizes."""
    if not is_stored(root):
        return load_dataset_info(root)
    url = StorePath(root).url
    with open_small_files(root) as folder:

        def find_shards(split: str, metadata: Mapping[str, Any]) -> Iterator[ShardInfo]:
            rows = [shard_from_row(folder, row) for row in metadata["shards"].get(split, [])]
            item_bytes = ID_BYTES[metadata["dtype"]]
            found = match_objects(open_store(url), url / split, rows, item_bytes)
            return iter([row.shard for row in found])

        try:
            info = load_dataset_info(folder, find_shards=find_shards)
        except DataError as error:
            raise _named(error, folder, root) from None
    shards = {
        split: tuple(
            replace(shard, path=root / split / shard.path.name) for shard in info.shards[split]
        )
        for split in SPLITS
    }
    return replace(info, root=root, shards=shards)


def _named(error: DataError, folder: Path, root: Path) -> DataError:
    """Make an error name the dataset, not the copy that was read."""
    if error.path is None or not str(error.path).startswith(str(folder)):
        return error
    path = str(root) + str(error.path).removeprefix(str(folder))
    return DataError(error.message, path=path, next_step=error.next_step)


def no_dataset(store: Store, url: StoreURL) -> DataError:
    """The error for a URL that is not a dataset, with what was found instead."""
    first = next(store.iter_objects(url), None)
    if first is None:
        return DataError(
            "nothing is stored under this prefix",
            path=str(url),
            next_step="check the URL for typing errors; a dataset comes there with: "
            f"aws s3 cp --recursive DATASET {url}",
        )
    parent = url.key.rpartition("/")[0]
    up = StoreURL(url.scheme, url.bucket, parent)
    return DataError(
        f"no dataset here: {METADATA_NAME} is missing, the first object is {first.url.name}",
        path=str(url),
        next_step=f"did you mean {up}?"
        if url.name in SPLITS
        else "name the prefix that holds it; text is prepared first (lowtide prepare)",
    )


def match_objects(
    store: Store, prefix: StoreURL, rows: list[ShardInfo], item_bytes: int
) -> Iterator[ShardObjects]:
    """Find the objects of each shard; a split is listed as a whole, a thousand per request."""
    objects: dict[str, ObjectInfo] = {}
    dataset, _, split = prefix.key.rpartition("/")
    additions = Additions(store, replace(prefix, key=dataset))
    wanted = {shard.path.name for shard in rows}
    for info in store.iter_objects(prefix):
        name = info.url.key.removeprefix(prefix.key + "/")
        if "/" in name or name.startswith("."):
            continue
        if name.endswith(".bin") and name not in wanted and not additions.has(split, name):
            raise DataError(
                f"{name} lies beside the shards, but {METADATA_NAME} does not describe it",
                path=str(info.url),
                next_step="take it out; shards are moved in on a local disk, where they can be "
                "read whole, or added as text with lowtide append",
            )
        if name.endswith((".bin", DOCUMENTS_SUFFIX)):
            objects[name] = info
    for shard in rows:
        yield _match(prefix, shard, objects, item_bytes)


def _match(
    prefix: StoreURL, shard: ShardInfo, objects: Mapping[str, ObjectInfo], item_bytes: int
) -> ShardObjects:
    name = shard.path.name
    info = objects.get(name)
    if info is None or info.size != shard.num_tokens * item_bytes:
        seen = "is missing" if info is None else f"has {info.size} bytes"
        raise DataError(
            f"{name} {seen}, {METADATA_NAME} says {shard.num_tokens * item_bytes} bytes",
            path=str(prefix / name),
            next_step="copy the dataset to the store again, all of it; the metadata last",
        )
    ends_name = os.path.splitext(name)[0] + DOCUMENTS_SUFFIX  # noqa: PTH122
    ends = objects.get(ends_name) if shard.num_documents else None
    if shard.num_documents and (ends is None or ends.size != 8 * shard.num_documents):
        raise DataError(
            f"{ends_name} is {'missing' if ends is None else 'of another size'}, "
            f"{METADATA_NAME} says that it has {shard.num_documents} documents",
            path=str(prefix / ends_name),
            next_step="copy the dataset to the store again, all of it",
        )
    return ShardObjects(shard, info, ends)
