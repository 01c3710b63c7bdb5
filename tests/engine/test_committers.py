from __future__ import annotations

import threading

import pytest

from lowtide.engine.committers import Committers


def test_the_caller_goes_on_unless_all_threads_are_busy() -> None:
    committers, gates = Committers(), [threading.Event() for _ in range(3)]
    done: list[int] = []

    def commit(number: int) -> None:
        assert gates[number].wait(60)
        done.append(number)

    with committers.start(2):
        for number in range(2):
            committers.submit(lambda number=number: commit(number))
        assert done == []
        third = threading.Thread(target=lambda: committers.submit(lambda: commit(2)))
        third.start()
        third.join(0.05)
        assert third.is_alive()  # it waits for a thread
        gates[1].set()
        third.join(60)
        assert not third.is_alive() and done == [1]
        gates[0].set()
        gates[2].set()
    assert sorted(done) == [0, 1, 2]


def test_a_thread_is_free_again_after_an_error() -> None:
    committers, done = Committers(), list[int]()

    def fail() -> None:
        raise ValueError("no")

    with committers.start(1):
        committers.submit(fail)
        committers.submit(lambda: done.append(1))
    assert done == [1]


def test_without_threads_nothing_is_committed_in_silence() -> None:
    committers = Committers()
    with committers.start(1):
        pass
    with pytest.raises(RuntimeError, match="not started"):
        committers.submit(lambda: None)
