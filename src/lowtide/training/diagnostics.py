"""Show where a run hangs: its stage and the stacks of all threads, on demand or after a timeout.

In:      `stage(...)` calls from the loop; SIGUSR1
Out:     stderr
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
import traceback

__all__ = ["Diagnostics"]

_SHOWN_STEPS = 3
_DUMPED_THREADS = 100  # faulthandler shows at most so many, the main thread last


class Diagnostics:
    """Knows the stage the loop is in; `kill -USR1 PID` prints it with the stacks of all threads.

    With `watch`, the first steps are shown stage by stage, and a stage that lasts longer than
    `stall_seconds` prints the same by itself, once.
    """

    def __init__(self, *, watch: bool, stall_seconds: float = 120.0) -> None:
        self.watch = watch
        self.stall_seconds = stall_seconds
        self._stage, self._step = "starting", 0
        self._since = time.monotonic()
        self._reported = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lowtide-watch", daemon=True)
        self._previous: object = None

    def stage(self, name: str, step: int) -> None:
        """Set the stage that begins now."""
        if self.watch and step < _SHOWN_STEPS:
            seconds = time.monotonic() - self._since
            print(f"debug: step {self._step} {self._stage} took {seconds:.3f}s", file=sys.stderr)
        self._stage, self._step, self._since = name, step, time.monotonic()
        self._reported = False

    def describe(self) -> str:
        """Describe the stage of the run."""
        seconds = time.monotonic() - self._since
        return f"step {self._step}, {self._stage} for {seconds:.1f}s"

    def dump(self) -> None:
        """Print the stage of the run and the stack of every thread."""
        print(f"lowtide: {self.describe()}", file=sys.stderr, flush=True)
        main = threading.main_thread().ident
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        if len(frames) >= _DUMPED_THREADS and main in frames:
            traceback.print_stack(frames[main], file=sys.stderr)
            sys.stderr.flush()
        faulthandler.dump_traceback(file=2, all_threads=True)

    def _on_signal(self, number: int, frame: object) -> None:
        print(f"lowtide: {self.describe()}", file=sys.stderr, flush=True)

    def _run(self) -> None:
        while not self._stop.wait(min(1.0, self.stall_seconds / 4)):
            stalled = time.monotonic() - self._since > self.stall_seconds
            if stalled and not self._reported:
                self._reported = True
                self.dump()

    def __enter__(self) -> Diagnostics:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGUSR1, self._on_signal)
            # C code prints the stacks at once, even if the interpreter is blocked in a library.
            faulthandler.register(signal.SIGUSR1, file=2, chain=True)
        if self.watch:
            self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._stop.set()
        if self.watch:
            self._thread.join()
        if threading.current_thread() is threading.main_thread():
            faulthandler.unregister(signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, self._previous or signal.SIG_DFL)  # pyright: ignore[reportArgumentType]
