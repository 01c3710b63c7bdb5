"""What a tokenizer takes that the package `tokenizers` runs, before it is loaded.

In:      what names a tokenizer
Out:     bytes for its tables, and for each thread that encodes
Memory:  the file, while it is looked at
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lowtide.filenames import TOKENIZER_NAME, VOCABULARY_NAME
from lowtide.tokenizer.huggingface import why_package

__all__ = ["NO_PACKAGE", "PIECE_BYTES", "PIECE_CHARACTERS", "PackageNeeds", "package_needs"]

PIECE_CHARACTERS = 32 << 10
PIECE_BYTES = 16 << 20
"""What the package holds while it encodes so many characters; 3 to 12 MB measured."""
_TABLE_TIMES = 24  # bytes of its tables for each byte of tokenizer.json; 10 to 21 measured
_PROGRAM_BYTES = 8 << 20  # the package itself


@dataclass(frozen=True)
class PackageNeeds:
    """Memory that native code would not take."""

    table_bytes: int = 0
    thread_bytes: int = 0


NO_PACKAGE = PackageNeeds()


def package_needs(source: str | Path) -> PackageNeeds:
    """What the tokenizer that `source` names takes in the package; nothing if native code runs it.

    >>> package_needs("gpt2")
    PackageNeeds(table_bytes=0, thread_bytes=0)
    """
    path = Path(source)
    if path.is_dir():
        path = path / TOKENIZER_NAME
    if path.suffix != ".json" or path.name == VOCABULARY_NAME or not path.is_file():
        return NO_PACKAGE
    if why_package(path) is None:
        return NO_PACKAGE
    return PackageNeeds(_PROGRAM_BYTES + _TABLE_TIMES * path.stat().st_size, PIECE_BYTES)
