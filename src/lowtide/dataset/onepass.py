"""Encode blocks as soon as they are clean, as long as one table can hold all hashes so far.

In:      clean blocks, from several workers; a tokenizer that may still be loading
Out:     the same work files of ids as `encoding` writes, without storing clean text in between
Memory:  `table_bytes`, and per worker the memory of cleaning and encoding one block

Whether a line is a duplicate depends on all blocks before it, so blocks are looked up in the table
in the order of the corpus, each right after the one before; cleaning and encoding run in parallel.
Once the table is full, the following blocks keep their clean text on disk, and deduplication on
disk handles all of them later.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path

from lowtide import _native
from lowtide.corpus.blocktable import Identity, OpenDocument
from lowtide.corpus.cleaning import DOCUMENT_ROW_BYTES
from lowtide.corpus.deduplication import TABLE_ROW_BYTES
from lowtide.corpus.reading import TextBlock
from lowtide.corpus.workers import Turns
from lowtide.corpus.workfiles import WorkFile
from lowtide.dataset.encoding import NO_LINES, EncodeJob, write_encoded

__all__ = ["OnePass"]


class OnePass:
    """Receives clean blocks and encodes them."""

    def __init__(self, load_job: Callable[[], EncodeJob], *, dedup: bool, table_bytes: int) -> None:
        self._load_job = load_job
        self._turns = Turns()
        self._dedup = dedup
        self._finder: _native.DuplicateFinder | None = None
        if dedup:
            self._finder = _native.DuplicateFinder(table_bytes // TABLE_ROW_BYTES)
        self._open_document = OpenDocument()

    def take(
        self, place: int, path: Path, block: TextBlock, cleaned: _native.CleanedBlock
    ) -> WorkFile | None:
        """Encode a clean block; None when the table is full, and nothing was done."""
        documents = cleaned.documents
        carried = None
        if block.continues or block.continued:
            with self._turns.take(place):
                carried = self._carry(block, documents)
        else:
            self._turns.give_up(place)
        removed = self._find_duplicates(place, cleaned.hashes)
        if removed is None:
            return None
        job = self._load_job()
        return write_encoded(
            job,
            job.path(path),
            cleaned.text,
            documents,
            removed,
            block=place,
            carried=carried,
            hashes=cleaned.hashes if self._dedup else None,
        )

    def pass_by(self, place: int, work: WorkFile) -> None:
        """Add the hashes of a block that an earlier command has finished."""
        with self._turns.take(place):
            self._open_document.pass_block(work)
        if self._dedup:
            self._find_duplicates(place, work.read("hashes"))

    def stop(self) -> None:
        """Cancel blocks that wait for their turn, and free the table."""
        self._turns.stop()
        finder, self._finder = self._finder, None
        if finder is not None:
            finder.stop()

    def _find_duplicates(self, place: int, hashes: memoryview) -> memoryview | None:
        """Return the duplicate lines of a block; None from the first block on that did not fit."""
        if not self._dedup:
            return NO_LINES
        finder = self._finder
        if finder is None:
            raise CancelledError
        try:
            return finder.add_in_turn(place, hashes)
        except RuntimeError:  # another block failed, so this one's turn will not come
            raise CancelledError from None

    def _carry(self, block: TextBlock, documents: memoryview) -> Identity | None:
        return self._open_document.advance(
            continues=block.continues,
            continued=block.continued,
            num_documents=len(documents) // DOCUMENT_ROW_BYTES,
            last=documents[-DOCUMENT_ROW_BYTES:],
        )
