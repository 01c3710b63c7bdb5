"""The first stage: clean every part and keep the hashes of its lines, by partition.

In:      a part of the corpus
Out:     one file per part: hashes by partition and block, hashes of inputs, characters, counts
Memory:  one block with its clean text; its hashes wait on disk until the part is read

Clean text is not kept: cleaning is a sixth of the work, keeping it is a write and a read of all.
"""

from __future__ import annotations

import os
import struct
from array import array
from pathlib import Path
from typing import Any

from lowtide import _native, files
from lowtide.corpus.blocks import Identity, OpenDocument
from lowtide.corpus.cleaning import (
    DOCUMENT_ROW_BYTES,
    HASH_ROW_BYTES,
    Report,
    count_languages,
)
from lowtide.corpus.reading import TextBlock
from lowtide.dataset.staged.job import SCORE_STAGE, CleanPart, StagedJob
from lowtide.engine.outputs import OutputWriter
from lowtide.engine.tasks import Task

__all__ = ["CONTENT_ROW", "HASH_STAGE", "HashStage", "advance"]

HASH_STAGE = "hash"
CONTENT_ROW = struct.Struct("<Q16s")
"""An input's number, and the hash of a stretch of it."""
_COPY_BYTES = 1 << 20


def advance(
    document: OpenDocument, block: TextBlock, cleaned: _native.CleanedBlock
) -> Identity | None:
    """Return the document that a block's first one is a part of, if it began earlier."""
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

    def __init__(self, job: StagedJob) -> None:
        self._job = job

    def count_tasks(self) -> int:
        """One for each part."""
        return len(self._job.parts)

    def run(self, index: int) -> None:
        """Clean a part and commit its hashes."""
        records = self._job.records
        facts: dict[str, Any] = {}
        with records.scratch_folder() as folder:
            part = _HashedPart(self._job, index, folder / "hashes")
            part.read()
            self._require_scored(index, part.contents)
            facts.update(part.facts())
            records.commit(Task(self.name, index), part.write, facts=lambda: facts)

    def _require_scored(self, index: int, contents: bytes) -> None:
        """Refuse a part that was another one when its scores were ranked."""
        job = self._job
        if job.settings.keep_top is None:
            return
        scored = job.records.open(Task(SCORE_STAGE, index)).read("contents")
        if bytes(scored) != contents:
            raise job.changed_between_passes(job.first_input(index))


class _HashedPart:
    """The hashes of one part: by block in a file of its own, then by partition in the result."""

    def __init__(self, job: StagedJob, index: int, scratch: Path) -> None:
        self._borders = job.sizes.partition_borders()
        self._is_char = job.settings.tokenization == "char"
        self._dedup = job.settings.dedup
        self._options = job.settings.cleaning
        self._cleaning = CleanPart(job, index, collect_characters=self._is_char)
        self._scratch = scratch
        self._starts = array("q")  # of each block's rows in the scratch file
        self._radix_ends: list[memoryview] = []
        self._report = Report()
        self._contents = bytearray()
        self._characters = 0
        self._document = OpenDocument()

    def read(self) -> None:
        position = 0
        with os.fdopen(files.create_file(self._scratch), "wb") as file:
            for block, cleaned, contents in self._cleaning:
                self._starts.append(position)
                if self._dedup:
                    self._radix_ends.append(memoryview(bytes(cleaned.radix_ends)).cast("q"))
                    position += file.write(cleaned.hashes)
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

    @property
    def contents(self) -> bytes:
        """The hashes of what was read of each input."""
        return bytes(self._contents)

    def facts(self) -> dict[str, Any]:
        """What the tally needs of a part; its record has them."""
        return {"blocks": len(self._starts), "open_document": self._document.identity}

    def write(self, output: OutputWriter) -> dict[str, Any]:
        ends = self._write_hashes(output)
        output.section("ends", memoryview(ends).cast("B"))
        output.section("contents", bytes(self._contents))
        size = (self._characters.bit_length() + 7) // 8
        output.section("characters", self._characters.to_bytes(size, "little"))
        return {
            "report": self._report.as_state(),
            "stream_notices": self._cleaning.stream_notices,
            "block_notices": self._cleaning.block_notices,
        }

    def _write_hashes(self, output: OutputWriter) -> array[int]:
        """Write all rows of the first partition, block by block, then those of the next."""
        output.begin("hashes")
        ends, total = array("q"), 0
        if not self._dedup:
            return ends
        with self._scratch.open("rb", buffering=0) as file:
            for first, last in self._borders:
                for start, radix_ends in zip(self._starts, self._radix_ends, strict=True):
                    begin = radix_ends[first - 1] if first else 0
                    total += radix_ends[last - 1] - begin
                    ends.append(total)
                    at = start + begin * HASH_ROW_BYTES
                    left = start + radix_ends[last - 1] * HASH_ROW_BYTES - at
                    while left > 0:
                        data = os.pread(file.fileno(), min(left, _COPY_BYTES), at)
                        output.write(data)
                        at, left = at + len(data), left - len(data)
        return ends
