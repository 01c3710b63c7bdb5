"""Run tasks on this machine's cores; the native core works outside the interpreter's lock.

In:      functions without arguments, made one by one as workers become free
Out:     their results, in the order of the tasks
Memory:  at most `num_workers` + 1 tasks exist at a time
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

from lowtide.memory import usable_cores

__all__ = ["WorkerPool"]

ResultT = TypeVar("ResultT")


class WorkerPool:
    """A fixed number of threads; use it as a context manager.

    >>> with WorkerPool(2) as pool:
    ...     list(pool.run((lambda n=n: n * n) for n in range(4)))
    [0, 1, 4, 9]
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self.num_workers = num_workers or usable_cores()
        self._executor = ThreadPoolExecutor(self.num_workers, thread_name_prefix="lowtide-worker")

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def run(self, tasks: Iterable[Callable[[], ResultT]]) -> Iterator[ResultT]:
        """Run tasks as they come; the first error stops the rest and is raised here."""
        pending: deque[Future[ResultT]] = deque()
        try:
            for task in tasks:
                pending.append(self._executor.submit(task))
                if len(pending) > self.num_workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
