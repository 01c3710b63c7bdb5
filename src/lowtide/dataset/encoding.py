"""Turn cleaned blocks into ids, sorted by each document's place in the shuffle.

In:      work files of cleaned blocks, the lines to leave out, a tokenizer (as a Coder)
Out:     one work file per block: a row per document (key, split, tokens) and the ids, by key
Memory:  one block per worker
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide import _native
from lowtide.corpus.blocks import BlockTable, Identity
from lowtide.corpus.cleaning import DOCUMENT_ROW, LAST, CleaningOptions, native_options
from lowtide.corpus.deduplication import RemovedLines
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import open_work_file, write_work_file
from lowtide.dataset.layout import pick_dtype
from lowtide.errors import DataError
from lowtide.tokenizer import Tokenizer

__all__ = [
    "ENCODED_ROW",
    "NO_LINES",
    "Coder",
    "EncodeJob",
    "SourceCounts",
    "encode_corpus",
    "keep_block",
    "keep_documents",
    "shuffle_keys",
    "write_encoded",
]

NO_LINES = np.empty(0, dtype=np.uint32)

ENCODED_ROW = np.dtype([("key", "<u8"), ("split", "<u8"), ("tokens", "<u8"), ("ends", "<u8")])
"""`key`: place in the shuffle; `split`: content hash; `ends`: 1 when the document ends here."""


@dataclass(frozen=True)
class EncodeJob:
    """How cleaned blocks become ids."""

    cleaning: CleaningOptions
    coder: Coder
    shuffle: bool
    seed: int
    folder: Path

    def path(self, block_path: Path) -> Path:
        """Where the ids of the block in `block_path` are."""
        return self.folder / f"{block_path.stem}.ids"


def shuffle_keys(
    seed: int, input_indexes: npt.NDArray[np.uint64], ordinals: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Give each document's place in the shuffle, from nothing but the seed and its identity."""
    # The constant keeps seed 0 from being a fixed point, which would put document 0 first.
    shifted = (seed + 0x9E3779B97F4A7C15) & (1 << 64) - 1
    mixed_seed = _scatter(np.array([shifted], dtype=np.uint64))
    return _scatter(_scatter(_scatter(input_indexes ^ mixed_seed) ^ ordinals) + mixed_seed)


