"""The origin of a .npy of ids: the record beside it, and whether it still matches the text.

In:      FILE.npy and FILE.npy.json beside it; the text it was made from
Out:     Provenance; a description of how the file differs from the requested one
Memory:  one buffer of 1 MiB, to hash a text whose modification time has changed
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowtide import files
from lowtide.corpus.inputformats import COMPRESSIONS
from lowtide.errors import DataError
from lowtide.quickclasses import dataclass
from lowtide.stores.paths import checksum_path
from lowtide.tokenizer import Tokenizer

__all__ = [
    "Provenance",
    "SourceText",
    "describe_source_change",
    "load_own_tokenizer",
    "npy_path",
    "read_provenance",
    "record_path",
    "tokenizer_dir",
    "write_provenance",
]

_VERSION = 1
_COMPRESSED = {row.suffix for row in COMPRESSIONS.values()}


@dataclass(frozen=True)
class SourceText:
    """The text that ids were made from, as it was then."""

    file: str
    size_bytes: int
    modified_ns: int
    xxh3_128: str


@dataclass(frozen=True)
class Provenance:
    """The contents of a .npy's record."""

    num_tokens: int
    dtype: str
    vocab_size: int
    tokenization: str
    """The tokenizer as named: gpt2, char, or a tokenizer's folder."""
    tokenizer_fingerprint: str
    source: SourceText
    settings: dict[str, Any]
    """The settings that decide which text of the file was encoded."""
    xxh3_128: str | None = None
    """Checksum of the .npy itself; not in records of earlier versions."""


def npy_path(text_path: Path) -> Path:
    """The .npy of a text file.

    >>> npy_path(Path("a.txt.gz")).name
    'a.npy'
    """
    path = text_path.with_suffix("") if text_path.suffix in _COMPRESSED else text_path
    return path.with_suffix(".npy")


def record_path(path: Path) -> Path:
    """The record of a .npy."""
    return path.with_name(f"{path.name}.json")


def tokenizer_dir(path: Path) -> Path:
    """The folder of a .npy's tokenizer, unless it is gpt2."""
    return path.with_suffix(".tokenizer")


def write_provenance(path: Path, provenance: Provenance, publisher: files.Publisher) -> None:
    """Write the record of the .npy at `path`; `publisher` renames it to its final name."""
    row = dataclasses.asdict(provenance)
    with files.atomic_file(record_path(path), publisher=publisher) as file:
        file.write(files.json_bytes({"format_version": _VERSION, **row}))


def read_provenance(path: Path) -> Provenance | None:
    """The record of a .npy; None if it has none, like files of other programs."""
    record = record_path(path)
    if not record.is_file():
        return None
    value = files.read_json(record)
    try:
        if value["format_version"] != _VERSION:
            raise ValueError(f"format version {value['format_version']}")
        return Provenance(
            num_tokens=int(value["num_tokens"]),
            dtype=str(value["dtype"]),
            vocab_size=int(value["vocab_size"]),
            tokenization=str(value["tokenization"]),
            tokenizer_fingerprint=str(value["tokenizer_fingerprint"]),
            source=_source_from(value["source"]),
            settings=dict(value["settings"]),
            xxh3_128=None if value.get("xxh3_128") is None else str(value["xxh3_128"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"this record of {path.name} cannot be read: {error!r}",
            path=record,
            next_step=f"remove {path.name} and the record, and give lowtide pretokenize again",
        ) from None


def _source_from(value: Mapping[str, Any]) -> SourceText:
    return SourceText(
        file=str(value["file"]),
        size_bytes=int(value["size_bytes"]),
        modified_ns=int(value["modified_ns"]),
        xxh3_128=str(value["xxh3_128"]),
    )


def describe_source_change(source: SourceText, path: Path) -> str | None:
    """Describe how a text differs from the one that ids were made from; None if it does not.

    By size and modification time if possible; a copy with another time is read and compared.
    """
    status = path.stat()
    if status.st_size != source.size_bytes:
        return f"{path.name} has {status.st_size} bytes, it had {source.size_bytes}"
    if status.st_mtime_ns == source.modified_ns:
        return None
    if checksum_path(path) != source.xxh3_128:
        return f"{path.name} holds other text of the same size"
    return None


def load_own_tokenizer(path: Path, provenance: Provenance) -> Tokenizer:
    """Load the tokenizer that a .npy was made with; any other is an error."""
    folder = tokenizer_dir(path)
    name = os.fspath(folder) if folder.is_dir() else provenance.tokenization
    next_step = f"bring {folder} back, or remove {path.name} and give lowtide pretokenize again"
    try:
        tokenizer = Tokenizer.load(name)
    except DataError as error:
        raise DataError(
            f"{path.name} was made with tokenizer {provenance.tokenization}, which cannot be "
            f"loaded: {error.message}",
            path=path,
            next_step=next_step,
        ) from None
    if tokenizer.fingerprint != provenance.tokenizer_fingerprint:
        raise DataError(
            f"{path.name} was made with tokenizer {provenance.tokenization} "
            f"({provenance.tokenizer_fingerprint[:12]}), {name} is another one now "
            f"({tokenizer.fingerprint[:12]})",
            path=path,
            next_step=next_step,
        )
    return tokenizer
