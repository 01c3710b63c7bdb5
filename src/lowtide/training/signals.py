"""Stopping a run: the first Ctrl-C or SIGTERM ends it after the step, a second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["StopSignals"]

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """A context in which `asked` is True after a signal; the loop then saves and stops.

    Python handles signals in the main thread only, so in other threads nothing is changed.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self.asked = False
        self._note = note
        self._before: list[Any] = []

    def _remember(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._note("stopping after this step; once more stops at once")

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = [signal.signal(number, self._remember) for number in _NUMBERS]
        return self

    def __exit__(self, *details: object) -> None:
        for number, handler in zip(_NUMBERS, self._before, strict=False):
            signal.signal(number, handler)
