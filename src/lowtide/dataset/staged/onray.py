"""Prepare a dataset, or add text to one, with a worker on every node of a Ray cluster.

In:      PrepareSettings or AppendSettings with --engine ray
Out:     the same dataset as with --engine files: the workers are the same
Memory:  each worker keeps its own budget; Ray's processes are beside it
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from lowtide.dataset.appendable import AppendResult
from lowtide.dataset.settings import AppendSettings, PrepareSettings
from lowtide.dataset.staged.adding import append_shared, append_work_folder, read_added
from lowtide.dataset.staged.running import StagedResult, prepare_shared, work_folder
from lowtide.dataset.storeddatasets import load_any_info, read_any_metadata
from lowtide.engine.raynodes import run_on_ray
from lowtide.engine.records import Records
from lowtide.errors import LowtideError
from lowtide.memory import default_budget_bytes, parse_size, process_peak_bytes
from lowtide.progress import Phase, Progress

__all__ = ["append_on_ray", "prepare_on_ray"]

_SettingsT = TypeVar("_SettingsT", PrepareSettings, AppendSettings)


def prepare_on_ray(settings: PrepareSettings) -> StagedResult:
    """Let a worker on every node of a Ray cluster work on a preparation until it is done."""
    memory = _find_memory(settings.memory)
    with Progress("prepare") as progress:  # the budget is each worker's, who measures itself
        peak = _run(settings, work_folder(settings), memory, _prepare, progress)
        reading = settings.reading(budget_bytes=memory)
        return StagedResult(reading, progress.seconds, peak, memory)


def append_on_ray(settings: AppendSettings) -> AppendResult:
    """Let a worker on every node of a Ray cluster work on an append until it is done."""
    root = settings.dataset_dir
    before = len(read_any_metadata(root).get("appended", []))
    with Progress("append") as progress:
        memory = _find_memory(settings.memory)
        _run(settings, append_work_folder(settings), memory, _append, progress)
    info = load_any_info(root)
    if len(info.metadata.get("appended", [])) > before:
        return read_added(root, before)
    return AppendResult(info, {}, [], 0, 0, was_there=True)


def _find_memory(given: str | None) -> int:
    return parse_size(given) if given else default_budget_bytes()


def _prepare(settings: PrepareSettings) -> int:
    return prepare_shared(settings).peak_bytes


def _append(settings: AppendSettings) -> int:
    append_shared(settings)
    return process_peak_bytes()


def _run(
    settings: _SettingsT,
    work_dir: Path,
    memory_bytes: int,
    work: Callable[[_SettingsT], int],
    progress: Progress,
) -> int:
    """Run `work` on every node with settings of --engine files; return the highest peak."""
    work_dir = work_dir.absolute()
    worker = replace(
        settings, engine="files", ray_address=None, work_dir=work_dir, memory=str(memory_bytes)
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
    """Work where the command was given, so that names mean the same, and stand in the metadata."""
    os.chdir(folder)
    return work(settings)


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
