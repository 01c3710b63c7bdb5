"""Verify files by the checksums recorded in their folder (model/checksums.py writes them).

    checksums.json   {"version": 1, "files": {"model.safetensors": ["<xxh3-128>", …], …}}

In:      a folder of a run, of one of its checkpoints, or of an exported model
Out:     DataError for a damaged file
Memory:  one buffer of 1 MiB
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lowtide.errors import DataError
from lowtide.filenames import CHECKSUMS_NAME
from lowtide.files import checksum_file, read_json

__all__ = ["RECORD_VERSION", "read_record", "verify_folder"]

RECORD_VERSION = 1


def verify_folder(folder: str | Path, *, only: Iterable[str] | None = None) -> None:
    """Compare the files of a folder with its record; does nothing without a record."""
    folder = Path(folder)
    files = read_record(folder)
    if files is None:
        return
    wanted = set(files) if only is None else set(only) & set(files)
    for name in sorted(wanted):
        path = folder / name
        if not path.is_file():
            raise DataError(f"{name} is missing; {CHECKSUMS_NAME} names it", path=path)
        found = checksum_file(path)
        if found not in files[name]:
            raise DataError(
                f"{name} is damaged, or was changed by another program: its checksum is {found}, "
                f"{CHECKSUMS_NAME} says {files[name][0] if files[name] else 'nothing'}",
                path=path,
            )


def read_record(folder: Path) -> dict[str, list[str]] | None:
    """The checksums by file name; None if there is no record."""
    path = folder / CHECKSUMS_NAME
    if not path.exists():
        return None
    try:
        record: Any = read_json(path)
    except DataError as error:
        raise _damaged(path, f"is damaged: {error.message}") from None
    files: Any = record.get("files") if isinstance(record, dict) else None
    whole = isinstance(files, dict) and all(
        isinstance(sums, list) and all(isinstance(checksum, str) for checksum in sums)
        for sums in files.values()
    )
    if not whole or record.get("version") != RECORD_VERSION:
        raise _damaged(path, "is damaged, or of a newer lowtide")
    if any(name != Path(name).name for name in files):
        raise _damaged(path, "names files outside its folder")
    return files


def _damaged(path: Path, what: str) -> DataError:
    """The error for an unusable record; the files beside it may be intact."""
    unchecked = "remove it: the files beside it are then used without being compared"
    step = f"bring it back from a copy, or {unchecked}"
    if (path.parent / "steps").is_dir():
        step = f"lowtide train, as this run was given, writes it anew; or {unchecked}"
    return DataError(f"{CHECKSUMS_NAME} {what}", path=path, next_step=step)
