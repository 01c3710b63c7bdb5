"""The ids that `encode` returns: a NumPy array on which `+` concatenates, as on lists.

With plain arrays `encode("a") + encode("b")` would add numbers, or fail because of shapes; users
expect concatenation. A list takes much more memory, and a copy for every use as an array. The type
is int32, because embeddings of torch and JAX accept it directly (they refuse uint32), and because a
difference of ids may be negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import UsageError

__all__ = ["TokenIds", "checked_ids"]


_STEP = 1 << 14  # ids converted to plain ints at a time


class TokenIds(np.ndarray[tuple[int], np.dtype[np.int32]]):
    """A one-dimensional int32 array of ids; `+` concatenates, but adds single numbers as usual.

    >>> ids = np.array([7, 8], dtype=np.int32).view(TokenIds)
    >>> print(ids + ids, ids + [9], [6] + ids, ids + 1, list(ids))
    [7 8 7 8] [7 8 9] [6 7 8] [8 9] [7, 8]
    """

    def __iter__(self) -> Iterator[Any]:
        """Yield plain ints, which json and other code accept."""
        if self.ndim != 1:  # an array reshaped by the caller: its rows
            return super().__iter__()
        steps = range(0, len(self), _STEP)
        return (id for first in steps for id in self[first : first + _STEP].tolist())

    def __add__(self, other: Any) -> Any:
        return super().__add__(other) if np.ndim(other) == 0 else _joined(self, other)

    def __radd__(self, other: Any) -> Any:
        return super().__radd__(other) if np.ndim(other) == 0 else _joined(other, self)

    def __iadd__(self, other: Any) -> Any:
        return super().__iadd__(other) if np.ndim(other) == 0 else _joined(self, other)

    def __repr__(self) -> str:
        return repr(np.asarray(self))


def _joined(left: Any, right: Any) -> TokenIds:
    parts = [np.asarray(part) for part in (left, right)]
    for part in parts:
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
            raise TypeError(f"ids are joined with ids, not with {part.dtype} of {part.shape}")
    return np.concatenate([part.astype(np.int32) for part in parts]).view(TokenIds)


def checked_ids(ids: Iterable[int] | npt.NDArray[Any], *, vocab_size: int) -> npt.NDArray[Any]:
    """Return the ids as an array; a UsageError names the first that is not an id."""
    expected = f"expected whole numbers from 0 to {vocab_size - 1}"
    items: Any = ids
    try:
        items = ids if isinstance(ids, np.ndarray) else list(ids)
        array = np.asarray(items)
    except (TypeError, ValueError, OverflowError):  # not a list, or lists of different lengths
        raise UsageError(f"these are not ids: {str(items)[:80]}; {expected}") from None
    if array.size == 0:
        return array
    if array.dtype.kind not in "iu":
        wrong = next((item for item in array.ravel().tolist() if type(item) is not int), None)
        raise UsageError(f"id {items[0] if wrong is None else wrong!r}; {expected}")
    if array.min() < 0 or array.max() >= vocab_size:
        raise UsageError(f"ids from {array.min()} to {array.max()}: {expected}")
    return array
