"""The bytes of a dataset on disk: shards of ids, where documents end, and one metadata file.

In:      arrays of ids and document ends (writing); a folder (reading)
Out:     shard_00000.bin + shard_00000.docs, dataset_metadata.json; DatasetInfo
Memory:  one shard when writing, one buffer of 4 MiB when checking shards nobody has described
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from lowtide import files
from lowtide.errors import DataError

__all__ = [
    "DOCUMENTS_SUFFIX",
    "FORMAT_VERSION",
    "METADATA_NAME",
    "SPLITS",
    "TOKENIZER_NAME",
    "DatasetInfo",
    "ShardInfo",
    "documents_path",
    "load_dataset_info",
    "load_document_ends",
    "load_shard_tokens",
    "npy_header",
    "pick_dtype",
    "read_metadata",
    "scan_shard",
    "shard_from_row",
    "shard_name",
    "shard_number",
    "shard_row",
    "write_metadata",
    "write_shard",
    "write_shard_stream",
]

FORMAT_VERSION = 1
METADATA_NAME = "dataset_metadata.json"
DOCUMENTS_SUFFIX = ".docs"
TOKENIZER_NAME = "tokenizer.json"
SPLITS = ("train", "val")
NPY_HEADER_BYTES = 128
_SCAN_BYTES = 4 << 20
_DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


@dataclass(frozen=True)
class ShardInfo:
    """One file of tokens."""

    path: Path
    num_tokens: int
    num_documents: int
    """Documents that end in this shard; 0 when no .docs file says where."""
    min_id: int
    max_id: int
    checksum: str | None
    """xxh3-128 of the file, None for a shard moved in by hand."""


@dataclass(frozen=True)
class DatasetInfo:
    """What a dataset folder holds, checked against the files that are there."""

    root: Path
    metadata: dict[str, Any]
    dtype: np.dtype[Any]
    vocab_size: int
    tokenizer_fingerprint: str
    fingerprint: str
    """Changes whenever a shard or the tokenizer does."""
    shards: dict[str, tuple[ShardInfo, ...]]

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer the ids were made with."""
        return self.root / TOKENIZER_NAME

    def num_tokens(self, split: str) -> int:
        """Give the tokens of one split."""
        return sum(shard.num_tokens for shard in self.shards[split])


def shard_name(number: int) -> str:
    """Give the file name of shard `number`.

    >>> shard_name(46)
    'shard_00046.bin'
    """
    return f"shard_{number:05d}.bin"


def shard_number(path: str | Path) -> int | None:
    """Give the number in a shard's name, None when it was named otherwise."""
    stem = Path(path).stem
    digits = stem.removeprefix("shard_")
    return int(digits) if digits != stem and digits.isdigit() else None


def documents_path(shard_path: Path) -> Path:
    """Give the file that says where a shard's documents end."""
    return shard_path.with_suffix(DOCUMENTS_SUFFIX)


def pick_dtype(vocab_size: int) -> np.dtype[Any]:
    """Give the smallest type that holds every id below `vocab_size`.

    >>> pick_dtype(50257).name, pick_dtype(65536).name, pick_dtype(65537).name
    ('uint16', 'uint16', 'uint32')
    """
    return _DTYPES["uint16" if vocab_size <= 1 << 16 else "uint32"]


