"""Hash the text of an existing dataset, so that new text can be compared with it.

In:      shards of any origin; the hashes of documents stored in a dataset (seen)
Out:     blocks of hashes, like those of new text after cleaning; blocks of text, for near copies
Memory:  a few MiB of decoded text for each worker
Disk:    for a dataset in a store, one shard for each worker (TMPDIR)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowtide.corpus.blockcleaning import CleanJob, write_block
from lowtide.corpus.blocktable import BlockTable, load_block_table
from lowtide.corpus.reading import BLOCK_BYTES, ReadingSettings, Segment, Stream, TextBlock
from lowtide.corpus.settings import CleaningSettings
from lowtide.corpus.workers import WorkerPool
from lowtide.dataset.seen import iter_seen, write_seen_block
from lowtide.dataset.storeddatasets import local_shard
from lowtide.dataset.tokenfiles.shards import (
    ShardInfo,
    load_document_ends,
    load_shard_tokens,
    shard_number,
)
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass
from lowtide.stores.paths import is_stored
from lowtide.tokenizer import Tokenizer

__all__ = [
    "ExistingText",
    "TokenStretch",
    "as_it_is",
    "block_of_documents",
    "block_of_lines",
    "count_documents",
    "find_start",
    "hash_existing",
    "in_order",
    "iter_texts",
    "load_existing",
    "whole_shards",
]

_DECODE_TOKENS = 1 << 20  # at most; fewer if tokens are long, because the text needs the memory


@dataclass(frozen=True)
class ExistingText:
    """A dataset's text, and the cleaning of the new text that is compared with it."""

    root: Path
    shards: Mapping[str, Sequence[ShardInfo]]
    dtype: np.dtype[Any]
    seen: list[Any]
    """Metadata rows of the files with hashes of whole documents."""
    reading: ReadingSettings
    cleaning: CleaningSettings
    folder: Path


def hash_existing(
    text: ExistingText, tokenizer: Tokenizer, pool: WorkerPool, progress: Progress
) -> BlockTable:
    """Decode a dataset and hash its lines again; finished blocks are not read twice.

    Whole documents are compared by their stored hashes; in shards moved in by hand, and in datasets
    of earlier versions, they are hashed again as well.
    """
    stream = Stream(0, (), random_access=True, num_blocks=0)
    job = CleanJob([stream], text.reading, as_it_is(text.cleaning, dedup=True), text.folder)
    job.folder.mkdir(parents=True, exist_ok=True)
    total = sum(shard.num_tokens for shards in text.shards.values() for shard in shards)
    count = 0

    def tasks() -> Iterator[Callable[[], int]]:
        nonlocal count
        shards = in_order(chain(*text.shards.values()))
        ours = [shard for shard in shards if shard.checksum is not None]
        for group in (ours, shards[len(ours) :]):
            whole = group is not ours or not text.seen
            for texts, tokens in iter_texts(
                whole_shards(group), text.dtype, tokenizer, block_bytes=text.reading.block_bytes
            ):
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


def load_existing(
    text: ExistingText, tokenizer: Tokenizer, pool: WorkerPool, progress: Progress
) -> BlockTable:
    """Decode the documents of a dataset as clean blocks; each is numbered as in the dataset.

    A document longer than a block is left out: preparation does not compare such documents either.
    """
    stream = Stream(0, (), random_access=True, num_blocks=0)
    cleaning = as_it_is(text.cleaning, dedup=False)
    job = CleanJob([stream], text.reading, cleaning, text.folder)
    job.folder.mkdir(parents=True, exist_ok=True)
    shards = in_order(chain(*text.shards.values()))
    count = 0

    def tasks() -> Iterator[Callable[[], int]]:
        nonlocal count
        first = 0
        stretches = whole_shards(shards)
        for texts, tokens in iter_texts(
            stretches,
            text.dtype,
            tokenizer,
            block_bytes=text.reading.block_bytes,
            cut_long=False,
        ):
            number, count = count, count + 1
            yield (
                lambda texts=texts, tokens=tokens, number=number, first=first: _write_texts(
                    job, texts, number, tokens, first
                )
            )
            first += len(texts)

    total = sum(shard.num_tokens for shard in shards)
    with progress.phase("read documents", total=total, unit="tokens") as phase:
        for tokens in pool.run(tasks()):
            phase.advance(tokens)
        return load_block_table(replace(job, streams=[replace(stream, num_blocks=count)]))


