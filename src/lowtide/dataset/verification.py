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

from lowtide import files
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
    described: layout.ShardInfo | None = None
    """As the metadata has it."""

    @property
    def documents(self) -> int | None:
        return None if self.described is None else self.described.num_documents


def verify_dataset(settings: VerifySettings | None = None, /, **options: Any) -> VerifyResult:
    """Check all files of a dataset; nothing is changed."""
    settings = settings or build_settings(VerifySettings, options)
    root = settings.dataset_dir
    metadata = layout.read_metadata(root)
    problems = _check_tokenizer(root, metadata)
    shards = _list_shards(root, metadata, problems)
    problems += _check_seen(root, metadata)
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
    problems += [] if problems else _check_totals(metadata)
    strangers = sum(shard.described is None for shard in shards)
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


def _check_seen(root: Path, metadata: dict[str, Any]) -> list[str]:
    """Compare the hashes that append needs with what the metadata says of them."""
    problems: list[str] = []
    for row in metadata.get("seen", []):
        try:
            name, checksum = str(row["file"]), row["xxh3_128"]
        except (KeyError, TypeError) as error:
            problems.append(f"{layout.METADATA_NAME}: a damaged row of hashes ({error!r})")
            continue
        if not (root / name).is_file():
            problems.append(f"{name}: missing")
        elif files.checksum_file(root / name) != checksum:
            problems.append(f"{name}: another checksum than {layout.METADATA_NAME} says")
    return problems


def _check_totals(metadata: dict[str, Any]) -> list[str]:
    """Add up the rows of shards."""
    rows = {split: metadata["shards"].get(split, []) for split in layout.SPLITS}
    return [
        f"{layout.METADATA_NAME}: {name} is {metadata.get(name)}, its shards have {value}"
        for name, value in layout.count_totals(rows).items()
        if metadata.get(name) != value
    ]


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
            try:
                described = layout.shard_from_row(root, row)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                problems.append(f"{layout.METADATA_NAME}: a damaged row of shards ({error!r})")
                continue
            known.add(described.path)
            if described.path.is_file():
                shards.append(_Expected(described.path, **common, described=described))
            else:
                problems.append(f"{row['file']}: missing")
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
    described = shard.described
    if described is not None and count != described.num_tokens:
        problems.append(
            f"{name}: {count} tokens, {layout.METADATA_NAME} says {described.num_tokens}"
        )
    if problems:
        return size, count, problems
    try:
        found = _read_shard(shard)
    except DataError as error:
        return size, count, [error.message]
    if found.max_id >= shard.vocab_size:
        problems.append(f"{name}: id {found.max_id}, the vocabulary ends at {shard.vocab_size - 1}")
    if described is not None:
        problems += _compare(name, found, described)
    problems += _check_ends(shard, name, count)
    return size, count, problems


def _read_shard(shard: _Expected) -> layout.ShardInfo:
    """Read a whole shard, and say what is in it; one that cannot belong here is an error."""
    if shard.described is None:
        layout.scan_shard(shard.path, dtype=shard.dtype, vocab_size=shard.vocab_size)
    digest = xxhash.xxh3_128()
    low, high, size = 1 << 32, 0, 0
    with shard.path.open("rb", buffering=0) as file:
        while block := file.read(_BUFFER_BYTES):
            digest.update(block)
            ids = np.frombuffer(block, dtype=shard.dtype)
            low, high, size = min(low, int(ids.min())), max(high, int(ids.max())), size + len(ids)
    head = layout.checksum_head(shard.path)
    return layout.ShardInfo(shard.path, size, 0, low, high, digest.hexdigest(), head)


def _compare(name: str, found: layout.ShardInfo, described: layout.ShardInfo) -> list[str]:
    pairs = [
        ("checksum", found.checksum, described.checksum),
        ("checksum of its head", found.head, described.head or found.head),
        ("smallest id", found.min_id, described.min_id),
        ("largest id", found.max_id, described.max_id),
    ]
    return [
        f"{name}: {what} {value}, {layout.METADATA_NAME} says {said}"
        for what, value, said in pairs
        if value != said
    ][:1]


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
