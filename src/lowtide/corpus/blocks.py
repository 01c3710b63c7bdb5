"""Clean a whole corpus, block by block, into work files; a block that is done stays done.

In:      streams of inputs (reading)
Out:     one work file per block: document rows, hashes by their first byte, clean text
Memory:  one block per worker; afterwards a few numbers per block of 4 MiB
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide import files
from lowtide.corpus.cleaning import DOCUMENT_ROW, CleaningOptions, Report, clean_block
from lowtide.corpus.reading import ReadingOptions, Stream, TextBlock, iter_blocks, read_block
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import open_work_file, write_work_file

__all__ = ["BlockTable", "CleanJob", "Identity", "clean_corpus", "load_block_table", "write_block"]

BLOCK_BYTES_HELD = 12
"""Bytes a worker holds at its peak for each byte of a block: raw, clean, hashes, kept, ids."""


@dataclass(frozen=True)
class CleanJob:
    """Everything the cleaning of a corpus depends on."""

    streams: list[Stream]
    reading: ReadingOptions
    cleaning: CleaningOptions
    folder: Path
    collect_characters: bool = False
    paths: dict[int, Path] = field(init=False)

    def __post_init__(self) -> None:
        paths = {source.index: source.path for stream in self.streams for source in stream.inputs}
        object.__setattr__(self, "paths", paths)

    def block_path(self, stream: int, number: int) -> Path:
        """Where a block's result is."""
        return self.folder / f"{stream:07d}-{number:07d}.block"

    def end_path(self, stream: int) -> Path:
        """Says that a stream was read to its end, and how many blocks it had."""
        return self.folder / f"{stream:07d}.end"


@dataclass(frozen=True)
class Identity:
    """What decides a document's place in the shuffle and its split."""

    input_index: int
    ordinal: int
    hash_low: int


@dataclass(frozen=True)
class BlockTable:
    """All blocks of a cleaned corpus, in order."""

    paths: list[Path]
    num_documents: npt.NDArray[np.int64]
    num_hashes: npt.NDArray[np.int64]
    text_bytes: npt.NDArray[np.int64]
    radix_counts: npt.NDArray[np.int64]
    """How many hashes begin with each byte, over all blocks."""
    carried: dict[int, Identity]
    """For a block whose first document began in an earlier one: that document."""
    report: Report
    notices: list[str]
    characters: npt.NDArray[np.uint64] | None

    def __len__(self) -> int:
        return len(self.paths)

    def after(self, earlier: BlockTable) -> BlockTable:
        """Give the blocks of another table, then those of this one; the report stays this one's."""
        return replace(
            self,
            paths=earlier.paths + self.paths,
            num_documents=np.concatenate([earlier.num_documents, self.num_documents]),
            num_hashes=np.concatenate([earlier.num_hashes, self.num_hashes]),
            text_bytes=np.concatenate([earlier.text_bytes, self.text_bytes]),
            radix_counts=earlier.radix_counts + self.radix_counts,
            carried={row + len(earlier): value for row, value in self.carried.items()},
        )


def clean_corpus(job: CleanJob, pool: WorkerPool, *, on_done: Callable[[int], None]) -> None:
    """Clean every block that is not clean yet; `on_done` is told the stored bytes of each."""
    job.folder.mkdir(parents=True, exist_ok=True)
    for size in pool.run(_iter_tasks(job)):
        on_done(size)


def _iter_tasks(job: CleanJob) -> Iterator[Callable[[], int]]:
    for stream in job.streams:
        if _is_finished(job, stream):
            yield lambda size=stream.size_bytes: size
        elif stream.random_access:
            for number in range(stream.num_blocks or 0):
                yield lambda stream=stream, number=number: _clean_numbered(job, stream, number)
        else:
            yield from _iter_stream_tasks(job, stream)


def _is_finished(job: CleanJob, stream: Stream) -> bool:
    """Tell whether a stream was read to its end and the last of its blocks are there too."""
    path = job.end_path(stream.index)
    if not path.exists():
        return False
    count = files.read_json(path)["blocks"]
    return all(job.block_path(stream.index, number).exists() for number in range(count))


