"""Prepare a dataset with any number of workers that share a folder, as stages of tasks.

In:      PrepareSettings with --engine files; the same command on every machine
Out:     a dataset byte-identical to that of --engine threads
Memory:  each worker stays within its own budget
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from lowtide import _native
from lowtide.corpus.reading import ReadingSettings
from lowtide.corpus.usersteps import stop_steps
from lowtide.dataset.chosen import choose_inputs, find_inputs
from lowtide.dataset.encoding import EncodeJob
from lowtide.dataset.existing import is_finished, is_tokenizer_of
from lowtide.dataset.finishing import Made, plan_settings, write_dataset
from lowtide.dataset.identity import require_unchanged
from lowtide.dataset.phases import noticing_changes
from lowtide.dataset.resources import Shares, check_characters
from lowtide.dataset.seen import copy_seen
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.staged.ahead import EncodingAhead
from lowtide.dataset.staged.duplicates import (
    DUPLICATE_STAGE,
    TALLY_STAGE,
    DuplicateStage,
    Tally,
    tally_stage,
)
from lowtide.dataset.staged.encoding import ENCODE_STAGE, EncodeStage
from lowtide.dataset.staged.gathering import CutStage, GatherStage, add_contents, load_cut
from lowtide.dataset.staged.hashing import HashStage
from lowtide.dataset.staged.job import HASH_STAGE, StagedJob, WorkerLimits, iter_part_texts
from lowtide.dataset.staged.plan import PreparePlan, Sizes
from lowtide.dataset.staged.worker import (
    FINISH_STAGE,
    add_up,
    iter_seen_rows,
    make_encode_job,
    run_stages,
)
from lowtide.dataset.tokenfiles.shards import ShardInfo
from lowtide.engine.folders import work_folder_beside
from lowtide.engine.plans import commit_plan, read_plan
from lowtide.engine.records import Records
from lowtide.engine.separation import require_separate
from lowtide.engine.tasks import Stage, Task
from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.progress import Progress
from lowtide.stores.paths import is_stored
from lowtide.tokenizer import Tokenizer

__all__ = ["StagedResult", "prepare_shared", "work_folder"]

_LIMITS = WorkerLimits()
_BEFORE_SHARDS = (TALLY_STAGE, DUPLICATE_STAGE, ENCODE_STAGE)


class StagedResult(NamedTuple):
    """The result that a worker returns."""

    reading: ReadingSettings
    seconds: float
    peak_bytes: int
    budget_bytes: int


def work_folder(settings: PrepareSettings) -> Path:
    """The shared work folder: the given one, or one beside the output."""
    return settings.work_dir or work_folder_beside(settings.out_dir)


def prepare_shared(
    settings: PrepareSettings,
    *,
    sizes: Sizes | None = None,
    limits: WorkerLimits = _LIMITS,
    lease_seconds: float = 30.0,
    loading: Future[Tokenizer] | None = None,
) -> StagedResult:
    """Work on a preparation until it is done, by this worker or by others.

    The tokenizer is that of `loading`, if that has been used already.
    """
    found = find_inputs(settings)
    shares, budget_bytes = found.shares, found.budget.total_bytes
    work_dir = work_folder(settings)
    with Progress("prepare", budget_bytes=budget_bytes) as progress:
        inputs, reading = choose_inputs(found, settings, progress)
        del found  # frees its list of inputs: `inputs` is another one
        job = StagedJob(
            settings=settings,
            inputs=inputs,
            reading=reading,
            sizes=sizes or Sizes.of(inputs.total_bytes, is_stored=is_stored(work_dir)),
            records=Records(work_dir, places_kept=limits.places_kept),
            table_bytes=shares.table_bytes,
            range_bytes=shares.range_bytes,
            limits=limits,
        )
        run = _SharedPreparation(job, shares, progress, loading)
        require_separate(work_dir, [settings.out_dir, *settings.input_files])
        job.records.refuse_strangers(run.stage_names)
        _refuse_strangers(job)
        job.records.place.prepare()
        job.destination.prepare()
        try:
            # Other workers' results are kept: the change may only be visible on this machine.
            again = f"remove {work_dir}, and give the command again when nothing writes to it"
            with noticing_changes(inputs, next_step=again):
                run.run(lease_seconds)
        finally:
            _native.keep_freed_memory(False)
            stop_steps()
        # Again by the last worker: others may have written files while the first one removed them.
        job.records.remove(run.stage_names)
        return StagedResult(reading, progress.seconds, progress.peak_bytes, budget_bytes)


def _refuse_strangers(job: StagedJob) -> None:
    """Raise an error for a folder with shards, a tokenizer or work that no worker of ours made."""
    root = job.settings.out_dir
    named = job.settings.tokenization
    stranger = job.destination.find_taken(tokenizer=not is_tokenizer_of(named, root))
    if stranger and read_plan(job.records) is None and not is_finished(root):
        raise UsageError(
            f"{stranger} is here already, but no dataset that it belongs to",
            path=root,
            next_step="choose another --out-dir, or the --work-dir or --engine that it was begun "
            "with",
        )


def finish_removal(settings: PrepareSettings) -> None:
    """Remove the work of a finished dataset, if its worker was killed during the removal."""
    # A folder of another job is kept, and so is an unwritable one.
    with contextlib.suppress(DataError, UsageError, OSError):
        if read_plan(Records(work_folder(settings))) is not None:
            prepare_shared(settings)


class _SharedPreparation:
    """One worker on a preparation."""

    def __init__(
        self,
        job: StagedJob,
        shares: Shares,
        progress: Progress,
        loading: Future[Tokenizer] | None = None,
    ) -> None:
        self._job = job
        self._loading = loading
        self._shares = shares
        self._progress = progress
        self._tokenizer: Tokenizer | None = None
        self._coding: EncodeJob | None = None
        self._ahead: EncodingAhead | None = None
        self._lock = threading.Lock()

    def run(self, lease_seconds: float) -> None:
        """Do tasks until the dataset is complete."""
        job = self._job
        is_char = job.settings.tokenization == "char"
        plan = PreparePlan.of(
            plan_settings(job.settings),
            job.inputs,
            tokenizer=None if is_char else self.tokenizer().fingerprint,
            block_bytes=job.reading.block_bytes,
            sizes=job.sizes,
        )
        try:
            commit_plan(plan.as_json(), job.records)
        except DataError:  # left by a slow worker after the others had ended
            if is_finished(job.settings.out_dir):
                return
            raise
        self._ahead = self._plan_ahead()
        run_stages(
            self._iter_stages(),
            job,
            self._progress,
            num_workers=self._shares.num_workers,
            is_finished=partial(is_finished, job.settings.out_dir),
            lease_seconds=lease_seconds,
        )
        self._withdraw_shards()

    def _withdraw_shards(self) -> None:
        """Remove our shards if the dataset here is one that another job has finished meanwhile.

        The caller compares the dataset with our settings, and reports what differs.
        """
        # Without the work folder, which other workers on this job may have removed, there is none.
        with contextlib.suppress(LowtideError, OSError):
            self._job.destination.withdraw(GatherStage(self._job, self.tokenizer).list_names())

    @property
    def stage_names(self) -> list[str]:
        """The names of the stages' folders in the work folder."""
        return [stage.name for stage in self.stages()]

    def stages(self) -> list[Stage]:
        """All stages, in order."""
        job = self._job
        gather = GatherStage(job, self.tokenizer)
        return [
            *self._score_stages(),
            HashStage(job, self._ahead),
            tally_stage(job),
            *self._near_stages(),
            *self._judge_stages(),
            DuplicateStage(job),
            EncodeStage(job, self.encode_job),
            CutStage(job, self.tokenizer),
            gather,
            _FinishStage(job, gather, self.tokenizer),
        ]

    def _plan_ahead(self) -> EncodingAhead | None:
        """The encoder of parts right after hashing; None if more than lines depends on all text."""
        job, shares = self._job, self._shares
        if job.settings.keeps_text or job.settings.tokenization == "char":
            return None
        return EncodingAhead(
            job,
            EncodeStage(job, self.encode_job),
            table_bytes=shares.one_pass_bytes // 2,
            text_bytes=shares.held_bytes,
        )

    def _iter_stages(self) -> Iterator[Stage]:
        """All stages, in order, except those whose results are not needed.

        If all parts were encoded right after hashing, these are all between hashing and the shards:
        each would take some flushes to the disk, during which nothing else happens.
        """
        needless: Collection[str] = ()
        for stage in self.stages():
            if stage.name in needless or (stage.name == DUPLICATE_STAGE and self._is_encoded()):
                continue
            yield stage
            if self._ahead is not None and stage.name == HASH_STAGE:
                self._ahead.close()
                # Without the shuffle, borders of shards follow the first blocks in the tally.
                if self._job.settings.shuffle and self._is_encoded():
                    needless = _BEFORE_SHARDS

    def _is_encoded(self) -> bool:
        return len(self._job.records.list_done(ENCODE_STAGE)) == len(self._job.parts)

    def _score_stages(self) -> list[Stage]:
        """The stages that find the best share of documents, if only that is kept."""
        job, share = self._job, self._job.settings.keep_top
        if share is None:
            return []
        from lowtide.dataset.staged.scoring import ScoreStage, top_stage

        return [ScoreStage(job), top_stage(job, share)]

    def _judge_stages(self) -> list[Stage]:
        """The stage that judges found evaluation items, if they are searched for."""
        if self._job.contamination_job is None:
            return []
        from lowtide.dataset.contamination import judge_stage

        return [judge_stage(self._job.contamination_job)]

    def _near_stages(self) -> list[Stage]:
        """The stages that find near copies, if they are searched for."""
        job, options = self._job, self._job.settings.near
        if options is None:
            return []
        from lowtide.dataset.near.job import NearJob
        from lowtide.dataset.near.running import list_near_stages

        near = NearJob(
            options=options,
            records=job.records,
            sign_stage=HASH_STAGE,
            num_parts=len(job.parts),
            num_partitions=job.sizes.num_partitions,
            leave_copies=job.settings.dedup,
            table_bytes=job.table_bytes,
            load_first_blocks=lambda: Tally.load(job).first_blocks,
            iter_part=partial(iter_part_texts, job),
        )
        return list_near_stages(near)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, loaded or made once."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._make_tokenizer()
            return self._tokenizer

    def _make_tokenizer(self) -> Tokenizer:
        if self._loading is not None:
            return self._loading.result()
        if self._job.settings.tokenization != "char":
            return Tokenizer.load(self._job.settings.tokenization)
        codes = self._job.characters
        check_characters(len(codes), self._shares, self._progress.budget_bytes or 0)
        return Tokenizer.from_characters(map(chr, codes))

    def encode_job(self) -> EncodeJob:
        """The settings for encoding blocks; one encoder for all threads."""
        tokenizer = self.tokenizer()
        with self._lock:
            if self._coding is None:
                self._coding = make_encode_job(self._job, tokenizer, tokenizer.end_of_text_id)
            return self._coding