def write_shard(
    path: str | Path,
    tokens: npt.NDArray[Any],
    document_ends: npt.NDArray[np.uint64] | Sequence[int],
    *,
    vocab_size: int | None = None,
) -> ShardInfo:
    """Write one shard and its document ends; ids outside the vocabulary are refused, not wrapped.

    Without `vocab_size` the array's own type decides, and must be uint16 or uint32.
    """
    path = Path(path)
    if vocab_size is None:
        if tokens.dtype.name not in _DTYPES:
            raise DataError(f"ids of type {tokens.dtype} need a vocab_size", path=path)
        vocab_size = 1 << 8 * tokens.dtype.itemsize
    dtype = pick_dtype(vocab_size)
    low, high = (int(tokens.min()), int(tokens.max())) if len(tokens) else (0, 0)
    if low < 0 or high >= vocab_size:
        raise DataError(
            f"id {low if low < 0 else high} is outside the vocabulary of {vocab_size}", path=path
        )
    ends = np.ascontiguousarray(document_ends, dtype="<u8")
    _check_ends(ends, len(tokens), path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = np.ascontiguousarray(tokens, dtype=dtype)
    files.write_bytes(documents_path(path), ends.tobytes())
    with files.atomic_file(path) as file:
        file.write(data.data)
    return ShardInfo(
        path=path,
        num_tokens=len(data),
        num_documents=len(ends),
        min_id=low,
        max_id=high,
        checksum=files.checksum_bytes(memoryview(data).cast("B")),  # pyright: ignore[reportArgumentType]
    )


def write_shard_stream(
    path: Path,
    chunks: Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any]]],
    *,
    vocab_size: int,
) -> ShardInfo:
    """Write a shard of any size from chunks of ids and the document ends within each.

    Its folder is flushed by `write_metadata`, once for all shards.
    """
    dtype = pick_dtype(vocab_size)
    digest = xxhash.xxh3_128()
    low, high, position = 1 << 32, 0, 0
    ends: list[npt.NDArray[np.uint64]] = []
    with files.atomic_file(path, sync_folder=False) as file:
        for ids, chunk_ends in chunks:
            if not len(ids):
                continue
            low, high = min(low, int(ids.min())), max(high, int(ids.max()))
            if low < 0 or high >= vocab_size:
                wrong = low if low < 0 else high
                raise DataError(f"id {wrong} is outside the vocabulary of {vocab_size}", path=path)
            data = ids.astype(dtype, copy=False).data.cast("B")
            digest.update(data)
            file.write(data)
            ends.append(chunk_ends.astype(np.uint64) + np.uint64(position))
            position += len(ids)
    all_ends = np.concatenate(ends).astype("<u8") if ends else np.empty(0, "<u8")
    files.write_bytes(documents_path(path), all_ends.tobytes(), sync_folder=False)
    return ShardInfo(path, position, len(all_ends), low, high, digest.hexdigest())


