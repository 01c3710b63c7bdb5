"""Ids in files of this and other programs, as streams: nanoGPT, llm.c, Megatron, .npy, shards.

In:      a path and the kind of its files, or a dataset of ours
Out:     a TokenSource per split: ids a few MiB at a time, and where documents end
Memory:  one buffer of 8 MiB of ids, and where the documents of a shard or a Megatron file end, 12
         bytes each
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.dataset import layout
from lowtide.errors import DataError
from lowtide.files import require_file

__all__ = [
    "LLMC_KINDS",
    "MEGATRON_MAGIC",
    "MEGATRON_TYPES",
    "STEP_TOKENS",
    "TokenSource",
    "iter_lengths",
    "open_dataset",
    "open_source",
]

STEP_TOKENS = 2 << 20
LLMC_HEADER_BYTES = 1024
LLMC_KINDS = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
MEGATRON_MAGIC = b"MMIDIDX\0\0"
MEGATRON_TYPES = {4: np.dtype("<i4"), 5: np.dtype("<i8"), 8: np.dtype("<u2")}


@dataclass(frozen=True)
class _Part:
    """Ids in a file."""

    path: Path
    offset: int
    num_tokens: int
    dtype: np.dtype[Any]
    ends_path: Path | None = None
    """Where a file says the documents end: ours (.docs) or Megatron's lengths."""
    ends_offset: int = 0
    num_documents: int = 0
    ends_are_lengths: bool = False


@dataclass(frozen=True)
class TokenSource:
    """The ids of one split, in any format, as one stream."""

    parts: list[_Part]
    end_id: int | None = field(default=None)

    @property
    def num_tokens(self) -> int:
        """All ids of the stream."""
        return sum(part.num_tokens for part in self.parts)

    def iter_chunks(
        self, first: int, last: int
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]]:
        """Give ids `first` to `last`, a few MiB at a time, and the document ends in each chunk."""
        base = 0
        for part in self.parts:
            begin, end = max(first - base, 0), min(last - base, part.num_tokens)
            for start in range(begin, end, STEP_TOKENS):
                stop = min(start + STEP_TOKENS, end)
                ids = _read_ids(part, start, stop)
                yield ids, self._find_ends(part, ids, start, stop)
            base += part.num_tokens

    def _find_ends(
        self, part: _Part, ids: npt.NDArray[Any], start: int, stop: int
    ) -> npt.NDArray[np.int64]:
        if part.ends_path is not None:
            ends = _read_ends(part)
            return ends[(ends > start) & (ends <= stop)] - start
        if self.end_id is None:
            return np.empty(0, np.int64)
        return np.flatnonzero(ids == self.end_id) + 1


def _read_ids(part: _Part, start: int, stop: int) -> npt.NDArray[Any]:
    with part.path.open("rb", buffering=0) as file:
        file.seek(part.offset + start * part.dtype.itemsize)
        data = file.read((stop - start) * part.dtype.itemsize)
    if len(data) != (stop - start) * part.dtype.itemsize:
        raise DataError("the file ends too early", path=part.path)
    return np.frombuffer(data, dtype=part.dtype)


def _read_ends(part: _Part) -> npt.NDArray[np.int64]:
    assert part.ends_path is not None
    with part.ends_path.open("rb") as file:
        file.seek(part.ends_offset)
        item = np.dtype("<i4" if part.ends_are_lengths else "<u8")
        size = os.fstat(file.fileno()).st_size - part.ends_offset
        if item.itemsize * part.num_documents > size:  # before so much is asked for
            raise DataError(
                f"{part.num_documents} documents, of which the file has {max(size, 0)} bytes",
                path=part.ends_path,
                next_step="bring the file back: it was cut short or changed",
            )
        rows = np.frombuffer(file.read(item.itemsize * part.num_documents), dtype=item)
        return np.cumsum(rows, dtype=np.int64) if part.ends_are_lengths else rows.astype(np.int64)


