"""The pool: results in order, few tasks at a time, the first error stops the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.corpus import workers
from lowtide.corpus.workers import Turns, WorkerPool


def test_results_come_in_the_order_of_the_tasks() -> None:
    ready = threading.Event()

    def first() -> int:
        ready.wait(100)
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


def test_turns_come_in_order_whatever_the_tasks_do() -> None:
    turns = Turns()
    seen: list[int] = []
    started = threading.Barrier(4, timeout=100)

    def task(place: int) -> None:
        started.wait()  # all of them are at it before the first takes its turn
        with turns.take(place):
            seen.append(place)

    with WorkerPool(4) as pool:
        list(pool.run((lambda place=place: task(place)) for place in range(40)))
    assert seen == list(range(40))


def test_turns_that_are_given_up_hold_nobody_up() -> None:
    """Tasks 0 and 4 take theirs last; those between have given theirs up long before."""
    turns = Turns()
    seen: list[int] = []
    given_up = threading.Barrier(4, timeout=100)

    def task(place: int) -> None:
        if place in (0, 4):
            given_up.wait()
            with turns.take(place):
                seen.append(place)
        else:
            turns.give_up(place)  # does not wait for the first
            if place in (2, 3):
                given_up.wait()

    with WorkerPool(5) as pool:
        list(pool.run((lambda place=place: task(place)) for place in range(5)))
    assert seen == [0, 4]
    with turns.take(5):
        seen.append(5)
    assert seen == [0, 4, 5]


def test_the_error_is_the_one_of_the_task_that_failed() -> None:
    turns = Turns()
    failed = threading.Event()

    def wait() -> None:
        failed.wait(100)
        with turns.take(0):
            pass

    def fail() -> None:
        try:
            raise ValueError("the reason")
        finally:
            turns.stop()
            failed.set()

    with WorkerPool(2) as pool, pytest.raises(ValueError, match="the reason"):
        list(pool.run([wait, fail, wait]))


@pytest.mark.parametrize("inside", [True, False])
def test_nobody_waits_for_a_turn_that_never_comes(inside: bool) -> None:
    turns = Turns()

    def fail() -> None:
        if inside:
            with turns.take(0):
                raise ValueError("no")
        turns.stop()
        raise ValueError("no")

    def wait() -> None:
        with turns.take(1):
            raise AssertionError("not its turn")

    with WorkerPool(2) as pool, pytest.raises(ValueError, match="no"):
        list(pool.run([fail, wait]))
    with pytest.raises(CancelledError), turns.take(1):
        pass


@pytest.mark.parametrize(("count", "waiting", "most"), [(1, 1, 2), (3, 1, 4), (2, 5, 7)])
def test_so_many_tasks_are_made_ahead(count: int, waiting: int, most: int) -> None:
    """None is taken before as many are there; then one is made for each that is taken."""
    made: list[int] = []

    def tasks() -> Iterator[Callable[[], int]]:
        for number in range(20):
            made.append(number)
            yield lambda number=number: number

    with WorkerPool(count) as pool:
        for taken, number in enumerate(pool.run(tasks(), num_waiting=waiting)):
            assert number == taken and len(made) == min(taken + most, 20)


def test_freed_memory_stays_while_tasks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes back to the system at the end, when the steps of users are stopped too."""
    told: list[Any] = []
    monkeypatch.setattr(workers._native, "keep_freed_memory", told.append)
    monkeypatch.setattr(workers, "stop_steps", lambda: told.append("stopped"))
    with WorkerPool(1) as pool:
        assert told == []
        assert list(pool.run([lambda: 5])) == [5]
        assert told == [True]
    assert told == [True, "stopped", False]
    with pytest.raises(RuntimeError):
        list(pool.run([lambda: 5]))


def test_as_many_workers_as_cores_where_none_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 3)
    for given, count in ((None, 3), (2, 2)):
        with WorkerPool(given) as pool:
            assert pool.num_workers == count


def test_those_that_wait_are_woken_when_all_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = threading.Semaphore(0)

    class Gate(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waiting.release()
            return super().wait(100)

    monkeypatch.setattr(workers, "threading", SimpleNamespace(Event=Gate, Lock=threading.Lock))
    turns = Turns()
    ended: list[int] = []

    def wait(place: int) -> None:
        with pytest.raises(CancelledError), turns.take(place):
            pass
        ended.append(place)

    threads = [threading.Thread(target=wait, args=(place,)) for place in (1, 2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        waiting.acquire()
    turns.stop()
    for thread in threads:
        thread.join(100)
    assert sorted(ended) == [1, 2] and turns._gates == {}
