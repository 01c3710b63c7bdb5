"""A dataset's folder: its shards, and the metadata file that lists them.

In:      shards that were written (writing); a folder (reading)
Out:     dataset_metadata.json; DatasetInfo, checked against the files in the folder
Memory:  a row for each shard; rows of input files are read from the metadata as needed
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide import files
from lowtide.counts import counted
from lowtide.dataset.shardlist import MOVED_IN_NAME, find_split_shards
from lowtide.dataset.tokenfiles.shards import (
    ID_BYTES,
    ShardInfo,
    id_chunk,
    names_tokenizer,
    pick_dtype,
    plain_name,
    shard_name,
    shard_row,
    write_shard_stream,
)
from lowtide.errors import DataError, UsageError
from lowtide.filenames import METADATA_NAME, TOKENIZER_NAME, WORK_NAME
from lowtide.longjson import Rows, read_long_json, write_long_json
from lowtide.notebooks import table_of
from lowtide.quickclasses import dataclass
from lowtide.settings import nearest_name
from lowtide.stores.urls import store_url
from lowtide.tokenizer.vocabulary import id_bytes

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "FORMAT_VERSION",
    "SPLITS",
    "DatasetInfo",
    "FindShards",
    "check_settings",
    "count_totals",
    "id_chunk",
    "load_dataset_info",
    "read_metadata",
    "shard_name",
    "write_metadata",
    "write_shard_stream",
]

FORMAT_VERSION = 1
SPLITS = ("train", "val")
_TYPES: dict[str, type] = {
    "dtype": str, "vocab_size": int, "tokenizer_fingerprint": str, "shards": dict,
    "total_tokens": int, "total_shards": int, "tokens_per_shard": int, "tokenization": str,
    "input_files": list, "split": dict, "cleaning": dict, "notices": list, "settings": dict,
    "sources": list, "appended": list, "seen": list, "settings_checksum": str,
}  # fmt: skip
"""Keys that are read from the metadata if present."""
_ROW_KEYS = {
    "sources": {"file"},
    "appended": {"input_files", "first_shard", "tokens"},
    "seen": {"file", "rows"},
}


@dataclass(frozen=True)
class DatasetInfo:
    """The contents of a dataset folder, checked against its files."""

    root: Path
    metadata: dict[str, Any]
    vocab_size: int
    tokenizer_fingerprint: str
    fingerprint: str
    """A hash of the shards and the tokenizer."""
    shards: dict[str, tuple[ShardInfo, ...]]

    def _repr_html_(self) -> str:
        from lowtide.dataset.summary import dataset_facts  # it imports DatasetInfo

        return table_of(dataset_facts(self))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the ids, little-endian."""
        return pick_dtype(1 << 8 * self.id_bytes)

    @property
    def dtype_name(self) -> str:
        """uint16 or uint32."""
        return str(self.metadata["dtype"])

    @property
    def id_bytes(self) -> int:
        """Bytes of an id."""
        return ID_BYTES[self.dtype_name]

    @property
    def moved_in(self) -> list[str]:
        """Names of shards that were moved in by hand."""
        return [
            f"{split}/{shard.path.name}"
            for split in SPLITS
            for shard in self.shards[split]
            if shard.checksum is None
        ]

    def describe_moved_in(self) -> str | None:
        """A note on moved-in shards that could not be checked; None if there are none.

        A shard name given by lowtide identifies the tokenizer that made it.
        """
        names = [
            name
            for name in self.moved_in
            if names_tokenizer(name, self.tokenizer_fingerprint) is None
        ]
        if not names:
            return None
        shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        return (
            f"{counted(len(names), 'shard')} moved in by hand ({shown}): the ids are in the "
            "vocabulary, but nothing says which tokenizer made them"
        )

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer the ids were made with."""
        return self.root / TOKENIZER_NAME

    def num_tokens(self, split: str) -> int:
        """Return the tokens of one split."""
        return sum(shard.num_tokens for shard in self.shards[split])


def write_metadata(
    root: Path,
    *,
    shards: Mapping[str, Iterable[ShardInfo]],
    vocab_size: int,
    tokenizer_fingerprint: str,
    tokenization: str,
    tokens_per_shard: int,
    input_files: Sequence[str],
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write dataset_metadata.json, the last file of a dataset."""
    rows = {split: [shard_row(root, shard) for shard in shards.get(split, ())] for split in SPLITS}
    metadata: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        **count_totals(rows),
        "tokens_per_shard": tokens_per_shard,
        "tokenization": tokenization,
        "vocab_size": vocab_size,
        "dtype": next(name for name, size in ID_BYTES.items() if size == id_bytes(vocab_size)),
        "tokenizer_fingerprint": tokenizer_fingerprint,
        "input_files": input_files if isinstance(input_files, Rows) else list(input_files),
        **(more or {}),
        "shards": rows,
    }
    metadata["settings_checksum"] = _settings_checksum(metadata)
    for split in SPLITS:
        if (root / split).is_dir():
            files.sync_directory(root / split)
    write_long_json(root / METADATA_NAME, metadata)
    (root / MOVED_IN_NAME).unlink(missing_ok=True)


