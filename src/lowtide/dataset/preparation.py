"""Prepare a dataset: clean, filter, deduplicate, encode, shuffle, split, write shards.

In:      files of text (PrepareSettings)
Out:     a dataset folder; its metadata file is written last
Memory:  shares of one budget: blocks being processed, a hash table, rows of documents, tokenizer

Every phase is a list of tasks whose results are files, written atomically; a task whose file exists
is not run again. So a killed command resumes where it stopped, with a byte-identical result.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide import files
from lowtide.corpus.workers import WorkerPool
from lowtide.dataset.chosen import choose_inputs, find_inputs
from lowtide.dataset.existing import PrepareResult, is_finished, refuse_strangers, require_same
from lowtide.dataset.phases import naming_folder
from lowtide.dataset.resources import check_disk
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.threaded import Preparation
from lowtide.keywords import takes_keywords
from lowtide.progress import Progress
from lowtide.scratch import ScratchFolder
from lowtide.stores.paths import is_stored
from lowtide.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lowtide.dataset.staged.running import StagedResult

__all__ = ["prepare_dataset"]


@takes_keywords(PrepareSettings)
def prepare_dataset(settings: PrepareSettings) -> PrepareResult:
    """Prepare a dataset from text files, in a fixed amount of memory.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("a few words to learn from, one after the other\\n")
    >>> result = prepare_dataset(
    ...     input_files=[folder / "a.txt"], out_dir=folder / "out", tokenization="char"
    ... )
    >>> result.info.num_tokens("train") + result.info.num_tokens("val")
    47
    """
    if settings.dry_run:
        with _folder_beside(settings.out_dir) as folder:
            return _prepare(replace(settings, out_dir=folder))
    if is_finished(settings.out_dir):
        there = require_same(settings)
        if settings.engine != "threads":
            from lowtide.dataset.staged.running import finish_removal

            finish_removal(settings)
        return there
    if settings.engine != "threads":
        return _prepare_with_others(settings)
    refuse_strangers(settings)
    return _prepare(settings)


def _prepare_with_others(settings: PrepareSettings) -> PrepareResult:
    with naming_folder(settings.out_dir):
        if settings.engine == "ray":
            from lowtide.dataset.staged.onray import prepare_on_ray

            done = prepare_on_ray(settings)
        else:
            done = _prepare_over_files(settings)
    made = require_same(settings, done.reading)  # it may belong to another command
    return replace(
        made,
        seconds=done.seconds,
        peak_bytes=done.peak_bytes,
        budget_bytes=done.budget_bytes,
        was_there=False,
    )


def _prepare_over_files(settings: PrepareSettings) -> StagedResult:
    with ThreadPoolExecutor(1, thread_name_prefix="lowtide-tokenizer") as beside:
        loading = None
        if settings.tokenization != "char":  # native code loads it while these modules do
            loading = beside.submit(Tokenizer.load, settings.tokenization)
        from lowtide.dataset.staged.running import prepare_shared

        return prepare_shared(settings, loading=loading)


def _prepare(settings: PrepareSettings) -> PrepareResult:
    found = find_inputs(settings)
    shares = found.shares
    with (
        Progress("prepare", budget_bytes=found.budget.total_bytes) as progress,
        WorkerPool(shares.num_workers) as pool,
    ):
        inputs, reading = choose_inputs(found, settings, progress)
        del found  # frees its list of inputs, which `inputs` replaces
        check_disk(
            settings.out_dir,
            inputs,
            progress,
            one_pass_bytes=shares.one_pass_bytes,
            keeps_text=settings.keeps_text,
            near_copies=settings.near is not None,
        )
        created = not settings.out_dir.exists()
        with (
            naming_folder(settings.out_dir),
            files.hold_lock(settings.out_dir, create_folder=True, on_notice=progress.note),
        ):
            if is_finished(settings.out_dir):  # by a command that has just ended
                return require_same(settings)
            run = Preparation(settings, shares, inputs, reading, pool, progress, created=created)
            return run.run()


@contextlib.contextmanager
def _folder_beside(path: Path) -> Generator[Path]:
    """A temporary folder for a dry run, on the disk of the output if that is writable."""
    place = Path.cwd() if is_stored(path) else path.absolute()
    while not (place.is_dir() and os.access(place, os.W_OK)) and place != place.parent:
        place = place.parent
    try:
        folder = ScratchFolder("dry-run", inside=place)
    except OSError:
        folder = ScratchFolder("dry-run")
    try:
        yield folder.path
    finally:
        folder.remove()
