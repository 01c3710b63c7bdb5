"""What the threads of one command wait for: runs it, and samples all stacks every few ms.

    python benchmarks/thread_samples.py OUT.json prepare --input-files … (as after `lowtide`)

Of each sample: what the main thread does (its phase: the newest function of the command's top-level
code), and for every thread the newest function of lowtide, with its state in the system: R runs or
is runnable, S waits (a lock, the interpreter, a turn), D waits for the disk. Written to OUT.json:
seconds of phases, of the main thread by function, of all workers by phase, function and state, and
processor seconds of every thread. Sampling needs a thread and sometimes the interpreter, so the
command itself is some percent slower than without.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

_STEP_SECONDS = 0.004
_STORY = (
    "staged/running.py",
    "engine/shared.py",
    "dataset/threaded.py",
    "dataset/preparation.py",
    "tokenizer/training.py",
    "learning.py",
)
_LOOKED_AT = ("MainThread", *(f"lowtide-{name}" for name in ("worker", "task", "commit", "tok")))
_TICKS = 100  # of the system's clock of processor time, in a second


def name_frame(frame: FrameType) -> str:
    """The newest function of lowtide on a stack, and what it called outside of lowtide."""
    called = ""
    at: FrameType | None = frame
    while at is not None:
        code = at.f_code
        if "importlib" in code.co_filename:
            return "imports"
        if "/lowtide/" in code.co_filename:
            place = f"{Path(code.co_filename).stem}.{code.co_name}:{at.f_lineno}"
            return f"{place} > {called}" if called else place
        called = called or f"{Path(code.co_filename).stem}.{code.co_name}"
        at = at.f_back
    return called


def name_phase(frame: FrameType) -> str:
    """The newest function of a command's top-level code on a stack."""
    at: FrameType | None = frame
    while at is not None:
        if at.f_code.co_filename.endswith(_STORY):
            stage = getattr(at.f_locals.get("self"), "stage", None)  # of shared tasks
            return at.f_code.co_name if stage is None else f"stage {stage.name}"
        at = at.f_back
    return "start and end"


def read_task(number: int) -> tuple[str, float]:
    """State and processor seconds of a thread."""
    try:
        fields = Path(f"/proc/self/task/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "gone", 0.0
    return fields[0], (int(fields[11]) + int(fields[12])) / _TICKS


class Sampler(threading.Thread):
    """Samples all other threads until it is stopped."""

    def __init__(self, main: threading.Thread) -> None:
        super().__init__(name="sampler", daemon=True)
        self.main = main
        self.ended = threading.Event()
        self.phase_seconds = defaultdict[str, float](float)
        self.main_seconds = defaultdict[str, float](float)
        self.worker_seconds = defaultdict[str, float](float)
        self.processor_seconds: dict[str, float] = {}

    def run(self) -> None:
        before = time.perf_counter()
        while not self.ended.wait(_STEP_SECONDS):
            now = time.perf_counter()
            self.look(now - before)
            before = now

    def look(self, seconds: float) -> None:
        """Add the time since the last sample to each thread's current function."""
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        phase = name_phase(frames[self.main.ident or 0])
        self.phase_seconds[phase] += seconds
        # Before any file is read: threads continue then, and a frame may have ended.
        names = {ident: name_frame(frame) for ident, frame in frames.items()}
        frames.clear()  # else they keep their functions' variables alive
        for thread in threading.enumerate():
            name = names.get(thread.ident or 0)
            if name is None or thread is self or not thread.name.startswith(_LOOKED_AT):
                continue
            state, used = read_task(thread.native_id or 0)
            self.processor_seconds[f"{thread.name} {thread.native_id}"] = used
            if thread is self.main:
                self.main_seconds[f"{phase}: {name} {state}"] += seconds
            else:
                self.worker_seconds[f"{phase} | {name} | {state}"] += seconds


def find_most(seconds: Mapping[str, float], count: int) -> dict[str, float]:
    """The names with the most time."""
    names = sorted(seconds, key=lambda name: -seconds[name])
    return {name: round(seconds[name], 3) for name in names[:count]}


def run_sampled(words: list[str]) -> dict[str, Any]:
    """Run one command in this process; return what its threads did."""
    begin = time.perf_counter()
    sampler = Sampler(threading.main_thread())
    sampler.start()
    from lowtide.cli import main as run  # its import belongs to what is measured

    status = run(words, whole_process=True)
    sampler.ended.set()
    sampler.join()
    return {
        "status": status,
        "seconds": round(time.perf_counter() - begin, 2),
        "main_thread_cpu_s": round(time.thread_time(), 2),
        "phases": find_most(sampler.phase_seconds, 12),
        "main": find_most(sampler.main_seconds, 16),
        "workers": find_most(sampler.worker_seconds, 28),
        "cpu_s": sorted((round(took, 2) for took in sampler.processor_seconds.values()), key=float),
    }


def main() -> None:
    out, *words = sys.argv[1:]
    result = run_sampled(words)
    Path(out).write_text(json.dumps(result))
    sys.exit(result["status"])


if __name__ == "__main__":
    main()
