"""The newest ids of a text, as penalties of repetition look at them.

In:      an array or tensor of ids that has room for a whole context, and how many of it are used
Out:     the same one, with each new id in it
Memory:  none of its own

It is a ring: once the context is full, a new id takes the place of the oldest. Their order does not
matter to whoever looks at them.
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
        """Put one more id among them."""
        self.ids[..., self._count % self.ids.shape[-1]] = token
        self._count += 1