def as_it_is(cleaning: CleaningSettings, *, dedup: bool) -> CleaningSettings:
    """The options for text that was cleaned and filtered when it was prepared."""
    return replace(
        cleaning,
        dedup=dedup,
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


def in_order(shards: Iterable[ShardInfo]) -> list[ShardInfo]:
    """Sort shards as they were written, because a document may continue in the next shard, also
    from train to val; shards moved in by hand come last."""
    return sorted(shards, key=lambda shard: (shard.checksum is None, shard_number(shard.path) or 0))


class TokenStretch(NamedTuple):
    """Tokens `begin` to `end` of a shard."""

    shard: ShardInfo
    begin: int
    end: int


def whole_shards(shards: Iterable[ShardInfo]) -> list[TokenStretch]:
    """All tokens of shards."""
    return [TokenStretch(shard, 0, shard.num_tokens) for shard in shards]


def find_start(
    shards: Sequence[ShardInfo], index: int, dtype: np.dtype[Any], tokenizer: Tokenizer
) -> tuple[int, int]:
    """The first document start from shard `index` on: a shard, and a token in it.

    The shards are in order; if there is none, returns the end of the last shard.
    """
    if index == 0:
        return 0, 0
    for number in range(index - 1, len(shards)):
        shard = shards[number]
        stops = _find_stops(shard, dtype, tokenizer)
        wanted = stops[-1:] if number < index else stops[:1]
        if len(wanted) and wanted[0] == shard.num_tokens:
            return number + 1, 0
        if len(wanted) and number >= index:
            return number, int(wanted[0])
    return len(shards), 0


def count_documents(shard: ShardInfo, dtype: np.dtype[Any], tokenizer: Tokenizer) -> int:
    """The number of documents that end in a shard."""
    if is_stored(shard.path) and shard.num_documents:  # its .docs file has this size
        return shard.num_documents
    return len(_find_stops(shard, dtype, tokenizer))


def _find_stops(
    shard: ShardInfo, dtype: np.dtype[Any], tokenizer: Tokenizer
) -> npt.NDArray[np.int64]:
    """The ends of documents in a shard."""
    ends = load_document_ends(shard).astype(np.int64)
    if len(ends) or tokenizer.end_of_text_id is None:
        return ends
    with local_shard(shard) as here:
        tokens = load_shard_tokens(here, dtype)  # it has no .docs file, or no end in it
        return np.flatnonzero(tokens == tokenizer.end_of_text_id) + 1


def iter_texts(
    stretches: Iterable[TokenStretch],
    dtype: np.dtype[Any],
    tokenizer: Tokenizer,
    *,
    block_bytes: int = BLOCK_BYTES,
    decode_tokens: int = _DECODE_TOKENS,
    cut_long: bool = True,
) -> Iterator[tuple[list[bytes], int]]:
    """Decode documents in order, whole if they fit into a block; lines are never cut.

    Longer documents are yielded in parts, because preparation compares them line by line, too.
    Without `cut_long` each of them is empty instead, so that there is a text for every document.
    Where one is cut depends only on its own tokens, not on the text before it.
    """
    held = b""  # a document that may continue
    is_long = False
    lengths = _token_lengths(tokenizer)
    for shard, begin, stretch_end in _iter_local(stretches):
        tokens = load_shard_tokens(shard, dtype)[:stretch_end]
        ends = load_document_ends(shard).astype(np.int64)
        while begin < stretch_end:
            ids = _cut_ids(tokens[begin : begin + decode_tokens], lengths, block_bytes - len(held))
            end = begin + len(ids)
            stops = ends[slice(*np.searchsorted(ends, (begin, end), side="right"))] - begin
            if not len(ends) and tokenizer.end_of_text_id is not None:  # it has no .docs file
                stops = np.flatnonzero(ids == tokenizer.end_of_text_id) + 1
            texts: list[bytes] = []
            start = 0
            for stop in stops.tolist():
                last = stop - 1 if ids[stop - 1] == tokenizer.end_of_text_id else stop
                whole = held + tokenizer.decode_bytes(ids[start:last])
                is_long |= len(whole) > block_bytes and not cut_long
                texts.append(b"" if is_long else whole)
                held, start, is_long = b"", stop, False
            held += tokenizer.decode_bytes(ids[start:])
            if len(held) > block_bytes and not cut_long:
                held, is_long = b"", True
            elif len(held) > block_bytes:
                line_end = held.rfind(b"\n") + 1 or len(held)
                texts.append(held[:line_end])
                held = held[line_end:]
            yield texts, end - begin
            begin = end
    if held:
        yield [b"" if is_long else held], 0


def _iter_local(stretches: Iterable[TokenStretch]) -> Iterator[TokenStretch]:
    """Ranges of shards that can be mapped; from a store, one shard at a time is copied."""
    for stretch in stretches:
        with local_shard(stretch.shard) as here:
            yield stretch._replace(shard=here)


def _token_lengths(tokenizer: Tokenizer) -> npt.NDArray[np.int32]:
    """The bytes of each token's text."""
    sizes = (len(tokenizer.token_bytes(number)) for number in range(tokenizer.vocab_size))
    return np.fromiter(sizes, dtype=np.int32, count=tokenizer.vocab_size)


def _cut_ids(
    tokens: npt.NDArray[Any], lengths: npt.NDArray[np.int32], num_bytes: int
) -> npt.NDArray[Any]:
    """The first of the ids, up to the one whose text passes `num_bytes`."""
    ids = np.array(tokens)
    # Invalid ids are refused by decoding, with their number.
    sizes = lengths.take(ids, mode="clip").cumsum(dtype=np.int64)
    count = int(np.searchsorted(sizes, max(num_bytes, 0), side="right")) + 1
    return ids[:count].copy() if count < len(ids) else ids


def _hash_seen(job: CleanJob, rows: bytes, number: int) -> int:
    path = job.block_path(0, number)
    if not path.exists():
        write_seen_block(path, rows)
    return 0


def _write_texts(
    job: CleanJob, texts: list[bytes], number: int, num_tokens: int, first: int
) -> int:
    """Write documents, the first of which has the number `first`, as a clean block."""
    if not job.block_path(0, number).exists():
        write_block(job, block_of_documents(texts, number, first=first), number)
    return num_tokens


def _hash_texts(
    job: CleanJob, texts: list[bytes], number: int, num_tokens: int, *, whole: bool
) -> int:
    """Hash the lines of texts; with `whole` also each text as a document."""
    if not job.block_path(0, number).exists():
        block = (block_of_documents if whole else block_of_lines)(texts, number)
        write_block(job, block, number, keep_text=False)
    return num_tokens


def block_of_documents(texts: Sequence[bytes], number: int, *, first: int = 0) -> TextBlock:
    """A block of whole documents, the first of which has the number `first`."""
    data = b"".join(texts)
    return TextBlock(
        stream=0,
        number=number,
        kind="rows",
        data=data,
        segments=(Segment(0, first, 0, len(data)),),
        row_ends=_ends_of(texts),
    )


def block_of_lines(texts: Sequence[bytes], number: int) -> TextBlock:
    """A block of lines only, as a part of a document, which has no document hash."""
    data = b"\n".join(texts)
    is_part = bool(data)
    block = block_of_documents([data], number)
    return replace(block, continues=is_part, continued=is_part)


def _ends_of(texts: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    sizes = np.fromiter(map(len, texts), dtype=np.uint64, count=len(texts))
    return np.cumsum(sizes).astype(np.uint64)
