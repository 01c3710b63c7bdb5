"""Run the stages of a prepare or append in one worker, and sum up the counts of all parts.

In:      stages, in order; the results of hash and encode tasks
Out:     the stages are done; the counts of all parts, summed in the order of the corpus
Memory:  that of the stages; a few numbers per input
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from lowtide import _native
from lowtide.corpus.removals import Report
from lowtide.dataset.encoding import Coder, EncodeJob, SourceCounts
from lowtide.dataset.staged.encoding import ENCODE_STAGE, SOURCE_ROW
from lowtide.dataset.staged.job import HASH_STAGE, StagedJob
from lowtide.engine.shared import run_in_phases
from lowtide.engine.tasks import Stage, Task
from lowtide.memory import resident_bytes
from lowtide.progress import Progress
from lowtide.tokenizer import Tokenizer

__all__ = ["FINISH_STAGE", "Totals", "add_up", "iter_seen_rows", "make_encode_job", "run_stages"]

FINISH_STAGE = "finish"
_STEP_BYTES = 1 << 20


def run_stages(
    stages: Iterable[Stage],
    job: StagedJob,
    progress: Progress,
    *,
    num_workers: int,
    is_finished: Callable[[], bool],
    lease_seconds: float,
) -> None:
    """Do tasks until all stages are done, by this worker or by others; each stage is a phase."""
    _native.keep_freed_memory(True)
    run_in_phases(
        stages,
        job.records,
        progress,
        num_workers=num_workers,
        is_finished=is_finished,
        lease_seconds=lease_seconds,
        before_stage=lambda: _give_back(progress.budget_bytes),
    )


def _give_back(budget_bytes: int | None) -> None:
    """Return memory freed by an earlier stage to the system, if it is much.

    Every task allocates and frees blocks, and the next stage reuses their memory. Returning it
    before every stage cost 6,000 more page faults for 120 MB, a fifth of all.
    """
    if budget_bytes is not None and resident_bytes() > budget_bytes // 2:
        _native.keep_freed_memory(True)


def make_encode_job(job: StagedJob, tokenizer: Tokenizer, end_id: int | None) -> EncodeJob:
    """The settings for encoding blocks; one encoder for all threads."""
    return EncodeJob(
        cleaning=job.settings.cleaning,
        coder=Coder(tokenizer, end_id=end_id),
        shuffle=job.settings.shuffle,
        seed=job.settings.seed,
        folder=Path(),  # unused: tasks commit their own results
    )


class Totals(NamedTuple):
    """The counts of all parts."""

    report: Report
    sources: SourceCounts
    notices: list[str]


def add_up(job: StagedJob) -> Totals:
    """Sum the counts of all parts, in the order of the corpus."""
    report, sources = Report(), SourceCounts(len(job.inputs), first_index=job.first_index)
    report.cut = job.cut
    stream_notices: list[str] = []
    block_notices: list[str] = []
    for part in range(len(job.parts)):
        header = job.records.open(Task(HASH_STAGE, part)).header
        report.add_state(header["report"])
        stream_notices += header["stream_notices"]
        block_notices += header["block_notices"]
    for part in range(len(job.parts)):
        output = job.records.open(Task(ENCODE_STAGE, part))
        report.add_state(output.header["report"])
        sources.add(SOURCE_ROW.iter_unpack(output.read("sources")))
    return Totals(report, sources, stream_notices + block_notices)


def iter_seen_rows(job: StagedJob) -> Iterator[memoryview]:
    """The hashes of all parts that later appends need, a chunk at a time."""
    for part in range(len(job.parts)):
        output = job.records.open(Task(ENCODE_STAGE, part))
        for begin in range(0, output.size("seen"), _STEP_BYTES):
            end = min(begin + _STEP_BYTES, output.size("seen"))
            yield output.read("seen", begin=begin, end=end)