def open_source(
    path: Path,
    *,
    kind: str,
    dtype: str,
    end_id: int | None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> dict[str, TokenSource]:
    """Find the ids at `path`: splits where the names tell them, else one split named all.

    A file for testing is left out: it would be learned.
    """
    groups: dict[str, list[_Part]] = {}
    for file in _list_files(path, kind):
        split = _split_by_name(file)
        if split == "test" and path.is_dir():
            on_notice(f"{file} is left out, by its name it is for testing")
            continue
        groups.setdefault(split, []).append(_open_part(file, kind, np.dtype(dtype)))
    if not groups:
        raise DataError(f"no files of the kind {kind} here", path=path)
    if len(groups) == 1:
        groups = {"all": next(iter(groups.values()))}
    return {split: TokenSource(parts, end_id) for split, parts in groups.items()}


def _split_by_name(path: Path) -> str:
    words = set(re.split("[^a-z]+", path.stem.lower()))
    if words & {"val", "valid", "validation", "eval", "dev"}:
        return "val"
    return "test" if "test" in words else "train"


def _list_files(path: Path, kind: str) -> list[Path]:
    suffix = {"npy": ".npy", "megatron": ".idx"}.get(kind, ".bin")
    if path.is_dir():
        return sorted(path.glob(f"*{suffix}"))
    if kind == "megatron":
        path = path.with_suffix(".idx")
    if not path.is_file():
        raise DataError("no such file", path=path, next_step="check the path for typing errors")
    return [path]


def _open_part(path: Path, kind: str, dtype: np.dtype[Any]) -> _Part:
    require_file(path)
    size = path.stat().st_size
    if kind == "npy":
        return _open_npy(path)
    if kind == "megatron":
        return _open_megatron(path)
    if kind == "llmc":
        return _open_llmc(path, size)
    if size % dtype.itemsize:
        raise DataError(f"{size} bytes are no whole number of {dtype.name} ids", path=path)
    return _Part(path, 0, size // dtype.itemsize, dtype)


def _open_npy(path: Path) -> _Part:
    try:
        array = np.load(path, mmap_mode="r")
    except (ValueError, EOFError, SyntaxError) as error:
        raise DataError(
            f"not a .npy file: {error}", path=path, next_step="a headerless one: --from nanogpt"
        ) from None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            f"an array of {array.ndim} dimensions of {array.dtype}, expected one of whole numbers",
            path=path,
        )
    return _Part(path, int(array.offset), len(array), array.dtype)


def _open_llmc(path: Path, size: int) -> _Part:
    with path.open("rb") as file:
        head = file.read(LLMC_HEADER_BYTES)
    header = np.frombuffer(head[: len(head) // 4 * 4], dtype="<i4")
    kind = (int(header[0]), int(header[1])) if len(header) == 256 else (0, 0)
    dtype = LLMC_KINDS.get(kind)
    if dtype is None:
        raise DataError(
            f"the header begins with {kind[0]} {kind[1]}, expected 20240520 1 or 20240801 7",
            path=path,
            next_step="without a header: --from nanogpt",
        )
    count = int(header[2])
    if size != LLMC_HEADER_BYTES + count * dtype.itemsize:
        raise DataError(f"the header says {count} ids, the file has {size} bytes", path=path)
    return _Part(path, LLMC_HEADER_BYTES, count, dtype)


def _open_megatron(path: Path) -> _Part:
    data_path = path.with_suffix(".bin")
    with path.open("rb") as file:
        head = file.read(34)
    if len(head) != 34 or not head.startswith(MEGATRON_MAGIC):
        raise DataError("not an index of Megatron: MMIDIDX is missing", path=path)
    version, code, sequences, _ = struct.unpack("<QBQQ", head[9:])
    dtype = MEGATRON_TYPES.get(code)
    if version != 1 or dtype is None:
        raise DataError(f"version {version} and type {code} are not supported", path=path)
    if not data_path.is_file():
        raise DataError("the .bin of this index is missing", path=data_path)
    part = _Part(data_path, 0, 0, dtype, path, 34, sequences, ends_are_lengths=True)
    ends = _read_ends(part)
    count = int(ends[-1]) if len(ends) else 0
    size = data_path.stat().st_size
    if size != count * dtype.itemsize:
        raise DataError(f"the index says {count} ids, the file has {size} bytes", path=data_path)
    return _Part(data_path, 0, count, dtype, path, 34, sequences, ends_are_lengths=True)


def open_dataset(info: layout.DatasetInfo, split: str) -> TokenSource:
    """Give the shards of a split as one stream."""
    return TokenSource(
        [
            _Part(
                shard.path,
                0,
                shard.num_tokens,
                info.dtype,
                layout.documents_path(shard.path) if shard.num_documents else None,
                0,
                shard.num_documents,
            )
            for shard in info.shards[split]
        ]
    )


def iter_lengths(source: TokenSource) -> Iterator[npt.NDArray[np.int64]]:
    """Give the documents' lengths, part by part; what follows the last end is one more."""
    carried = 0
    for part in source.parts:
        ends = _read_ends(part) if part.ends_path is not None else np.empty(0, np.int64)
        lengths = np.diff(ends, prepend=0)
        if len(lengths):
            lengths[0] += carried
            carried = 0
        carried += part.num_tokens - (int(ends[-1]) if len(ends) else 0)
        yield lengths
    if carried:
        yield np.array([carried], dtype=np.int64)
