"""Check that the names of output files are free, so that other files are never overwritten.

In:      a folder and the names that a command writes there, or one file
Out:     UsageError that names the first existing file

A command checks at its start. Once it has written its own mark there (a record, a work folder),
these files are its own, and it resumes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.files import open_file

__all__ = ["require_free_names", "require_own_file"]

_HEAD_BYTES = 1024


def require_free_names(folder: Path, names: Iterable[str], *, next_step: str) -> None:
    """Raise an error if one of `names` exists in a folder, even as a dangling link.

    >>> require_free_names(Path("not-there"), ["config.json"], next_step="")
    """
    taken = next((name for name in names if os.path.lexists(folder / name)), None)
    if taken is not None:
        raise UsageError(
            f"{taken} is here already, and is not this command's",
            path=folder / taken,
            next_step=f"{next_step}, or move this file away",
        )


def require_own_file(path: Path, mark: str, *, what: str, next_step: str) -> None:
    """Raise an error for an existing file that does not begin as lowtide's own, with `mark`."""
    if not path.exists():
        return
    with open_file(path) as file:
        if mark.encode() in file.read(_HEAD_BYTES):
            return
    raise UsageError(
        f"this file is there already, and is not a {what} of lowtide",
        path=path,
        next_step=next_step,
    )
