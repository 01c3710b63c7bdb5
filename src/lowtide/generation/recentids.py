"""Ring buffer of the newest ids of a text, for the repetition penalty.

In:      an array or tensor of ids as long as a context, and the number of ids in it
Out:     the same one, with each new id in it
Memory:  none of its own

Once the context is full, a new id replaces the oldest. The penalty does not depend on their order.
"""

from __future__ import annotations

from typing import Any

__all__ = ["RecentIds"]


class RecentIds:
    """Ids in the last dimension of an array of numpy or a tensor of torch.

    >>> import numpy as np
    >>> recent = RecentIds(np.array([7, 7, 7]), count=2)
    >>> recent.add(8)
    >>> recent.add(9)
    >>> recent.ids.tolist()
    [9, 7, 8]
    """

    def __init__(self, ids: Any, *, count: int) -> None:
        self.ids = ids
        self._count = count

    def add(self, token: Any) -> None:
        """Add an id."""
        self.ids[..., self._count % self.ids.shape[-1]] = token
        self._count += 1
