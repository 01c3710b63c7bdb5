"""Raw ids without a header, as in nanoGPT's train.bin: the type is given or guessed.

In:      a path, and the type if it is given; a TokenStream (writing)
Out:     TokenFile; SPLIT.bin
Memory:  a sample of 4 KiB
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["open_raw", "write_raw"]

_SAMPLE_BYTES = 4096
_HIGH_HALVES = 4
"""Ids of uint32 have upper halves below this, with vocabularies of up to 262,144 entries."""
_FEW_IDS = 256
"""More ids than a vocabulary has in which half of all ids may be below `_HIGH_HALVES`."""


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
        if len(ids) >= 64 and _are_halves(ids[::2], ids[1::2]):
            raise DataError(
                f"{path.name} looks like uint32 (every second uint16 of it is at most "
                f"{int(ids[1::2].max())})",
                path=path,
                next_step="--dtype uint32, or --dtype uint16 if it is not so   "
                "(in Python dtype='uint32')",
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
        next_step="--dtype with the type it was written with, such as uint32   "
        "(in Python dtype='uint32')",
    )


def _are_halves(low: npt.NDArray[np.uint16], high: npt.NDArray[np.uint16]) -> bool:
    """True if uint16 numbers look like the lower and upper halves of uint32 ids."""
    if not high.any():
        return bool(low.any())
    return int(high.max()) < _HIGH_HALVES and int(low.max()) >= _FEW_IDS


def write_raw(
    out: Path, split: str, stream: TokenStream, dtype: np.dtype[Any], written: WrittenFiles
) -> list[Path]:
    """Write SPLIT.bin."""
    path = out / f"{split}.bin"
    with new_file(path, written) as file:
        write_ids(file, stream, 0, stream.num_tokens, dtype)
    return [path]
