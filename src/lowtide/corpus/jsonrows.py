"""Extract the texts from blocks of jsonl, and explain rows that have none.

In:      TextBlock of whole rows
Out:     the texts concatenated, the end of each, and the start of its row
Memory:  about the size of the block
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lowtide import _native
from lowtide.arrays import np
from lowtide.corpus.textblocks import Paths, ReadingSettings, Segment, TextBlock
from lowtide.errors import DataError
from lowtide.memory import format_size

if TYPE_CHECKING:
    import numpy.typing as npt

    JsonRows = tuple[
        npt.NDArray[np.uint8],
        npt.NDArray[np.uint64],
        npt.NDArray[np.uint64],
        npt.NDArray[np.uint64],
    ]

__all__ = ["extract_json_rows"]

_LONG_ROW = 1 << 18
_JSON_TYPES: dict[object, str] = {
    dict: "an object",
    list: "an array",
    str: "text",
    int: "a number",
    float: "a number",
}
_NAME_FIELD = "name the field with --text-field"


def extract_json_rows(block: TextBlock, options: ReadingSettings, paths: Paths) -> JsonRows:
    """The texts of a jsonl block, and for each its end, its row's first byte and its input.

    Rows without text in the field are an error, or a notice if they are skipped.
    """
    parts = [
        _extract_segment(block, segment, options, paths.get(segment.input_index))
        for segment in block.segments
    ]
    if len(parts) == 1:
        return parts[0]
    base = 0
    for text, ends, _, _ in parts:
        ends += np.uint64(base)
        base += len(text)
    text, ends, offsets, inputs = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return text, ends, offsets, inputs


def _extract_segment(
    block: TextBlock, segment: Segment, options: ReadingSettings, path: Path | None
) -> JsonRows:
    data = block.data[segment.begin : segment.end]  # a single segment needs no copy
    text, ends, offsets, bad = _native.extract_jsonl(data, options.text_field)
    if len(bad):
        begin = int(bad[0])
        reason = _explain_row(data[begin:].split(b"\n", 1)[0], options.text_field)
        message = f"row at byte {segment.offset + begin}: {reason}"
        mend = "repair the row" if reason.startswith("not JSON") else _NAME_FIELD
        if not options.skip_bad:
            raise DataError(
                message,
                path=path,
                next_step=f"{mend}, or skip such rows with --skip-bad-inputs",
            )
        more = f" (and {len(bad) - 1} more in the same block)" if len(bad) > 1 else ""
        options.on_notice(f"{path}: {message}; skipped{more}")
    inputs = np.full(len(ends), segment.input_index, dtype=np.uint64)
    return text, ends, offsets + np.uint64(segment.offset), inputs


def _explain_row(line: bytes, field: str) -> str:
    if len(line) > _LONG_ROW:  # as Python objects it could take many times its size
        return f"{format_size(len(line))} that are not a JSON object with text in field {field!r}"
    try:
        row = json.loads(line.decode("utf-8", "replace").lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:  # ValueError: also a number of 5,000 digits
        return f"not JSON: {error}"
    if not isinstance(row, dict):
        return f"not a JSON object with text in field {field!r}, but {_name_type(row)}"
    if field in row:
        return f"field {field!r} is not text, but {_name_type(row[field])}"
    names = [str(name) for name in cast(dict[str, object], row)]
    there = ", ".join(repr(name) for name in names[:8]) + (", ..." if len(names) > 8 else "")
    return f"not a JSON object with text in field {field!r}; its fields: {there or 'none'}"


def _name_type(value: object) -> str:
    """What a value is in JSON's words; true, false and null have no others."""
    return _JSON_TYPES.get(type(value)) or json.dumps(value)
