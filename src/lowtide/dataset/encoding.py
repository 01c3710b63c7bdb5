"""Turn cleaned blocks into ids, sorted by each document's place in the shuffle.

In:      work files of cleaned blocks, the lines to leave out, a tokenizer
Out:     one work file per block: a row per document (key, split, tokens) and the ids, by key
Memory:  one block per worker
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

__all__ = ["ENCODED_ROW", "EncodeJob", "encode_corpus", "shuffle_keys"]

ENCODED_ROW = np.dtype([("key", "<u8"), ("split", "<u8"), ("tokens", "<u8"), ("ends", "<u8")])
"""`key`: place in the shuffle; `split`: content hash; `ends`: 1 when the document ends here."""


@dataclass(frozen=True)
class EncodeJob:
    """Everything the encoding of a cleaned corpus depends on."""

    table: BlockTable
    removed: RemovedLines | None
    cleaning: CleaningOptions
    tokenizer: Tokenizer
    shuffle: bool
    seed: int
    folder: Path

    def path(self, block: int) -> Path:
        """Where a block's ids are."""
        return self.folder / f"{block:08d}.ids"


def shuffle_keys(
    seed: int, input_indexes: npt.NDArray[np.uint64], ordinals: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Give each document's place in the shuffle, from nothing but the seed and its identity."""
    mixed_seed = _scatter(np.array([seed & (1 << 64) - 1], dtype=np.uint64))
    return _scatter(_scatter(_scatter(input_indexes ^ mixed_seed) ^ ordinals) + mixed_seed)


def _scatter(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A bijection on 64 bits that spreads every input bit over all output bits."""
    factor = np.uint64(0xE9846AF9B1A615D)
    words = (words ^ (words >> np.uint64(32))) * factor
    words = (words ^ (words >> np.uint64(32))) * factor
    return words ^ (words >> np.uint64(28))


def encode_corpus(job: EncodeJob, pool: WorkerPool, *, on_done: Callable[[int, int], None]) -> None:
    """Encode every block that is not encoded yet; `on_done` is told its text bytes and tokens."""
    job.folder.mkdir(parents=True, exist_ok=True)

    def tasks() -> Iterator[Callable[[], tuple[int, int]]]:
        for block in range(len(job.table)):
            yield lambda block=block: _encode_block(job, block)

    for text_bytes, num_tokens in pool.run(tasks()):
        on_done(text_bytes, num_tokens)


def _encode_block(job: EncodeJob, block: int) -> tuple[int, int]:
    text_bytes = int(job.table.text_bytes[block])
    path = job.path(block)
    if path.exists():
        return text_bytes, open_work_file(path).header["tokens"]
    kept, rows = keep_block(job.table, block, job.removed, job.cleaning)
    ids, lengths = _encode_documents(job.tokenizer, kept, rows)
    identities = _identities(rows, job.table.carried.get(block))
    keys = (
        shuffle_keys(job.seed, identities["input_index"], identities["ordinal"])
        if job.shuffle
        else np.uint64(block << 32) + np.arange(len(rows), dtype=np.uint64)
    )
    order = np.argsort(keys, kind="stable")
    index = np.zeros(len(rows), dtype=ENCODED_ROW)
    index["key"] = keys[order]
    index["split"] = identities["hash_low"][order]
    index["tokens"] = lengths[order]
    index["ends"] = (rows["flags"][order] & np.uint64(LAST)) != 0
    header = {
        "tokens": int(lengths.sum()),
        "documents": len(rows),
        "counts": kept.counts,
        "samples": [(rule, text.decode("utf-8", "replace")) for rule, text in kept.samples],
    }
    write_work_file(path, header, {"index": index, "ids": _reorder(ids, lengths, order)})
    return text_bytes, header["tokens"]


def keep_block(
    table: BlockTable, block: int, removed: RemovedLines | None, cleaning: CleaningOptions
) -> tuple[_native.KeptDocuments, npt.NDArray[Any]]:
    """Give a block's documents without their duplicates, and the rows that describe them."""
    work = open_work_file(table.paths[block])
    documents = work.read("documents")
    lines = removed.load(block) if removed else np.empty(0, np.uint32)
    kept = _native.keep_documents(work.read("text"), documents, lines, native_options(cleaning))
    return kept, documents.view(DOCUMENT_ROW)[kept.rows.view(np.uint64)]


def _identities(rows: npt.NDArray[Any], carried: Identity | None) -> npt.NDArray[Any]:
    if carried is None or not len(rows):
        return rows
    rows = rows.copy()
    rows["input_index"][0] = carried.input_index
    rows["ordinal"][0] = carried.ordinal
    rows["hash_low"][0] = carried.hash_low
    return rows


def _encode_documents(
    tokenizer: Tokenizer, kept: _native.KeptDocuments, rows: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint64]]:
    """Give the ids of all documents, in order, each ended by end-of-text, and their numbers."""
    text = kept.text.tobytes()
    spans = zip(kept.begins.view(np.uint64), kept.ends.view(np.uint64), strict=True)
    arrays = tokenizer.encode_batch([text[begin:end] for begin, end in spans], num_threads=1)
    end_id = tokenizer.end_of_text_id
    ending = (rows["flags"] & np.uint64(LAST)) != 0
    parts: list[npt.NDArray[Any]] = []
    lengths = np.zeros(len(arrays), dtype=np.uint64)
    for number, array in enumerate(arrays):
        parts.append(array)
        lengths[number] = len(array)
        if end_id is not None and ending[number]:
            parts.append(np.array([end_id], dtype=array.dtype))
            lengths[number] += np.uint64(1)
    ids = np.concatenate(parts) if parts else np.empty(0, np.uint32)
    if len(ids) and int(ids.max()) >= tokenizer.vocab_size:
        raise DataError(
            f"tokenizer {tokenizer.name} gave id {int(ids.max())}, "
            f"but its vocabulary ends at {tokenizer.vocab_size - 1}"
        )
    return ids.astype(pick_dtype(tokenizer.vocab_size)), lengths


def _reorder(
    ids: npt.NDArray[Any], lengths: npt.NDArray[np.uint64], order: npt.NDArray[np.intp]
) -> npt.NDArray[Any]:
    if bool(np.all(order[1:] > order[:-1])):
        return ids
    ends = np.cumsum(lengths)
    begins = ends - lengths
    return np.concatenate([ids[begins[row] : ends[row]] for row in order])
