"""Read tensor files that a run may replace with a new checkpoint meanwhile.

In:      locations of tensors (tensorheaders.StoredTensor)
Out:     the tensors of one checkpoint, or DataError; never a mixture of two checkpoints
Memory:  an open file for each that tensors are in
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Generator, Iterable
from io import RawIOBase
from typing import TYPE_CHECKING

from lowtide.errors import DataError

if TYPE_CHECKING:
    from lowtide.model.tensorheaders import StoredTensor

__all__ = ["HeldFiles", "unchanged"]


class HeldFiles:
    """Files that stay open while this object exists, so that a replaced file is still readable."""

    def __init__(self, tensors: Iterable[StoredTensor]) -> None:
        paths = sorted({stored.path for stored in tensors})
        self._files = {path: path.open("rb", buffering=0) for path in paths}
        weakref.finalize(self, _close_all, list(self._files.values()))

    def at(self, stored: StoredTensor) -> RawIOBase:
        """A tensor's file, at its first byte."""
        file = self._files[stored.path]
        file.seek(stored.offset)
        return file


def _close_all(files: list[RawIOBase]) -> None:
    for file in files:
        file.close()


@contextlib.contextmanager
def unchanged(tensors: Iterable[StoredTensor]) -> Generator[None]:
    """Raise an error if files were replaced while they were read by name."""

    def look() -> list[tuple[int, int, int]]:
        found = (path.stat() for path in paths)
        return [(one.st_ino, one.st_mtime_ns, one.st_size) for one in found]

    paths = sorted({stored.path for stored in tensors})
    before = look()
    yield
    for path, then, now in zip(paths, before, look(), strict=True):
        if then != now:
            raise DataError(
                "the weights were replaced while they were read",
                path=path,
                next_step="give the same command again, or wait until the run has ended",
            )
