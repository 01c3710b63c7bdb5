"""Run tasks on this machine's cores; the native core works outside the interpreter's lock.

In:      functions without arguments, made one by one as workers become free
Out:     their results, in the order of the tasks
Memory:  at most `num_workers` + 1 tasks exist at a time, unless more are asked for
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TypeVar

from lowtide import _native
from lowtide.corpus.usersteps import stop_steps
from lowtide.memory import usable_cores

__all__ = ["Turns", "WorkerPool"]

ResultT = TypeVar("ResultT")


class WorkerPool:
    """A fixed number of threads; use it as a context manager.

    While it is at work, freed memory stays with the process, for the next task.

    >>> with WorkerPool(2) as pool:
    ...     list(pool.run((lambda n=n: n * n) for n in range(4)))
    [0, 1, 4, 9]
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self.num_workers = num_workers or usable_cores()
        self._executor = ThreadPoolExecutor(self.num_workers, thread_name_prefix="lowtide-worker")

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *details: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)
        stop_steps()
        _native.keep_freed_memory(False)

    def run(
        self, tasks: Iterable[Callable[[], ResultT]], *, num_waiting: int = 1
    ) -> Iterator[ResultT]:
        """Run tasks as they come; the first error stops the rest and is raised here.

        `num_waiting` tasks are made ahead. More than one keeps all workers busy where some tasks
        take much longer than others, and is for tasks that hold nothing before they run.
        """
        pending: deque[Future[ResultT]] = deque()
        _native.keep_freed_memory(True)
        try:
            for task in tasks:
                pending.append(self._executor.submit(task))
                if len(pending) >= self.num_workers + num_waiting:
                    yield _take_result(pending)
            while pending:
                yield _take_result(pending)
        finally:
            for future in pending:
                future.cancel()


def _take_result(pending: deque[Future[ResultT]]) -> ResultT:
    """Return the first task's result; if it was cancelled, raise the error that stopped it."""
    try:
        return pending.popleft().result()
    except CancelledError:
        errors = [future.exception() for future in pending]
        for error in errors:
            if error is not None and not isinstance(error, CancelledError):
                raise error from None
        raise


class Turns:
    """Lets concurrent tasks do one part of their work in the order of the tasks.

    A pool starts its tasks in order, so the task whose turn it is has always started.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._next = 0
        self._stopped = False

    @contextlib.contextmanager
    def take(self, place: int) -> Generator[None]:
        """Wait until all earlier places have had their turn; only one task has one at a time."""
        with self._condition:
            self._condition.wait_for(lambda: self._stopped or self._next == place)
            if self._stopped:
                raise CancelledError
            try:
                yield
                self._next += 1
            except BaseException:
                self._stopped = True
                raise
            finally:
                self._condition.notify_all()

    def stop(self) -> None:
        """Cancel all that wait: a task that failed will never take its turn."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
