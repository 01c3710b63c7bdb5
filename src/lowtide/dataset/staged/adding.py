"""Append text to a dataset with any number of workers that share a folder, as stages of tasks.

In:      AppendSettings with --engine files; the same command on every machine
Out:     new shards, byte-identical to those of --engine threads
Memory:  each worker stays within its own budget

The stages are those of a preparation, and one more that hashes the existing dataset. New files are
kept aside until the last task, which moves them into the dataset and writes the metadata
(datasetplace). The plan contains the dataset's shards and the version of its metadata: if another
command has changed the dataset meanwhile, nothing is appended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lowtide import _native
from lowtide.corpus.inputs import InputList, expand_inputs
from lowtide.corpus.usersteps import stop_steps
from lowtide.dataset import layout
from lowtide.dataset.addedtext import Findings, read_stored_counts
from lowtide.dataset.appendable import AppendResult, find_new, stored_settings
from lowtide.dataset.claims import Claim
from lowtide.dataset.encoding import EncodeJob
from lowtide.dataset.finished import require_whole
from lowtide.dataset.finishing import plan_settings
from lowtide.dataset.grown import Added, GrownDataset, first_free_number
from lowtide.dataset.identity import require_unchanged
from lowtide.dataset.phases import naming_folder, noticing_changes
from lowtide.dataset.resources import Inputs, Shares, plan_shares
from lowtide.dataset.seen import copy_seen
from lowtide.dataset.settings import AppendSettings, PrepareSettings
from lowtide.dataset.staged.datasetplace import DatasetChangedError, DatasetPlace, open_place
from lowtide.dataset.staged.destination import NEW_DIR, find_waiting
from lowtide.dataset.staged.duplicates import DuplicateStage, tally_stage
from lowtide.dataset.staged.encoding import EncodeStage
from lowtide.dataset.staged.existingtext import ExistingStage
from lowtide.dataset.staged.gathering import CutStage, GatherStage, add_contents, load_cut
from lowtide.dataset.staged.hashing import HashStage
from lowtide.dataset.staged.job import StagedJob, WorkerLimits
from lowtide.dataset.staged.plan import PreparePlan, Sizes
from lowtide.dataset.staged.worker import (
    FINISH_STAGE,
    add_up,
    iter_seen_rows,
    make_encode_job,
    run_stages,
)
from lowtide.dataset.storeddatasets import load_any_info, open_small_files
from lowtide.dataset.tokenfiles.shards import shard_from_row, shard_number, shard_row
from lowtide.dataset.workfolder import has_plan
from lowtide.engine.folders import work_folder_beside
from lowtide.engine.plans import checksum_plan, commit_plan, read_plan
from lowtide.engine.records import Records
from lowtide.engine.separation import require_separate
from lowtide.engine.tasks import Stage, Task
from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.filenames import WORK_NAME
from lowtide.memory import MemoryBudget
from lowtide.progress import Progress
from lowtide.stores.paths import is_stored

__all__ = ["append_shared", "append_work_folder", "read_added"]

_BYTES_PER_TOKEN = 4  # of English, to estimate the size of the dataset's text
_LIMITS = WorkerLimits()
_MOST_RUNS = 4_000
_LEAST_RUN_TOKENS = 4 << 20
_FOLDER_NAMES = (
    "hash", "tally", "existing", "near-sign", "near-buckets", "near-pairs", "near-sets",
    "near-decide", "judge", "duplicates", "encode", "cut", "gather", FINISH_STAGE, NEW_DIR,
)  # fmt: skip
"""The stages' folders in the work folder."""


def append_work_folder(settings: AppendSettings) -> Path:
    """The shared work folder: the given one, or one beside the dataset."""
    return settings.work_dir or work_folder_beside(settings.dataset_dir)