def npy_header(count: int, dtype: np.dtype[Any]) -> bytes:
    """Give the 128 bytes before the ids of a one-dimensional .npy file."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({count},), }}"
    padded = text.ljust(NPY_HEADER_BYTES - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode()


def _check_ends(ends: npt.NDArray[Any], num_tokens: int, path: Path) -> None:
    if len(ends) and (int(ends[-1]) > num_tokens or bool(np.any(ends[1:] <= ends[:-1]))):
        raise DataError(
            f"document ends must rise and stay within the shard's {num_tokens} tokens",
            path=documents_path(path),
        )


def shard_row(root: Path, shard: ShardInfo) -> dict[str, Any]:
    """Give the metadata row of a shard."""
    return {
        "file": shard.path.relative_to(root).as_posix(),
        "tokens": shard.num_tokens,
        "documents": shard.num_documents,
        "min_id": shard.min_id,
        "max_id": shard.max_id,
        "xxh3_128": shard.checksum,
    }


def shard_from_row(root: Path, row: Mapping[str, Any]) -> ShardInfo:
    """Give the shard that a metadata row describes."""
    return ShardInfo(
        path=root / row["file"],
        num_tokens=int(row["tokens"]),
        num_documents=int(row["documents"]),
        min_id=int(row["min_id"]),
        max_id=int(row["max_id"]),
        checksum=row["xxh3_128"],
    )


def write_metadata(
    root: str | Path,
    *,
    shards: Mapping[str, Iterable[ShardInfo]],
    vocab_size: int,
    tokenizer_fingerprint: str,
    tokenization: str,
    tokens_per_shard: int,
    input_files: Sequence[str],
    more: Mapping[str, Any] | None = None,
) -> DatasetInfo:
    """Write dataset_metadata.json, the last file of a dataset, and give the dataset back."""
    root = Path(root)
    rows = {split: [shard_row(root, shard) for shard in shards.get(split, ())] for split in SPLITS}
    metadata: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "total_tokens": sum(row["tokens"] for split in SPLITS for row in rows[split]),
        "total_documents": sum(row["documents"] for split in SPLITS for row in rows[split]),
        "total_shards": sum(len(rows[split]) for split in SPLITS),
        "train_shards": len(rows["train"]),
        "val_shards": len(rows["val"]),
        "train_tokens": sum(row["tokens"] for row in rows["train"]),
        "val_tokens": sum(row["tokens"] for row in rows["val"]),
        "tokens_per_shard": tokens_per_shard,
        "tokenization": tokenization,
        "vocab_size": vocab_size,
        "dtype": pick_dtype(vocab_size).name,
        "tokenizer_fingerprint": tokenizer_fingerprint,
        "input_files": list(input_files),
        **(more or {}),
        "shards": rows,
    }
    for split in SPLITS:
        if (root / split).is_dir():
            files.sync_directory(root / split)
    files.write_json(root / METADATA_NAME, metadata)
    return load_dataset_info(root)


def load_dataset_info(root: str | Path) -> DatasetInfo:
    """Read a dataset's metadata and check every shard's size; shards moved in by hand are found."""
    root = Path(root)
    metadata = read_metadata(root)
    dtype = _DTYPES.get(str(metadata["dtype"]))
    if dtype is None:
        raise DataError(
            f"dtype {metadata['dtype']!r} is not one of {', '.join(_DTYPES)}",
            path=root / METADATA_NAME,
        )
    vocab_size = int(metadata["vocab_size"])
    try:
        shards = {
            split: tuple(_find_shards(root, split, metadata, dtype, vocab_size)) for split in SPLITS
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{METADATA_NAME} is damaged: its rows of shards cannot be read ({error!r})",
            path=root / METADATA_NAME,
            next_step="bring back the file as lowtide wrote it, or prepare the text again",
        ) from error
    # Strings instead of paths here and below: a thousand shards open in half the time.
    prefix = f"{root}/" if root.name else str(root)
    identity = "\n".join(
        [str(metadata["tokenizer_fingerprint"]), dtype.name]
        + [
            f"{str(shard.path).removeprefix(prefix)} {shard.num_tokens} {shard.checksum}"
            for split in SPLITS
            for shard in shards[split]
        ]
    )
    return DatasetInfo(
        root=root,
        metadata=metadata,
        dtype=dtype,
        vocab_size=vocab_size,
        tokenizer_fingerprint=str(metadata["tokenizer_fingerprint"]),
        fingerprint=files.checksum_bytes(identity.encode()),
        shards=shards,
    )


def read_metadata(root: Path) -> dict[str, Any]:
    """Read dataset_metadata.json; its keys are checked, the shards are not."""
    path = root / METADATA_NAME
    if not root.is_dir():
        raise DataError("no dataset here: the folder does not exist", path=root)
    if not path.is_file():
        raise DataError(
            f"{METADATA_NAME} is missing, so this is not a finished dataset",
            path=root,
            next_step=f"lowtide prepare --input-files FILES --out-dir {root}",
        )
    metadata = files.read_json(path)
    if not isinstance(metadata, dict):
        raise DataError("expected a JSON object", path=path)
    missing = [
        key
        for key in ("format_version", "dtype", "vocab_size", "tokenizer_fingerprint", "shards")
        if key not in metadata
    ]
    if missing:
        raise DataError(
            f"{METADATA_NAME} lacks {', '.join(missing)}: was it made by another program?",
            path=path,
            next_step="lowtide convert imports datasets of other programs",
        )
    if metadata["format_version"] != FORMAT_VERSION:
        raise DataError(
            f"format version {metadata['format_version']}, this lowtide reads {FORMAT_VERSION}",
            path=path,
            next_step="use the lowtide that wrote it, or prepare the text again",
        )
    return metadata


def _find_shards(
    root: Path, split: str, metadata: Mapping[str, Any], dtype: np.dtype[Any], vocab_size: int
) -> list[ShardInfo]:
    """List a split's shards: those the metadata describes, then those somebody moved in."""
    shards: list[ShardInfo] = []
    sizes = _file_sizes(root / split)
    for row in metadata["shards"].get(split, []):
        shard = shard_from_row(root, row)
        size = sizes.pop(row["file"].removeprefix(f"{split}/"), None)
        if size != shard.num_tokens * dtype.itemsize:
            raise _wrong_size(shard.path, size, shard.num_tokens, dtype)
        shards.append(shard)
    return shards + [
        scan_shard(root / split / name, dtype=dtype, vocab_size=vocab_size)
        for name in sorted(sizes)
    ]


