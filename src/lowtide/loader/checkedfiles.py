"""Remember which files had a correct checksum before, so that they are not read again.

In:      files of ids, each with its recorded checksum
Out:     a line for each large intact file, in the user's cache folder
Memory:  a record of at most 4 MiB for each folder of files, and about 410 bytes per line of it

    ~/.cache/lowtide/checked/FOLDER.jsonl   [name, size, mtime, ctime, inode, checksum]

A file that was copied or written to has another ctime, and is read again. A change by a failing
disk is only noticed after its line is removed (`lowtide verify` always reads every byte). Lines are
only appended, so several processes may share the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import xxhash

from lowtide.files import read_whole
from lowtide.stores.extents import default_cache_dir

__all__ = ["CheckedFiles"]

_LEAST_BYTES = 8 << 20  # reading a smaller file takes no longer than finding its line
_MOST_RECORD_BYTES = 4 << 20  # some 32,000 files; after that the record is started anew


class CheckedFiles:
    """The lines of all folders, each read when one of its files is requested."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        least_bytes: int = _LEAST_BYTES,
        most_record_bytes: int = _MOST_RECORD_BYTES,
    ) -> None:
        self._least_bytes = least_bytes
        self._most_record_bytes = most_record_bytes
        self._folder = folder or default_cache_dir().parent / "checked"
        self._records: dict[Path, tuple[int, dict[str, list[Any]]]] = {}

    def holds(self, path: Path, checksum: str) -> bool:
        """True if this file, unchanged, was intact when it was last read."""
        status = path.stat()
        if status.st_size < self._least_bytes:
            return False
        row = self._read(self._record_of(path)).get(path.name)
        return row == _describe(status, checksum)

    def add(self, path: Path, checksum: str, status: os.stat_result) -> None:
        """Record that a file is intact; `status` is from before it was read.

        Nothing is recorded if the cache folder is read-only or its disk is full.
        """
        if status.st_size < self._least_bytes:
            return
        record = self._record_of(path)
        line = json.dumps([path.name, *_describe(status, checksum)]).encode() + b"\n"
        with contextlib.suppress(OSError):
            record.parent.mkdir(parents=True, exist_ok=True)
            if record.exists() and record.stat().st_size > self._most_record_bytes:
                record.unlink()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(record, flags, 0o666)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)

    def _record_of(self, path: Path) -> Path:
        place = os.fsencode(path.parent.resolve())
        return self._folder / f"{xxhash.xxh3_64_hexdigest(place)}.jsonl"

    def _read(self, record: Path) -> dict[str, list[Any]]:
        """The lines by file name; read again if another process has added some."""
        try:
            size = record.stat().st_size
            known = self._records.get(record)
            if known is not None and known[0] == size:
                return known[1]
            lines = read_whole(record).splitlines() if size <= self._most_record_bytes else []
        except OSError:
            return {}
        rows: dict[str, list[Any]] = {}
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):  # truncated by a full disk
                name, *row = json.loads(line)
                rows[str(name)] = row
        self._records[record] = size, rows
        return rows


def _describe(status: os.stat_result, checksum: str) -> list[Any]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, checksum]
