"""Rename finished files together: flushing small files one by one takes most of the time.

In:      finished files under hidden names (see files.atomic_file), and the names they are to have
Out:     the same files under these names, each flushed to the disk before it has its own
Memory:  a row for each file of a group

A kill leaves nothing but hidden files of the group, which the next command removes: as with one
file, a name stands for all of its bytes. Flushed from several threads at a time, the files of a
group share the commits of the disk's journal: 200 small ones took 0.3 s and not 2.3 s. The threads
are native code's: each flush from Python would release the interpreter's lock three times.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from lowtide import _native, files
from lowtide.unfinished import mark_used

__all__ = ["PublishGroup", "PublishThreads", "keep_unfinished", "most_unpublished", "publish_files"]

ResultT = TypeVar("ResultT")
_THREADS = 16
_LEAST_FLUSHERS = 8  # a flush is waiting, mostly: with two a disk of 40 ms was waited for
_SMALL_BYTES = 1 << 20
_TOGETHER = 32
_WAITING = 4  # stretches of files for each worker, at most, that the disk has not begun with
_Row = tuple[Path, Path]
"""A finished file, and the name it is to have."""


class PublishGroup:
    """Files that wait for their names; what is left is published when the group is closed."""

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._records: list[_Row] = []
        self._others: list[_Row] = []
        self._after = contextlib.ExitStack()

    def __enter__(self) -> PublishGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.publish()
        finally:
            self._after.close()

    @property
    def num_waiting(self) -> int:
        """How many files have no name yet, records not counted."""
        return len(self._others)

    @property
    def is_full(self) -> bool:
        """True if it is time to publish."""
        return len(self._others) >= self._size

    def add(self, partial: Path, path: Path) -> None:
        """Take a finished file; it is called `path` when its group is published."""
        self._others.append((partial, path))

    def add_record(self, partial: Path, path: Path) -> None:
        """The same, for one that has to be there before the files that it speaks of."""
        self._records.append((partial, path))

    def hold(self, resource: contextlib.AbstractContextManager[None]) -> None:
        """Enter what is to be held, such as a lock, until the group is published."""
        self._after.enter_context(resource)

    def call_after(self, function: Callable[[], None]) -> None:
        """Call a function once the group is published."""
        self._after.callback(function)

    def publish(self) -> None:
        """Rename all files that wait to their final names."""
        stages, self._records, self._others = (self._records, self._others), [], []
        waiting = [row for rows in stages for row in rows]
        try:
            _flush_all(waiting)
        except BaseException:
            _remove(waiting)
            raise
        for rows in stages:
            for partial, path in rows:
                partial.replace(path)
            for folder in dict.fromkeys(path.parent for _, path in rows):
                files.sync_directory(folder)
        self._after.close()


class PublishThreads:
    """Publish files beside the threads that write others, which need not wait for the disk.

    Use it as a context manager: at its end all files have their names, or are gone after an error.
    """

    def __init__(self, num_workers: int) -> None:
        flushers = max(num_workers, _LEAST_FLUSHERS)
        self._pool = ThreadPoolExecutor(flushers, thread_name_prefix="lowtide-publish")
        self._beginners = ThreadPoolExecutor(num_workers, thread_name_prefix="lowtide-writeback")
        self._room = threading.Semaphore(_WAITING * num_workers)
        self._small: list[_Waiting] = []
        self._lock = threading.Lock()

    def __enter__(self) -> PublishThreads:
        return self

    def __exit__(self, *details: object) -> None:
        self.begin()
        self._beginners.shutdown()
        self._pool.shutdown()

    def start_writeback(self, descriptor: int, offset: int, size: int) -> None:
        """Let the disk begin with a stretch of a file, which takes as long as the disk is busy.

        Where many stretches wait already it begins when the file is flushed: each has a descriptor.
        """
        if not self._room.acquire(blocking=False):
            return
        copy = os.dup(descriptor)  # the file may be closed by then

        def start() -> None:
            try:
                _native.start_writeback(copy, offset, size)
            finally:
                os.close(copy)
                self._room.release()

        self._beginners.submit(start)

    def publish(
        self, rows: list[_Row], after: Callable[[], ResultT], *, num_bytes: int
    ) -> Future[ResultT]:
        """Flush files and rename them, in their order, then call `after` for the result.

        Their folders are not flushed. Small files, of `num_bytes` together, wait until there are
        some of them, or for `begin`.
        """
        if num_bytes >= _SMALL_BYTES:
            return self._pool.submit(_publish_all, rows, after)
        result = Future[ResultT]()
        with self._lock:
            self._small.append(_Waiting(rows, after, result))
            is_full = len(self._small) >= _TOGETHER
        if is_full:
            self.begin()
        return result

    def begin(self) -> None:
        """Do not let small files wait for others."""
        with self._lock:
            together, self._small = self._small, []
        if together:
            self._pool.submit(_publish_together, together)


class _Waiting(NamedTuple):
    """Files that wait for their names, what is called then, and who waits for it."""

    rows: list[_Row]
    after: Callable[[], Any]
    result: Future[Any]


def publish_files(rows: Sequence[_Row]) -> None:
    """Flush finished files, then rename them, in their order. Their folders are not flushed."""
    _flush_all(rows)
    for partial, path in rows:
        partial.replace(path)


@contextlib.contextmanager
def keep_unfinished(partial: Path) -> Generator[None]:
    """Keep a finished file that a publisher was given; at the end it has its name, or is removed.

    Enter it within the publisher: no other command can take the file for a leftover meanwhile.
    """
    descriptor = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mark_used(descriptor)
        yield
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
        os.close(descriptor)


def _publish_all(rows: list[_Row], after: Callable[[], ResultT]) -> ResultT:
    try:
        publish_files(rows)
    except BaseException:
        _remove(rows)
        raise
    return after()


def most_unpublished(num_workers: int, num_bytes: int) -> int:
    """How many results of `PublishThreads.publish` should wait, each for files of `num_bytes`."""
    return max(2 * num_workers, 0 if num_bytes >= _SMALL_BYTES else 2 * _TOGETHER)


def _publish_together(together: Sequence[_Waiting]) -> None:
    rows = [row for waiting in together for row in waiting.rows]
    try:
        publish_files(rows)
        for waiting in together:
            waiting.result.set_result(waiting.after())
    except BaseException as error:
        _remove(rows)
        for waiting in together:
            if not waiting.result.done():
                waiting.result.set_exception(error)


def _remove(rows: Sequence[_Row]) -> None:
    for partial, _ in rows:
        with contextlib.suppress(OSError):
            partial.unlink()


def _flush_all(rows: Sequence[_Row]) -> None:
    failed = _native.flush_files([os.fsencode(partial) for partial, _ in rows], _THREADS)
    if failed is not None:
        number, code = failed
        raise OSError(code, os.strerror(code), str(rows[number][1]))
