"""Encode a part: clean it again, remove its duplicates, and sort its documents by shuffle key.

In:      a part of the corpus, the lines to leave out, a tokenizer
Out:     one file per part: a row per document and its ids, both by key; offsets of ranges of keys,
         tokens by range and split, hashes for `append`, documents and tokens of each input
Memory:  one block; `range_bytes` of documents' rows while they are sorted

A hash of the text read is compared with that of the hash stage: if an input changed in between,
that is an error, instead of a dataset made from two versions of it.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from functools import cached_property
from typing import IO, Any, NamedTuple

from lowtide import _native
from lowtide.corpus.blocktable import Identity, OpenDocument
from lowtide.corpus.reading import TextBlock
from lowtide.corpus.removals import Report
from lowtide.dataset.encoding import ENCODED_ROW_BYTES, EncodeJob, Removed, encode_block
from lowtide.dataset.openfiles import MAX_OPEN_FILES
from lowtide.dataset.removed import RemovedText
from lowtide.dataset.sharding import LAST_KEY, val_limit
from lowtide.dataset.staged.duplicates import (
    PartDuplicates,
    PartitionDuplicates,
    Tally,
    open_duplicates,
)
from lowtide.dataset.staged.hashing import CONTENT_ROW, advance
from lowtide.dataset.staged.job import HASH_STAGE, CleanPart, StagedJob
from lowtide.engine.outputs import OutputWriter
from lowtide.engine.tasks import Task, Uncommitted
from lowtide.engine.taskscratch import HeldBytes, TaskScratch
from lowtide.quickclasses import dataclass

__all__ = ["ENCODE_STAGE", "SOURCE_ROW", "EncodeStage"]

ENCODE_STAGE = "encode"
SOURCE_ROW = struct.Struct("<QQQ")
"""An input's index, its number of documents, its number of tokens."""
_ROW_BYTES_HELD = 8 * ENCODED_ROW_BYTES  # as read, chosen, joined, sorted; native rows twice
_CHUNK_BYTES = 1 << 20
_ROOM_BYTES = 1 << 18
"""Memory for rows, and for hashes for `append`, until the end of a task."""