def _file_sizes(folder: Path) -> dict[str, int]:
    """Give the bytes of each shard in a folder, by name; a link to nothing is no shard."""
    sizes: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".bin") and not entry.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    sizes[entry.name] = entry.stat().st_size
    return sizes


def _wrong_size(path: Path, size: int | None, num_tokens: int, dtype: np.dtype[Any]) -> DataError:
    """Say what is wrong with a shard that is not as large as the metadata says."""
    dataset = path.parent.parent
    if size is None:
        return DataError(
            f"{path.name} is missing, {METADATA_NAME} says it holds {num_tokens} tokens",
            path=path,
            next_step=f"lowtide verify {dataset}",
        )
    held = f"{size // dtype.itemsize} tokens" if size % dtype.itemsize == 0 else f"{size} bytes"
    return DataError(
        f"{path.name} holds {held}, {METADATA_NAME} says {num_tokens} tokens",
        path=path,
        next_step="was another dataset's shard moved over it? give new shards names of their "
        f"own, or use lowtide append; then: lowtide verify {dataset}",
    )


def scan_shard(path: Path, *, dtype: np.dtype[Any], vocab_size: int) -> ShardInfo:
    """Describe a shard that no metadata does: its size, its ids, whether it can belong here."""
    size = path.stat().st_size
    if size == 0 or size % dtype.itemsize:
        raise DataError(
            f"{path.name} has {size} bytes, expected a whole number of {dtype.name} ids", path=path
        )
    low, high, high_halves = 1 << 32, 0, 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(_SCAN_BYTES):
            ids = np.frombuffer(block, dtype=dtype)
            low, high = min(low, int(ids.min())), max(high, int(ids.max()))
            if dtype.itemsize == 2 and size % 4 == 0:
                high_halves = max(high_halves, int(ids[1::2].max()))
    wider = dtype.itemsize == 2 and size % 4 == 0 and size >= 64 and high_halves == 0 and high > 0
    if high >= vocab_size or wider:
        reason = (
            "every second id is 0, as if it held uint32"
            if wider
            else f"it has id {high}, the vocabulary ends at {vocab_size - 1}"
        )
        raise DataError(
            f"{path.name} does not belong to this dataset of {dtype.name} ids: {reason}",
            path=path,
            next_step="take the file out, and add its text with lowtide append",
        )
    ends = documents_path(path)
    num_documents = ends.stat().st_size // 8 if ends.is_file() else 0
    return ShardInfo(path, size // dtype.itemsize, num_documents, low, high, None)


def load_shard_tokens(shard: ShardInfo, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Map a shard's tokens, read-only."""
    return np.memmap(shard.path, dtype=dtype, mode="r", shape=(shard.num_tokens,))


def load_document_ends(shard: ShardInfo) -> npt.NDArray[np.uint64]:
    """Read where a shard's documents end; empty when nothing says so."""
    path = documents_path(shard.path)
    if not path.is_file():
        return np.empty(0, dtype="<u8")
    data = path.read_bytes()
    if len(data) % 8:
        raise DataError(f"{path.name} has {len(data)} bytes, expected a multiple of 8", path=path)
    ends = np.frombuffer(data, dtype="<u8")
    _check_ends(ends, shard.num_tokens, shard.path)
    return ends
