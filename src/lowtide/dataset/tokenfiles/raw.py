"""Raw ids without a header, as in nanoGPT's train.bin: the type is given or guessed.

In:      a path, and the type if it is given; a TokenStream (writing)
Out:     TokenFile; SPLIT.bin
Memory:  a sample of 4 KiB
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowtide.arrays import np
from lowtide.corpus.inputformats import TEXT_SUFFIXES
from lowtide.dataset.tokenfiles.streams import (
    Opening,
    TokenFile,
    TokenStream,
    WrittenFiles,
    new_file,
    write_ids,
)
from lowtide.errors import DataError

__all__ = ["open_raw", "write_raw"]

_SAMPLE_BYTES = 4096


def open_raw(path: Path, given: Opening) -> TokenFile:
    """Open a file as ids of the given type; without one, a .bin as uint16 if it looks like it."""
    size = path.stat().st_size
    dtype = _guess_dtype(path) if given.dtype is None else given.dtype
    num_tokens, rest = divmod(size, dtype.itemsize)
    if rest:
        raise DataError(
            f"{path.name} has {size} bytes, not a whole number of {dtype.name} ids", path=path
        )
    return TokenFile(path, 0, num_tokens, dtype)


def _guess_dtype(path: Path) -> np.dtype[Any]:
    if path.suffix == ".bin":
        with path.open("rb", buffering=0) as file:
            sample = file.read(_SAMPLE_BYTES)
        ids = np.frombuffer(sample[: len(sample) // 4 * 4], dtype="<u2")
        if len(ids) >= 64 and not ids[1::2].any() and ids.any():
            raise DataError(
                f"{path.name} looks like uint32 (every second uint16 of it is 0)",
                path=path,
                next_step="give dtype='uint32', or dtype='uint16' if it is not so",
            )
        return np.dtype("<u2")
    if path.suffix in TEXT_SUFFIXES or path.suffix == ".json":
        raise DataError(
            f"{path.name} is text, not tokens",
            path=path,
            next_step=f"lowtide pretokenize {path}   (or lowtide prepare, for several files)",
        )
    raise DataError(
        f"{path.name} has no NumPy header, so its dtype is unknown",
        path=path,
        next_step="give dtype='int32' (or what it was written with)",
    )


def write_raw(
    out: Path, split: str, stream: TokenStream, dtype: np.dtype[Any], written: WrittenFiles
) -> list[Path]:
    """Write SPLIT.bin."""
    path = out / f"{split}.bin"
    with new_file(path, written) as file:
        write_ids(file, stream, 0, stream.num_tokens, dtype)
    return [path]
