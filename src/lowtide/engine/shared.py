"""Run stages together with other workers, coordinated only through a shared folder.

In:      stages, the records of a work folder
Out:     the records of all tasks; this process did some of them, others the rest
Memory:  a few bytes per task of one stage, and the memory of each thread's task
"""

from __future__ import annotations

import contextlib
import errno
import random
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from functools import partial

from lowtide.engine.committers import Committers
from lowtide.engine.heldoutputs import HeldOutputError
from lowtide.engine.leases import (
    LEASE_SECONDS,
    MOST_FAILURES,
    Leases,
    note_failure,
    require_no_hopeless_task,
)
from lowtide.engine.records import Records
from lowtide.engine.tasks import Stage, Task, Uncommitted
from lowtide.errors import LowtideError, from_os_error, warn
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass
from lowtide.stores.refusals import StoreDownError

__all__ = ["run_in_phases", "run_shared"]

_SHORTEST_PAUSE = 0.01
_OF_A_FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_OF_THIS_MACHINE = _OF_A_FULL_DISK | {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE
}  # fmt: skip
"""Errors of a machine, not of the task: the worker stops, and no failure is recorded."""


def run_shared(
    stages: Iterable[Stage],
    records: Records,
    *,
    num_workers: int,
    on_stage: Callable[[str, int], Callable[[int], None]],
    is_finished: Callable[[], bool] = lambda: False,
    lease_seconds: float = LEASE_SECONDS,
    shortest_pause: float = _SHORTEST_PAUSE,
) -> None:
    """Do tasks that no other worker does until every stage is done; stages are created lazily.

    `on_stage` is called with a stage's name and number of tasks; the function it returns is called
    with how many are done, by all workers. `is_finished` returns True once the result exists and
    the folder may already be removed: an error then ends the work as well. A thread that finds all
    tasks taken checks again after `shortest_pause` seconds, then after longer and longer pauses.
    """
    try:
        with Leases(records, lease_seconds) as leases:
            for place, stage in enumerate(stages):
                if is_finished():
                    return
                count = stage.count_tasks()
                run = _StageRun(
                    stage, count, records, leases, on_stage(stage.name, count), shortest_pause
                )
                run.run(
                    num_workers, partial(records.agree_on_count, stage.name, count, place=place)
                )
    except (OSError, ValueError, LowtideError):
        if not is_finished():
            raise


def run_in_phases(
    stages: Iterable[Stage],
    records: Records,
    progress: Progress,
    *,
    num_workers: int,
    is_finished: Callable[[], bool],
    lease_seconds: float,
    without_phase: Collection[str] = (),
    before_stage: Callable[[], None] = lambda: None,
) -> None:
    """Run stages with other workers, each a phase that is shown; `without_phase` show their own.

    `before_stage` is called after the phase of the stage before has ended.
    """
    with contextlib.ExitStack() as phases:

        def on_stage(name: str, count: int) -> Callable[[int], None]:
            phases.close()
            before_stage()
            if name in without_phase:
                return lambda done: None
            phase = phases.enter_context(progress.phase(name, total=count, unit="tasks"))
            return phase.update

        run_shared(
            stages,
            records,
            num_workers=num_workers,
            on_stage=on_stage,
            is_finished=is_finished,
            lease_seconds=lease_seconds,
        )


