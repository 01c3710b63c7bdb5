"""The first stage: clean every part and store the hashes of its lines, by partition.

In:      a part of the corpus
Out:     one file per part: hashes by partition and block, hashes of inputs, characters, counts
Memory:  one block with its clean text; the part's hashes are on disk, or in memory if the whole
         part is

Clean text is not stored on disk: cleaning it again is a sixth of the work, storing it means writing
and reading everything once more. A clean part that fits in memory may be encoded at once (ahead).
"""

from __future__ import annotations

import contextlib
import struct
from itertools import chain
from typing import TYPE_CHECKING, Any

from lowtide import _native
from lowtide.corpus.blocktable import Identity, OpenDocument
from lowtide.corpus.cleaning import DOCUMENT_ROW_BYTES, HASH_ROW_BYTES, count_languages
from lowtide.corpus.reading import TextBlock
from lowtide.corpus.removals import Report
from lowtide.dataset.staged.job import HASH_STAGE, SCORE_STAGE, CleanPart, StagedJob
from lowtide.engine.outputs import OutputWriter
from lowtide.engine.partitions import PartitionedRows, PartitionSections
from lowtide.engine.tasks import Task, Uncommitted
from lowtide.engine.taskscratch import TaskScratch

if TYPE_CHECKING:
    from lowtide.dataset.contamination import PartScanner
    from lowtide.dataset.near.signing import PartSigner
    from lowtide.dataset.staged.ahead import EncodingAhead, HeldPart

__all__ = ["CONTENT_ROW", "HASH_SECTIONS", "HashStage", "advance"]

CONTENT_ROW = struct.Struct("<Q16s")
"""An input's index, and the hash of a range of it."""
HASH_SECTIONS = PartitionSections("hashes", "ends", HASH_ROW_BYTES)


def advance(
    document: OpenDocument, block: TextBlock, cleaned: _native.CleanedBlock
) -> Identity | None:
    """The document that continues into a block from an earlier one, if any."""
    if not (block.continues or block.continued):
        return None
    documents = cleaned.documents
    return document.advance(
        continues=block.continues,
        continued=block.continued,
        num_documents=len(documents) // DOCUMENT_ROW_BYTES,
        last=documents[-DOCUMENT_ROW_BYTES:],
    )


class HashStage:
    """A task for each part of the corpus."""

    name = HASH_STAGE

    def __init__(self, job: StagedJob, ahead: EncodingAhead | None = None) -> None:
        self._job = job
        self._ahead = ahead

    def count_tasks(self) -> int:
        """One for each part."""
        return len(self._job.parts)

    def run(self, index: int) -> Uncommitted:
        """Clean a part and write its hashes; if all earlier parts are known, first its ids."""
        records = self._job.records
        with records.scratch() as scratch, self._hold(index) as held:
            part = _HashedPart(self._job, index, scratch, held)
            part.read()
            self._require_scored(index, part.contents)
            facts = part.facts()
            encoded = None
            if self._ahead is not None and held is not None:
                encoded = self._ahead.encode(index, held, facts)
            # The ids are committed first: once the hashes are, others may start to encode the part.
            task = Task(self.name, index)
            return records.write(task, part.write, facts=lambda: facts, after=encoded)

    def _hold(self, index: int) -> contextlib.AbstractContextManager[HeldPart | None]:
        return contextlib.nullcontext() if self._ahead is None else self._ahead.hold(index)

    def _require_scored(self, index: int, contents: bytes) -> None:
        """Raise an error if a part's content has changed since it was scored."""
        job = self._job
        if job.settings.keep_top is None or job.grown is not None:
            return
        scored = job.records.open(Task(SCORE_STAGE, index)).read("contents")
        if bytes(scored) != contents:
            raise job.changed_between_passes(job.first_input(index))


class _HashedPart:
    """The hashes of one part: kept by block until the end, then written by partition."""

    def __init__(
        self, job: StagedJob, index: int, scratch: TaskScratch, held: HeldPart | None
    ) -> None:
        self._held = held
        self._is_char = job.collects_characters
        self._dedup = job.settings.dedup
        self._options = job.settings.cleaning
        self._cleaning = CleanPart(job, index, collect_characters=self._is_char)
        borders = job.sizes.partition_borders()
        waiting = scratch.hold(0 if held is None else held.room_bytes)
        self._hashes = PartitionedRows(HASH_SECTIONS, borders, waiting)
        near = job.settings.near
        items = job.contamination_job
        self._finders: list[PartSigner | PartScanner] = []
        if near is not None:
            from lowtide.dataset.near.signing import PartSigner

            self._finders.append(PartSigner(near, borders, scratch.hold()))
        if items is not None:
            from lowtide.dataset.contamination import PartScanner

            self._finders.append(PartScanner(items.items, scratch.folder / "items"))
        self._num_blocks = 0
        self._report = Report()
        self._contents = bytearray()
        self._characters = 0
        self._document = OpenDocument()

    def read(self) -> None:
        for block, cleaned, contents in self._cleaning:
            self._num_blocks += 1
            if self._dedup:
                self._hashes.add(cleaned.hashes, cleaned.radix_ends)
            for finder in self._finders:
                finder.add(cleaned.text, cleaned.documents)
            self._report.add(
                cleaned.counts,
                cleaned.samples,
                documents_in=cleaned.documents_in,
                lines_in=cleaned.lines_in,
                bytes_in=cleaned.bytes_in,
                languages=count_languages(cleaned, self._options),
            )
            for number, digest in contents:
                self._contents += CONTENT_ROW.pack(number, bytes.fromhex(digest))
            if self._is_char:
                self._characters |= int.from_bytes(cleaned.characters, "little")
            advance(self._document, block, cleaned)
            if self._held is not None:
                self._held.add(block, cleaned)

    @property
    def contents(self) -> bytes:
        """The hashes of the text read from each input."""
        return bytes(self._contents)

    def facts(self) -> dict[str, Any]:
        """The facts of a part that the tally needs, for its record."""
        return {"blocks": self._num_blocks, "open_document": self._document.identity}

    def write(self, output: OutputWriter) -> dict[str, Any]:
        self._hashes.write(output)
        output.section("contents", bytes(self._contents))
        size = (self._characters.bit_length() + 7) // 8
        output.section("characters", self._characters.to_bytes(size, "little"))
        return {
            "report": self._report.as_state(),
            "stream_notices": self._cleaning.stream_notices,
            "block_notices": self._cleaning.block_notices,
            **dict(chain(*(finder.write(output).items() for finder in self._finders))),
        }