def _scatter(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A bijection on 64 bits that spreads every input bit over all output bits."""
    factor = np.uint64(0xE9846AF9B1A615D)
    words = (words ^ (words >> np.uint64(32))) * factor
    words = (words ^ (words >> np.uint64(32))) * factor
    return words ^ (words >> np.uint64(28))


def encode_corpus(
    job: EncodeJob,
    table: BlockTable,
    removed: RemovedLines | None,
    pool: WorkerPool,
    *,
    first_block: int = 0,
    on_done: Callable[[int, int], None],
) -> None:
    """Encode every block that is not encoded yet; `on_done` is told its text bytes and tokens.

    Blocks before `first_block` are there only to be compared with.
    """
    job.folder.mkdir(parents=True, exist_ok=True)

    def encode(block: int) -> tuple[int, int]:
        text_bytes = int(table.text_bytes[block])
        path = job.path(table.paths[block])
        if path.exists():
            return text_bytes, open_work_file(path).header["tokens"]
        if not table.has_text[block]:
            raise DataError(
                "neither the text nor the ids of a block are left of the earlier command",
                path=path,
                next_step="the same command with --restart",
            )
        kept, rows = keep_block(table, block, removed, job.cleaning)
        return text_bytes, write_encoded(
            job, path, kept, rows, block=block, carried=table.carried.get(block)
        )

    def tasks() -> Iterator[Callable[[], tuple[int, int]]]:
        for block in range(first_block, len(table)):
            yield lambda block=block: encode(block)

    for text_bytes, num_tokens in pool.run(tasks()):
        on_done(text_bytes, num_tokens)


def write_encoded(
    job: EncodeJob,
    path: Path,
    kept: _native.KeptDocuments,
    rows: npt.NDArray[Any],
    *,
    block: int,
    carried: Identity | None,
) -> int:
    """Encode what is kept of a block and write its work file; give how many ids it has.

    `block` is its place in the corpus, which is the order of its documents without the shuffle.
    """
    identities = _identities(rows, carried)
    keys = (
        shuffle_keys(job.seed, identities["input_index"], identities["ordinal"])
        if job.shuffle
        else np.uint64(block << 32) + np.arange(len(rows), dtype=np.uint64)
    )
    order = np.argsort(keys, kind="stable")
    ending = (rows["flags"] & np.uint64(LAST)) != 0
    ids, lengths = job.coder.encode(kept, order, ending)
    index = np.zeros(len(rows), dtype=ENCODED_ROW)
    index["key"] = keys[order]
    index["split"] = identities["hash_low"][order]
    index["tokens"] = lengths
    index["ends"] = ending[order]
    num_tokens = int(lengths.sum())
    header = {
        "tokens": num_tokens,
        "documents": len(rows),
        "sources": _count_sources(identities["input_index"][order], lengths, ending[order]),
        "counts": kept.counts,
        "samples": [(rule, text.decode("utf-8", "replace")) for rule, text in kept.samples],
    }
    write_work_file(path, header, {"index": index, "ids": ids})
    return num_tokens


def _count_sources(
    inputs: npt.NDArray[np.uint64],
    lengths: npt.NDArray[np.uint64],
    ending: npt.NDArray[np.bool_],
) -> list[tuple[int, int, int]]:
    """Give (input, documents that end here, tokens) for each input a block has text of."""
    found, places = np.unique(inputs, return_inverse=True)
    documents = np.bincount(places, weights=ending, minlength=len(found))
    tokens = np.bincount(places, weights=lengths, minlength=len(found))
    return [
        (int(index), int(count), int(size))
        for index, count, size in zip(found, documents, tokens, strict=True)
    ]


class SourceCounts:
    """Documents and tokens by input file, added up over blocks: two numbers a file."""

    def __init__(self, paths: Sequence[str], *, first_index: int = 0) -> None:
        self._first = first_index
        self._paths = paths
        self._counts = np.zeros((len(paths), 2), dtype=np.int64)

    def add(self, rows: Iterable[Sequence[int]]) -> None:
        """Add what one block counted."""
        for index, documents, tokens in rows:
            self._counts[index - self._first] += (documents, tokens)

    def as_json(self) -> list[dict[str, Any]]:
        """Give one row per input file, as the metadata has it."""
        return [
            {"file": path, "documents": int(documents), "tokens": int(tokens)}
            for path, (documents, tokens) in zip(self._paths, self._counts, strict=True)
        ]


def keep_block(
    table: BlockTable, block: int, removed: RemovedLines | None, cleaning: CleaningOptions
) -> tuple[_native.KeptDocuments, npt.NDArray[Any]]:
    """Give a block's documents without their duplicates, and the rows that describe them."""
    work = open_work_file(table.paths[block])
    lines = removed.load(block) if removed else NO_LINES
    return keep_documents(work.read("text"), work.read("documents"), lines, cleaning)


def keep_documents(
    text: npt.NDArray[np.uint8],
    documents: npt.NDArray[np.uint8],
    removed: npt.NDArray[np.uint32],
    cleaning: CleaningOptions,
) -> tuple[_native.KeptDocuments, npt.NDArray[Any]]:
    """Give documents without the removed lines, and the rows that describe them."""
    kept = _native.keep_documents(text, documents, removed, native_options(cleaning))
    return kept, documents.view(DOCUMENT_ROW)[kept.rows.view(np.uint64)]


def _identities(rows: npt.NDArray[Any], carried: Identity | None) -> npt.NDArray[Any]:
    if carried is None or not len(rows):
        return rows
    rows = rows.copy()
    rows["input_index"][0] = carried.input_index
    rows["ordinal"][0] = carried.ordinal
    rows["hash_low"][0] = carried.hash_low
    return rows


class Coder:
    """A tokenizer as the native core uses it: whole blocks at a time, ids of their final width."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.name = tokenizer.name
        self.vocab_size = tokenizer.vocab_size
        self._end_id = -1 if tokenizer.end_of_text_id is None else tokenizer.end_of_text_id
        self._dtype = pick_dtype(tokenizer.vocab_size)
        self._native = _character_table(tokenizer) if tokenizer.kind == "char" else tokenizer.native

    def encode(
        self,
        kept: _native.KeptDocuments,
        order: npt.NDArray[np.intp],
        ending: npt.NDArray[np.bool_],
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint64]]:
        """Give the ids of the documents in `order`, each with end-of-text, and how many."""
        ids, lengths = _native.encode_documents(
            self._native,
            kept,
            order.astype(np.uint64),
            ending.astype(np.uint8),
            self._end_id,
            self._dtype.itemsize,
        )
        if len(ids) and int(ids.max()) >= self.vocab_size:
            raise DataError(
                f"tokenizer {self.name} gave id {int(ids.max())}, "
                f"but its vocabulary ends at {self.vocab_size - 1}"
            )
        return ids, lengths


def _character_table(tokenizer: Tokenizer) -> _native.CharacterTable:
    special = set(tokenizer.special_tokens.values())
    ids = [number for number in range(tokenizer.vocab_size) if number not in special]
    codes = [ord(tokenizer.token_bytes(number).decode()) for number in ids]
    unknown = tokenizer.special_tokens.get("<unk>")
    if unknown is None:
        unknown = tokenizer.vocab_size  # outside: a character that has no id is then an error
    return _native.CharacterTable(np.array(codes, np.uint32), np.array(ids, np.uint32), unknown)
