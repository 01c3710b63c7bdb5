"""Diagnostics: SIGUSR1 shows where a run stands with all stacks; a stall shows itself."""

import signal
import subprocess
import sys
import textwrap
import threading

from lowtide.training.diagnostics import Diagnostics


def run_script(body):
    script = textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
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
        assert seen.wait(10)
    assert len(calls) == 1
    assert "step 100, computing for" in capfd.readouterr().err


def test_the_old_handler_comes_back():
    before = signal.getsignal(signal.SIGUSR1)
    with Diagnostics(watch=False):
        assert signal.getsignal(signal.SIGUSR1) != before
    assert signal.getsignal(signal.SIGUSR1) == before
