"""Verify that a file of ids is unchanged, by the checksum recorded when it was written.

In:      a file, and its xxh3-128 from the metadata or the record beside it
Out:     DataError that names the file and the next step
Memory:  one buffer of 1 MiB
"""

from __future__ import annotations

from pathlib import Path

from lowtide.errors import DataError
from lowtide.stores.paths import checksum_path

__all__ = ["damaged_file", "require_intact"]


def damaged_file(path: Path | str, found: str, expected: str, *, next_step: str = "") -> DataError:
    """The error for a file whose checksum has changed."""
    name = Path(path).name
    again = "bring the file back from a copy, or make it again from its text"
    if name.endswith(".npy"):
        again += f"; if it is a file of yours, remove {name}.json, which is not its record"
    return DataError(
        f"{name} is damaged, or was changed by another program: its checksum is "
        f"{found}, it was written with {expected}",
        path=path,
        next_step=next_step or again,
    )


def require_intact(path: Path, checksum: str | None) -> None:
    """Read a whole file and check it; without a checksum nothing is done."""
    if checksum is not None and (found := checksum_path(path)) != checksum:
        raise damaged_file(path, found, checksum)
