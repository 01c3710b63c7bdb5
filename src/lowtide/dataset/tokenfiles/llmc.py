"""The .bin of llm.c and modded-nanogpt: 256 int32 (magic, version, count, zeros), then the ids.

In:      a path; a TokenStream (writing)
Out:     TokenFile; SPLIT_000000.bin, one for each of our shards
Memory:  the header
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowtide.arrays import np
from lowtide.dataset.tokenfiles.streams import (
    Opening,
    TokenFile,
    TokenStream,
    WrittenFiles,
    new_file,
    write_ids,
)
from lowtide.errors import DataError

__all__ = ["is_llmc", "open_llmc", "write_llmc"]

_HEADER_BYTES = 1024
_TYPES = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
"""The types of ids, by magic and version."""


def _read_head(head: bytes) -> tuple[int, int, int]:
    """Magic, version and count."""
    words = [int.from_bytes(head[at : at + 4], "little", signed=True) for at in (0, 4, 8)]
    return words[0], words[1], words[2]


def is_llmc(head: bytes) -> bool:
    """True for the first bytes of a file with this header."""
    return any(_read_head(head)[0] == magic for magic, _ in _TYPES)


def open_llmc(path: Path, _: Opening) -> TokenFile:
    """Read the header with the type and the number of ids."""
    with path.open("rb", buffering=0) as file:
        head = file.read(_HEADER_BYTES)
    size = path.stat().st_size
    *kind, count = _read_head(head) if len(head) == _HEADER_BYTES else (0, 0, 0)
    if tuple(kind) not in _TYPES:
        raise DataError(
            f"the header begins with {kind[0]} {kind[1]}, expected 20240520 1 or 20240801 7",
            path=path,
            next_step="ids without a header: lowtide convert --from nanogpt",
        )
    dtype = np.dtype(_TYPES[kind[0], kind[1]])
    there = (size - _HEADER_BYTES) / dtype.itemsize
    if count != there:
        how = "cut short" if count > there else "damaged"
        raise DataError(
            f"{path.name} is {how}: its header promises {count} tokens, {int(there)} are there",
            path=path,
            next_step="fetch or write the file again",
        )
    return TokenFile(path, _HEADER_BYTES, count, dtype)


def write_llmc(
    out: Path, split: str, stream: TokenStream, dtype: np.dtype[Any], written: WrittenFiles
) -> list[Path]:
    """Write SPLIT_000000.bin, SPLIT_000001.bin, ..., one for each file of the stream."""
    kind = next(key for key, name in _TYPES.items() if np.dtype(name) == dtype)
    paths: list[Path] = []
    first = 0
    for number, part in enumerate(stream.parts):
        path = out / f"{split}_{number:06d}.bin"
        header = np.zeros(_HEADER_BYTES // 4, dtype="<i4")
        header[:3] = [*kind, part.num_tokens]
        with new_file(path, written) as file:
            if file is not None:
                file.write(header.tobytes())
            write_ids(file, stream, first, first + part.num_tokens, dtype)
        first += part.num_tokens
        paths.append(path)
    return paths
