"""Small corpora for tests, and a plain way to read a dataset back."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from lowtide import _native
from lowtide.dataset import layout
from lowtide.dataset.tokenfiles.shards import (
    ShardInfo,
    id_chunk,
    load_document_ends,
    load_shard_tokens,
    write_shard_stream,
)
from lowtide.tokenizer import Tokenizer

SEPARATOR = "<|endoftext|>"


def make_documents(count: int, *, seed: int = 0) -> list[str]:
    """Return documents of random words, all different, none removed by the default limits."""
    chooser = random.Random(seed)
    words = ["tide", "low", "water", "sea", "weed", "shore", "boat", "naïve", "übung", "水"]
    documents: list[str] = []
    for number in range(count):
        lines = [
            f"{seed}.{number}.{line} in the corpus "
            + " ".join(chooser.choices(words, k=chooser.randrange(4, 12)))
            for line in range(chooser.randrange(1, 6))
        ]
        documents.append("\n".join(lines))
    return documents


def write_corpus(path: Path, documents: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SEPARATOR.join(documents))
    return path


def write_shard(
    path: Path, ids: npt.NDArray[np.integer], ends: list[int], *, vocab_size: int
) -> ShardInfo:
    path.parent.mkdir(parents=True, exist_ok=True)
    chunk = id_chunk(ids, np.array(ends), vocab_size=vocab_size, path=path)
    return write_shard_stream(path, [chunk], vocab_size=vocab_size)


def read_documents(root: Path, split: str) -> list[str]:
    """Decode a split's documents, in order; shards are read as one stream."""
    info = layout.load_dataset_info(root)
    tokenizer = Tokenizer.load(root)
    ids = read_tokens(info, split)
    ends: list[int] = []
    base = 0
    for shard in info.shards[split]:
        ends += [base + int(end) for end in load_document_ends(shard)]
        base += shard.num_tokens
    documents: list[str] = []
    begin = 0
    for end in ends:
        assert ids[end - 1] == tokenizer.end_of_text_id
        documents.append(tokenizer.decode(ids[begin : end - 1]))
        begin = end
    return documents


def read_tokens(info: layout.DatasetInfo, split: str) -> np.ndarray:
    parts = [load_shard_tokens(shard, info.dtype) for shard in info.shards[split]]
    return np.concatenate(parts) if parts else np.empty(0, info.dtype)


def snapshot(root: Path) -> dict[str, bytes]:
    """Return every file of a dataset by name; without measurements, which always differ."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "metrics.jsonl"
    }


class Killed(BaseException):
    """A kill as a program in a test sees it: no `except Exception` stops it."""


def kill_at_rename(patch: pytest.MonkeyPatch, limit: int, work: Callable[[], object]) -> bool:
    """Do the work, killed at the rename with this number; True if it got that far."""
    count = 0

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object, **named: object) -> object:
            nonlocal count
            count += 1
            if count == limit:
                raise Killed
            return real(*given, **named)

        return call

    with patch.context() as context, contextlib.suppress(Killed):
        context.setattr(Path, "replace", counted(os.replace))
        context.setattr(_native, "write_work_file", counted(_native.write_work_file))
        work()
    return count >= limit


QUESTION = "which of these tides comes twice a day at the coast where the old boat lies ashore"


def write_old_and_new(
    num_old: int, *, long_lines: int, again: slice, num_new: tuple[int, int, int]
) -> None:
    """Write a tokenizer, and old and new text of several kinds, with duplicates in both."""
    Tokenizer.from_merges([(b"i", b"n"), (b"l", b"o"), (b"lo", b"w")]).save(Path("tok"))
    old, place = make_documents(num_old), 2 * num_old // 3
    long_document = "\n".join(f"line {number} of a long document" for number in range(long_lines))
    write_corpus(Path("old.txt"), [*old[:place], long_document, *old[place:]])
    line = old[7].split("\n")[0]
    write_corpus(
        Path("new/a.txt"),
        [*old[again], f"{line}\na line that nobody has", *make_documents(num_new[0], seed=1)],
    )
    rows = [*make_documents(num_new[1], seed=2), old[3], f"{QUESTION} and so"]
    Path("new/b.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in rows))
    packed = SEPARATOR.join([*make_documents(num_new[2], seed=3), *make_documents(9, seed=1)])
    Path("new/c.txt.gz").write_bytes(gzip.compress(packed.encode(), mtime=0))
    Path("evals.jsonl").write_text(json.dumps({"question": QUESTION}) + "\n")
