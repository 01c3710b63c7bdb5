"""Polite signals: the first is remembered, the second is final, and handlers are given back."""

import os
import signal
import threading

import pytest

from lowtide.training.signals import StopSignals

NUMBERS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_is_remembered_and_the_second_is_final(number):
    before = [signal.getsignal(each) for each in NUMBERS]
    notes = []
    with StopSignals(notes.append) as signals:
        assert not signals.asked
        os.kill(os.getpid(), number)
        assert signals.asked
        assert notes == ["stopping after this step; once more stops at once"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert [signal.getsignal(each) for each in NUMBERS] == before


def test_a_thread_leaves_signals_alone():
    seen = []

    def run():
        with StopSignals(print):
            seen.extend(signal.getsignal(each) for each in NUMBERS)

    before = [signal.getsignal(each) for each in NUMBERS]
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == before
