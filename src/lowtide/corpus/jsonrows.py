"""Take the texts out of blocks of jsonl, and explain the rows that have none.

In:      TextBlock of whole rows
Out:     the texts one after the other, where each ends, where its row begins
Memory:  about the block once more
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lowtide import _native
from lowtide.arrays import np
from lowtide.corpus.textblocks import ReadingOptions, TextBlock
from lowtide.errors import DataError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["extract_json_rows"]


def extract_json_rows(
    block: TextBlock, options: ReadingOptions, paths: dict[int, Path]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """The texts of a jsonl block, where each ends, and at which byte of the input its row begins.

    Rows without text in the field are an error, or a notice where they are to be skipped.
    """
    segment = block.segments[0]
    text, ends, offsets, bad = _native.extract_jsonl(block.data, options.text_field)
    if len(bad):
        begin = int(bad[0])
        path = paths.get(segment.input_index)
        reason = _explain_row(block.data[begin:].split(b"\n", 1)[0], options.text_field)
        message = f"row at byte {segment.offset + begin}: {reason}"
        if not options.skip_bad:
            raise DataError(
                message,
                path=path,
                next_step="name the field with --text-field, "
                "or skip such rows with --skip-bad-inputs",
            )
        more = f" (and {len(bad) - 1} more in the same block)" if len(bad) > 1 else ""
        options.on_notice(f"{path}: {message}; skipped{more}")
    return text, ends, offsets + np.uint64(segment.offset)


def _explain_row(line: bytes, field: str) -> str:
    try:
        row = json.loads(line.decode("utf-8", "replace").lstrip("\ufeff"))
    except (json.JSONDecodeError, RecursionError) as error:
        return f"not JSON: {error}"
    if not isinstance(row, dict):
        return f"no JSON object with text in field {field!r}, but a {type(row).__name__}"
    if field in row:
        return f"field {field!r} is no text, but a {type(row[field]).__name__}"
    names = [str(name) for name in cast(dict[str, object], row)]
    there = ", ".join(repr(name) for name in names[:8]) + (", ..." if len(names) > 8 else "")
    return f"no JSON object with text in field {field!r}; its fields: {there or 'none'}"
