"""The phases that `prepare` and `append` share, each with its progress line.

In:      jobs of the corpus and of encoding; a plan of shards
Out:     the result of each job; work files and shards on the disk
Memory:  that of the jobs
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from lowtide.corpus.blockcleaning import CleanJob, FinishedBlock, clean_corpus
from lowtide.corpus.blocktable import BlockTable, TableBuilder, find_score_cut
from lowtide.corpus.deduplication import LeaveOut, RemovedLines, find_duplicates
from lowtide.corpus.inputhashes import InputHashes
from lowtide.corpus.inputs import InputFile, changed_input, has_changed
from lowtide.corpus.ranking import ScoreCut, describe_cut
from lowtide.corpus.workers import WorkerPool
from lowtide.dataset.encoding import EncodedTotals, EncodeJob, Removed, encode_corpus
from lowtide.dataset.resources import Shares
from lowtide.dataset.sharding import ShardJob, ShardPlan, write_shards
from lowtide.dataset.tokenfiles.shards import ShardInfo
from lowtide.errors import from_os_error
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass

__all__ = [
    "RankedInputs",
    "naming_folder",
    "noticing_changes",
    "run_cleaning",
    "run_deduplication",
    "run_encoding",
    "run_scoring",
    "run_sharding",
]


@contextlib.contextmanager
def naming_folder(root: Path) -> Generator[None]:
    """Convert an OSError (mostly a full disk) to an error with the folder and the next step."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(root)
        raise from_os_error(error) from error


@contextlib.contextmanager
def noticing_changes(
    inputs: Sequence[InputFile],
    forget: Callable[[], None] | None = None,
    *,
    next_step: str | None = None,
) -> Generator[None]:
    """If reading failed because an input changed meanwhile, raise an error that says so.

    `forget` removes the results of reading it, which may be half old and half new. If other workers
    still use them, `next_step` asks the user to remove them instead.
    """
    try:
        yield
    except Exception as error:
        changed = next((source for source in inputs if has_changed(source)), None)
        if changed is None:
            raise
        if forget is not None:
            forget()
        raise changed_input(changed, next_step=next_step) from error


def run_cleaning(
    job: CleanJob,
    pool: WorkerPool,
    progress: Progress,
    *,
    name: str | None = None,
    totals: EncodedTotals | None = None,
) -> BlockTable:
    """Clean all inputs of a job, and report what could not be read.

    Blocks that are encoded as soon as they are clean are added to `totals`.
    """
    total = sum(stream.size_bytes for stream in job.streams)
    usual = "clean" if job.consumer is None else "clean, encode"
    with progress.phase(name or usual, total=total, unit="B") as phase:
        table_builder = TableBuilder(job)

        def add(block: FinishedBlock) -> None:
            table_builder.add(block.work)
            if totals is not None:
                totals.add(block.made)

        clean_corpus(job, pool, on_done=phase.advance, on_block=add)
        table = table_builder.finish()
    for notice in table.notices:
        progress.note(notice)
    return table


@dataclass(frozen=True)
class RankedInputs:
    """The score threshold, and the hashes of the inputs it was computed from."""

    cut: ScoreCut
    contents: InputHashes

    def require_same(self, inputs: Sequence[InputFile], contents: InputHashes) -> None:
        """Refuse inputs that have changed since their scores were ranked."""
        for source in inputs:
            if self.contents.get(source.index) != contents.get(source.index):
                raise changed_input(source)


def run_scoring(
    job: CleanJob, pool: WorkerPool, progress: Progress, share: float
) -> tuple[ScoreCut, InputHashes]:
    """Score all documents of a job and find where the best share of them ends."""
    total = sum(stream.size_bytes for stream in job.streams)
    with progress.phase("score", total=total, unit="B") as phase:
        clean_corpus(job, pool, on_done=phase.advance)
        cut, contents = find_score_cut(job, share)
    progress.note(describe_cut(cut))
    return cut, contents


def run_deduplication(
    table: BlockTable,
    folder: Path,
    pool: WorkerPool,
    progress: Progress,
    shares: Shares,
    *,
    leave_out: LeaveOut | None = None,
) -> RemovedLines:
    """Find all duplicates among the blocks of a table."""
    total = sum(table.num_hashes)
    with progress.phase("deduplicate", total=total, unit="lines") as phase:
        return find_duplicates(
            table,
            folder,
            pool,
            table_bytes=shares.table_bytes,
            on_done=phase.advance,
            leave_out=leave_out,
        )


def run_encoding(
    job: EncodeJob,
    table: BlockTable,
    removed: Removed | None,
    pool: WorkerPool,
    progress: Progress,
    *,
    first_block: int = 0,
) -> None:
    """Encode all blocks of a table from `first_block` on."""
    total = sum(table.text_bytes[first_block:])
    tokens = 0
    with progress.phase("encode", total=total, unit="B") as phase:

        def done(text_bytes: int, num_tokens: int) -> None:
            nonlocal tokens
            tokens += num_tokens
            phase.advance(text_bytes, tokens=tokens)

        encode_corpus(job, table, removed, pool, first_block=first_block, on_done=done)


def run_sharding(
    job: ShardJob, plan: ShardPlan, pool: WorkerPool, progress: Progress
) -> dict[str, list[ShardInfo]]:
    """Write all shards of a plan."""
    total = sum(shard.num_tokens for shard in plan.shards)
    with progress.phase("write shards", total=total, unit="tokens") as phase:
        return write_shards(job, plan, pool, on_done=phase.advance)
