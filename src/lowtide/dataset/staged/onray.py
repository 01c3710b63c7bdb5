"""Prepare a dataset with a worker on every node of a Ray cluster.

In:      PrepareSettings with --engine ray
Out:     the dataset that the workers of --engine files make, who these are
Memory:  each worker keeps its own budget; Ray's processes are beside it
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.staged.running import StagedResult, prepare_shared, work_folder
from lowtide.engine.raynodes import run_on_ray
from lowtide.engine.records import Records
from lowtide.errors import LowtideError
from lowtide.memory import default_budget_bytes, parse_size
from lowtide.progress import Phase, Progress

__all__ = ["prepare_on_ray"]


def prepare_on_ray(settings: PrepareSettings) -> StagedResult:
    """Let a worker on every node of a Ray cluster work on a preparation until it is done."""
    work_dir = work_folder(settings).absolute()
    memory = parse_size(settings.memory) if settings.memory else default_budget_bytes()
    worker = replace(
        settings,
        engine="files",
        ray_address=None,
        work_dir=work_dir,
        memory=str(memory),
    )
    with Progress("prepare") as progress:  # the budget is each worker's, who measures itself
        progress.note("Ray's own processes are not in the budget: some 400 to 650 MB on each node")
        shown = _ShownStages(Records(work_dir), progress)
        with shown.phases:
            peak = run_on_ray(
                partial(_work_in, Path.cwd(), worker),
                address=settings.ray_address,
                num_cpus=settings.num_workers,
                memory_bytes=memory,
                on_poll=shown.update,
                on_notice=progress.note,
            )
        reading = settings.reading(budget_bytes=memory)
        return StagedResult(reading, progress.seconds, peak, memory)


def _work_in(folder: Path, settings: PrepareSettings) -> int:
    """Work where the command was given, so that names mean the same, and stand in the metadata."""
    os.chdir(folder)
    return prepare_shared(settings).peak_bytes


class _ShownStages:
    """The progress of workers elsewhere, by the records they leave."""

    def __init__(self, records: Records, progress: Progress) -> None:
        self._records = records
        self._progress = progress
        self._stage = ""
        self._phase: Phase | None = None
        self.phases = contextlib.ExitStack()

    def update(self) -> None:
        """Look at the folder again."""
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