def _iter_stream_tasks(job: CleanJob, stream: Stream) -> Iterator[Callable[[], int]]:
    """Read a stream here, in order, while workers clean what was read."""
    notices: list[str] = []
    reading = replace(job.reading, on_notice=notices.append)
    count = 0
    for block in iter_blocks(stream, reading):
        if block is None:
            continue
        count = block.number + 1
        if not job.block_path(stream.index, block.number).exists():
            yield lambda block=block: write_block(job, block, block.number)
    yield lambda: _end_stream(job, stream, count, notices)


def _end_stream(job: CleanJob, stream: Stream, count: int, notices: list[str]) -> int:
    end = {"blocks": count, "notices": notices}
    files.write_json(job.end_path(stream.index), end)
    return 0


def _clean_numbered(job: CleanJob, stream: Stream, number: int) -> int:
    if job.block_path(stream.index, number).exists():
        return min(job.reading.block_bytes, stream.size_bytes)
    notices: list[str] = []
    reading = replace(job.reading, on_notice=notices.append)
    block = read_block(stream, number, reading)
    if block is None:
        block = TextBlock(stream.index, number, stream.inputs[0].kind, b"", ())
    return write_block(job, block, number, notices=notices)


def write_block(
    job: CleanJob,
    block: TextBlock,
    number: int,
    *,
    notices: list[str] | None = None,
    keep_text: bool = True,
) -> int:
    """Clean a block and write its work file; without its text it is only there to compare with."""
    notices = [] if notices is None else notices
    reading = replace(job.reading, on_notice=notices.append)
    cleaned = clean_block(
        block, reading, job.cleaning, paths=job.paths, collect_characters=job.collect_characters
    )
    header = {
        "continues": block.continues,
        "continued": block.continued,
        "documents_in": cleaned.documents_in,
        "lines_in": cleaned.lines_in,
        "bytes_in": cleaned.bytes_in,
        "counts": cleaned.counts,
        "samples": [(rule, text.decode("utf-8", "replace")) for rule, text in cleaned.samples],
        "notices": notices,
    }
    sections = {
        "documents": cleaned.documents,
        "radix_ends": cleaned.radix_ends,
        "hashes": cleaned.hashes,
        "characters": cleaned.characters,
        "text": cleaned.text if keep_text else cleaned.text[:0],
    }
    write_work_file(job.block_path(block.stream, number), header, sections)
    return block.stored_bytes


def load_block_table(job: CleanJob) -> BlockTable:
    """Read what every block says of itself."""
    paths: list[Path] = []
    notices: list[str] = []
    for stream in job.streams:
        count = stream.num_blocks or 0
        if not stream.random_access:
            end = files.read_json(job.end_path(stream.index))
            count = end["blocks"]
            notices += end["notices"]
        paths += [job.block_path(stream.index, number) for number in range(count)]
    sizes = np.zeros((3, len(paths)), dtype=np.int64)
    radix_counts = np.zeros(256, dtype=np.int64)
    characters = np.zeros(0x110000 // 64, np.uint64) if job.collect_characters else None
    report = Report()
    carried: dict[int, Identity] = {}
    open_document: Identity | None = None
    for row, path in enumerate(paths):
        work = open_work_file(path)
        header = work.header
        sizes[:, row] = [
            work.sections["documents"][1] // DOCUMENT_ROW.itemsize,
            work.sections["hashes"][1] // 16,
            work.sections["text"][1],
        ]
        ends = work.read("radix_ends").view(np.int64)
        radix_counts += np.diff(ends, prepend=0)
        report.add(
            header["counts"],
            header["samples"],
            documents_in=header["documents_in"],
            lines_in=header["lines_in"],
            bytes_in=header["bytes_in"],
        )
        notices += header["notices"]
        if characters is not None:
            characters |= work.read("characters").view(np.uint64)
        if header["continues"] and open_document is not None:
            carried[row] = open_document
        if header["continued"] and not (header["continues"] and sizes[0, row] == 1):
            open_document = _last_document(work)
    return BlockTable(
        paths, sizes[0], sizes[1], sizes[2], radix_counts, carried, report, notices, characters
    )


def _last_document(work: Any) -> Identity:
    size = work.sections["documents"][1]
    raw = work.read("documents", begin=size - DOCUMENT_ROW.itemsize)
    row = raw.view(DOCUMENT_ROW)[0]
    return Identity(int(row["input_index"]), int(row["ordinal"]), int(row["hash_low"]))
