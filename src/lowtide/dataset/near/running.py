"""Find near copies with the threads of one process, among blocks whose clean text is on disk.

In:      a BlockTable with text
Out:     NearRemovals; results of tasks in WORK/near, so that finished tasks are not repeated
Memory:  per worker one block, or `table_bytes` of rows
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from lowtide.corpus.blocktable import BlockTable
from lowtide.corpus.evaluations import EvaluationItems
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import open_work_file
from lowtide.dataset.contamination import (
    SCAN_STAGE,
    Contamination,
    ContaminationJob,
    ScanStage,
    judge_stage,
)
from lowtide.dataset.near.deciding import DecideStage, SetStage
from lowtide.dataset.near.job import BlockText, NearJob, NearLimits
from lowtide.dataset.near.likeness import Likeness
from lowtide.dataset.near.pairs import BucketStage, pair_stage
from lowtide.dataset.near.removedcopies import NearRemovals
from lowtide.dataset.near.signing import SIGN_STAGE, SignStage
from lowtide.dataset.staged.plan import Sizes
from lowtide.engine.records import Records
from lowtide.engine.tasks import Stage, run_task
from lowtide.progress import Progress

__all__ = ["find_contamination", "find_near_copies", "list_near_stages"]

_LIMITS = NearLimits()
_PHASES = {
    "near-sign": "near copies: sign",
    "near-buckets": "near copies: find pairs",
    "near-pairs": "near copies: sort pairs",
    "near-sets": "near copies: read pairs",
    "near-decide": "near copies: compare pairs",
    "scan": "look for evaluation items",
    "judge": "count evaluation items",
}


def list_near_stages(job: NearJob) -> list[Stage]:
    """The stages once documents are signed, in order."""
    return [BucketStage(job), pair_stage(job), SetStage(job), DecideStage(job)]


def find_contamination(
    table: BlockTable,
    folder: Path,
    items: EvaluationItems,
    pool: WorkerPool,
    progress: Progress,
    *,
    cuts: bool,
    counts_before: Path | None = None,
    limits: NearLimits = _LIMITS,
) -> Contamination:
    """Find text of evaluation items in all blocks of a table.

    `counts_before` is the path of counts (`read_counts`) of text that is not in the table.
    """
    starts = [*range(0, len(table), limits.blocks_in_part), len(table)]
    job = ContaminationJob(
        items=items,
        cuts=cuts,
        records=Records(folder),
        scan_stage=SCAN_STAGE,
        num_parts=len(starts) - 1,
        counts_before=counts_before,
    )
    for stage in (ScanStage(job, partial(_iter_part, table, starts)), judge_stage(job)):
        _run_stage(stage, job.records, pool, progress)
    return Contamination(job)


def _iter_part(
    table: BlockTable, starts: list[int], part: int
) -> Iterator[Callable[[], BlockText]]:
    for block in range(starts[part], starts[part + 1]):
        yield lambda block=block: _load_block(table, block)


def find_near_copies(
    table: BlockTable,
    folder: Path,
    options: Likeness,
    pool: WorkerPool,
    progress: Progress,
    *,
    table_bytes: int,
    leave_copies: bool,
    first_block: int = 0,
    sizes: Sizes | None = None,
    limits: NearLimits = _LIMITS,
) -> NearRemovals:
    """Find the near copies among the blocks of a table from `first_block` on.

    They are compared with each other and with all blocks before them.
    """
    starts = [*range(0, len(table), limits.blocks_in_part), len(table)]
    sizes = sizes or Sizes.of(sum(table.text_bytes))
    job = NearJob(
        options=options,
        records=Records(folder),
        sign_stage=SIGN_STAGE,
        num_parts=len(starts) - 1,
        num_partitions=sizes.num_partitions,
        leave_copies=leave_copies,
        table_bytes=table_bytes,
        load_first_blocks=lambda: starts,
        iter_part=partial(_iter_part, table, starts),
        first_block=first_block,
        limits=limits,
    )
    for stage in [SignStage(job, sizes.partition_borders()), *list_near_stages(job)]:
        _run_stage(stage, job.records, pool, progress)
    return NearRemovals(job.records, options, first_block=first_block)


def _load_block(table: BlockTable, block: int) -> BlockText:
    work = open_work_file(table.paths[block])
    return work.read("text"), work.read("documents")


def _run_stage(stage: Stage, records: Records, pool: WorkerPool, progress: Progress) -> None:
    count = stage.count_tasks()
    done = records.list_done(stage.name)

    def tasks() -> Iterator[Callable[[], None]]:
        for index in range(count):
            if index not in done:
                yield lambda index=index: run_task(stage, index)

    with progress.phase(_PHASES[stage.name], total=count, unit="tasks") as phase:
        phase.advance(len(done))
        for _ in pool.run(tasks()):
            phase.advance()
