"""Ids of a text, as `encode` returns them: an array that is joined as a list is.

Of plain arrays `encode("a") + encode("b")` is a sum of numbers, or an error about shapes; who
writes it means the ids of one text after those of the other. A list would do, with much more memory
and a copy for every use as an array.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["TokenIds"]


class TokenIds(np.ndarray[tuple[int], np.dtype[np.uint32]]):
    """Ids in one row of uint32; `+` joins, and single numbers are added as to any array.

    >>> ids = np.array([7, 8], dtype=np.uint32).view(TokenIds)
    >>> ids + ids, ids + [9], [6] + ids, ids + 1
    (array([7, 8, 7, 8], dtype=uint32), array([7, 8, 9], dtype=uint32), array([6, 7, 8], dtype=uint32), array([8, 9], dtype=uint32))
    """  # noqa: E501

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
    return np.concatenate([part.astype(np.uint32) for part in parts]).view(TokenIds)
