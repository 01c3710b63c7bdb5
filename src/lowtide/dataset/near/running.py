"""Find near copies with the threads of one process, among blocks whose clean text is on disk.

In:      a BlockTable with text
Out:     NearRemovals; results of tasks in WORK/near, so that what is done is not done again
Memory:  per worker one block, or `table_bytes` of rows
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from lowtide.corpus.blocks import BlockTable
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import open_work_file
from lowtide.dataset.near.deciding import DecideStage, SetStage
from lowtide.dataset.near.job import BlockText, NearJob
from lowtide.dataset.near.likeness import Likeness
from lowtide.dataset.near.pairs import BucketStage, PairStage
from lowtide.dataset.near.removals import NearRemovals
from lowtide.dataset.near.signing import SIGN_STAGE, SignStage
from lowtide.dataset.staged.plan import Sizes
from lowtide.engine.records import Records
from lowtide.engine.tasks import Stage
from lowtide.progress import Progress

__all__ = ["find_near_copies", "list_near_stages"]

_BLOCKS_IN_PART = 16
_PHASES = {
    "near-sign": "sign",
    "near-buckets": "find pairs",
    "near-pairs": "sort pairs",
    "near-sets": "read pairs",
    "near-decide": "compare pairs",
}


def list_near_stages(job: NearJob) -> list[Stage]:
    """The stages once documents are signed, in order."""
    return [BucketStage(job), PairStage(job), SetStage(job), DecideStage(job)]


def find_near_copies(
    table: BlockTable,
    folder: Path,
    options: Likeness,
    pool: WorkerPool,
    progress: Progress,
    *,
    table_bytes: int,
    leave_copies: bool,
) -> NearRemovals:
    """Find the near copies among all blocks of a table."""
    starts = [*range(0, len(table), _BLOCKS_IN_PART), len(table)]
    sizes = Sizes.of(sum(table.text_bytes))

    def iter_part(part: int) -> Iterator[Callable[[], BlockText]]:
        for block in range(starts[part], starts[part + 1]):
            yield lambda block=block: _load_block(table, block)

    job = NearJob(
        options=options,
        records=Records(folder),
        sign_stage=SIGN_STAGE,
        num_parts=len(starts) - 1,
        num_partitions=sizes.num_partitions,
        leave_copies=leave_copies,
        table_bytes=table_bytes,
        load_first_blocks=lambda: starts,
        iter_part=iter_part,
    )
    for stage in [SignStage(job, sizes.partition_borders()), *list_near_stages(job)]:
        _run_stage(stage, job.records, pool, progress)
    return NearRemovals(job.records, options)


def _load_block(table: BlockTable, block: int) -> BlockText:
    work = open_work_file(table.paths[block])
    return work.read("text"), work.read("documents")


def _run_stage(stage: Stage, records: Records, pool: WorkerPool, progress: Progress) -> None:
    count = stage.count_tasks()
    done = records.list_done(stage.name)

    def tasks() -> Iterator[Callable[[], None]]:
        for index in range(count):
            if index not in done:
                yield lambda index=index: stage.run(index)

    name = f"near copies: {_PHASES[stage.name]}"
    with progress.phase(name, total=count, unit="tasks") as phase:
        phase.advance(len(done))
        for _ in pool.run(tasks()):
            phase.advance()
