"""Encode a text file into a file of ids, natively, a step at a time.

In:      a path, and how far an earlier call came
Out:     ids in an open file; after each step how far it is
Memory:  a window of text and its ids for each thread
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lowtide import _native

__all__ = ["WINDOW_BYTES", "iter_file_steps"]

WINDOW_BYTES = 1 << 20
_STEP_BYTES = 256 << 20


def iter_file_steps(
    native: _native.Vocabulary,
    path: str | Path,
    *,
    size: int,
    out: int,
    out_path: str | Path,
    id_bytes: int,
    num_workers: int,
    specials: bool = True,
    out_offset: int = 0,
    done: tuple[int, int] = (0, 0),
    step_bytes: int = _STEP_BYTES,
    window_bytes: int = WINDOW_BYTES,
    largest_window: int = 1 << 31,
) -> Iterator[tuple[int, int]]:
    """Encode the first `size` bytes; after each step (bytes read, ids written) so far.

    Ids go to the open file `out` from the byte `out_offset` on. `done` is what an earlier call came
    to. A stretch without a place to cut that is larger than `largest_window` is a ValueError.
    """
    position, count = done
    while position < size:
        added, position = native.encode_file(
            input_path=os.fspath(path),
            begin=position,
            stop=min(size, position + step_bytes),
            end=size,
            output_file=out,
            output_path=os.fspath(out_path),
            output_offset=out_offset + count * id_bytes,
            id_bytes=id_bytes,
            specials=specials,
            num_threads=num_workers,
            window_bytes=window_bytes,
            largest_window=largest_window,
        )
        count += added
        yield position, count
