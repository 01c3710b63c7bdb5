"""The table of input formats: how each is recognized, read and split into documents.

In:      the suffix of a path
Out:     the InputFormat of an InputFile
Memory:  none

A new format is a row here, and a module that reads its rows if no existing reader does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lowtide.quickclasses import dataclass

if TYPE_CHECKING:
    from lowtide.corpus.inputs import InputFile
    from lowtide.corpus.textblocks import ReadingSettings

__all__ = [
    "COMPRESSIONS",
    "FORMATS",
    "TEXT_SUFFIXES",
    "Compression",
    "InputFormat",
    "classify",
    "is_known",
    "may_hold_rows",
]


@dataclass(frozen=True)
class InputFormat:
    """How the inputs of one format become blocks of documents."""

    suffixes: tuple[str, ...]
    block_kind: Literal["text", "jsonl", "rows"]
    """Contents of its blocks: text with separators, a JSON object per line, or concatenated texts
    with their ends."""
    iter_rows: Callable[[InputFile, ReadingSettings], Iterator[tuple[Any, int]]] | None = None
    """Iterates over texts in order, each with its stored bytes. None: blocks are cut from the
    file's bytes, with random access if it is not compressed."""
    reader_bytes: Callable[[InputFile, ReadingSettings], int] | None = None
    """Memory of a reader besides a block, if not known from the compression."""
    expansion: float | None = None
    """Bytes of text for each stored byte, if not known from the compression."""
    is_file: bool = True

    @property
    def is_cut(self) -> bool:
        """True if blocks are cut from the bytes of a file."""
        return self.iter_rows is None


@dataclass(frozen=True)
class Compression:
    """A compression of files of any format."""

    suffix: str
    expansion: float
    """Typical bytes of text for each stored byte."""


# Readers are imported on use, because they import InputFile, which imports this table.


def _iter_parquet_rows(source: InputFile, options: ReadingSettings) -> Iterator[tuple[Any, int]]:
    from lowtide.corpus.rows import iter_parquet_rows

    return iter_parquet_rows(source, options)


def _parquet_bytes(source: InputFile, options: ReadingSettings) -> int:
    from lowtide.corpus.rows import parquet_bytes

    return parquet_bytes(source, options)


def _iter_hub_rows(source: InputFile, options: ReadingSettings) -> Iterator[tuple[Any, int]]:
    from lowtide.corpus.hub import iter_hub_texts

    texts = iter_hub_texts(str(source.path), split=source.split, text_field=options.text_field)
    return ((text, 0) for text in texts)


FORMATS = {
    "text": InputFormat((".txt", ".text", ".md"), "text"),
    "jsonl": InputFormat((".jsonl", ".ndjson", ".jsonlines"), "jsonl"),
    "parquet": InputFormat(
        (".parquet",), "rows", _iter_parquet_rows, reader_bytes=_parquet_bytes, expansion=3.0
    ),
    "hub": InputFormat((), "rows", _iter_hub_rows, is_file=False),
}
COMPRESSIONS = {
    "gzip": Compression(".gz", 4.0),
    "zstd": Compression(".zst", 4.5),
    "xz": Compression(".xz", 5.0),
    "bzip2": Compression(".bz2", 4.0),
}
_KINDS = {suffix: kind for kind, row in FORMATS.items() for suffix in row.suffixes}
_COMPRESSED = {row.suffix: name for name, row in COMPRESSIONS.items()}
TEXT_SUFFIXES = frozenset(_KINDS) | frozenset(_COMPRESSED)
"""Suffixes of files that hold text, not ids."""


def classify(path: Path) -> tuple[str, str | None]:
    """The format and the compression of a file by its name; text if the suffix is unknown.

    >>> classify(Path("a.jsonl.zst")), classify(Path("README"))
    (('jsonl', 'zstd'), ('text', None))
    """
    suffixes, compression = _split_suffixes(path)
    return (_KINDS.get(suffixes[-1], "text") if suffixes else "text"), compression


def may_hold_rows(path: Path) -> bool:
    """True for .json: its text decides whether it is a JSON object a line, as jsonl."""
    suffixes, _ = _split_suffixes(path)
    return suffixes[-1:] == [".json"]


def is_known(path: Path) -> bool:
    """True if a file's suffix is one of a format."""
    suffixes, _ = _split_suffixes(path)
    return bool(suffixes) and suffixes[-1] in _KINDS


def _split_suffixes(path: Path) -> tuple[list[str], str | None]:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    compression = _COMPRESSED.get(suffixes[-1]) if suffixes else None
    return (suffixes[:-1] if compression else suffixes), compression
