"""Threads that commit the results of tasks, while other threads run the next tasks.

In:      functions that flush a result to the disk or upload it, and create its record
Out:     nothing; the functions handle their own errors
Memory:  what the functions hold; at most one function per thread, none is queued

A task's thread waits for the disk only if tasks finish faster than the disk writes: 120 MB of text
are 20 flushes with `prepare --engine files`, during which no core would work.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor

__all__ = ["Committers"]


class Committers:
    """Use `start` as a context manager: when it exits, all submitted functions have returned."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._room = threading.Semaphore(0)

    @contextlib.contextmanager
    def start(self, num_workers: int) -> Generator[None]:
        """Run the threads within a `with` block."""
        self._room = threading.Semaphore(num_workers)
        with ThreadPoolExecutor(num_workers, thread_name_prefix="lowtide-commit") as self._pool:
            yield
        self._pool = None

    def submit(self, commit: Callable[[], None]) -> None:
        """Call a function in one of the threads; wait until one is free."""
        if self._pool is None:
            raise RuntimeError("threads that commit were not started")
        room = self._room
        room.acquire()

        def run() -> None:
            try:
                commit()
            finally:
                room.release()

        self._pool.submit(run)
