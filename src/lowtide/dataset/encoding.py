"""Turn cleaned blocks into ids, sorted by each document's place in the shuffle.

In:      work files of cleaned blocks, the lines to leave out, a tokenizer (as a Coder)
Out:     one work file per block: a row per document (key, split, tokens) and the ids, by key
Memory:  one block per worker
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from lowtide import _native
from lowtide.arrays import np
from lowtide.corpus.blocktable import BlockTable, Identity
from lowtide.corpus.cleaning import native_options
from lowtide.corpus.removals import Report
from lowtide.corpus.settings import CleaningSettings
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import WorkFile, open_work_file, write_work_file
from lowtide.errors import DataError
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.vocabulary import id_bytes

__all__ = [
    "ENCODED_ROW_BYTES",
    "NO_LINES",
    "Coder",
    "EncodeJob",
    "EncodedTotals",
    "Removed",
    "SourceCounts",
    "encode_block",
    "encode_corpus",
    "keep_block",
    "write_encoded",
]

NO_LINES = memoryview(b"")

ENCODED_ROW_BYTES = 32
"""Fields of a document, uint64: place in the shuffle, content hash, tokens, 1 if it ends here."""


class Removed(Protocol):
    """Removals from blocks."""

    def load(self, block: int) -> memoryview:
        """Return the sorted lines (and marked documents) to leave out of a block, as uint32."""
        ...


@dataclass(frozen=True)
class EncodeJob:
    """Settings to encode cleaned blocks."""

    cleaning: CleaningSettings
    coder: Coder
    shuffle: bool
    seed: int
    folder: Path

    @cached_property
    def native_cleaning(self) -> _native.CleanOptions:
        """The cleaning options for the native core."""
        return native_options(self.cleaning)

    def path(self, block_path: Path) -> Path:
        """The path of the ids of the block in `block_path`."""
        return self.folder / f"{block_path.stem}.ids"


def encode_corpus(
    job: EncodeJob,
    table: BlockTable,
    removed: Removed | None,
    pool: WorkerPool,
    *,
    first_block: int = 0,
    on_done: Callable[[int, int], None],
) -> None:
    """Encode every block that is not encoded yet; `on_done` gets its text bytes and tokens.

    Blocks before `first_block` are only used for comparison.
    """
    job.folder.mkdir(parents=True, exist_ok=True)

    def encode(block: int) -> tuple[int, int]:
        text_bytes = int(table.text_bytes[block])
        path = job.path(table.paths[block])
        if path.exists():
            return text_bytes, open_work_file(path).header["tokens"]
        if not table.has_text[block]:
            raise DataError(
                "the text and the ids of a block are both missing from the earlier command's work",
                path=path,
                next_step="the same command with --restart",
            )
        work = open_work_file(table.paths[block])
        encoded = write_encoded(
            job,
            path,
            work.read("text"),
            work.read("documents"),
            removed.load(block) if removed else NO_LINES,
            block=block,
            carried=table.carried.get(block),
        )
        return text_bytes, encoded.header["tokens"]

    def tasks() -> Iterator[Callable[[], tuple[int, int]]]:
        for block in range(first_block, len(table)):
            yield lambda block=block: encode(block)

    for text_bytes, num_tokens in pool.run(tasks()):
        on_done(text_bytes, num_tokens)


def write_encoded(
    job: EncodeJob,
    path: Path,
    text: memoryview,
    documents: memoryview,
    removed: memoryview,
    *,
    block: int,
    carried: Identity | None,
    hashes: memoryview | None = None,
) -> WorkFile:
    """Encode the remaining text of a clean block and write its work file.

    With `hashes`, the file has a section of those that `append` will need (`seen`).
    """
    encoded = encode_block(job, text, documents, removed, block=block, carried=carried)
    header = {
        "tokens": encoded.num_tokens,
        "documents": encoded.num_documents,
        "sources": encoded.sources,
        "counts": encoded.counts,
        "remnants": encoded.remnants,
        "samples": [(rule, text.decode("utf-8", "replace")) for rule, text in encoded.samples],
        "unknown_characters": job.coder.count_unknown(encoded.ids),
    }
    sections = {"index": encoded.index, "ids": encoded.ids}
    if hashes is not None:
        sections["seen"] = _native.pick_hashes(hashes, documents, encoded.remnants, False)
    return write_work_file(path, header, sections)


def encode_block(
    job: EncodeJob,
    text: memoryview,
    documents: memoryview,
    removed: memoryview,
    *,
    block: int,
    carried: Identity | None,
) -> _native.EncodedBlock:
    """Encode a clean block without its `removed` lines.

    `block` is its index in the corpus, which orders its documents without the shuffle.
    """
    coder = job.coder
    encoded = _native.encode_block(
        coder.native,
        text,
        documents,
        removed,
        job.native_cleaning,
        shuffle=job.shuffle,
        seed=job.seed & (1 << 64) - 1,
        block=block,
        carried=carried,
        end_id=coder.end_id,
        id_bytes=coder.id_bytes,
    )
    if encoded.max_id >= coder.vocab_size:
        raise DataError(
            f"tokenizer {coder.name} gave id {encoded.max_id}, "
            f"but its vocabulary ends at {coder.vocab_size - 1}"
        )
    return encoded


class SourceCounts:
    """Documents and tokens by input file, summed over blocks: two numbers per file."""

    def __init__(self, num_files: int, *, first_index: int = 0) -> None:
        self._first = first_index
        self._documents, self._tokens = (array("q", bytes(8 * num_files)) for _ in range(2))

    def add(self, rows: Iterable[Sequence[int]]) -> None:
        """Add the counts of one block."""
        for index, documents, tokens in rows:
            self._documents[index - self._first] += documents
            self._tokens[index - self._first] += tokens

    def iter_json(
        self, described: Iterable[tuple[str, dict[str, Any]]]
    ) -> Iterator[dict[str, Any]]:
        """One metadata row per input file, with its path and other known facts."""
        for (path, more), documents, tokens in zip(
            described, self._documents, self._tokens, strict=True
        ):
            yield {"file": path, "documents": documents, "tokens": tokens, **more}


class EncodedTotals:
    """Totals of encoded blocks, summed from the first on.

    Blocks that this command encodes are added as they are finished; those of an earlier command and
    those encoded later are read from their files at the end: 16 bytes for each.
    """

    def __init__(self, num_files: int, *, first_index: int = 0) -> None:
        self.sources = SourceCounts(num_files, first_index=first_index)
        self.num_documents = 0
        self.num_tokens = 0
        self._report = Report()
        self._seen_at, self._seen_bytes = array("q"), array("q")
        self._has_gap = False

    def add(self, work: WorkFile | None) -> None:
        """Add the next block; None if it is not encoded yet: it and all others are added later."""
        self._has_gap = self._has_gap or work is None
        if work is not None and not self._has_gap:
            self._add(work)

    def _add(self, work: WorkFile) -> None:
        header = work.header
        unknown = header.get("unknown_characters", 0)
        self._report.add(header["counts"], header["samples"], unknown_characters=unknown)
        self.sources.add(header.get("sources", ()))
        self.num_documents += header["documents"]
        self.num_tokens += header["tokens"]
        at, size = work.sections.get("seen", (-1, 0))
        self._seen_at.append(at)
        self._seen_bytes.append(size)

    def finish(self, paths: Sequence[Path], report: Report) -> None:
        """Add the remaining blocks, and the totals to the report."""
        for path in itertools.islice(paths, len(self._seen_at), None):
            self._add(open_work_file(path))
        report.add_state(self._report.as_state())

    def find_seen(self, block: int) -> tuple[int, int] | None:
        """The section of a block's file with the hashes that `append` needs, if any."""
        at = self._seen_at[block]
        return None if at < 0 else (at, self._seen_bytes[block])


