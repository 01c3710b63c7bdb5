"""Check a dataset against its metadata: every byte, every id, every document end.

In:      a dataset folder
Out:     a list of problems, each naming the file; empty if there are none
Memory:  per worker one buffer of ids, and a part of the document ends
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from lowtide.corpus.workers import WorkerPool
from lowtide.dataset import layout
from lowtide.dataset.claims import Additions
from lowtide.dataset.finished import check_seen, check_tokenizer
from lowtide.dataset.settings import VerifySettings
from lowtide.dataset.storeddatasets import read_any_metadata
from lowtide.dataset.tokenfiles.shards import (
    ShardInfo,
    checksum_head,
    documents_path,
    names_tokenizer,
    scan_shard,
    shard_from_row,
)
from lowtide.errors import DataError
from lowtide.filenames import METADATA_NAME, METRICS_NAME
from lowtide.keywords import takes_keywords
from lowtide.memory import MemoryBudget, usable_cores
from lowtide.notebooks import shown_in_notebooks
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass
from lowtide.stores.objects import open_store
from lowtide.stores.paths import READER_BYTES, StorePath, is_stored
from lowtide.tokenizer.needs import tokenizer_needs

__all__ = ["VerifyResult", "verify_dataset"]

_BUFFER_BYTES = 2 << 20
_ENDS_BYTES = 1 << 19
_WORKER_BYTES = 10 << 20  # ids, their comparison, ends, and the memory of a thread
_TOKENIZER_BYTES = 32 << 20


@shown_in_notebooks()
@dataclass(frozen=True)
class VerifyResult:
    """What was checked, and the problems found."""

    num_shards: int
    num_tokens: int
    num_strangers: int
    """Shards that were moved in by hand."""
    problems: list[str]
    num_unnamed: int = 0
    """Those of them whose name does not identify their tokenizer."""


@dataclass(frozen=True)
class _Expected:
    """The expected contents of a shard; None where the metadata does not record them."""

    path: Path
    dtype: np.dtype[Any]
    vocab_size: int
    end_id: int | None
    tokenizer_fingerprint: str
    described: ShardInfo | None = None
    """As in the metadata."""

    @property
    def is_stranger(self) -> bool:
        """True if it was moved in by hand; append lists such shards too, without checksums."""
        return self.described is None or self.described.checksum is None

    @property
    def documents(self) -> int | None:
        if self.described is None or (self.is_stranger and not self.described.num_documents):
            return None
        return self.described.num_documents

    @property
    def ends_checksum(self) -> str | None:
        return None if self.described is None else self.described.ends_checksum


@takes_keywords(VerifySettings)
def verify_dataset(settings: VerifySettings) -> VerifyResult:
    """Check all files of a dataset; nothing is changed."""
    root = settings.dataset_dir
    budget = MemoryBudget.from_setting(settings.memory)
    worker_bytes = _WORKER_BYTES + (READER_BYTES if is_stored(root) else 0)
    tokenizer_bytes = _TOKENIZER_BYTES + tokenizer_needs(root).table_bytes
    budget.require({"tokenizer": tokenizer_bytes, "a worker": worker_bytes})
    budget.reserve("tokenizer", wanted_bytes=tokenizer_bytes)
    workers = min(settings.num_workers or usable_cores(), budget.remaining_bytes // worker_bytes)
    metadata = read_any_metadata(root)
    problems = layout.check_settings(metadata) + check_tokenizer(root, metadata)
    shards = _list_shards(root, metadata, problems)
    problems += check_seen(root, metadata)
    total = sum(shard.path.stat().st_size for shard in shards)
    tokens = 0

    def tasks() -> Iterator[Callable[[], tuple[int, int, list[str]]]]:
        for shard in shards:
            yield lambda shard=shard: _check_shard(shard)

    # A read-only dataset can be verified too.
    is_writable = not is_stored(root) and os.access(root, os.W_OK)
    metrics_path = root / METRICS_NAME if is_writable else None
    with (
        Progress("verify", budget_bytes=budget.total_bytes, metrics_path=metrics_path) as progress,
        WorkerPool(workers) as pool,
        progress.phase("verify", total=total, unit="B") as phase,
    ):
        for size, count, found in pool.run(tasks()):
            problems += found
            tokens += count
            phase.advance(size)
    problems += [] if problems else _check_totals(metadata)
    strangers = [shard for shard in shards if shard.is_stranger]
    unnamed = sum(
        names_tokenizer(shard.path.name, shard.tokenizer_fingerprint) is None for shard in strangers
    )
    return VerifyResult(len(shards), tokens, len(strangers), problems, unnamed)


def _check_totals(metadata: dict[str, Any]) -> list[str]:
    """Add up the rows of shards."""
    rows = {split: metadata["shards"].get(split, []) for split in layout.SPLITS}
    return [
        f"{METADATA_NAME}: {name} is {metadata.get(name)}, its shards have {value}"
        for name, value in layout.count_totals(rows).items()
        if metadata.get(name) != value
    ]


def _list_shards(root: Path, metadata: dict[str, Any], problems: list[str]) -> list[_Expected]:
    dtype = np.dtype(metadata["dtype"]).newbyteorder("<")
    common: dict[str, Any] = {
        "dtype": dtype,
        "vocab_size": metadata["vocab_size"],
        "end_id": metadata.get("end_of_text_id"),
        "tokenizer_fingerprint": str(metadata["tokenizer_fingerprint"]),
    }
    shards: list[_Expected] = []
    for split in layout.SPLITS:
        known: set[Path] = set()
        for row in metadata["shards"].get(split, []):
            try:
                described = shard_from_row(root, row)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                problems.append(f"{METADATA_NAME}: a damaged row of shards ({error!r})")
                continue
            known.add(described.path)
            if described.path.is_file():
                shards.append(_Expected(described.path, **common, described=described))
            else:
                problems.append(f"{row['file']}: missing")
        shards += [_Expected(path, **common) for path in _find_strangers(root / split, known)]
    return shards


def _find_strangers(folder: Path, known: set[Path]) -> list[Path]:
    """Shards of a split that are not in the metadata, except those of an append in progress."""
    if not is_stored(folder):
        return sorted(
            path for path in folder.glob("*.bin") if path.name[0] != "." and path not in known
        )
    url = StorePath(folder).url
    store = open_store(url)
    additions = Additions(store, StorePath(folder.parent).url)
    paths = [folder / name for name in store.list_names(url) if name.endswith(".bin")]
    return [
        path
        for path in sorted(paths)
        if path.name[0] != "." and path not in known and not additions.has(url.name, path.name)
    ]


def _check_shard(shard: _Expected) -> tuple[int, int, list[str]]:
    name = f"{shard.path.parent.name}/{shard.path.name}"
    size = shard.path.stat().st_size
    count = size // shard.dtype.itemsize
    problems: list[str] = []
    if size % shard.dtype.itemsize:
        problems.append(f"{name}: {size} bytes are not a whole number of {shard.dtype.name} ids")
    described = shard.described
    if described is not None and count != described.num_tokens:
        problems.append(f"{name}: {count} tokens, {METADATA_NAME} says {described.num_tokens}")
    if problems:
        return size, count, problems
    ends = _Ends(shard, name, count)
    try:
        found = _read_shard(shard, ends)
    except DataError as error:
        return size, count, [error.message]
    if found.max_id >= shard.vocab_size:
        problems.append(f"{name}: id {found.max_id}, the vocabulary ends at {shard.vocab_size - 1}")
    if described is not None:
        problems += _compare(name, found, described)
    problems += ends.finish()
    return size, count, problems


def _read_shard(shard: _Expected, ends: _Ends, *, buffer_bytes: int = _BUFFER_BYTES) -> ShardInfo:
    """Read a whole shard and describe it; one that cannot belong here is an error."""
    if shard.described is None:
        scan_shard(
            shard.path,
            dtype=shard.dtype,
            vocab_size=shard.vocab_size,
            tokenizer_fingerprint=shard.tokenizer_fingerprint,
        )
    digest = xxhash.xxh3_128()
    low, high, size = 1 << 32, 0, 0
    with shard.path.open("rb", buffering=0) as file:
        while part := file.read(buffer_bytes):
            digest.update(part)
            ids = np.frombuffer(part, dtype=shard.dtype)
            ends.check(ids, size)
            low, high, size = min(low, int(ids.min())), max(high, int(ids.max())), size + len(ids)
    head = checksum_head(shard.path)
    return ShardInfo(shard.path, size, 0, low, high, digest.hexdigest(), head)


def _compare(name: str, found: ShardInfo, described: ShardInfo) -> list[str]:
    pairs = [
        ("checksum", found.checksum, described.checksum or found.checksum),
        ("checksum of its head", found.head, described.head or found.head),
        ("smallest id", found.min_id, described.min_id),
        ("largest id", found.max_id, described.max_id),
    ]
    return [
        f"{name}: {what} {value}, {METADATA_NAME} says {said}"
        for what, value, said in pairs
        if value != said
    ][:1]


class _Ends:
    """The document ends of a shard, read in parallel with its ids."""

    def __init__(
        self, shard: _Expected, name: str, num_tokens: int, *, read_bytes: int = _ENDS_BYTES
    ) -> None:
        self._shard = shard
        self._read_bytes = read_bytes
        self._name = name
        self._num_tokens = num_tokens
        self._path = documents_path(shard.path)
        self._problem: str | None = None
        self._size = self._path.stat().st_size if self._path.is_file() else None
        self._read = 0
        self._last = 0
        self._digest = xxhash.xxh3_128()
        self._held = np.empty(0, dtype=np.int64)
        if self._size is None and shard.documents is not None:
            self._problem = "missing"
        elif self._size is not None and self._size % 8:
            self._problem = f"{self._size} bytes, expected a multiple of 8"
        elif self._size is not None and shard.documents not in (None, self._size // 8):
            self._problem = f"{self._size // 8} documents, {METADATA_NAME} says {shard.documents}"

    def check(self, ids: npt.NDArray[Any], base: int) -> None:
        """Check the ends in the ids that begin at token `base`."""
        while self._problem is None and self._fill():
            inside = self._held[self._held <= base + len(ids)]
            end_id = self._shard.end_id
            if end_id is not None and len(inside):
                wrong = np.flatnonzero(ids[inside - base - 1] != end_id)
                if len(wrong):
                    place = int(inside[wrong[0]]) - 1
                    self._problem = (
                        f"says a document ends at token {place} of {self._name}, but id "
                        f"{int(ids[place - base])} is there, not end-of-text ({end_id})"
                    )
            self._held = self._held[len(inside) :]
            if len(self._held):
                return

    def _fill(self) -> bool:
        """Read more ends if those in memory are used up; True if there are any."""
        if not len(self._held) and self._size is not None and self._read < self._size:
            with self._path.open("rb", buffering=0) as file:
                file.seek(self._read)
                part = file.read(self._read_bytes)
            self._digest.update(part)
            self._read += len(part) or self._size
            self._held = np.frombuffer(part[: len(part) // 8 * 8], dtype="<u8").astype(np.int64)
            if len(self._held) and (
                bool(np.any(np.diff(self._held, prepend=self._last) <= 0))
                or int(self._held[-1]) > self._num_tokens
            ):
                self._problem = (
                    f"document ends must rise and stay within the shard's {self._num_tokens} tokens"
                )
                return False
            self._last = int(self._held[-1]) if len(self._held) else self._last
        return len(self._held) > 0

    def finish(self) -> list[str]:
        """The problem with the ends, after all ids were read."""
        expected = self._shard.ends_checksum
        if self._problem is None and expected not in (None, found := self._digest.hexdigest()):
            self._problem = f"checksum {found}, {METADATA_NAME} says {expected}"
        return [] if self._problem is None else [f"{self._path.name}: {self._problem}"]