def _settings_checksum(metadata: Mapping[str, Any]) -> str:
    """A checksum of what was decided by the user, equal for 1 and 1.0, which some programs write.

    >>> _settings_checksum({"settings": {"seed": 1.0}}) == _settings_checksum(
    ...     {"settings": {"seed": 1}}
    ... )
    True
    """
    decided = {
        key: {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in metadata.get(key, {}).items()
        }
        for key in ("settings", "split")
    }
    return files.checksum_bytes(json.dumps(decided, sort_keys=True).encode())


def check_settings(metadata: Mapping[str, Any]) -> list[str]:
    """The problem with settings that were edited by hand, which would decide what is appended."""
    written = metadata.get("settings_checksum")  # None in earlier versions
    if written in (None, _settings_checksum(metadata)):
        return []
    return [f"{METADATA_NAME}: settings or split are not those that lowtide wrote"]


def count_totals(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, int]:
    """Return the metadata's totals, from its rows of shards."""
    return {
        "total_tokens": sum(row["tokens"] for split in SPLITS for row in rows[split]),
        "total_documents": sum(row["documents"] for split in SPLITS for row in rows[split]),
        "total_shards": sum(len(rows[split]) for split in SPLITS),
        "train_shards": len(rows["train"]),
        "val_shards": len(rows["val"]),
        "train_tokens": sum(row["tokens"] for row in rows["train"]),
        "val_tokens": sum(row["tokens"] for row in rows["val"]),
    }


FindShards = Callable[[str, Mapping[str, Any]], Iterable[ShardInfo]]
"""Returns the shards of a split, for metadata whose shards are stored elsewhere."""


def load_dataset_info(root: str | Path, *, find_shards: FindShards | None = None) -> DatasetInfo:
    """Read a dataset's metadata and check every shard's size; shards moved in by hand are found."""
    root = Path(root)
    metadata = read_metadata(root)
    dtype, vocab_size = str(metadata["dtype"]), int(metadata["vocab_size"])
    try:
        shards = {
            split: tuple(
                find_split_shards(root, split, metadata, dtype, vocab_size)
                if find_shards is None
                else find_shards(split, metadata)
            )
            for split in SPLITS
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{METADATA_NAME} is damaged: its rows of shards cannot be read ({error!r})",
            path=root / METADATA_NAME,
            next_step="bring back the file as lowtide wrote it, or prepare the text again",
        ) from error
    # Strings instead of Path objects here and below: a thousand shards open in half the time.
    prefix = f"{root}/" if root.name else str(root)
    identity = "\n".join(
        [str(metadata["tokenizer_fingerprint"]), dtype]
        + [
            f"{_identify(str(shard.path).removeprefix(prefix), shard)} {shard.num_tokens} "
            f"{shard.checksum}"
            for split in SPLITS
            for shard in shards[split]
        ]
    )
    return DatasetInfo(
        root=root,
        metadata=metadata,
        vocab_size=vocab_size,
        tokenizer_fingerprint=str(metadata["tokenizer_fingerprint"]),
        fingerprint=files.checksum_bytes(identity.encode()),
        shards=shards,
    )


def _identify(name: str, shard: ShardInfo) -> str:
    """A shard's name in the dataset's fingerprint.

    Without its tag, which adds nothing to a checksum and is missing in earlier versions: the same
    ids prepared again are the same data for a run.
    """
    return name if shard.checksum is None else plain_name(name)


