"""The near copies to remove from each block, and the log of removals.

In:      the decide stage's result
Out:     marks for encoding; lines to exclude from deduplication; near_duplicates.jsonl
Memory:  8 bytes per block; one block's rows
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import xxhash

from lowtide import _native, files
from lowtide.arrays import np
from lowtide.counts import counted
from lowtide.dataset.near.deciding import DECIDE_STAGE
from lowtide.dataset.near.likeness import Likeness
from lowtide.engine.outputs import Output
from lowtide.engine.records import Records
from lowtide.engine.tasks import Task

__all__ = ["LOG_NAME", "NearRemovals"]

LOG_NAME = "near_duplicates.jsonl"
_ROW_BYTES = _native.NEAR_COPY_ROW_BYTES
_STEP_ROWS = 1 << 12


class NearRemovals:
    """The documents to remove from each block; blocks are counted from `first_block` on."""

    def __init__(self, records: Records, options: Likeness, *, first_block: int = 0) -> None:
        self._records = records
        self._options = options
        self._first = first_block

    @cached_property
    def _output(self) -> Output:
        return self._records.open(Task(DECIDE_STAGE, 0))

    @cached_property
    def _starts(self) -> memoryview:
        return self._output.read("starts").cast("q")

    def _rows(self, block: int) -> Any:
        """A row for each removed document of a block."""
        begin, end = self._starts[self._first + block : self._first + block + 2]
        data = b""
        if begin < end:
            data = self._output.read("removed", begin=begin * _ROW_BYTES, end=end * _ROW_BYTES)
        return np.frombuffer(data, dtype="<u8").reshape(-1, _ROW_BYTES // 8)

    def marks(self, block: int) -> bytes:
        """Documents to leave out of a block, in the form that encoding expects: after all lines."""
        rows = self._rows(block)[:, 0].astype("<u4")
        return (rows | np.uint32(_native.NEAR_COPY_MARK)).tobytes()

    def leave_out(self, block: int, hashes: memoryview) -> memoryview:
        """Hashes of a block without those of removed documents, which later text may repeat."""
        rows = self._rows(block)
        if not len(rows) or not len(hashes):
            return hashes
        left = np.zeros((len(rows), 3), dtype="<u4")
        left[:, 0] = rows[:, 0].astype("<u4")
        left[:, 1] = rows[:, 3] >> np.uint64(32)
        left[:, 2] = rows[:, 3].astype("<u4")
        return _native.leave_out(hashes, left.tobytes())

    def describe(self) -> dict[str, Any]:
        """What was compared and found, for the metadata."""
        found, options = self._output.header, self._options
        return {
            "threshold": options.threshold,
            "ngram": options.ngram,
            "bands": options.bands,
            "rows": options.rows,
            "documents": found["signed"],
            "not_compared": found["skipped"],
            "pairs": found["pairs"],
            "compared": found["compared"],
            "unlike": found["unlike"],
            "removed": found["removed"],
            "capped_buckets": found["capped"],
            "largest_bucket": found["largest"],
        }

    def notices(self) -> list[str]:
        """Notices for the user."""
        found = self._output.header
        if not found["capped"]:
            return []
        return [
            f"near copies: {counted(found['capped'], 'bucket')} of many different documents, the "
            f"largest of {found['largest']:,}: each was compared with some of them, not with all"
        ]

    def write_log(self, root: Path, name: str = LOG_NAME) -> dict[str, Any]:
        """Write the removed documents and those kept for them; return a row for the metadata."""
        path = root / name
        digest = xxhash.xxh3_128()
        with files.atomic_file(path) as file:
            for begin in range(0, self._starts[-1], _STEP_ROWS):
                end = min(begin + _STEP_ROWS, self._starts[-1])
                data = self._output.read("removed", begin=begin * _ROW_BYTES, end=end * _ROW_BYTES)
                rows = np.frombuffer(data, dtype=_LOG_ROW).tolist()
                text = b"".join(_log_line(row, self._first) for row in rows)
                digest.update(text)
                file.write(text)
        return {**self.describe(), "file": name, "xxh3_128": digest.hexdigest()}


_LOG_ROW = [
    ("place", "<u8"),
    ("kept", "<u8"),
    ("similarity", "<f8"),
    ("lines", "<u8"),
    ("input", "<u8"),
    ("ordinal", "<u8"),
    ("kept_input", "<u8"),
    ("kept_ordinal", "<u8"),
]


def _log_line(row: tuple[Any, ...], first_block: int) -> bytes:
    """A document before `first_block` has no input any more, only its number."""
    _, kept, similarity, _, number, ordinal, kept_number, kept_ordinal = row
    line = {
        "kept": [kept_number if kept >> 32 >= first_block else None, kept_ordinal],
        "removed": [number, ordinal],
        "similarity": round(similarity, 6),
    }
    return json.dumps(line).encode() + b"\n"
