"""NumPy's .npy: a header with the type and the number of ids, then the ids.

In:      a path; a TokenStream (writing)
Out:     TokenFile; SPLIT.npy
Memory:  the header
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from lowtide.arrays import np
from lowtide.dataset.provenance import read_provenance
from lowtide.dataset.tokenfiles.streams import (
    Opening,
    TokenFile,
    TokenStream,
    WrittenFiles,
    new_file,
    write_ids,
)
from lowtide.errors import DataError

__all__ = ["NPY_HEADER_BYTES", "is_npy", "npy_header", "open_npy", "write_npy"]

NPY_HEADER_BYTES = 128
"""Header bytes of files written here; those of other programs may be longer."""
_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 1 << 20


def is_npy(head: bytes) -> bool:
    """True for the first bytes of a file with NumPy's header."""
    return head.startswith(_MAGIC)


def open_npy(path: Path, _: Opening) -> TokenFile:
    """Read the header and the record beside it; refuse anything but one row of ids."""
    with path.open("rb", buffering=0) as file:
        size = path.stat().st_size
        start = file.read(12)
        if not is_npy(start):
            raise DataError(
                "not a .npy file: it has no NumPy header",
                path=path,
                next_step="ids without a header: lowtide convert --from nanogpt",
            )
        wide = len(start) > 6 and start[6] >= 2
        length = int.from_bytes(start[8:12] if wide else start[8:10], "little")
        begin = 12 if wide else 10
        file.seek(begin)
        header = file.read(min(length, _LONGEST_HEADER))
    try:
        fields = ast.literal_eval(header.decode("latin-1"))
        shape, dtype = tuple(fields["shape"]), np.dtype(fields["descr"])
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise DataError(f"damaged NumPy header: {error}", path=path) from None
    if len(shape) != 1 or dtype.kind not in "iu":
        raise DataError(
            f"{path.name} holds {dtype} of shape {shape}, expected one row of little-endian ids",
            path=path,
            next_step="store the ids with numpy.save(path, ids.astype('int32'))",
        )
    num_tokens, offset = int(shape[0]), begin + length
    if size < offset + num_tokens * dtype.itemsize:
        raise DataError(
            f"{path.name} is cut short: its header promises {num_tokens} tokens, "
            f"{max(size - offset, 0) // dtype.itemsize} are there",
            path=path,
            next_step=f"lowtide pretokenize {path.with_suffix('.txt')}",
        )
    record = read_provenance(path)
    checksum = None if record is None else record.xxh3_128
    return TokenFile(path, offset, num_tokens, dtype, checksum=checksum)


def npy_header(count: int, dtype: np.dtype[Any]) -> bytes:
    """The 128 bytes before the ids of a one-dimensional .npy file."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({count},), }}"
    padded = text.ljust(NPY_HEADER_BYTES - 11) + "\n"
    return _MAGIC + b"\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode()


def write_npy(
    out: Path, split: str, stream: TokenStream, dtype: np.dtype[Any], written: WrittenFiles
) -> list[Path]:
    """Write SPLIT.npy; ids of four bytes as int32, which other programs read more often."""
    dtype = np.dtype("<i4") if dtype.itemsize == 4 else dtype
    path = out / f"{split}.npy"
    with new_file(path, written) as file:
        if file is not None:
            file.write(npy_header(stream.num_tokens, dtype))
        write_ids(file, stream, 0, stream.num_tokens, dtype)
    return [path]
