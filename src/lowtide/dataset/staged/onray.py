"""Prepare a dataset, or append text to one, with a worker on every node of a Ray cluster.

In:      PrepareSettings or AppendSettings with --engine ray
Out:     the same dataset as with --engine files: the workers are the same
Memory:  each worker stays within its own budget; Ray's own processes come on top
"""

from __future__ import annotations

from lowtide.dataset.appendable import AppendResult
from lowtide.dataset.settings import AppendSettings, PrepareSettings
from lowtide.dataset.staged.adding import append_shared, append_work_folder, read_added
from lowtide.dataset.staged.running import StagedResult, prepare_shared, work_folder
from lowtide.dataset.storeddatasets import load_any_info, read_any_metadata
from lowtide.engine.raycommands import find_memory, run_workers
from lowtide.memory import process_peak_bytes
from lowtide.progress import Progress

__all__ = ["append_on_ray", "prepare_on_ray"]


def prepare_on_ray(settings: PrepareSettings) -> StagedResult:
    """Run a worker on every node of a Ray cluster until the preparation is done."""
    memory = find_memory(settings)
    with Progress("prepare") as progress:  # without a budget: each worker measures its own
        peak = run_workers(settings, work_folder(settings), _prepare, progress)
        reading = settings.reading(budget_bytes=memory)
        return StagedResult(reading, progress.seconds, peak, memory)


def append_on_ray(settings: AppendSettings) -> AppendResult:
    """Run a worker on every node of a Ray cluster until the append is done."""
    root = settings.dataset_dir
    before = len(read_any_metadata(root).get("appended", []))
    with Progress("append") as progress:
        run_workers(settings, append_work_folder(settings), _append, progress)
    info = load_any_info(root)
    if len(info.metadata.get("appended", [])) > before:
        return read_added(root, before)
    return AppendResult(info, {}, [], 0, 0, was_there=True)


def _prepare(settings: PrepareSettings) -> int:
    return prepare_shared(settings).peak_bytes


def _append(settings: AppendSettings) -> int:
    append_shared(settings)
    return process_peak_bytes()
