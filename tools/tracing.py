"""Trace the lines of src/lowtide that a process and its forks run, by the name of the running test.

Imported at Python's start in every program that a traced suite starts (tools/testmap.py), so it is
small, and does nothing if no suite is traced.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The folder for the parts, and the file with the name of the running test; programs inherit both.
PARTS, CURRENT = "TESTMAP_PARTS", "TESTMAP_CURRENT"


def trace() -> None:
    """Trace this process and its forks until they end."""
    if PARTS not in os.environ:
        return
    import coverage

    tracer = coverage.Coverage(
        data_file=f"{os.environ[PARTS]}/lines", data_suffix=True, config_file=False,
        include=[str(ROOT / "src/lowtide/*")], messages=False,
    )  # fmt: skip
    tracer.set_option("run:disable_warnings", ["no-data-collected", "module-not-measured"])
    tracer.start()

    def save() -> None:
        tracer.stop()
        tracer.save()

    def end(code: int) -> None:
        save()
        leave(code)

    def name_test() -> None:
        with contextlib.suppress(KeyError, OSError):
            tracer.switch_context(Path(os.environ[CURRENT]).read_text())

    leave, os._exit = os._exit, end  # as forks end
    atexit.register(save)
    os.register_at_fork(after_in_child=name_test)
    name_test()


def site(folder: Path) -> str:
    """The code that Python runs at its start, for programs with its folder in PYTHONPATH."""
    return f"import sys\nsys.path.append({str(folder)!r})\nimport tracing\ntracing.trace()\n"
