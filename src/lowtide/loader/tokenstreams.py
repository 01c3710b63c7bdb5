"""Open the ids of a source for reading, and explain errors of files that cannot be read.

In:      a TokenSource: shards on a disk, objects in a store, or an array
Out:     a stream that fills arrays with ids from any position; a DataError with the next step
Memory:  a row of about 200 bytes per shard; at most 256 open files
"""

from __future__ import annotations

import os
import resource
from typing import Any

import numpy as np

from lowtide import _native
from lowtide.dataset.tokenfiles.shards import DOCUMENTS_SUFFIX
from lowtide.dataset.tokenfiles.streams import TokenFile
from lowtide.errors import DataError, LowtideError, from_os_error
from lowtide.loader.arraystreams import ArrayStream
from lowtide.loader.sources import TokenSource
from lowtide.loader.storeahead import WindowPlaces
from lowtide.loader.storestreams import StoreStream
from lowtide.quickclasses import dataclass

__all__ = ["Expected", "Stream", "explain_read_error", "open_tokens"]

Stream = _native.TokenStream | ArrayStream | StoreStream

_MAX_OPEN_FILES = 256


@dataclass(frozen=True)
class Expected:
    """The ids that a reader accepts."""

    id_limit: int
    vocab_size: int | None
    output_dtype: np.dtype[Any]


def open_tokens(source: TokenSource, *, id_limit: int, places: WindowPlaces) -> Stream:
    """Open a source, whose ids must be below `id_limit`; `places` is for prefetching."""
    if source.array is not None:
        return ArrayStream(source.array, id_limit=id_limit)
    if source.stored is not None:
        return StoreStream(source.stored, dtype=source.dtype, id_limit=id_limit, windowing=places)
    return _native.TokenStream(
        [_stream_row(shard) for shard in source.shards],
        item_bytes=source.dtype.itemsize,
        id_limit=id_limit,
        max_open_files=_max_open_files(),
    )


def explain_read_error(
    source: TokenSource, expected: Expected, kind: str, path: str, position: int, value: int
) -> LowtideError:
    """Return the error for a failure of the native reader: its kind, file, position and value."""
    name = os.path.basename(path)  # noqa: PTH119
    again = (
        "write or copy the file again" if source.path.is_file() else f"lowtide verify {source.path}"
    )
    if kind == "id_too_large":
        stored, limit = source.dtype, expected.id_limit
        if stored.kind == "i" and value >> (8 * stored.itemsize - 1):
            value -= 1 << 8 * stored.itemsize
        what = "the vocabulary" if limit == expected.vocab_size else expected.output_dtype.name
        end = "ids begin at 0" if value < 0 else f"{what} ends at {limit - 1}"
        return DataError(
            f"{name} has id {value} at token {position}, {end}",
            path=path,
            next_step=f"was it made with another tokenizer or dtype? then: {again}",
        )
    if kind == "too_short":
        return DataError(
            f"{name} holds {position} bytes, expected at least {value}: it was cut short",
            path=path,
            next_step=again,
        )
    if kind == "documents":
        return DataError(
            f"{name}: document {position} ends at token {value}, before the one before it or "
            "beyond the shard",
            path=path,
            next_step=again,
        )
    return from_os_error(OSError(value, os.strerror(value), path))


def _stream_row(shard: TokenFile) -> tuple[str, int, int, str, int, bool]:
    path = str(shard.path)
    documents = path.removesuffix(shard.path.suffix) + DOCUMENTS_SUFFIX
    place = shard.byte_offset, shard.num_tokens
    return path, *place, documents, shard.num_documents, shard.begins_document


def _max_open_files() -> int:
    """How many shards are kept open: many are faster, few leave file descriptors to others."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return _MAX_OPEN_FILES
    return max(1, min(_MAX_OPEN_FILES, allowed // 8))
