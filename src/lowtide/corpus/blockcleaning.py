"""Clean a whole corpus, block by block, into work files; finished blocks are not cleaned again.

In:      streams of inputs (reading)
Out:     one work file per block: document rows, hashes by their first byte, clean text
Memory:  one block per worker; afterwards a few numbers per block of 4 MiB
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lowtide import _native
from lowtide.corpus.cleaning import clean_block, count_languages, native_options
from lowtide.corpus.inputhashes import hash_content
from lowtide.corpus.ranking import ScoreCut
from lowtide.corpus.reading import ReadingSettings, Stream, TextBlock, iter_blocks, read_block
from lowtide.corpus.settings import CleaningSettings
from lowtide.corpus.textblocks import StreamPaths
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import WorkFile, open_work_file, write_work_file
from lowtide.quickclasses import dataclass

__all__ = [
    "BlockConsumer",
    "CleanJob",
    "FinishedBlock",
    "clean_corpus",
    "has_many_streams",
    "write_block",
]

BLOCK_BYTES_HELD = 12
"""Peak memory of a worker per byte of a block: raw and clean text, hashes, kept lines, ids."""
RULES_BYTES_HELD = 8
"""Additional bytes with quality rules: a million words and their n-grams."""


class FinishedBlock(NamedTuple):
    """A clean block as it was written, and the result of its consumer."""

    stored_bytes: int
    work: WorkFile
    made: WorkFile | None = None


class BlockConsumer(Protocol):
    """Receives blocks as soon as they are clean; each once, with its index in the corpus."""

    def take(
        self, place: int, path: Path, block: TextBlock, cleaned: _native.CleanedBlock
    ) -> WorkFile | None:
        """Process a clean block, which is written to `path`.

        Returns the work file of its result; None if the block's text is needed later.
        """
        ...

    def pass_by(self, place: int, work: WorkFile) -> None:
        """Register a block that an earlier command has finished."""
        ...

    def stop(self) -> None:
        """Called at the end, and after an error: no more blocks follow."""
        ...


@dataclass(frozen=True)
class CleanJob:
    """Everything the cleaning of a corpus depends on."""

    streams: list[Stream]
    reading: ReadingSettings
    cleaning: CleaningSettings
    folder: Path
    collect_characters: bool = False
    collect_scores: bool = False
    """Store only the score keys of a block (`ranking`)."""
    cut: ScoreCut | None = None
    """With `keep_top`: which scores are kept."""
    consumer: BlockConsumer | None = None
    is_encoded: Callable[[Path], bool] | None = None
    """Returns whether an earlier command encoded a block; then its text is no longer needed."""

    @cached_property
    def paths(self) -> StreamPaths:
        """The paths of the inputs."""
        return StreamPaths(self.streams)

    @cached_property
    def native(self) -> _native.CleanOptions:
        """The options of cleaning as the native core takes them."""
        return native_options(
            self.cleaning,
            collect_characters=self.collect_characters,
            collect_scores=self.collect_scores,
            cut=self.cut,
        )

    def block_path(self, stream: int, number: int) -> Path:
        """The path of a block's result."""
        return self.folder / f"{stream:07d}-{number:07d}.block"

    def end_path(self, stream: int) -> Path:
        """The path of the marker of a stream that was read to its end: its number of blocks."""
        return self.folder / f"{stream:07d}.end"


