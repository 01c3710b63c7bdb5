"""Encode a text file into a file of ids: natively, a step at a time, or window by window.

In:      a path, and the progress of an earlier call
Out:     ids in an open file; the progress after each step
Memory:  a window of text and its ids for each thread
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide import _native
from lowtide.corpus.inputformats import classify
from lowtide.errors import UsageError
from lowtide.files import atomic_file
from lowtide.tokenizer.limits import EncodingLimits

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Encode = Callable[[Iterable[bytes]], Iterable[npt.NDArray[Any]]]

__all__ = ["WINDOW_BYTES", "check_files", "encode_by_windows", "encode_natively", "iter_file_steps"]

WINDOW_BYTES = EncodingLimits.window_bytes
_STEP_BYTES = 256 << 20


def check_files(path: Path, out_path: Path) -> None:
    """Refuse ids in the place of their text, and a text that is still compressed."""
    if out_path.exists() and out_path.samefile(path):
        raise UsageError(
            "the ids would replace their text: both are the same file",
            path=str(out_path),
            next_step="name another file for the ids",
        )
    _, compression = classify(path)
    if compression is not None:
        raise UsageError(
            f"this file is compressed ({compression}); its bytes would be encoded as they are",
            path=str(path),
            next_step="lowtide pretokenize reads compressed text, or unpack the file",
        )


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

    Ids are written to the open file `out` from byte `out_offset` on. `done` is the progress of an
    earlier call. A stretch without a place to cut that is larger than `largest_window` is a
    ValueError.
    """
    position, count = done
    while position < size:
        stop = min(size, position + step_bytes)
        num_windows = -(-(stop - position) // window_bytes)
        added, position = native.encode_file(
            input_path=os.fspath(path),
            begin=position,
            stop=stop,
            end=size,
            output_file=out,
            output_path=os.fspath(out_path),
            output_offset=out_offset + count * id_bytes,
            id_bytes=id_bytes,
            specials=specials,
            num_threads=min(num_workers, num_windows),  # a small file needs no second one
            window_bytes=window_bytes,
            largest_window=largest_window,
        )
        count += added
        yield position, count


def encode_natively(
    native: _native.Vocabulary,
    path: str | Path,
    out_path: str | Path,
    *,
    id_bytes: int,
    specials: bool,
    num_workers: int,
    on_progress: Callable[[int], None] | None = None,
    window_bytes: int = WINDOW_BYTES,
) -> int:
    """Encode a whole file on several threads; return how many ids were written."""
    size = os.path.getsize(path)  # noqa: PTH202
    count = 0
    with atomic_file(out_path) as out:
        for position, ids in iter_file_steps(
            native,
            path,
            size=size,
            out=out.fileno(),
            out_path=out_path,
            id_bytes=id_bytes,
            specials=specials,
            num_workers=num_workers,
            window_bytes=window_bytes,
        ):
            count = ids
            if on_progress is not None:
                on_progress(position)
    return count


def encode_by_windows(
    encode: Encode,
    path: str | Path,
    out_path: str | Path,
    *,
    dtype: np.dtype[Any],
    on_progress: Callable[[int], None] | None = None,
    window_bytes: int = WINDOW_BYTES,
) -> int:
    """Encode a whole file with a tokenizer that is not native; return how many ids were written."""
    count = 0
    with Path(path).open("rb") as file, atomic_file(out_path) as out:
        windows = iter(lambda: file.read(window_bytes), b"")
        for ids in encode(windows):
            out.write(ids.astype(dtype).tobytes())
            count += len(ids)
            if on_progress is not None:
                on_progress(file.tell())
    return count
