"""Megatron's pair of files: .bin has the ids, .idx the length and offset of each sequence, and
the first sequence of each document.

In:      the path of an .idx; a TokenStream (writing)
Out:     TokenFile; SPLIT.bin and SPLIT.idx
Memory:  `INDEX_ROWS` rows of the index
"""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from lowtide.arrays import np
from lowtide.counts import counted
from lowtide.dataset.tokenfiles.streams import (
    Opening,
    TokenFile,
    TokenStream,
    WrittenFiles,
    iter_lengths,
    new_file,
    read_ends,
    read_rows,
    write_ids,
)
from lowtide.errors import DataError

__all__ = ["MEGATRON_MAGIC", "open_megatron", "write_megatron"]

MEGATRON_MAGIC = b"MMIDIDX\0\0"
_TYPES = {4: "<i4", 5: "<i8", 8: "<u2"}
"""The types of ids, by their code in the index."""
_HEAD = struct.Struct("<QBQQ")
_LENGTHS_AT = len(MEGATRON_MAGIC) + _HEAD.size


def open_megatron(path: Path, given: Opening) -> TokenFile:
    """Read the whole index, in chunks, and check that its total matches the .bin."""
    data_path = path.with_suffix(".bin")
    with path.open("rb") as file:
        head = file.read(_LENGTHS_AT)
    if len(head) != _LENGTHS_AT or not head.startswith(MEGATRON_MAGIC):
        raise DataError("not an index of Megatron: MMIDIDX is missing", path=path)
    version, code, sequences, bounds = _HEAD.unpack(head[len(MEGATRON_MAGIC) :])
    if version != 1 or code not in _TYPES:
        raise DataError(f"version {version} and type {code} are not supported", path=path)
    if not data_path.is_file():
        raise DataError("the .bin of this index is missing", path=data_path)
    dtype = np.dtype(_TYPES[code])
    size = data_path.stat().st_size
    part = TokenFile(
        data_path,
        byte_offset=0,
        num_tokens=size // dtype.itemsize,
        dtype=dtype,
        num_documents=sequences,
        ends_path=path,
        ends_offset=_LENGTHS_AT,
        ends_are_lengths=True,
    )
    count, empty = _measure_index(part)
    if size != count * dtype.itemsize:
        raise DataError(f"the index says {count} ids, the file has {size} bytes", path=data_path)
    if _has_groups(part, bounds):
        _require_contiguous(part)
        part = replace(part, num_documents=bounds - 1, num_sequences=sequences)
        empty = _count_empty(part)
    if empty:
        given.on_notice(f"{path}: {counted(empty, 'document')} without a single id left out")
    return part


def _measure_index(part: TokenFile) -> tuple[int, int]:
    """How many ids an index counts, and how many of its documents are empty."""
    assert part.ends_path is not None
    total = empty = 0
    with part.ends_path.open("rb", buffering=0) as file:
        for row in range(0, part.num_documents, part.index_rows):
            count = min(part.index_rows, part.num_documents - row)
            lengths = read_rows(file, part, part.ends_offset + 4 * row, count, "<i4")
            if int(lengths.min()) < 0:
                raise DataError(f"a document of {lengths.min()} ids", path=part.ends_path)
            total += int(lengths.sum())
            empty += int(np.count_nonzero(lengths == 0))
    return total, empty


def _has_groups(part: TokenFile, bounds: int) -> bool:
    """True if documents are not one sequence each; an error if they are not all sequences."""
    assert part.ends_path is not None
    sequences = part.num_documents
    offset, last, groups = part.ends_offset + 12 * sequences, -1, False
    with part.ends_path.open("rb", buffering=0) as file:
        for row in range(0, bounds, part.index_rows):
            count = min(part.index_rows, bounds - row)
            firsts = read_rows(file, part, offset + 8 * row, count, "<i8")
            steps = np.diff(firsts, prepend=last)
            if int(steps.min()) < 0 or (row == 0 and firsts[0] != 0):
                raise DataError("the documents do not follow one another", path=part.ends_path)
            groups |= bool(np.any(steps != 1))
            last = int(firsts[-1])
    if last != sequences:
        raise DataError(
            f"the documents have {max(last, 0)} sequences, the index {sequences}",
            path=part.ends_path,
        )
    return groups


def _require_contiguous(part: TokenFile) -> None:
    """Raise an error unless the sequences fill the .bin in order: only some are read later."""
    assert part.ends_path is not None
    last = 0
    with part.ends_path.open("rb", buffering=0) as file:
        for row in range(0, part.num_documents, part.index_rows):
            begin = max(row - 1, 0)  # the sequence before, which the next one follows
            stop = min(row + part.index_rows, part.num_documents)
            last = int(read_ends(file, part, begin, stop)[-1])
    if last != part.num_tokens:
        raise DataError(
            f"the last sequence ends at id {last} of {part.num_tokens}", path=part.ends_path
        )


def _count_empty(part: TokenFile) -> int:
    """The number of documents without a single id, in an index of documents."""
    assert part.ends_path is not None
    empty = last = 0
    with part.ends_path.open("rb", buffering=0) as file:
        for row in range(0, part.num_documents, part.index_rows):
            ends = read_ends(file, part, row, min(row + part.index_rows, part.num_documents))
            empty += int(np.count_nonzero(np.diff(ends, prepend=last) == 0))
            last = int(ends[-1])
    return empty


def write_megatron(
    out: Path, split: str, stream: TokenStream, dtype: np.dtype[Any], written: WrittenFiles
) -> list[Path]:
    """Write .bin and .idx; the lengths are read again for each array of the index."""
    dtype = np.dtype("<u2") if dtype.itemsize == 2 else np.dtype("<i4")
    code = next(key for key, name in _TYPES.items() if np.dtype(name) == dtype)
    data_path, index_path = out / f"{split}.bin", out / f"{split}.idx"
    with new_file(data_path, written) as file:
        write_ids(file, stream, 0, stream.num_tokens, dtype)
    count = sum(len(lengths) for lengths in iter_lengths(stream))
    with new_file(index_path, written) as file:
        if file is None:
            return [data_path, index_path]
        file.write(MEGATRON_MAGIC + _HEAD.pack(1, code, count, count + 1))
        for lengths in iter_lengths(stream):
            file.write(lengths.astype("<i4").tobytes())
        position = 0
        for lengths in iter_lengths(stream):
            ends = np.cumsum(lengths) * dtype.itemsize + position
            file.write((ends - lengths * dtype.itemsize).astype("<i8").tobytes())
            position = int(ends[-1]) if len(ends) else position
        for begin in range(0, count + 1, stream.step_tokens):
            stop = min(begin + stream.step_tokens, count + 1)
            file.write(np.arange(begin, stop, dtype="<i8").tobytes())
    return [data_path, index_path]