@dataclass
class _StageRun:
    """One stage, as several threads of this process work on it."""

    stage: Stage
    num_tasks: int
    records: Records
    leases: Leases
    on_done: Callable[[int], None]
    shortest_pause: float
    is_alone: bool = False
    has_warned: bool = False
    error: BaseException | None = None
    done: set[int] = field(default_factory=set)
    busy: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    news: threading.Event = field(default_factory=threading.Event)
    committers: Committers = field(default_factory=Committers)

    def run(self, num_workers: int, agree: Callable[[], None]) -> None:
        """Do the stage; `agree` compares its number of tasks with that of other workers.

        It waits for the disk, so it runs beside the first task: what tasks write does not depend on
        it, and an error ends the work.
        """
        self.look()
        self.is_alone = not self.leases.has_any(self.stage.name)
        if len(self.done) >= self.num_tasks:
            agree()
        else:
            threads = min(num_workers, self.num_tasks)
            with (
                self.committers.start(max(threads, self.records.place.least_committers)),
                ThreadPoolExecutor(threads, thread_name_prefix="lowtide-task") as pool,
            ):
                try:
                    self.committers.submit(partial(self.check, agree))
                    for future in [pool.submit(self.work) for _ in range(threads)]:
                        future.result()
                except BaseException as error:  # a signal: running tasks are the last ones
                    self.stop(error)
                    raise
        if self.error is not None:
            raise self.error

    def check(self, agree: Callable[[], None]) -> None:
        try:
            agree()
        except BaseException as error:
            self.stop(error)

    def look(self) -> None:
        """Read which tasks are done, including those of other workers."""
        self.note_done(self.records.list_done(self.stage.name))

    def work(self) -> None:
        try:
            self.work_until_done()
        except BaseException as error:
            self.stop(error)

    def stop(self, error: BaseException) -> None:
        """Start no more tasks."""
        with self.lock:
            self.error = self.error or error
        self.news.set()

    def work_until_done(self) -> None:
        # Workers begin at different tasks, so that they seldom try to take the same one. A single
        # worker begins at the first, and does all in order as long as it stays alone.
        at = 0 if self.is_alone else random.randrange(self.num_tasks)
        pause = self.shortest_pause
        while len(self.done) < self.num_tasks and self.error is None:
            index = self.choose(at)
            if index is not None:
                at, pause = index + 1, self.shortest_pause
                continue
            # All remaining tasks are taken. The end of this process's last task ends the wait.
            self.news.wait(pause)
            pause = min(2 * pause, self.records.place.longest_pause)
            if not self.news.is_set():
                self.look()
            require_no_hopeless_task(self.records.folder)

    def choose(self, at: int) -> int | None:
        """Find a task without a lease, from index `at` on, and do it; None if there is none."""
        for offset in range(self.num_tasks):
            index = (at + offset) % self.num_tasks
            if self.error is not None:
                return None
            with self.lock:
                if index in self.done or index in self.busy:
                    continue
                self.busy.add(index)
            if self.do(index):
                return index
        return None

    def do(self, index: int) -> bool:
        """Do a task that this process has marked as busy; False if another worker has it."""
        task = Task(self.stage.name, index)
        with contextlib.ExitStack() as held:
            held.callback(self.free, index)
            if self.records.is_done(task):
                self.note_done({index})
                return True
            if not held.enter_context(self.leases.hold(task)):
                return False
            if self.records.is_done(task):  # recorded just before its lease was released
                self.note_done({index})
                return True
            result = self.attempt(task, lambda: self.stage.run(index))
            if isinstance(result, Uncommitted):
                commit = partial(self.commit, task, result, held.pop_all())
                self.committers.submit(commit)
                return True
            self.note_result(task, result)
            return result is not None

    def commit(self, task: Task, written: Uncommitted, held: contextlib.ExitStack) -> None:
        """Commit a task's result, then unmark the task."""
        try:
            with held:
                self.note_result(task, self.attempt(task, written.commit))
        except BaseException as error:
            self.stop(error)

    def free(self, index: int) -> None:
        """Allow threads of this process to choose a task again, unless it is done."""
        with self.lock:
            self.busy.discard(index)

    def note_result(self, task: Task, is_done: object) -> None:
        """Note that a task is done, here or by another process."""
        if is_done or self.records.is_done(task):
            self.note_done({task.index})

    def attempt(
        self, task: Task, work: Callable[[], Uncommitted | None]
    ) -> Uncommitted | bool | None:
        """Do a task, or commit it.

        Returns what is left to commit, True if nothing is, False if the task failed, and None while
        another process holds its output.
        """
        try:
            return work() or True
        except StoreDownError:
            raise
        except HeldOutputError as error:
            if not self.has_warned:
                self.has_warned = True
                warn(f"{error.path}: this worker waits: {error.message}")
            return None
        except OSError as error:
            if error.errno in _OF_A_FULL_DISK and error.filename is None:
                error.filename = str(self.records.place.disk)
            if error.errno in _OF_THIS_MACHINE:
                raise
            self.fail(task, from_os_error(error))
        except (LowtideError, MemoryError, ValueError, RuntimeError) as error:
            self.fail(task, error)
        return False

    def fail(self, task: Task, error: Exception) -> None:
        """Record a failure; after the last allowed attempt, it ends this process."""
        if note_failure(self.records, task, error) >= MOST_FAILURES:
            raise error

    def note_done(self, found: set[int]) -> None:
        """Add finished tasks; after the last one, wake all waiting threads."""
        with self.lock:
            self.done |= found
            self.on_done(len(self.done))
            if len(self.done) >= self.num_tasks:
                self.news.set()