class _FinishStage:
    """One task: writes the tokenizer, hashes for `append`, and last the metadata."""

    name = FINISH_STAGE

    def __init__(
        self, job: StagedJob, gather: GatherStage, load_tokenizer: Callable[[], Tokenizer]
    ) -> None:
        self._job = job
        self._gather = gather
        self._load_tokenizer = load_tokenizer

    def count_tasks(self) -> int:
        """One."""
        return 1

    def run(self, index: int) -> None:
        """Write the remaining files of the dataset."""
        job, tokenizer = self._job, self._load_tokenizer()
        with job.destination.stage(locked=True) as root:
            if not is_finished(job.settings.out_dir):
                shards = self._gather.list_shards(root)
                names = [shard.path.relative_to(root) for shard in chain(*shards.values())]
                self._keep_only(names)
                made = self._collect(root, shards)
                require_unchanged(job.inputs, made.contents, job.reading)
                tokenizer.save(root)
                settings = replace(job.settings, out_dir=root)
                write_dataset(settings, job.inputs, job.reading, tokenizer, made)
                job.destination.finish(root)
        job.records.commit_record(Task(self.name, index), facts={})

    def _keep_only(self, names: list[Path]) -> None:
        """Raise an error for a dataset whose shards are in another location, or missing."""
        missing = self._job.destination.keep_only(names)
        if missing is not None:
            raise DataError(
                f"{missing} is not here, but a worker on this work has written it",
                path=self._job.settings.out_dir,
                next_step="give every worker the same --out-dir, a folder that all of them see or "
                f"a prefix of a store, remove {self._job.records.folder}, and start again",
            )

    def _collect(self, root: Path, shards: dict[str, list[ShardInfo]]) -> Made:
        """The results of this preparation."""
        job, totals = self._job, add_up(self._job)
        return Made(
            split_mode=load_cut(job).plan.split_mode,
            shards=shards,
            report=totals.report,
            notices=totals.notices,
            contents=add_contents(job),
            sources=totals.sources,
            seen=copy_seen(root, 0, iter_seen_rows(job)) if job.settings.dedup else None,
            near=job.near,
            contamination=job.contamination,
        )
