"""Check a dataset against what its metadata says: every byte, every id, every document end.

In:      a dataset folder
Out:     a list of problems, each naming the file; empty when all is well
Memory:  one buffer of 4 MiB per worker, and one shard's document ends
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from lowtide.corpus.workers import WorkerPool
from lowtide.dataset import layout
from lowtide.dataset.settings import VerifySettings
from lowtide.errors import DataError
from lowtide.progress import METRICS_NAME, Progress
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer

__all__ = ["VerifyResult", "verify_dataset"]

_BUFFER_BYTES = 4 << 20


@dataclass(frozen=True)
class VerifyResult:
    """What was checked, and what is wrong with it."""

    num_shards: int
    num_tokens: int
    num_strangers: int
    """Shards that were moved in by hand."""
    problems: list[str]


@dataclass(frozen=True)
class _Expected:
    """What a shard should be; None where nobody said."""

    path: Path
    dtype: np.dtype[Any]
    vocab_size: int
    end_id: int | None
    tokens: int | None = None
    documents: int | None = None
    checksum: str | None = None


def verify_dataset(settings: VerifySettings | None = None, /, **options: Any) -> VerifyResult:
    """Check all files of a dataset; nothing is changed."""
    settings = settings or build_settings(VerifySettings, options)
    root = settings.dataset_dir
    metadata = layout.read_metadata(root)
    problems = _check_tokenizer(root, metadata)
    shards = _list_shards(root, metadata, problems)
    total = sum(shard.path.stat().st_size for shard in shards)
    tokens = 0

    def tasks() -> Iterator[Callable[[], tuple[int, int, list[str]]]]:
        for shard in shards:
            yield lambda shard=shard: _check_shard(shard)

    # A dataset that may only be read can be verified all the same.
    metrics_path = root / METRICS_NAME if os.access(root, os.W_OK) else None
    with (
        Progress("verify", metrics_path=metrics_path) as progress,
        WorkerPool(settings.processes) as pool,
        progress.phase("verify", total=total, unit="B") as phase,
    ):
        for size, count, found in pool.run(tasks()):
            problems += found
            tokens += count
            phase.advance(size)
    if not problems and metadata.get("total_tokens") is not None:
        described = sum(shard.tokens or 0 for shard in shards)
        if described != metadata["total_tokens"]:
            problems.append(
                f"{layout.METADATA_NAME}: total_tokens is {metadata['total_tokens']}, "
                f"its shards have {described}"
            )
    strangers = sum(shard.checksum is None for shard in shards)
    return VerifyResult(len(shards), tokens, strangers, problems)


def _check_tokenizer(root: Path, metadata: dict[str, Any]) -> list[str]:
    try:
        tokenizer = Tokenizer.load(root)
    except DataError as error:
        return [f"{layout.TOKENIZER_NAME}: {error.message}"]
    problems: list[str] = []
    if tokenizer.fingerprint != metadata["tokenizer_fingerprint"]:
        problems.append(
            f"{layout.TOKENIZER_NAME}: fingerprint {tokenizer.fingerprint}, "
            f"the ids were made with {metadata['tokenizer_fingerprint']}"
        )
    if tokenizer.vocab_size != metadata["vocab_size"]:
        problems.append(
            f"{layout.TOKENIZER_NAME}: vocabulary {tokenizer.vocab_size}, "
            f"{layout.METADATA_NAME} says {metadata['vocab_size']}"
        )
    return problems


def _list_shards(root: Path, metadata: dict[str, Any], problems: list[str]) -> list[_Expected]:
    dtype = np.dtype(metadata["dtype"]).newbyteorder("<")
    common: dict[str, Any] = {
        "dtype": dtype,
        "vocab_size": metadata["vocab_size"],
        "end_id": metadata.get("end_of_text_id"),
    }
    shards: list[_Expected] = []
    for split in layout.SPLITS:
        known: set[Path] = set()
        for row in metadata["shards"].get(split, []):
            path = root / row["file"]
            known.add(path)
            if not path.is_file():
                problems.append(f"{row['file']}: missing")
                continue
            shards.append(
                _Expected(
                    path,
                    **common,
                    tokens=row["tokens"],
                    documents=row["documents"],
                    checksum=row["xxh3_128"],
                )
            )
        strangers = sorted(set((root / split).glob("*.bin")) - known)
        shards += [_Expected(path, **common) for path in strangers if path.name[0] != "."]
    return shards


def _check_shard(shard: _Expected) -> tuple[int, int, list[str]]:
    name = f"{shard.path.parent.name}/{shard.path.name}"
    size = shard.path.stat().st_size
    count = size // shard.dtype.itemsize
    problems: list[str] = []
    if size % shard.dtype.itemsize:
        problems.append(f"{name}: {size} bytes are no whole number of {shard.dtype.name} ids")
    if shard.tokens is not None and count != shard.tokens:
        problems.append(f"{name}: {count} tokens, {layout.METADATA_NAME} says {shard.tokens}")
    if problems:
        return size, count, problems
    if shard.checksum is None:
        try:
            layout.scan_shard(shard.path, dtype=shard.dtype, vocab_size=shard.vocab_size)
        except DataError as error:
            return size, count, [error.message]
    digest = xxhash.xxh3_128()
    high = 0
    with shard.path.open("rb", buffering=0) as file:
        while block := file.read(_BUFFER_BYTES):
            digest.update(block)
            high = max(high, int(np.frombuffer(block, dtype=shard.dtype).max()))
    if shard.checksum is not None and digest.hexdigest() != shard.checksum:
        problems.append(
            f"{name}: checksum {digest.hexdigest()}, {layout.METADATA_NAME} says {shard.checksum}"
        )
    if high >= shard.vocab_size:
        problems.append(f"{name}: id {high}, the vocabulary ends at {shard.vocab_size - 1}")
    problems += _check_ends(shard, name, count)
    return size, count, problems


def _check_ends(shard: _Expected, name: str, count: int) -> list[str]:
    info = layout.ShardInfo(shard.path, count, 0, 0, 0, None)
    if shard.documents is not None and not layout.documents_path(shard.path).is_file():
        return [f"{layout.documents_path(shard.path).name}: missing"]
    try:
        ends = layout.load_document_ends(info)
    except DataError as error:
        return [f"{layout.documents_path(shard.path).name}: {error.message}"]
    if shard.documents is not None and len(ends) != shard.documents:
        return [
            f"{layout.documents_path(shard.path).name}: {len(ends)} documents, "
            f"{layout.METADATA_NAME} says {shard.documents}"
        ]
    if shard.end_id is None or not len(ends):
        return []
    tokens = layout.load_shard_tokens(info, shard.dtype)
    wrong = np.flatnonzero(tokens[ends.astype(np.int64) - 1] != shard.end_id)
    if len(wrong):
        place = int(ends[wrong[0]]) - 1
        return [
            f"{layout.documents_path(shard.path).name}: says a document ends at token {place} of "
            f"{name}, but id {int(tokens[place])} is there, not end-of-text ({shard.end_id})"
        ]
    return []
