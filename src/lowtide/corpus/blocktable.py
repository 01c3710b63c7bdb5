"""All blocks of a cleaned corpus: a few numbers of each, and the documents that span several.

In:      work files of clean blocks
Out:     BlockTable; the cut that keeps a share of all documents by their scores
Memory:  a few numbers per block of 4 MiB
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field, replace
from pathlib import Path

from lowtide.corpus.blockcleaning import CleanJob
from lowtide.corpus.cleaning import DOCUMENT_ROW_BYTES, HASH_ROW_BYTES
from lowtide.corpus.inputhashes import InputHashes
from lowtide.corpus.ranking import ScoreCut, find_cut
from lowtide.corpus.removals import Report
from lowtide.corpus.workfiles import WorkFile, open_work_file

__all__ = ["BlockTable", "Identity", "OpenDocument", "find_score_cut", "load_block_table"]

Identity = tuple[int, int, int]
"""What decides a document's place in the shuffle and its split: input, ordinal, content hash."""
_IDENTITY = struct.Struct("<QQ16xQ")  # at the beginning of a document row


class OpenDocument:
    """Tracks the document that continues from one block to the next, over blocks in order."""

    def __init__(self, identity: Identity | None = None) -> None:
        self._identity = identity

    @property
    def identity(self) -> Identity | None:
        """The last document that went on beyond its block."""
        return self._identity

    def advance(
        self, *, continues: bool, continued: bool, num_documents: int, last: memoryview
    ) -> Identity | None:
        """Return the document that a block's first one is a part of, if it began earlier.

        `last` is the block's last document row.
        """
        begun = self._identity if continues else None
        if continued and not (continues and num_documents == 1):
            self._identity = _IDENTITY.unpack_from(last)
        return begun

    def pass_block(self, work: WorkFile) -> Identity | None:
        """The same, of a block's work file."""
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
    """0 for a block that was encoded the moment it was clean."""
    carried: dict[int, Identity]
    """For a block whose first document began in an earlier one: that document."""
    report: Report
    notices: list[str]
    characters: int | None
    """A bit for each code point that occurs, where they are collected."""
    contents: InputHashes = field(default_factory=lambda: InputHashes())
    """A hash of what was read of each input, by its index."""

    def __len__(self) -> int:
        return len(self.paths)

    def list_characters(self) -> list[int]:
        """Return the code points that occur, where they were collected."""
        bits = f"{self.characters or 0:b}"[::-1]
        return [code for code, bit in enumerate(bits) if bit == "1"]

    def after(self, earlier: BlockTable) -> BlockTable:
        """Return the blocks of another table, then this one's; the report stays this one's."""
        return replace(
            self,
            paths=earlier.paths + self.paths,
            num_hashes=earlier.num_hashes + self.num_hashes,
            text_bytes=earlier.text_bytes + self.text_bytes,
            has_text=earlier.has_text + self.has_text,
            carried={row + len(earlier): value for row, value in self.carried.items()},
        )


def find_score_cut(job: CleanJob, share: float) -> tuple[ScoreCut, InputHashes]:
    """The cut that keeps a share of all documents that a job scored, and hashes of what it read."""
    paths, _ = _list_blocks(job)
    contents = InputHashes()
    for path in paths:
        contents.add(open_work_file(path).header["content"])
    cut = find_cut(lambda: (open_work_file(path).read("keys") for path in paths), share)
    return cut, contents.finish()


def _list_blocks(job: CleanJob) -> tuple[list[Path], list[str]]:
    """The work files of all blocks, in order, and notices of streams read to their end."""
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


def load_block_table(job: CleanJob) -> BlockTable:
    """Read what every block says of itself."""
    paths, notices = _list_blocks(job)
    num_hashes, text_bytes, has_text = array("q"), array("q"), array("b")
    characters = 0 if job.collect_characters else None
    report = Report()
    carried: dict[int, Identity] = {}
    open_document = OpenDocument()
    contents = InputHashes()
    for row, path in enumerate(paths):
        work = open_work_file(path)
        header = work.header
        num_hashes.append(work.sections["hashes"][1] // HASH_ROW_BYTES)
        text_bytes.append(work.sections["text"][1])
        has_text.append(header["has_text"])
        report.add_state(header)
        notices += header["notices"]
        contents.add(header["content"])
        if characters is not None:
            characters |= int.from_bytes(work.read("characters"), "little")
        begun = open_document.pass_block(work)
        if begun is not None:
            carried[row] = begun
    return BlockTable(
        paths=paths,
        num_hashes=num_hashes,
        text_bytes=text_bytes,
        has_text=has_text,
        carried=carried,
        report=report,
        notices=notices,
        characters=characters,
        contents=contents.finish(),
    )