def append_shared(
    settings: AppendSettings,
    *,
    sizes: Sizes | None = None,
    limits: WorkerLimits = _LIMITS,
    run_tokens: int | None = None,
    lease_seconds: float = 30.0,
) -> AppendResult:
    """Work on an append until it is done, by this worker or by others."""
    root = settings.dataset_dir
    place = open_place(root)
    require_separate(append_work_folder(settings), [root, *settings.input_files])
    _refuse_unfinished(root)
    records = Records(append_work_folder(settings), places_kept=limits.places_kept)
    version, info = place.load()
    stored = stored_settings(info, settings)
    notices: list[str] = []
    found = expand_inputs(settings.input_files, on_notice=notices.append)
    with open_small_files(root) as folder:
        needs = Inputs.of(found, stored, tokenizer=folder)  # before the budget is measured
    if stored.decontaminate:  # first, because without these counts nothing can be appended
        read_stored_counts(root, info.metadata, stored)
    budget = MemoryBudget.from_setting(settings.memory)
    shares = plan_shares(stored, budget, needs)
    with naming_folder(root), Progress("append", budget_bytes=budget.total_bytes) as progress:
        reading = shares.reading(stored, budget.total_bytes)
        inputs = find_new(info, found, stored, reading, progress.note)
        if not inputs:
            _remove_finished(records, place, version, info)
            require_whole(info)
            return AppendResult(info, {}, [], 0, 0, was_there=True)
        grown = _open_grown(info, stored, version, records)
        for notice in (*notices, *grown.notices()):
            progress.note(notice)
        total = sum(shard.num_tokens for shards in grown.shards.values() for shard in shards)
        run_tokens = run_tokens or max(_LEAST_RUN_TOKENS, -(-total // _MOST_RUNS))
        job = StagedJob(
            settings=replace(stored, val_fraction=grown.val_fraction),
            inputs=inputs,
            reading=reading,
            sizes=sizes or _choose_sizes(inputs, total, records.folder),
            records=records,
            table_bytes=shares.table_bytes,
            range_bytes=shares.range_bytes,
            grown=grown,
            limits=limits,
        )
        _SharedAppend(job, grown, place, run_tokens, shares, progress).work(lease_seconds)
    return read_added(root, grown.num_appended)


def _refuse_unfinished(root: Path) -> None:
    """Raise an error for a dataset with an unfinished append of the threads engine."""
    if not is_stored(root) and has_plan(root):
        raise UsageError(
            "unfinished work of --engine threads is here",
            path=root / WORK_NAME,
            next_step="finish it first: the same command without --engine, or with --restart",
        )


def _choose_sizes(inputs: InputList, num_tokens: int, work_dir: Path) -> Sizes:
    """Choose part sizes by the new text, and the number of partitions by all text."""
    total, stored = inputs.total_bytes, is_stored(work_dir)
    everything = Sizes.of(total + _BYTES_PER_TOKEN * num_tokens, is_stored=stored)
    parts = Sizes.of(total, is_stored=stored)
    return replace(parts, num_partitions=everything.num_partitions)


def _open_grown(
    info: layout.DatasetInfo, stored: PrepareSettings, version: str, records: Records
) -> GrownDataset:
    """The dataset as it was when the work began, even if shards were moved in since."""
    plan = read_plan(records)
    if plan is None or plan.get("verb") != "append" or plan.get("dataset") != version:
        return GrownDataset(info, stored, info.shards, first_free_number(info), version)
    return GrownDataset(
        info,
        stored,
        shards={
            split: [shard_from_row(info.root, row) for row in plan["shards"][split]]
            for split in layout.SPLITS
        },
        first_number=plan["first_number"],
        version=version,
    )


def _remove_finished(
    records: Records, place: DatasetPlace, version: str, info: layout.DatasetInfo
) -> None:
    """Remove the work folder of a finished append whose worker was killed before doing so.

    Another append may be in progress there: to another dataset, or to this one, whose metadata is
    then the one that its plan names.
    """
    try:
        plan = read_plan(records)
    except LowtideError:  # whatever it is, the folder is not ours
        return
    if plan is None or plan.get("verb") != "append":
        return
    if plan.get("dataset") in (None, version):
        return
    here = {f"{split}/{row.path.name}" for split in layout.SPLITS for row in info.shards[split]}
    if here.issuperset(row["file"] for split in layout.SPLITS for row in plan["shards"][split]):
        records.plan = checksum_plan(records)
        place.clear(records.plan)
        records.remove(_FOLDER_NAMES)


def read_added(root: Path, number: int) -> AppendResult:
    """The result of the append with this number."""
    info = load_any_info(root)
    events = info.metadata["appended"]
    event = events[number]
    after = events[number + 1]["first_shard"] if number + 1 < len(events) else None
    numbers = (
        shard_number(row["file"])
        for split in layout.SPLITS
        for row in info.metadata["shards"][split]
    )
    num_shards = sum(
        found is not None and event["first_shard"] <= found and (after is None or found < after)
        for found in numbers
    )
    return AppendResult(info, event["cleaning"], event["notices"], event["tokens"], num_shards)


class _SharedAppend:
    """One worker on an append."""

    def __init__(
        self,
        job: StagedJob,
        grown: GrownDataset,
        place: DatasetPlace,
        run_tokens: int,
        shares: Shares,
        progress: Progress,
    ) -> None:
        self._job = job
        self._grown = grown
        self._place = place
        self._run_tokens = run_tokens
        self._shares = shares
        self._progress = progress

    def work(self, lease_seconds: float) -> None:
        """Do tasks until the text is added."""
        job = self._job
        job.records.refuse_strangers(_FOLDER_NAMES)
        job.records.place.prepare()
        self._place.prepare()
        again = f"remove {job.records.folder}, and give the command again when nothing writes to it"
        try:
            with noticing_changes(job.inputs, next_step=again):
                self._run(lease_seconds)
        finally:
            _native.keep_freed_memory(False)
            stop_steps()
        self._place.clear(job.records.plan)
        job.records.remove(_FOLDER_NAMES)

    def _run(self, lease_seconds: float) -> None:
        try:
            commit_plan(self._make_plan(), self._job.records)
        except LowtideError:  # left by a slow worker after the others had ended
            if self.is_added():
                return
            raise
        run_stages(
            self._iter_stages(),
            self._job,
            self._progress,
            num_workers=self._shares.num_workers,
            is_finished=self.is_added,
            lease_seconds=lease_seconds,
        )

    def _make_plan(self) -> dict[str, Any]:
        job, grown = self._job, self._grown
        plan = PreparePlan.of(
            plan_settings(job.settings),
            job.inputs,
            tokenizer=grown.tokenizer.fingerprint,
            block_bytes=job.reading.block_bytes,
            sizes=job.sizes,
        )
        return {
            **plan.as_json(),
            "verb": "append",
            "run_tokens": self._run_tokens,
            "dataset": grown.version,
            "first_number": grown.first_number,
            "shards": {
                split: [shard_row(grown.root, shard) for shard in grown.shards[split]]
                for split in layout.SPLITS
            },
        }

    def is_added(self) -> bool:
        """True if the dataset has this text already."""
        grown = self._grown
        if self._place.find_version() == grown.version:
            return False
        events = self._place.read_metadata().get("appended", [])
        wanted = [str(row.path) for row in self._job.inputs]
        return any(list(event["input_files"]) == wanted for event in events[grown.num_appended :])

    @cached_property
    def _coding(self) -> EncodeJob:
        return make_encode_job(self._job, self._grown.tokenizer, self._grown.end_id)

    def _iter_stages(self) -> Iterator[Stage]:
        """All stages, in order."""
        job, grown = self._job, self._grown
        existing = ExistingStage(job, grown, self._run_tokens)
        gather = GatherStage(job, lambda: grown.tokenizer)
        yield HashStage(job)
        yield tally_stage(job)
        yield existing
        if job.settings.near is not None:
            from lowtide.dataset.staged.nearadded import iter_near_stages

            yield from iter_near_stages(job, grown, self._run_tokens)
        if job.contamination_job is not None:
            from lowtide.dataset.contamination import judge_stage

            yield judge_stage(job.contamination_job)
        yield DuplicateStage(job, existing.count_tasks())
        yield EncodeStage(job, lambda: self._coding)
        yield CutStage(job, lambda: grown.tokenizer)
        yield gather
        yield _FinishStage(job, grown, self._place, gather, self.is_added)


class _FinishStage:
    """One task: moves new shards into the dataset, and replaces its metadata last."""

    name = FINISH_STAGE

    def __init__(
        self,
        job: StagedJob,
        grown: GrownDataset,
        place: DatasetPlace,
        gather: GatherStage,
        is_added: Callable[[], bool],
    ) -> None:
        self._job = job
        self._grown = grown
        self._place = place
        self._gather = gather
        self._is_added = is_added

    def count_tasks(self) -> int:
        """One."""
        return 1

    def run(self, index: int) -> None:
        """Add the results of all tasks to the dataset, unless that is done."""
        grown, place, records = self._grown, self._place, self._job.records
        try:
            with place.hold() as folder:
                if not self._is_added():
                    if place.find_version() != grown.version:
                        raise DatasetChangedError(grown.root, str(records.folder))
                    self._add(folder)
        except DataError as error:
            if not self._is_added():  # otherwise another worker removed the work
                if isinstance(error, DatasetChangedError):
                    place.clear(records.plan)
                raise
        records.commit_record(Task(self.name, index), facts={})

    def _add(self, folder: Path) -> None:
        job, grown, place = self._job, self._grown, self._place
        contents, totals = add_contents(job), add_up(job)
        require_unchanged(job.inputs, contents, job.reading)
        found = Findings(job.near, job.contamination)
        number = 1 + grown.num_appended
        logs = found.write_logs(folder, number)
        seen = None
        if grown.keeps_hashes:
            seen = copy_seen(folder, len(grown.seen), iter_seen_rows(job))
        claim = Claim(number, str(job.records.plan), load_cut(job).tag, str(job.records.folder))
        waiting = self._gather.list_shards(find_waiting(grown.root, job.records))
        added = Added(
            inputs=job.inputs,
            reading=job.reading,
            contents=contents,
            sources=totals.sources,
            shards=place.take_in(waiting, grown, claim),
            report=totals.report.as_json(),
            notices=[*totals.notices, *job.unknown_notices, *found.notices()],
            seen=seen,
            logs=logs,
        )
        grown.write_metadata(added, folder)
        place.finish(folder, grown.version, claim, most_bytes=job.table_bytes)
