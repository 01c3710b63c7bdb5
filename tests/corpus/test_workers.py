"""The pool: results in order, few tasks at a time, the first error stops the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from lowtide.corpus.workers import WorkerPool


def test_results_come_in_the_order_of_the_tasks() -> None:
    ready = threading.Event()

    def first() -> int:
        ready.wait(10)
        return 0

    def second() -> int:
        ready.set()
        return 1

    with WorkerPool(2) as pool:
        assert list(pool.run([first, second])) == [0, 1]


def test_tasks_are_made_as_workers_become_free() -> None:
    made = taken = 0

    def tasks() -> Iterator[Callable[[], None]]:
        nonlocal made
        for _ in range(50):
            made += 1
            yield lambda: None

    with WorkerPool(3) as pool:
        for _ in pool.run(tasks()):
            taken += 1
            assert made - taken <= 4
    assert taken == 50


def test_an_error_stops_the_rest() -> None:
    done: list[int] = []

    def fail() -> None:
        raise ValueError("no")

    def tasks() -> Iterator[Callable[[], None]]:
        yield fail
        for number in range(1000):
            yield lambda number=number: done.append(number)

    with WorkerPool(1) as pool, pytest.raises(ValueError, match="no"):
        list(pool.run(tasks()))
    assert len(done) < 10
