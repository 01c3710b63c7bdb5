"""Windows of ids in an array, with the same interface as windows of files.

In:      an array of ids
Out:     rows of inputs and targets
Memory:  the caller's array, and one row at a time
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide import _native
from lowtide.loader.ordering import Indices

__all__ = ["ArrayStream"]


class ArrayStream:
    """Reads windows as `_native.TokenStream` does from files, and refuses ids beyond the limit."""

    def __init__(self, ids: npt.NDArray[Any], *, id_limit: int) -> None:
        self._ids, self._limit = ids, id_limit

    def gather(
        self,
        starts: Indices,
        rows: Indices | None,
        inputs: npt.NDArray[Any],
        targets: npt.NDArray[Any],
    ) -> None:
        """Copy the window at each start into its row; targets are shifted by one token."""
        length = inputs.shape[1]
        for place, start in enumerate(starts.tolist()):
            row = place if rows is None else int(rows[place])
            window = self._checked(start, length + 1)
            inputs[row], targets[row] = window[:-1], window[1:]

    def read(self, first: int, out: npt.NDArray[Any], /) -> None:
        """Copy ids from position `first` on."""
        out[:] = self._checked(first, len(out))

    def _checked(self, first: int, count: int) -> npt.NDArray[Any]:
        found = self._ids[first : first + count]
        # As an unsigned number a negative id exceeds every limit.
        unsigned = found.view(f"u{found.dtype.itemsize}")
        if count and int(unsigned.max()) >= self._limit:
            place = int(np.argmax(unsigned >= self._limit))
            raise _native.ReadError("id_too_large", "array", first + place, int(unsigned[place]))
        return found
