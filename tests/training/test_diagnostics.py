"""Diagnostics: SIGUSR1 shows where a run stands with all stacks; a stall shows itself."""

import signal
import subprocess
import sys
import textwrap
import threading

from lowtide.training import diagnostics
from lowtide.training.diagnostics import Diagnostics


def run_script(body):
    script = textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_signal_prints_the_stage_and_the_stacks():
    done = run_script(
        """
        import os, signal
        from lowtide.training.diagnostics import Diagnostics
        def waiting_here(where):
            where.stage("waiting for data", 17)
            os.kill(os.getpid(), signal.SIGUSR1)
        with Diagnostics(watch=False) as where:
            waiting_here(where)
        """
    )
    assert done.returncode == 0
    assert "step 17, waiting for data for" in done.stderr
    assert "in waiting_here" in done.stderr


def test_a_stall_is_reported_once(capfd):
    seen = threading.Event()
    with Diagnostics(watch=True, stall_seconds=0.05) as where:
        dump, calls = where.dump, []

        def noted():
            calls.append(1)
            dump()
            seen.set()

        where.dump = noted
        where.stage("computing", 100)
        assert seen.wait(100)
    assert len(calls) == 1
    assert "step 100, computing for" in capfd.readouterr().err


def test_the_old_handler_comes_back():
    before = signal.getsignal(signal.SIGUSR1)
    with Diagnostics(watch=False):
        assert signal.getsignal(signal.SIGUSR1) != before
    assert signal.getsignal(signal.SIGUSR1) == before


def test_the_first_three_steps_are_shown_stage_by_stage(capsys, monkeypatch):
    clock = iter([10.0, *(10.0 + 0.5 * turn for turn in range(1, 100))])
    monkeypatch.setattr(diagnostics.time, "monotonic", lambda: next(clock))
    where = Diagnostics(watch=True)
    for step in range(5):
        where.stage("computing", step)
    assert capsys.readouterr().err.splitlines() == [
        "debug: step 0 starting took 0.500s",
        "debug: step 0 computing took 0.500s",
        "debug: step 1 computing took 0.500s",
    ]
    quiet = Diagnostics(watch=False)
    quiet.stage("computing", 0)
    assert capsys.readouterr().err == ""
    assert quiet.describe() == "step 0, computing for 0.5s"


def test_two_minutes_are_a_stall_and_threads_end_with_the_run():
    assert Diagnostics(watch=True).stall_seconds == 120
    with Diagnostics(watch=True) as where:
        assert where._thread.is_alive() and where._thread.daemon
    assert not where._thread.is_alive()
    with Diagnostics(watch=False) as quiet:
        assert not quiet._thread.is_alive()


def test_only_what_lasts_longer_is_a_stall_and_only_once_a_stage(monkeypatch):
    where, dumped = Diagnostics(watch=True, stall_seconds=2.0), []
    monkeypatch.setattr(where, "dump", lambda: dumped.append(where.describe()))
    waits, now = [], [0.0]
    monkeypatch.setattr(diagnostics.time, "monotonic", lambda: now[0])
    times = iter([2.0, 2.5, 3.0])
    where.stage("computing", 7)

    def wait(seconds):
        waits.append(seconds)
        now[0] = next(times, None)
        return now[0] is None

    monkeypatch.setattr(where._stop, "wait", wait)
    where._run()
    assert dumped == ["step 7, computing for 2.5s"]
    assert waits == [0.5] * 4
    times = iter([10.0])
    now[0] = 0.0
    where.stage("saving", 8)
    where._run()
    assert len(dumped) == 2
    slow = Diagnostics(watch=True)
    monkeypatch.setattr(slow._stop, "wait", lambda seconds: waits.append(seconds) or True)
    slow._run()
    assert waits[-1] == 1.0


def test_a_dump_has_the_stage_and_every_stack(capfd):
    Diagnostics(watch=False).dump()
    shown = capfd.readouterr().err
    assert "lowtide: step 0, starting for" in shown
    assert "test_a_dump_has_the_stage_and_every_stack" in shown


def test_the_main_stack_is_shown_beside_a_hundred_others(capfd):
    done = threading.Event()
    threads = [threading.Thread(target=done.wait, daemon=True) for _ in range(105)]
    for thread in threads:
        thread.start()
    try:
        Diagnostics(watch=False).dump()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert "test_the_main_stack_is_shown_beside_a_hundred_others" in capfd.readouterr().err


def test_other_threads_leave_signals_alone():
    before = signal.getsignal(signal.SIGUSR1)
    seen = []

    def run():
        with Diagnostics(watch=False):
            seen.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert seen == [before]


def test_what_is_said_of_a_run_is_said_at_once(monkeypatch):
    """Before the stacks, which C writes past what Python holds back."""
    noted = []

    class Held:
        def write(self, text):
            noted.append(text)

        def flush(self):
            noted.append("flush")

    monkeypatch.setattr(diagnostics.sys, "stderr", Held())
    monkeypatch.setattr(
        diagnostics.faulthandler, "dump_traceback", lambda **options: noted.append(options)
    )
    where = Diagnostics(watch=False)
    where._on_signal(10, None)
    where.dump()
    said = "lowtide: step 0, starting for 0.0s"
    assert noted == [said, "\n", "flush", said, "\n", "flush", {"file": 2, "all_threads": True}]