class EncodeStage:
    """A task for each part of the corpus."""

    name = ENCODE_STAGE

    def __init__(self, job: StagedJob, load: Callable[[], EncodeJob]) -> None:
        self._job = job
        self._load = load

    def count_tasks(self) -> int:
        """One for each part."""
        return len(self._job.parts)

    @cached_property
    def _tally(self) -> Tally:
        return Tally.load(self._job)

    @cached_property
    def _duplicates(self) -> list[PartitionDuplicates]:
        return open_duplicates(self._job)

    def run(self, index: int) -> Uncommitted:
        """Encode a part."""
        records = self._job.records
        with records.scratch() as scratch:
            part = _EncodedPart(self._job, self._load(), scratch, self._job.range_bytes)
            part.read(index, self._tally, self._duplicates)
            return records.write(Task(self.name, index), part.write, facts=part.facts)

    def encode_held(
        self,
        index: int,
        blocks: list[tuple[TextBlock, _native.CleanedBlock]],
        removed: Removed,
        *,
        first_block: int,
        document: Identity | None,
    ) -> Uncommitted | None:
        """Encode a part whose clean blocks are in memory; empties `blocks`.

        Half of the memory for rows is left for the table that decides what is `removed`.
        """
        records, task = self._job.records, Task(self.name, index)
        if records.is_done(task):
            return None
        with records.scratch() as scratch:
            room = max(self._job.range_bytes // 2, 1)
            part = _EncodedPart(self._job, self._load(), scratch, room)
            part.held = []
            part.encode(_iter_freed(blocks), removed, first_block, OpenDocument(document))
            return records.write(task, part.write, facts=part.facts)


def _iter_freed(
    blocks: list[tuple[TextBlock, _native.CleanedBlock]],
) -> Iterator[tuple[TextBlock, _native.CleanedBlock]]:
    """The blocks, each freed after its use, to make room for its ids."""
    while blocks:
        yield blocks.pop(0)


class _Block(NamedTuple):
    """The location of an encoded block in the scratch file."""

    index_at: int
    ids_at: int


@dataclass
class _EncodedPart:
    job: StagedJob
    coding: EncodeJob
    scratch: TaskScratch
    range_bytes: int
    held: list[_native.EncodedBlock] | None = None
    """Encoded blocks in memory, as long as they are smaller than their text."""
    room_bytes: int = 0
    blocks: list[_Block] = field(default_factory=list)
    report: Report = field(default_factory=Report)
    sources: bytearray = field(default_factory=bytearray)
    num_documents: int = 0
    num_tokens: int = 0

    @cached_property
    def all_lines(self) -> bool:
        """True if all hashes are stored, because the ids cannot be decoded to the text."""
        return bool(self.job.unknown_notices)

    @cached_property
    def seen(self) -> HeldBytes:
        """The hashes that later appends need."""
        return self.scratch.hold(_ROOM_BYTES)

    @cached_property
    def file(self) -> IO[bytes]:
        """The scratch file of encoded blocks."""
        return self.scratch.create_file("blocks")

    def read(self, index: int, tally: Tally, duplicates: list[PartitionDuplicates]) -> None:
        """Clean and encode all blocks into the scratch file."""
        first, end = tally.first_blocks[index], tally.first_blocks[index + 1]
        room = self.job.limits.places_bytes
        lines = PartDuplicates(duplicates, index, self.scratch, room_bytes=room)
        removed = RemovedText(lines, self.job.finders, first_block=first)
        document = OpenDocument(tally.open_documents.get(index))
        known = _iter_contents(self.job, index)

        def iter_blocks() -> Iterator[tuple[TextBlock, _native.CleanedBlock]]:
            for block, cleaned, contents in CleanPart(self.job, index):
                for row in contents:
                    if row != next(known, None):
                        raise self.job.changed_between_passes(row[0])
                yield block, cleaned

        self.encode(iter_blocks(), removed, first, document)
        if len(self.blocks) != end - first or next(known, None) is not None:
            raise self.job.changed_between_passes(self.job.first_input(index))

    def encode(
        self,
        blocks: Iterable[tuple[TextBlock, _native.CleanedBlock]],
        removed: Removed,
        first: int,
        document: OpenDocument,
    ) -> None:
        """Encode clean blocks, from index `first` of the corpus on, into the scratch file."""
        for number, (block, cleaned) in enumerate(blocks):
            encoded = encode_block(
                self.coding,
                cleaned.text,
                cleaned.documents,
                removed.load(number),
                block=first + number,
                carried=advance(document, block, cleaned),
            )
            self._take(encoded, cleaned)

    def _take(self, encoded: _native.EncodedBlock, cleaned: _native.CleanedBlock) -> None:
        self._hold(encoded, cleaned.text.nbytes)
        unknown = self.coding.coder.count_unknown(encoded.ids)
        self.report.add(encoded.counts, encoded.samples, unknown_characters=unknown)
        for row in encoded.sources:
            self.sources += SOURCE_ROW.pack(*row)
        self.num_documents += encoded.num_documents
        self.num_tokens += encoded.num_tokens
        if self.job.settings.dedup:
            remnants = encoded.remnants
            documents = cleaned.documents if remnants else memoryview(b"")
            self.seen.write(
                _native.pick_hashes(cleaned.hashes, documents, remnants, self.all_lines)
            )

    def _hold(self, encoded: _native.EncodedBlock, text_bytes: int) -> None:
        """Keep an encoded block in memory, or write it and all earlier ones to the scratch file."""
        if self.held is None:
            return self._write_block(encoded)
        rows = encoded.index.nbytes // ENCODED_ROW_BYTES * _ROW_BYTES_HELD
        self.room_bytes += text_bytes - encoded.ids.nbytes - rows
        self.held.append(encoded)
        if self.room_bytes < 0:
            held, self.held = self.held, None
            for block in held:
                self._write_block(block)
        return None

    def _write_block(self, encoded: _native.EncodedBlock) -> None:
        index_at = self.file.tell()
        self.file.write(encoded.index)
        self.blocks.append(_Block(index_at, self.file.tell()))
        self.file.write(encoded.ids)

    def facts(self) -> dict[str, Any]:
        """The facts of a part for its record."""
        return {"tokens": self.num_tokens, "documents": self.num_documents}

    def write(self, output: OutputWriter) -> dict[str, Any]:
        """Write ids and rows by key, and the counts."""
        counts = _Counts(self._num_buckets, val_limit(self.job.settings.val_fraction))
        index = self.scratch.hold(_ROOM_BYTES)
        output.begin("ids")
        for low, high in self._iter_ranges():
            rows = self._copy_range(output, low, high)
            counts.add(rows)
            index.write(rows)
        for name, held in (("index", index), ("seen", self.seen)):
            output.begin(name)
            for piece in held.iter_pieces():
                output.write(piece)
        output.section("row_ends", counts.row_ends())
        output.section("token_ends", counts.token_ends())
        output.section("split_tokens", counts.split_tokens())
        output.section("sources", bytes(self.sources))
        return {"report": self.report.as_state(), "documents": counts.documents}

    @property
    def _num_buckets(self) -> int:
        """One without the shuffle, since documents then keep their order."""
        return self.job.sizes.num_buckets if self.job.settings.shuffle else 1

    def _iter_ranges(self) -> Iterator[tuple[int, int]]:
        """First and last key of each range whose rows fit in `range_bytes`."""
        wanted = -(-self.num_documents * _ROW_BYTES_HELD // self.range_bytes)
        count = min(max(wanted, 1), 1 << 16) if self.job.settings.shuffle else 1
        width = (1 << 64) // count
        for number in range(count):
            last = LAST_KEY if number == count - 1 else (number + 1) * width - 1
            yield number * width, last

    def _copy_range(self, output: OutputWriter, low: int, high: int) -> memoryview:
        """Write the ids of a range's documents by key, and return their rows."""
        item_bytes = self.coding.coder.id_bytes
        native = _native.RangeRows()
        rows = bytearray()
        for held in self.held or ():
            native.add_held(held.ids, held.index, item_bytes, low, high)
            rows += _native.sort_rows(held.index, low, high)
        for block in self.blocks:
            self.file.flush()
            data = os.pread(self.file.fileno(), block.ids_at - block.index_at, block.index_at)
            native.add(
                os.fsencode(self.file.name),
                data,
                ids_at=block.ids_at,
                id_bytes=item_bytes,
                low=low,
                high=high,
                val=None,
                val_limit=0,
            )
            rows += _native.sort_rows(data, low, high)
        native.finish()
        reader = _native.RangeReader(native, item_bytes, MAX_OPEN_FILES)
        total, step = reader.num_tokens, _CHUNK_BYTES // item_bytes
        for first in range(0, total, step):
            output.write(reader.read(first, min(first + step, total), item_bytes)[0])
        return _native.sort_rows(memoryview(rows), low, high)


class _Counts:
    """Counts of rows and tokens of a part by bucket of keys, added range by range."""

    def __init__(self, num_buckets: int, val_limit: int) -> None:
        shift = 64 - (num_buckets - 1).bit_length()
        bounds = array("Q", range(0, num_buckets << shift, 1 << shift))
        self._counter = _native.RangeCounter(bounds, val_limit)

    def add(self, rows: memoryview) -> None:
        """Count rows of (key, content hash, tokens, ends), which are sorted by key."""
        self._counter.add(rows)

    @property
    def documents(self) -> list[int]:
        """The number of documents in train and in val."""
        return self._counter.documents

    def row_ends(self) -> memoryview:
        """The end of each bucket's rows."""
        return self._counter.row_ends()

    def token_ends(self) -> memoryview:
        """The end of each bucket's tokens."""
        return self._counter.token_ends()

    def split_tokens(self) -> bytes:
        """The tokens of each bucket in train, then those in val."""
        return b"".join(self._counter.view_tokens(split) for split in (0, 1))


def _iter_contents(job: StagedJob, part: int) -> Iterator[tuple[int, str]]:
    """The hash of each input's text in a part, from the hash stage."""
    rows = job.records.open(Task(HASH_STAGE, part)).read("contents")
    for number, digest in CONTENT_ROW.iter_unpack(rows):
        yield number, digest.hex()
