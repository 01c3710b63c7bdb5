"""Estimate the memory of a tokenizer before it is loaded, from its files.

In:      the name or path of a tokenizer
Out:     bytes of its vocabulary; if the package `tokenizers` runs it, of its tables and threads
Memory:  the file, while it is examined
"""

from __future__ import annotations

from pathlib import Path

from lowtide.filenames import (
    MERGES_NAME,
    PIECES_NAME,
    TEKKEN_NAME,
    TOKENIZER_NAME,
    VOCABULARY_NAME,
)
from lowtide.quickclasses import dataclass
from lowtide.tokenizer.huggingface import parsed_bytes, why_package
from lowtide.tokenizer.piecefiles import is_piece_file

__all__ = [
    "NO_MORE",
    "PIECE_BYTES",
    "USUAL_BYTES",
    "TokenizerNeeds",
    "tokenizer_needs",
    "vocabulary_bytes",
]

PIECE_BYTES = 16 << 20
"""Memory of the package while it encodes a part of a text; 3 to 12 MB measured."""
USUAL_BYTES = 20 << 20
"""Memory of a vocabulary of 50,000 tokens, which verbs that read text assume for any tokenizer."""
_CHARACTER_BYTES = 3 << 20  # tables for non-ASCII characters, made when text has some: 2.2 MiB
_TABLE_TIMES = 24  # bytes of its tables for each byte of tokenizer.json; 10 to 21 measured
_PROGRAM_BYTES = 8 << 20  # the package itself
# Memory per byte of a vocabulary's files to read, use and write it: measured 4 (for tokens of
# megabytes) to 6 for tokenizer.json, 10.7 for vocab.json and merges.txt, 24 for .tiktoken.
_JSON_TIMES, _PARTS_TIMES, _RANKS_TIMES = 7, 11, 25
_PARSED_TIMES = 4  # more for each byte of its added tokens: 3 measured
# The same: 10 measured for tekken.json, half of it Python objects, 65 for SentencePiece files.
_TEKKEN_TIMES, _PIECES_TIMES = 11, 75


@dataclass(frozen=True)
class TokenizerNeeds:
    """Memory beyond that of a native vocabulary of 50,000 tokens."""

    table_bytes: int = 0
    thread_bytes: int = 0
    by_package: bool = False
    """True if the package tokenizers runs it."""


NO_MORE = TokenizerNeeds()


def tokenizer_needs(source: str | Path) -> TokenizerNeeds:
    """The memory of tokenizer `source` beyond what verbs assume for any tokenizer.

    >>> tokenizer_needs("gpt2")
    TokenizerNeeds(table_bytes=0, thread_bytes=0, by_package=False)
    """
    found = vocabulary_bytes(source)
    if _is_for_package(source):
        return TokenizerNeeds(found, PIECE_BYTES, by_package=True)
    return TokenizerNeeds(max(0, found - USUAL_BYTES))


def vocabulary_bytes(source: str | Path) -> int:
    """The memory of vocabulary `source`, by the size of its files; 0 without files.

    For word-like tokens, 360 bytes per token is equivalent; long tokens only show in file sizes.
    """
    paths = _files(Path(source))
    size = sum(path.stat().st_size for path in paths if path.is_file())
    if size and _is_for_package(source):
        return _PROGRAM_BYTES + _TABLE_TIMES * size
    times = _PARTS_TIMES if len(paths) > 1 else _times(paths[0])
    parsed = parsed_bytes(paths[0]) if size and paths[0].name == TOKENIZER_NAME else 0
    return times * size + _PARSED_TIMES * parsed + _CHARACTER_BYTES if size else 0


def _times(path: Path) -> int:
    if is_piece_file(path):
        return _PIECES_TIMES
    if path.name.startswith("tekken"):
        return _TEKKEN_TIMES
    return _RANKS_TIMES if path.suffix == ".tiktoken" else _JSON_TIMES


def _files(path: Path) -> list[Path]:
    """The files that are read when a tokenizer is loaded from `path`."""
    if path.is_dir() and (path / TOKENIZER_NAME).is_file():
        return [path / TOKENIZER_NAME]
    if path.is_dir() and not (path / VOCABULARY_NAME).is_file():
        for name in (TEKKEN_NAME, PIECES_NAME):
            if (path / name).is_file():
                return [path / name]
    if not path.is_dir() and path.name not in (VOCABULARY_NAME, MERGES_NAME):
        return [path]
    folder = path if path.is_dir() else path.parent
    return [folder / VOCABULARY_NAME, folder / MERGES_NAME]


def _is_for_package(source: str | Path) -> bool:
    path, *others = _files(Path(source))
    is_json = not others and path.suffix == ".json" and path.is_file()
    return is_json and why_package(path) is not None
