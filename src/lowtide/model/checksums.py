"""Checksums beside the files of a model's folder, so that damage is found before it is used.

    checksums.json   {"version": 1, "files": {"model.safetensors": ["<xxh3-128>", …], …}}

A file is recorded before it gets its name, and the previous checksum stays beside the new one, so
that after a kill either file, old or new, is recorded. Folders of other programs have no record,
and are not checked.

In:      a folder of a run, of one of its checkpoints, or of an exported model
Out:     checksums.json; DataError for a file that was changed
Memory:  one buffer of 1 MiB
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lowtide.checksumrecords import RECORD_VERSION, read_record, verify_folder
from lowtide.errors import DataError, warn
from lowtide.filenames import CHECKSUMS_NAME, TOKENIZER_NAME
from lowtide.files import checksum_bytes, checksum_file, json_bytes, write_bytes
from lowtide.files import write_json as _write_json

__all__ = [
    "drop_damaged_record",
    "find_intact",
    "has_all_files",
    "record_checksums",
    "record_files",
    "step_dirs",
    "write_recorded_json",
]

_VERSIONS_KEPT = 2


def record_checksums(folder: Path, checksums: Mapping[str, str]) -> None:
    """Record the checksums of new files of a folder; call it before they get their names."""
    files = read_record(folder) or {}
    for name, checksum in checksums.items():
        others = [known for known in files.get(name, []) if known != checksum]
        files[name] = [checksum, *others][:_VERSIONS_KEPT]
    _write_json(folder / CHECKSUMS_NAME, {"version": RECORD_VERSION, "files": files})


def record_files(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Record files that were just written, by reading them from disk; return the checksums."""
    checksums = {name: checksum_file(folder / name) for name in names}
    record_checksums(folder, checksums)
    return checksums


def drop_damaged_record(folder: Path, note: Callable[[str], None]) -> bool:
    """Remove a record that cannot be read, and say so; True if there was such a one.

    Only for those who know what the folder's files should hold, or write all of them again.
    """
    try:
        read_record(folder)
    except DataError as error:
        note(f"warning: {error.message} ({error.path}); it is written anew")
        (folder / CHECKSUMS_NAME).unlink()
        return True
    return False


def write_recorded_json(path: Path, value: Any) -> None:
    """Write JSON atomically, its checksum first; do nothing if the same content exists already."""
    data = json_bytes(value)
    known = (read_record(path.parent) or {}).get(path.name, [])
    if path.is_file() and path.read_bytes() == data and checksum_bytes(data) in known:
        return
    record_checksums(path.parent, {path.name: checksum_bytes(data)})
    write_bytes(path, data)


def has_all_files(folder: Path, names: Iterable[str] | None = None) -> bool:
    """True if all recorded files (or those in `names`) exist and match their checksums.

    False if one is missing, and may be written again; a damaged or changed file is an error,
    because the change may be intended.
    """
    try:
        record = read_record(folder)
        wanted = set(record or ()) if names is None else set(names)
        if record is None or not wanted <= set(record):
            return False
        there = {name for name in wanted if (folder / name).exists()}
        verify_folder(folder, only=there)
    except DataError as error:
        raise DataError(
            error.message,
            path=error.path,
            next_step="remove this file and give the command again: it is written anew",
        ) from None
    return there == wanted


def step_dirs(run_dir: Path) -> list[Path]:
    """The finished checkpoints of a run, oldest first."""
    return sorted(path for path in (run_dir / "steps").glob("step_*") if path.is_dir())


def find_intact(folder: str | Path, *, note: Callable[[str], None] | None = None) -> Path:
    """The folder itself if its files are undamaged, else the run's newest undamaged checkpoint.

    Damage is reported by `note` (stderr if not given); without any undamaged one it is an error.
    """
    folder = Path(folder)
    verify_folder(folder, only=[TOKENIZER_NAME])  # which no checkpoint has a copy of
    try:
        verify_folder(folder)
        return folder
    except DataError as error:
        for step_dir in reversed(step_dirs(folder)):
            try:
                verify_folder(step_dir)
            except DataError:
                continue
            (note or warn)(f"warning: {error.message} ({error.path}); taking {step_dir} instead")
            return step_dir
        raise DataError(
            error.message,
            path=error.path,
            next_step=f"bring the file back from a copy; {_other_weights(folder)}",
        ) from None


def _other_weights(folder: Path) -> str:
    """Other weights of the run, in words for an error."""
    if (folder / "best").is_dir():
        return "the best weights (--best) may be whole"
    if folder.name == "best":
        return "without --best the last weights may be whole"
    return "or make it anew with the command that wrote the folder (train or export)"