def clean_corpus(
    job: CleanJob,
    pool: WorkerPool,
    *,
    on_done: Callable[[int], None],
    on_block: Callable[[FinishedBlock], None] | None = None,
) -> None:
    """Clean every block that is not clean yet; `on_done` is called with the stored bytes of each.

    `on_block` is called for each finished block, in order from the first on; never if streams are
    cleaned in parallel.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    lock = threading.Lock()

    def report(size: int) -> None:
        with lock:
            on_done(size)

    if job.consumer is None and pool.num_workers > 1 and has_many_streams(job.streams):
        for _ in pool.run(_iter_side_by_side(job, report), num_waiting=4 * pool.num_workers):
            pass
        return
    try:
        # Tasks that read their own block hold no memory until they start, so enough of them are
        # queued to keep all workers busy while one is slow.
        is_free = all(stream.random_access for stream in job.streams)
        num_waiting = pool.num_workers if is_free else 1
        for block in pool.run(_iter_tasks(job), num_waiting=num_waiting):
            if block is None:
                continue
            report(block.stored_bytes)
            if on_block is not None:
                on_block(block)
    finally:
        if job.consumer is not None:
            job.consumer.stop()


def has_many_streams(streams: Sequence[Stream]) -> bool:
    """True if there are several files that can only be read in order; each then gets a worker.

    Otherwise one worker reads such files in turn, and the others clean what it has read.
    """
    in_order = [stream.size_bytes for stream in streams if not stream.random_access]
    total = sum(stream.size_bytes for stream in streams)
    return len(in_order) > 1 and 10 * (sum(in_order) - max(in_order)) >= total


def _iter_side_by_side(
    job: CleanJob, report: Callable[[int], None]
) -> Iterator[Callable[[], None]]:
    for stream in job.streams:
        if not stream.random_access:
            yield lambda stream=stream: _clean_stream(job, stream, report)
            continue
        for number in range(stream.num_blocks):
            yield lambda stream=stream, number=number: report(
                _clean_numbered(job, stream, number, 0).stored_bytes
            )


def _clean_stream(job: CleanJob, stream: Stream, report: Callable[[int], None]) -> None:
    """Read a whole stream and clean it, as one task."""
    if _count_finished(job, stream) is not None:
        report(stream.size_bytes)
        return
    notices: list[str] = []
    reading = job.reading.noticing(notices.append)
    count = 0
    for block in filter(None, iter_blocks(stream, reading)):
        count = block.number + 1
        if not _is_done(job, job.block_path(stream.index, block.number)):
            write_block(job, block, block.number)
        report(block.stored_bytes)
    _end_stream(job, stream, count, notices)


def _iter_tasks(job: CleanJob) -> Iterator[BlockTask]:
    place = 0
    for stream in job.streams:
        finished = _count_finished(job, stream)
        if finished is not None:
            for number in range(finished):
                path = job.block_path(stream.index, number)
                size = 0 if number else stream.size_bytes
                yield _task(_pass_by, job, place + number, path, size)
            place += finished
        elif stream.random_access:
            for number in range(stream.num_blocks):
                yield _task(_clean_numbered, job, stream, number, place + number)
            place += stream.num_blocks
        else:
            place = yield from _iter_stream_tasks(job, stream, place)


BlockTask = Callable[[], FinishedBlock | None]
"""Returns the block of the task, if it has one."""


def _task(
    function: Callable[..., FinishedBlock | None], job: CleanJob, *arguments: Any
) -> BlockTask:
    """Return a task that stops the consumer if it fails, so that no other task waits for it."""

    def run() -> FinishedBlock | None:
        try:
            return function(job, *arguments)
        except BaseException:
            if job.consumer is not None:
                job.consumer.stop()
            raise

    return run


def _count_finished(job: CleanJob, stream: Stream) -> int | None:
    """The number of blocks of a stream that was read to its end, if all of them exist."""
    path = job.end_path(stream.index)
    if not path.exists():
        return None
    count = open_work_file(path).header["blocks"]
    paths = [job.block_path(stream.index, number) for number in range(count)]
    return count if all(_is_done(job, path) for path in paths) else None


def _is_done(job: CleanJob, path: Path) -> bool:
    if not path.exists():
        return False
    has_text = open_work_file(path).header["has_text"]
    return has_text or (job.is_encoded is not None and job.is_encoded(path))


def _pass_by(job: CleanJob, place: int, path: Path, size: int) -> FinishedBlock:
    work = open_work_file(path)
    if job.consumer is not None:
        job.consumer.pass_by(place, work)
    return FinishedBlock(size, work)


def _iter_stream_tasks(
    job: CleanJob, stream: Stream, place: int
) -> Generator[BlockTask, None, int]:
    """Read a stream in this thread while workers clean its blocks; returns the next index."""
    notices: list[str] = []
    reading = job.reading.noticing(notices.append)
    count = 0
    for block in filter(None, iter_blocks(stream, reading)):
        count = block.number + 1
        path = job.block_path(stream.index, block.number)
        if _is_done(job, path):
            yield _task(_pass_by, job, place + block.number, path, block.stored_bytes)
        else:
            yield _task(write_block, job, block, block.number, place + block.number)
    yield _task(_end_stream, job, stream, count, notices)
    return place + count


def _end_stream(job: CleanJob, stream: Stream, count: int, notices: list[str]) -> None:
    end = {"blocks": count, "notices": notices}
    write_work_file(job.end_path(stream.index), end, {})


def _clean_numbered(job: CleanJob, stream: Stream, number: int, place: int) -> FinishedBlock:
    path = job.block_path(stream.index, number)
    if _is_done(job, path):
        return _pass_by(job, place, path, min(job.reading.block_bytes, stream.size_bytes))
    notices: list[str] = []
    block = read_block(stream, number, job.reading.noticing(notices.append))
    if block is None:
        block = TextBlock(stream.index, number, "text", b"", ())  # all of it is in the block before
    return write_block(job, block, number, place, notices=notices)


def write_block(
    job: CleanJob,
    block: TextBlock,
    number: int,
    place: int = 0,
    *,
    notices: list[str] | None = None,
    keep_text: bool = True,
) -> FinishedBlock:
    """Clean a block and write its work file; without its text, it is used for comparison only."""
    notices = [] if notices is None else notices
    cleaned = clean_block(
        block,
        job.reading.noticing(notices.append),
        job.cleaning,
        paths=job.paths,
        collect_characters=job.collect_characters,
        collect_scores=job.collect_scores,
        cut=job.cut,
        native=job.native,
    )
    path = job.block_path(block.stream, number)
    if job.collect_scores:
        known = {"has_text": True, "content": hash_content(block, job.reading)}
        work = write_work_file(path, known, {"keys": cleaned.score_keys})
        return FinishedBlock(block.stored_bytes, work)
    made = None if job.consumer is None else job.consumer.take(place, path, block, cleaned)
    keep_text = keep_text and made is None
    header = {
        "has_text": keep_text,
        "continues": block.continues,
        "continued": block.continued,
        "documents_in": cleaned.documents_in,
        "lines_in": cleaned.lines_in,
        "bytes_in": cleaned.bytes_in,
        "counts": cleaned.counts,
        "samples": [(rule, text.decode("utf-8", "replace")) for rule, text in cleaned.samples],
        "languages": count_languages(cleaned, job.cleaning),
        "notices": notices,
        "content": hash_content(block, job.reading),
    }
    sections = {
        "documents": cleaned.documents,
        "radix_ends": cleaned.radix_ends,
        "hashes": cleaned.hashes,
        "characters": cleaned.characters,
        "text": cleaned.text if keep_text else cleaned.text[:0],
    }
    return FinishedBlock(block.stored_bytes, write_work_file(path, header, sections), made)