def keep_block(
    table: BlockTable, block: int, removed: Removed | None, cleaning: CleaningSettings
) -> _native.KeptDocuments:
    """Return a block's documents without their duplicates."""
    work = open_work_file(table.paths[block])
    lines = removed.load(block) if removed else NO_LINES
    return _native.keep_documents(
        work.read("text"), work.read("documents"), lines, native_options(cleaning)
    )


class Coder:
    """A tokenizer for the native core: encodes whole blocks to ids of their final width."""

    def __init__(self, tokenizer: Tokenizer, *, end_id: int | None) -> None:
        self.name = tokenizer.name
        self.vocab_size = tokenizer.vocab_size
        self.end_id = -1 if end_id is None else end_id
        self.id_bytes = id_bytes(tokenizer.vocab_size)
        self.native = _native_coder(tokenizer)
        is_char = tokenizer.kind == "char"
        self._unknown_id = tokenizer.special_tokens.get("<unk>") if is_char else None

    def count_unknown(self, ids: memoryview) -> int:
        """Count the `ids` of characters that the tokenizer does not have."""
        if self._unknown_id is None:
            return 0
        found = np.frombuffer(ids, f"<u{self.id_bytes}") == self._unknown_id
        return int(np.count_nonzero(found))


def _native_coder(
    tokenizer: Tokenizer,
) -> _native.Vocabulary | _native.CharacterTable | _native.CalledCoder:
    if tokenizer.package is not None:
        return _native.CalledCoder(tokenizer.package.encode_bytes, tokenizer.vocab_size)
    return _character_table(tokenizer) if tokenizer.kind == "char" else tokenizer.native


def _character_table(tokenizer: Tokenizer) -> _native.CharacterTable:
    special = set(tokenizer.special_tokens.values())
    ids = [number for number in range(tokenizer.vocab_size) if number not in special]
    codes = [ord(tokenizer.token_bytes(number).decode()) for number in ids]
    unknown = tokenizer.special_tokens.get("<unk>")
    if unknown is None:
        unknown = tokenizer.vocab_size  # out of range: a character without an id is an error
    return _native.CharacterTable(np.array(codes, np.uint32), np.array(ids, np.uint32), unknown)
