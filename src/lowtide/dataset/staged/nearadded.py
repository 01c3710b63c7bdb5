"""The stages of `append` that find near copies among new documents and those of the dataset.

In:      documents of the dataset, decoded, then parts of the new text
Out:     the near copies to remove, only new ones: existing documents are never removed
Memory:  one block; `table_bytes` of rows

A separate stage computes the signatures, first those of the dataset's shards.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

from lowtide.dataset.grown import GrownDataset
from lowtide.dataset.near.job import NEAR_SECTIONS, BlockText, NearJob
from lowtide.dataset.near.running import list_near_stages
from lowtide.dataset.near.signing import SIGN_STAGE, SignStage
from lowtide.dataset.staged.existingtext import DocumentRuns
from lowtide.dataset.staged.job import StagedJob, iter_part_texts
from lowtide.engine.partitions import count_blocks
from lowtide.engine.tasks import Stage, Task

__all__ = ["iter_near_stages"]


def iter_near_stages(job: StagedJob, grown: GrownDataset, run_tokens: int) -> Iterator[Stage]:
    """Compute all signatures, then find pairs and compare them."""
    runs = DocumentRuns(job, grown, run_tokens)
    options = job.settings.near
    assert options is not None

    def iter_part(part: int) -> Iterator[Callable[[], BlockText]]:
        if part < len(runs):
            return runs.iter_part(part)
        return iter_part_texts(job, part - len(runs))

    make_job = partial(
        NearJob,
        options=options,
        records=job.records,
        sign_stage=SIGN_STAGE,
        num_parts=len(runs) + len(job.parts),
        num_partitions=job.sizes.num_partitions,
        leave_copies=job.settings.dedup,
        table_bytes=job.table_bytes,
        load_first_blocks=lambda: _count_blocks(job, len(runs) + len(job.parts)),
        iter_part=iter_part,
    )
    yield SignStage(make_job(), job.sizes.partition_borders())
    first_block = _count_blocks(job, len(runs))[-1]  # known after the signature stage
    yield from list_near_stages(make_job(first_block=first_block))


def _count_blocks(job: StagedJob, num_parts: int) -> Sequence[int]:
    """The index of each part's first block, and the number of all blocks."""
    counts = (
        count_blocks(job.records.open(Task(SIGN_STAGE, part)), NEAR_SECTIONS)
        for part in range(num_parts)
    )
    return array("q", accumulate(counts, initial=0))
