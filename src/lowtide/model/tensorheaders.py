"""The header of a safetensors file: where its tensors lie, checked as strictly as the library does.

In:      a file, or names, types and shapes
Out:     a StoredTensor for each name, or the bytes of a header
Memory:  the header, 100 MiB at most

Another header than the library accepts may still look like tensors of the right shapes, but with
numbers of other places: every byte of the data must belong to exactly one tensor, as in the format.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from reprlib import repr as short
from typing import Any, TypeGuard, cast

from lowtide.errors import DataError
from lowtide.quickclasses import dataclass

__all__ = ["ITEM_BYTES", "StoredTensor", "header_bytes", "read_header"]

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of a number, of the types that weights have."""
_WHOLE_BYTES = {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_LARGEST_HEADER = 100 << 20
_LARGEST_SIZE = 1 << 63
_MOST_DIMENSIONS = 64


@dataclass(frozen=True)
class StoredTensor:
    """The location of a tensor."""

    path: Path
    kind: str
    shape: tuple[int, ...]
    offset: int
    """From the beginning of the file."""

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * ITEM_BYTES[self.kind]


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Find every tensor of one file."""
    try:
        with path.open("rb") as file:
            header_size, file_size = _sizes(file.read(8), path)
            rows = _parse(file.read(header_size))
        begin = 8 + header_size
        _require_covered((ends for *_, ends in rows.values()), file_size - begin)
        return {
            name: StoredTensor(path, kind, shape, begin + first)
            for name, (kind, shape, (first, _)) in rows.items()
        }
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"not a readable safetensors file: {error}",
            path=path,
            next_step="bring this file back from where the model came from",
        ) from None


def _sizes(first: bytes, path: Path) -> tuple[int, int]:
    """The sizes of the header and of the file, from its first bytes."""
    size, file_size = int.from_bytes(first, "little"), path.stat().st_size
    if len(first) < 8 or size > min(_LARGEST_HEADER, file_size - 8):
        raise ValueError(f"a header of {size:,} bytes in a file of {file_size:,}")
    return size, file_size


_Row = tuple[str, tuple[int, ...], tuple[int, int]]


def _parse(header: bytes) -> dict[str, _Row]:
    """Type, shape, and first and last place of each tensor."""
    content: Any = json.loads(header.decode(), object_pairs_hook=_unrepeated)
    if not isinstance(content, dict):
        raise ValueError("the header is not an object")
    rows = cast("dict[str, Any]", content)
    return {name: _read_row(name, row) for name, row in rows.items() if name != "__metadata__"}


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; Python takes the last of several members with one name."""
    members = dict(pairs)
    if len(members) < len(pairs):
        repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{repeated} is there twice")
    return members


def _read_row(name: str, row: Any) -> _Row:
    fields: Mapping[str, Any] = row if isinstance(row, dict) else {}
    kind, shape, ends = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(kind, str):
        raise ValueError(f"{name} has the type {short(kind)}")
    if not _are_sizes(shape):
        raise ValueError(f"{name} has the shape {short(shape)}")
    if not _are_sizes(ends) or len(ends) != 2:
        raise ValueError(f"{name} has the data_offsets {short(ends)}")
    item = (ITEM_BYTES | _WHOLE_BYTES).get(kind)
    if item is not None and ends[1] - ends[0] != math.prod(shape) * item:
        raise ValueError(f"{name} is {kind} of {short(shape)} in {ends[1] - ends[0]:,} bytes")
    return kind, tuple(shape), (ends[0], ends[1])


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    if not isinstance(values, list):
        return False
    sizes = cast("list[Any]", values)
    return len(sizes) <= _MOST_DIMENSIONS and all(
        type(size) is int and 0 <= size < _LARGEST_SIZE for size in sizes
    )


def _require_covered(ends: Iterable[tuple[int, int]], num_bytes: int) -> None:
    """Every byte of the data must be of one tensor: nothing left out, nothing used twice."""
    reached = 0
    for first, last in sorted(ends):
        if first != reached or last < first:
            raise ValueError(f"a tensor lies at {first} to {last}, expected it from {reached} on")
        reached = last
    if reached > num_bytes:
        raise ValueError(f"its tensors end {reached - num_bytes:,} bytes beyond the file")
    if reached < num_bytes:
        raise ValueError(f"{num_bytes - reached:,} bytes at its end belong to no tensor")


def header_bytes(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """The beginning of a safetensors file that holds tensors of this kind and shape, in order."""
    rows: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (kind, shape) in tensors.items():
        end = offset + math.prod(shape) * (ITEM_BYTES | _WHOLE_BYTES)[kind]
        rows[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
