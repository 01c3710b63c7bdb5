"""Learn a tokenizer together with other workers that share a folder (`--engine files`, `ray`).

In:      text files, a work folder that all workers see
Out:     the same files that a single worker would write
Memory:  as `training`; with a work folder in a store also a reader and an upload buffer
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from lowtide import __version__
from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.inputs import SPREAD_BYTES, InputList, hash_inputs
from lowtide.engine.folders import work_folder_beside
from lowtide.engine.heldoutputs import hold_output, require_writable
from lowtide.engine.leases import LEASE_SECONDS
from lowtide.engine.plans import commit_plan, read_plan
from lowtide.engine.raycommands import run_workers
from lowtide.engine.records import Records
from lowtide.engine.separation import require_separate
from lowtide.errors import DataError, LowtideError
from lowtide.filenames import TOKENIZER_NAME
from lowtide.memory import MemoryBudget, process_peak_bytes
from lowtide.progress import Progress
from lowtide.stores.objects import UPLOAD_BYTES
from lowtide.stores.paths import READER_BYTES, is_stored
from lowtide.tokenizer.countingplan import plan_counting, reading_options
from lowtide.tokenizer.settings import TokenizerTrainingSettings
from lowtide.tokenizer.sharing import (
    STAGES,
    SharedCounting,
    count_together,
    cut_inputs,
    find_part_bytes,
)
from lowtide.tokenizer.trained import (
    TrainedTokenizer,
    decisive_settings,
    keep_trained,
    load_finished,
)
from lowtide.tokenizer.training import FILE_BYTES, learn_from, train_tokenizer

__all__ = ["finish_removal", "train_on_ray", "train_together"]


def train_together(
    settings: TokenizerTrainingSettings,
    inputs: InputList,
    *,
    part_bytes: int | None = None,
    lease_seconds: float = LEASE_SECONDS,
) -> TrainedTokenizer:
    """Count together with other workers; one of them learns, and all return what it wrote."""
    out_dir = settings.out_dir
    assert out_dir is not None
    needed = reader_bytes(inputs, reading_options(settings))
    if settings.work_dir is not None and is_stored(settings.work_dir):
        needed += UPLOAD_BYTES + READER_BYTES
    budget = MemoryBudget.from_setting(settings.memory)
    budget.count("list of files", len(inputs) * FILE_BYTES)
    budget.spread_bytes += len(inputs) * SPREAD_BYTES
    plan = _make_plan(settings, inputs, part_bytes)
    records = Records(_work_folder(settings, out_dir))
    with Progress("train-tokenizer", budget_bytes=budget.total_bytes) as progress:
        counting_plan = plan_counting(settings, inputs, budget, progress, needed)
        make_counter = counting_plan.make_counter
        counting = SharedCounting(
            inputs=inputs,
            parts=cut_inputs(inputs, plan["part_bytes"], encoding=settings.encoding),
            options=counting_plan.options,
            needs=counting_plan.needs,
            limits=settings.limits,
            records=records,
            make_counter=make_counter,
        )
        require_separate(records.folder, [out_dir, *settings.input])
        records.refuse_strangers(STAGES)
        records.place.prepare()
        require_writable(out_dir)

        def is_finished() -> bool:
            return (out_dir / TOKENIZER_NAME).exists()

        def learn() -> None:
            with hold_output(out_dir, create_folder=True), records.scratch_folder() as folder:
                if is_finished():
                    return
                counter = make_counter(folder)
                counts = counting.add_up(counter, folder)
                vocabulary = learn_from(settings, counter, counts, budget, progress, folder)
                keep_trained(settings, inputs, counting.contents(), vocabulary, counts)

        try:
            commit_plan(plan, records)
        except DataError:  # left by a slow worker after the others had ended
            if not is_finished():
                raise
        else:
            count_together(
                counting, learn, progress, is_finished=is_finished, lease_seconds=lease_seconds
            )
        records.remove(STAGES)
    return _load_new(settings, inputs)


def _make_plan(
    settings: TokenizerTrainingSettings, inputs: InputList, part_bytes: int | None
) -> dict[str, Any]:
    return {
        "verb": "train-tokenizer",
        "version": __version__,
        "settings": decisive_settings(settings),
        "part_bytes": part_bytes or find_part_bytes(inputs.total_bytes),
        "inputs": hash_inputs(inputs),
    }


def finish_removal(
    settings: TokenizerTrainingSettings, inputs: InputList, *, part_bytes: int | None = None
) -> None:
    """Remove the work of a finished tokenizer, if its worker was killed during the removal."""
    assert settings.out_dir is not None
    # A folder of another job is kept, and so is an unwritable one.
    with contextlib.suppress(LowtideError, OSError):
        records = Records(_work_folder(settings, settings.out_dir))
        if read_plan(records) is not None:
            commit_plan(_make_plan(settings, inputs, part_bytes), records)
            records.remove(STAGES)


def train_on_ray(settings: TokenizerTrainingSettings, inputs: InputList) -> TrainedTokenizer:
    """Let a worker on every node of a Ray cluster count, and one of them learn."""
    assert settings.out_dir is not None
    with Progress("train-tokenizer") as progress:  # the budget is each worker's
        run_workers(settings, _work_folder(settings, settings.out_dir), _train, progress)
    return _load_new(settings, inputs)


def _train(settings: TokenizerTrainingSettings) -> int:
    train_tokenizer(settings)
    return process_peak_bytes()


def _work_folder(settings: TokenizerTrainingSettings, out_dir: Path) -> Path:
    return settings.work_dir or work_folder_beside(out_dir)


def _load_new(settings: TokenizerTrainingSettings, inputs: InputList) -> TrainedTokenizer:
    finished = load_finished(settings, inputs)
    assert finished is not None
    return dataclasses.replace(finished, was_there=False)
