"""Batches of a stream, epoch after epoch, for loops over steps.

In:      a StreamingDataLoader
Out:     (inputs, targets), endlessly; the state of the loader
Memory:  that of the loader
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide.loader.streaming import StreamingDataLoader
    from lowtide.loader.windows import Tokens

__all__ = ["EndlessBatches"]


class EndlessBatches:
    """An endless iterator over (inputs, targets), with the state of its loader.

    Several threads may share one: each batch goes to one of them. After an error or an interrupt,
    and in a forked process, it goes on after the last delivered batch.
    """

    def __init__(self, loader: StreamingDataLoader) -> None:
        self._loader = loader
        self._batches: Iterator[dict[str, Tokens]] | None = None
        self._turn = threading.RLock()
        self._pid = os.getpid()

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._loader.epoch

    def __iter__(self) -> EndlessBatches:
        return self

    def __next__(self) -> tuple[Tokens, Tokens]:
        if self._pid != os.getpid():  # neither threads nor their locks survive a fork
            self._turn, self._pid = threading.RLock(), os.getpid()
            self._begin_anew()
        with self._turn:
            try:
                batch = None if self._batches is None else next(self._batches, None)
                if batch is None:
                    self._batches = iter(self._loader)
                    batch = next(self._batches)
            except BaseException:
                self._begin_anew()
                raise
        return batch["input_ids"], batch["targets"]

    def _begin_anew(self) -> None:
        """Leave the current loop; the next one begins at its place, not with the next epoch."""
        if self._batches is not None:
            self._batches = None
            self._loader.go_on()

    def state_dict(self) -> dict[str, Any]:
        """Return the state needed to resume after the last delivered batch."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where `state` was taken."""
        self.close()
        self._loader.load_state_dict(state)

    def close(self) -> None:
        """Stop reading; the next batch would be the first of the next epoch."""
        self._batches = None

    def __getstate__(self) -> dict[str, Any]:
        return {"loader": self._loader, "has_begun": self._batches is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["loader"])
        if state["has_begun"]:
            self._loader.go_on()
