"""Run tasks on a pool of threads; the native core releases the interpreter lock (GIL).

In:      functions without arguments, created one by one as workers become free
Out:     their results, in the order of the tasks
Memory:  at most `num_workers` + 1 tasks exist at a time, unless more are requested
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

    While it runs, freed memory stays with the process, for the next task.

    >>> with WorkerPool(2) as pool:
    ...     list(pool.run((lambda n=n: n * n) for n in range(4)))
    [0, 1, 4, 9]
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self.num_workers = num_workers or usable_cores()
        self._executor = ThreadPoolExecutor(self.num_workers, thread_name_prefix="lowtide-worker")
        self._keeps_memory = False

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

        `num_waiting` tasks are created ahead. More than one keeps all workers busy if some tasks
        take much longer than others, and is for tasks that hold no memory before they run.
        """
        pending: deque[Future[ResultT]] = deque()
        if not self._keeps_memory:  # returning all of it to the system between phases took 30 ms
            _native.keep_freed_memory(True)
            self._keeps_memory = True
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
    """Runs one part of concurrent tasks in the order of the tasks.

    A pool starts its tasks in order, so the task whose turn it is has always started. Each waits on
    its own lock, and is woken only by the task before it. A task with nothing to do in its turn
    gives it up, without waiting.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self._gates: dict[int, threading.Event] = {}
        self._given_up: set[int] = set()
        self._stopped = False

    @contextlib.contextmanager
    def take(self, place: int) -> Generator[None]:
        """Wait until all earlier tasks have had their turn; one task has the turn at a time."""
        self._wait_for(place)
        try:
            yield
        except BaseException:
            self.stop()
            raise
        self.give_up(place)

    def give_up(self, place: int) -> None:
        """Pass this task's turn on to the next task, now or as soon as it comes."""
        with self._lock:
            self._given_up.add(place)
            while self._next in self._given_up:
                self._given_up.remove(self._next)
                self._next += 1
            gate = self._gates.pop(self._next, None)
        if gate is not None:
            gate.set()

    def _wait_for(self, place: int) -> None:
        with self._lock:
            gate = None
            if self._next != place and not self._stopped:
                gate = self._gates[place] = threading.Event()
        if gate is not None:
            gate.wait()
        if self._stopped:
            raise CancelledError

    def stop(self) -> None:
        """Cancel all waiting tasks, because a failed task never takes its turn."""
        with self._lock:
            self._stopped = True
            gates = list(self._gates.values())
            self._gates.clear()
        for gate in gates:
            gate.set()
