"""Batches for JAX: int32 arrays that are copied, with their ids checked.

In:      any iterator of batches with a state
Out:     (inputs, targets) as NumPy arrays that are never overwritten
Memory:  one batch
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowtide.errors import DataError
from lowtide.training.batchsources import BatchSource

__all__ = ["JaxFeed"]


class JaxFeed:
    """Returns batches; its position is that of the next one."""

    def __init__(self, source: BatchSource, vocab_size: int) -> None:
        self._source, self._vocab_size = source, vocab_size
        self._state = source.state_dict()

    def __next__(self) -> tuple[Any, Any]:
        inputs, targets = (self._own(array) for array in next(self._source))
        self._state = self._source.state_dict()
        return inputs, targets

    def _own(self, array: Any) -> Any:
        """Copy ids: JAX may read its input later, and loaders reuse their arrays.

        JAX silently clips an id beyond the vocabulary to the last one, so ids are checked here.
        """
        ids = np.array(array, np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= self._vocab_size):
            wrong = ids[(ids < 0) | (ids >= self._vocab_size)].flat[0]
            raise DataError(
                f"the data has the id {wrong}, the model has ids from 0 to {self._vocab_size - 1}",
                next_step="prepare the data with the tokenizer of the model",
            )
        return ids.astype(np.int32)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch."""
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position."""
        self._source.load_state_dict(state)
        self._state = self._source.state_dict()

    def close(self) -> None:
        """Stop preparing batches."""
        self._source.close()
