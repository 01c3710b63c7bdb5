"""List the shards of a split: those in the metadata, and those moved in by hand.

In:      a dataset folder and its metadata
Out:     ShardInfo of every shard, with size and first bytes checked against the metadata
Memory:  a row for each shard
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowtide import files
from lowtide.dataset.tokenfiles.shards import (
    ID_BYTES,
    ShardInfo,
    checksum_head,
    pick_dtype,
    scan_shard,
    shard_from_row,
    shard_row,
)
from lowtide.errors import DataError
from lowtide.filenames import METADATA_NAME

__all__ = ["MOVED_IN_NAME", "find_split_shards"]

MOVED_IN_NAME = "moved_in.json"
"""Cached descriptions of shards moved in by hand, so that they are not read whole each time."""


def find_split_shards(
    root: Path, split: str, metadata: Mapping[str, Any], dtype: str, vocab_size: int
) -> list[ShardInfo]:
    """List a split's shards: those the metadata describes, then those moved in by hand."""
    shards: list[ShardInfo] = []
    found = _stat_shards(root / split)
    described_ns = (root / METADATA_NAME).stat().st_ctime_ns
    for row in metadata["shards"].get(split, []):
        shard = shard_from_row(root, row)
        status = found.pop(row["file"].removeprefix(f"{split}/"), None)
        size = None if status is None else status.st_size
        if status is None or size != shard.num_tokens * ID_BYTES[dtype]:
            raise _wrong_size(shard.path, size, shard.num_tokens, ID_BYTES[dtype])
        # Full shards all have the same size, so a shard newer than the metadata is checked further.
        if status.st_ctime_ns >= described_ns and shard.head is not None:
            _check_head(shard)
        if not 0 <= shard.min_id <= shard.max_id < vocab_size:
            raise ValueError(f"{shard.path.name} has ids from {shard.min_id} to {shard.max_id}")
        shards.append(shard)
    strangers = {root / split / name: found[name] for name in sorted(found)}
    return shards + _describe_strangers(
        root,
        strangers,
        dtype=dtype,
        vocab_size=vocab_size,
        fingerprint=str(metadata["tokenizer_fingerprint"]),
    )


def _stat_shards(folder: Path) -> dict[str, os.stat_result]:
    """Return the status of each shard in a folder, by name; broken links are ignored."""
    found: dict[str, os.stat_result] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".bin") and not entry.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    found[entry.name] = entry.stat()
    return found


def _check_head(shard: ShardInfo) -> None:
    if checksum_head(shard.path) == shard.head:
        return
    raise DataError(
        f"{shard.path.name} is not the shard that {METADATA_NAME} describes: other first bytes",
        path=shard.path,
        next_step="was another dataset's shard moved over it? bring the old one back, and give new "
        f"shards names of their own; then: lowtide verify {shard.path.parent.parent}",
    )


def _describe_strangers(
    root: Path,
    strangers: Mapping[Path, os.stat_result],
    *,
    dtype: str,
    vocab_size: int,
    fingerprint: str,
) -> list[ShardInfo]:
    """Describe shards moved in by hand; for unchanged ones the stored description is used."""
    if not strangers:
        return []
    path = root / MOVED_IN_NAME
    known: dict[str, Any] = {}
    with contextlib.suppress(DataError, ValueError):
        known = dict(files.read_json(path))
    shards: list[ShardInfo] = []
    changed = False
    for shard_path, status in strangers.items():
        # With another type, vocabulary or tokenizer, the result for the same file differs.
        state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        state += [dtype, vocab_size, fingerprint]
        name = shard_path.relative_to(root).as_posix()
        row = known.get(name)
        if isinstance(row, dict) and row.get("state") == state:
            shards.append(shard_from_row(root, row))
            continue
        stored = pick_dtype(1 << 8 * ID_BYTES[dtype])
        shards.append(
            scan_shard(
                shard_path,
                dtype=stored,
                vocab_size=vocab_size,
                tokenizer_fingerprint=fingerprint,
            )
        )
        known[name] = {**shard_row(root, shards[-1]), "state": state}
        changed = True
    if changed:
        with contextlib.suppress(OSError):  # in a read-only dataset they are read again
            files.write_json(path, known)
    return shards


def _wrong_size(path: Path, size: int | None, num_tokens: int, item_bytes: int) -> DataError:
    """The error for a shard whose size differs from the metadata."""
    dataset = path.parent.parent
    if size is None:
        return DataError(
            f"{path.name} is missing, {METADATA_NAME} says it holds {num_tokens} tokens",
            path=path,
            next_step=f"lowtide verify {dataset}",
        )
    held = f"{size // item_bytes} tokens" if size % item_bytes == 0 else f"{size} bytes"
    return DataError(
        f"{path.name} holds {held}, {METADATA_NAME} says {num_tokens} tokens",
        path=path,
        next_step="was another dataset's shard moved over it? give new shards names of their "
        f"own, or use lowtide append; then: lowtide verify {dataset}",
    )