def read_metadata(root: Path) -> dict[str, Any]:
    """Read dataset_metadata.json; its keys are checked, the shards are not."""
    path = root / METADATA_NAME
    if (url := store_url(root)) is not None:
        raise UsageError(
            f"{url} lies in an object store, from where datasets are only trained and evaluated on",
            next_step=f"copy it to a disk first: aws s3 cp --recursive {url} {url.name}",
        )
    if root.is_file():
        raise DataError(
            "this is a file, expected the folder of a dataset",
            path=root,
            next_step=f"lowtide prepare --input-files {root} --out-dir data/{root.stem}",
        )
    if not path.is_file():
        raise DataError(
            f"{METADATA_NAME} is missing, so this is not a finished dataset"
            if root.is_dir()
            else "no dataset here: the folder does not exist",
            path=root,
            next_step=_suggest_dataset(root),
        )
    metadata = read_long_json(path, ("input_files", "sources"))
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
    _check_types(metadata, path)
    if metadata["format_version"] != FORMAT_VERSION:
        raise DataError(
            f"format version {metadata['format_version']}, this lowtide reads {FORMAT_VERSION}",
            path=path,
            next_step="use the lowtide that wrote it, or prepare the text again",
        )
    return metadata


def _check_types(metadata: Mapping[str, Any], path: Path) -> None:
    """Refuse metadata with values of other types than lowtide writes."""
    for key, kind in _TYPES.items():
        value = metadata.get(key)
        if kind is list and isinstance(value, Rows):
            continue
        if key in metadata and (not isinstance(value, kind) or isinstance(value, bool)):
            raise _damaged(path, f"{key} is {str(value)[:40]!r}, expected {kind.__name__}")
    vocab_size, dtype = int(metadata["vocab_size"]), metadata["dtype"]
    if dtype not in ID_BYTES:
        raise _damaged(path, f"dtype is {dtype!r}, expected {' or '.join(ID_BYTES)}")
    if not 0 < vocab_size <= 1 << 32:
        raise _damaged(path, f"vocab_size is {vocab_size}")
    end_id = metadata.get("end_of_text_id")
    if end_id is not None and not (type(end_id) is int and 0 <= end_id < vocab_size):
        raise _damaged(path, f"end_of_text_id is {str(end_id)[:40]!r}, expected an id or null")
    share = metadata.get("split", {}).get("val_fraction", 0)
    if type(share) not in (int, float) or not 0 <= share < 1:
        raise _damaged(path, f"val_fraction of split is {str(share)[:40]!r}, expected a share")
    for key in ("sources", "appended", "seen"):
        for row in metadata.get(key, []):
            if not isinstance(row, dict) or not _ROW_KEYS[key] <= row.keys():
                raise _damaged(path, f"a row of {key} lacks {', '.join(sorted(_ROW_KEYS[key]))}")
            if not isinstance(row.get("file", ""), str):
                raise _damaged(path, f"a row of {key} has file {str(row['file'])[:40]!r}")
            if not isinstance(row.get("stored") or [], list):  # size, time and format of a source
                raise _damaged(path, f"a row of {key} has stored {str(row['stored'])[:40]!r}")
            if key == "seen" and type(row["rows"]) is not int:  # and not a bool
                raise _damaged(path, f"a row of {key} has rows {str(row['rows'])[:40]!r}")
    for split, rows in metadata["shards"].items():
        if not isinstance(rows, list):
            raise _damaged(path, f"shards of {split} are {str(rows)[:40]!r}, expected list")


def _damaged(path: Path, what: str) -> DataError:
    return DataError(
        f"{METADATA_NAME} is damaged: {what}",
        path=path,
        next_step="bring back the file as lowtide wrote it, or prepare the text again",
    )


def _suggest_dataset(root: Path) -> str:
    """Suggest a dataset inside the folder or beside it, or else how to make one."""
    if (root / WORK_NAME).is_dir():
        return "give the interrupted lowtide command again: it goes on where it stopped"
    if root.name in SPLITS and (root.parent / METADATA_NAME).is_file():
        return f"did you mean {root.parent}?"
    with contextlib.suppress(OSError):
        ids = sorted(path for path in root.glob("*.*") if path.suffix in (".bin", ".npy"))
        if ids:
            return (
                f"lowtide inspect {ids[0]} shows these ids, lowtide convert {root} data/NAME makes "
                "a dataset of them"
            )
        for folder in (root, root.parent):
            names = sorted(path.parent.name for path in folder.glob(f"*/{METADATA_NAME}"))
            # Of several beside it only one with such a name: any other would be a guess.
            likeness = 0.5 if folder == root.parent and len(names) > 1 else 0.0
            if (nearest := nearest_name(root.name, names, likeness=likeness)) is not None:
                return f"did you mean {folder / nearest}?"
    return f"lowtide prepare --input-files FILES --out-dir {root}"
