"""Hash the text of a dataset that is there, so that new text can be compared with it.

In:      shards of any origin; the hashes of documents that a dataset keeps (seen)
Out:     blocks of hashes, as cleaning new text makes them
Memory:  a few MiB of decoded text for each worker
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.corpus.blocks import CleanJob, write_block
from lowtide.corpus.blocktable import BlockTable, load_block_table
from lowtide.corpus.reading import BLOCK_BYTES, ReadingSettings, Segment, Stream, TextBlock
from lowtide.corpus.settings import CleaningSettings
from lowtide.corpus.workers import WorkerPool
from lowtide.dataset import layout
from lowtide.dataset.seen import iter_seen, write_seen_block
from lowtide.progress import Progress
from lowtide.tokenizer import Tokenizer

__all__ = ["ExistingText", "hash_existing"]

_DECODE_TOKENS = 1 << 20
_HELD_BYTES = BLOCK_BYTES  # longer documents are compared line by line, as in preparation


@dataclass(frozen=True)
class ExistingText:
    """A dataset's text, and how new text is cleaned that is compared with it."""

    root: Path
    shards: dict[str, list[layout.ShardInfo]]
    dtype: np.dtype[Any]
    seen: list[Any]
    """Rows of metadata that say where hashes of whole documents are kept."""
    reading: ReadingSettings
    cleaning: CleaningSettings
    folder: Path


def hash_existing(
    text: ExistingText, tokenizer: Tokenizer, pool: WorkerPool, progress: Progress
) -> BlockTable:
    """Decode a dataset and hash its lines again; blocks that are done are not read twice.

    Whole documents are known by the hashes kept of them; of shards that somebody moved in, and in
    datasets of earlier versions, they are hashed again as well.
    """
    stream = Stream(0, (), random_access=True, num_blocks=0)
    job = CleanJob([stream], text.reading, _as_it_is(text.cleaning), text.folder)
    job.folder.mkdir(parents=True, exist_ok=True)
    total = sum(shard.num_tokens for shards in text.shards.values() for shard in shards)
    count = 0

    def tasks() -> Iterator[Callable[[], int]]:
        nonlocal count
        shards = _in_order(chain(*text.shards.values()))
        ours = [shard for shard in shards if shard.checksum is not None]
        for group in (ours, shards[len(ours) :]):
            whole = group is not ours or not text.seen
            for texts, tokens in _iter_texts(group, text.dtype, tokenizer):
                number, count = count, count + 1
                yield (
                    lambda texts=texts, tokens=tokens, number=number, whole=whole: _hash_texts(
                        job, texts, number, tokens, whole=whole
                    )
                )
        for rows in iter_seen(text.root, text.seen):
            number, count = count, count + 1
            yield lambda rows=rows, number=number: _hash_seen(job, rows, number)

    with progress.phase("read dataset", total=total, unit="tokens") as phase:
        for tokens in pool.run(tasks()):
            phase.advance(tokens)
        return load_block_table(replace(job, streams=[replace(stream, num_blocks=count)]))


def _as_it_is(cleaning: CleaningSettings) -> CleaningSettings:
    """The options for text that was cleaned and judged when it was prepared."""
    return replace(
        cleaning,
        normalize=False,
        filter=False,
        rules="",
        rule_limit=(),
        mask="",
        keep_top=None,
        step="",
        language_model="",
        languages="",
        score="",
        score_label="",
    )


def _in_order(shards: Iterable[layout.ShardInfo]) -> list[layout.ShardInfo]:
    """Put shards as they were written, where one document may go on in the next, also from train
    to val; those moved in by hand come last."""
    return sorted(
        shards, key=lambda shard: (shard.checksum is None, layout.shard_number(shard.path) or 0)
    )


def _iter_texts(
    shards: list[layout.ShardInfo], dtype: np.dtype[Any], tokenizer: Tokenizer
) -> Iterator[tuple[list[bytes], int]]:
    """Decode documents in order, whole ones where they are not too long; no line is ever cut."""
    held = b""  # a document of which more may come
    for shard in shards:
        tokens = layout.load_shard_tokens(shard, dtype)
        ends = layout.load_document_ends(shard).astype(np.int64)
        for begin in range(0, shard.num_tokens, _DECODE_TOKENS):
            end = min(begin + _DECODE_TOKENS, shard.num_tokens)
            ids = np.array(tokens[begin:end])
            stops = ends[(ends > begin) & (ends <= end)] - begin
            if not len(ends) and tokenizer.end_of_text_id is not None:  # nobody wrote them down
                stops = np.flatnonzero(ids == tokenizer.end_of_text_id) + 1
            texts: list[bytes] = []
            start = 0
            for stop in stops.tolist():
                last = stop - 1 if ids[stop - 1] == tokenizer.end_of_text_id else stop
                texts.append(held + tokenizer.decode_bytes(ids[start:last]))
                held, start = b"", stop
            held += tokenizer.decode_bytes(ids[start:])
            if len(held) > _HELD_BYTES:
                line_end = held.rfind(b"\n") + 1 or len(held)
                texts.append(held[:line_end])
                held = held[line_end:]
            yield texts, end - begin
    if held:
        yield [held], 0


def _hash_seen(job: CleanJob, rows: bytes, number: int) -> int:
    path = job.block_path(0, number)
    if not path.exists():
        write_seen_block(path, rows)
    return 0


def _hash_texts(
    job: CleanJob, texts: list[bytes], number: int, num_tokens: int, *, whole: bool
) -> int:
    """Hash the lines of texts; with `whole` also each text as a document."""
    if not job.block_path(0, number).exists():
        if not whole:
            texts = [b"\n".join(texts)]
        data = b"".join(texts)
        ends: npt.NDArray[np.uint64] = np.cumsum(
            np.fromiter(map(len, texts), dtype=np.uint64, count=len(texts))
        ).astype(np.uint64)
        is_part = not whole and bool(data)  # a part of a document has no hash of its own
        block = TextBlock(
            stream=0,
            number=number,
            kind="rows",
            data=data,
            segments=(Segment(0, 0, 0, len(data)),),
            row_ends=ends,
            continues=is_part,
            continued=is_part,
        )
        write_block(job, block, number, keep_text=False)
    return num_tokens
