"""Megatron's pair of files: .bin has the ids, .idx each document's length and offset.

In:      the path of an .idx; a TokenStream (writing)
Out:     TokenFile; SPLIT.bin and SPLIT.idx
Memory:  `INDEX_ROWS` rows of the index
"""

from __future__ import annotations

import struct
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
    version, code, sequences, _ = _HEAD.unpack(head[len(MEGATRON_MAGIC) :])
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
