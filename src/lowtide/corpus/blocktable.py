"""The table of all blocks of a cleaned corpus, and of the documents that span several blocks.

In:      work files of clean blocks
Out:     BlockTable; the score threshold that keeps a given share of all documents
Memory:  a few numbers per block of 4 MiB
"""

from __future__ import annotations

import itertools
import struct
from array import array
from dataclasses import field, replace
from pathlib import Path

from lowtide.corpus.blockcleaning import CleanJob
from lowtide.corpus.cleaning import DOCUMENT_ROW_BYTES, HASH_ROW_BYTES
from lowtide.corpus.inputhashes import InputHashes
from lowtide.corpus.ranking import ScoreCut, find_cut
from lowtide.corpus.removals import Report
from lowtide.corpus.workfiles import WorkFile, open_work_file
from lowtide.quickclasses import dataclass

__all__ = [
    "BlockTable",
    "Identity",
    "OpenDocument",
    "TableBuilder",
    "find_score_cut",
    "load_block_table",
]

Identity = tuple[int, int, int]
"""Decides a document's place in the shuffle and its split: input, ordinal, content hash."""
_IDENTITY = struct.Struct("<QQ16xQ")  # at the beginning of a document row


class OpenDocument:
    """Tracks the document that continues from one block to the next, over blocks in order."""

    def __init__(self, identity: Identity | None = None) -> None:
        self._identity = identity

    @property
    def identity(self) -> Identity | None:
        """The last document that continued beyond its block."""
        return self._identity

    def advance(
        self, *, continues: bool, continued: bool, num_documents: int, last: memoryview
    ) -> Identity | None:
        """Return the document that continues into this block from an earlier one, if any.

        `last` is the block's last document row.
        """
        begun = self._identity if continues else None
        if continued and not (continues and num_documents == 1):
            self._identity = _IDENTITY.unpack_from(last)
        return begun

    def pass_block(self, work: WorkFile) -> Identity | None:
        """The same, with a block's work file."""
        header = work.header
        if not (header["continues"] or header["continued"]):
            return None
        size = work.sections["documents"][1]
        return self.advance(
            continues=header["continues"],
            continued=header["continued"],
            num_documents=size // DOCUMENT_ROW_BYTES,
            last=work.read("documents", begin=max(size - DOCUMENT_ROW_BYTES, 0)),
        )


@dataclass(frozen=True)
class BlockTable:
    """All blocks of a cleaned corpus, in order."""

    paths: list[Path]
    num_hashes: array[int]
    text_bytes: array[int]
    has_text: array[int]
    """0 for a block that was encoded as soon as it was clean."""
    carried: dict[int, Identity]
    """For a block whose first document began in an earlier one: that document."""
    report: Report
    notices: list[str]
    characters: int | None
    """A bit for each code point that occurs, if they are collected."""
    contents: InputHashes = field(default_factory=lambda: InputHashes())
    """A hash of the text read from each input, by its index."""

    def __len__(self) -> int:
        return len(self.paths)

    def list_characters(self) -> list[int]:
        """Return the code points that occur, if they were collected."""
        bits = f"{self.characters or 0:b}"[::-1]
        return [code for code, bit in enumerate(bits) if bit == "1"]

    def after(self, earlier: BlockTable) -> BlockTable:
        """Return a table of another table's blocks, then this one's, with this one's report."""
        return replace(
            self,
            paths=earlier.paths + self.paths,
            num_hashes=earlier.num_hashes + self.num_hashes,
            text_bytes=earlier.text_bytes + self.text_bytes,
            has_text=earlier.has_text + self.has_text,
            carried={row + len(earlier): value for row, value in self.carried.items()},
        )


def find_score_cut(job: CleanJob, share: float) -> tuple[ScoreCut, InputHashes]:
    """The cut that keeps a share of all scored documents, and hashes of the text that was read."""
    paths, _ = _list_blocks(job)
    contents = InputHashes()
    for path in paths:
        contents.add(open_work_file(path).header["content"])
    cut = find_cut(lambda: (open_work_file(path).read("keys") for path in paths), share)
    return cut, contents.finish()


def _list_blocks(job: CleanJob) -> tuple[list[Path], list[str]]:
    """The work files of all blocks, in order, and the notices recorded at the ends of streams."""
    paths: list[Path] = []
    notices: list[str] = []
    for stream in job.streams:
        count = stream.num_blocks
        if not stream.random_access:
            end = open_work_file(job.end_path(stream.index)).header
            count = end["blocks"]
            notices += end["notices"]
        paths += [job.block_path(stream.index, number) for number in range(count)]
    return paths, notices


class TableBuilder:
    """Reads the headers of blocks, from the first on, while later ones are cleaned."""

    def __init__(self, job: CleanJob) -> None:
        self._job = job
        self._num_added, self._last_added = 0, Path()
        self._num_hashes, self._text_bytes, self._has_text = array("q"), array("q"), array("b")
        self._characters = 0 if job.collect_characters else None
        self._report = Report()
        self._notices: list[str] = []
        self._carried: dict[int, Identity] = {}
        self._open_document = OpenDocument()
        self._contents = InputHashes()

    def add(self, work: WorkFile) -> None:
        """Add the next block."""
        header = work.header
        self._num_hashes.append(work.sections["hashes"][1] // HASH_ROW_BYTES)
        self._text_bytes.append(work.sections["text"][1])
        self._has_text.append(header["has_text"])
        self._report.add_state(header)
        self._notices += header["notices"]
        self._contents.add(header["content"])
        if self._characters is not None:
            self._characters |= int.from_bytes(work.read("characters"), "little")
        begun = self._open_document.pass_block(work)
        if begun is not None:
            self._carried[self._num_added] = begun
        self._num_added, self._last_added = self._num_added + 1, work.path

    def finish(self) -> BlockTable:
        """Add the remaining blocks, and return the table."""
        paths, notices = _list_blocks(self._job)
        assert not self._num_added or paths[self._num_added - 1] == self._last_added
        for path in itertools.islice(paths, self._num_added, None):
            self.add(open_work_file(path))
        return BlockTable(
            paths=paths,
            num_hashes=self._num_hashes,
            text_bytes=self._text_bytes,
            has_text=self._has_text,
            carried=self._carried,
            report=self._report,
            notices=notices + self._notices,
            characters=self._characters,
            contents=self._contents.finish(),
        )


def load_block_table(job: CleanJob) -> BlockTable:
    """Read the headers of all blocks."""
    return TableBuilder(job).finish()
