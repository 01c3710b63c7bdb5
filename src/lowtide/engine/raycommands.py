"""Run a command's workers on a Ray cluster, and show their progress from the records they write.

In:      settings of a command with --engine ray, its work folder
Out:     the work is done, by the same workers as with --engine files
Memory:  each worker stays within its own budget; Ray's own processes come on top
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lowtide.engine.raynodes import run_on_ray
from lowtide.engine.records import Records
from lowtide.errors import LowtideError
from lowtide.memory import default_budget_bytes, parse_size
from lowtide.progress import Phase, Progress

__all__ = ["RaySettings", "find_memory", "run_workers"]


class RaySettings(Protocol):
    """The fields used of a command's settings, a dataclass with `engine` and `work_dir`."""

    @property
    def ray_address(self) -> str | None:
        """The cluster; None starts one on this machine."""
        ...

    @property
    def num_workers(self) -> int | None:
        """Cores of its node that a worker uses; None is all of them."""
        ...

    @property
    def memory(self) -> str | None:
        """The budget of each worker."""
        ...


_SettingsT = TypeVar("_SettingsT", bound=RaySettings)


def find_memory(settings: RaySettings) -> int:
    """The budget of each worker: the given one, or this machine's default."""
    return parse_size(settings.memory) if settings.memory else default_budget_bytes()


def run_workers(
    settings: _SettingsT,
    work_dir: Path,
    work: Callable[[_SettingsT], int],
    progress: Progress,
) -> int:
    """Run `work` on every node with settings of --engine files; return the highest peak."""
    work_dir, memory_bytes = work_dir.absolute(), find_memory(settings)
    given: Any = settings
    worker: _SettingsT = replace(
        given, engine="files", ray_address=None, work_dir=work_dir, memory=str(memory_bytes)
    )
    progress.note("Ray's own processes are not in the budget: some 400 to 650 MB on each node")
    shown = _ShownStages(Records(work_dir), progress)
    with shown.phases:
        return run_on_ray(
            partial(_work_in, Path.cwd(), work, worker),
            address=settings.ray_address,
            num_cpus=settings.num_workers,
            memory_bytes=memory_bytes,
            on_poll=shown.update,
            on_notice=progress.note,
        )


def _work_in(folder: Path, work: Callable[[_SettingsT], int], settings: _SettingsT) -> int:
    """Work in the folder where the command was given, so that relative paths stay valid."""
    os.chdir(folder)
    return work(settings)


class _ShownStages:
    """The progress of workers on other nodes, from the records they write."""

    def __init__(self, records: Records, progress: Progress) -> None:
        self._records = records
        self._progress = progress
        self._stage = ""
        self._phase: Phase | None = None
        self.phases = contextlib.ExitStack()

    def update(self) -> None:
        """Read the folder again."""
        with contextlib.suppress(OSError, LowtideError, ValueError):  # removed at the end
            stages = self._records.list_stages()
            if not stages:
                return
            name, count = stages[-1]
            if name != self._stage:
                self.phases.close()
                self._stage = name
                self._phase = self.phases.enter_context(
                    self._progress.phase(name, total=count, unit="tasks")
                )
            if self._phase is not None:
                self._phase.update(len(self._records.list_done(name)))
