"""Estimate the memory for reading inputs besides blocks: decompression windows, parquet pages.

In:      InputFile rows
Out:     bytes, for a command's budget
Memory:  a file's first bytes; the footer and page headers of a parquet file
"""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.corpus.decompression import window_bytes
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.textblocks import ReadingSettings
from lowtide.stores.paths import READER_BYTES, is_stored

__all__ = ["reader_bytes"]

_OBJECTS_LOOKED_AT = 16


def reader_bytes(inputs: Sequence[InputFile], options: ReadingSettings) -> int:
    """The largest memory of one reader besides its block, over all inputs.

    A later part of a file may need more than its beginning; then reading refuses it.
    """
    needed = looked = stored = 0
    for source in inputs:
        if is_stored(source.path):  # one request each, so the first few stand for all
            stored, looked = READER_BYTES, looked + 1
            if looked > _OBJECTS_LOOKED_AT:
                continue
        if source.format.reader_bytes is not None:
            needed = max(needed, source.format.reader_bytes(source, options))
        elif source.compression is not None:
            needed = max(needed, window_bytes(source))
    return needed + stored
