"""Find the files on this machine that a path, folder or pattern names.

In:      a path as typed
Out:     paths of files, in a stable order
Memory:  the names of one folder, or the matches of one pattern
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from lowtide.corpus.hub import HUB_PREFIX
from lowtide.corpus.inputformats import is_known
from lowtide.counts import counted
from lowtide.errors import DataError, from_os_error
from lowtide.filenames import MERGES_NAME, METRICS_NAME

__all__ = ["is_our_output", "iter_files", "not_a_file"]

_ADDRESS = re.compile("([A-Za-z][A-Za-z0-9+.-]+):/")
_OUR_NAMES = {
    METRICS_NAME: b'{"time": ',
    MERGES_NAME: b"#version",
}
"""Files written by lowtide that may be in a folder of texts, and their first bytes."""


def is_our_output(path: Path) -> bool:
    """True for a log or a vocabulary that lowtide wrote, which has the suffix of a text file.

    Its content decides, because a text may have the same name.
    """
    begin = _OUR_NAMES.get(path.name)
    if begin is None:
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(begin)) in (begin, b"")
    except OSError:
        return False


def not_a_file(path: Path) -> DataError:
    """The error for an input that can only be read once, from its beginning."""
    return DataError(
        "this is a pipe or a device, expected a file",
        path=path,
        next_step="write its text to a file first: inputs are read from any place, and again when "
        "an interrupted command goes on",
    )


def iter_files(given: str | Path, notice: Callable[[str], None]) -> Iterator[Path]:
    """Yield the files of a path, folder or pattern, in sorted order; what is ignored is told."""
    path = Path(given).expanduser()
    if str(given) == "-" and not path.exists():
        raise not_a_file(path)
    if path.is_dir():
        yield from _walk(path, notice)
    elif path.exists() or path.is_symlink():
        yield path
    elif glob.has_magic(str(path)):
        matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207
        if not matches:
            raise DataError(
                "no file matches this pattern",
                path=path,
                next_step="check the pattern for typing errors",
            )
        for match in matches:
            if Path(match).is_dir():
                yield from _walk(Path(match), notice)
            elif is_our_output(Path(match)):
                notice(f"{match} is an output of lowtide: left out")
            else:
                yield Path(match)
    elif address := _ADDRESS.match(str(given)):
        raise DataError(
            f"{address[1]} is no kind of address that text is read from",
            path=str(given),
            next_step="fetch the file first (wget, curl); s3://, gs:// and hf:// are read directly",
        )
    else:
        raise DataError(
            "no such file or folder", path=path, next_step="check the path for typing errors"
        )


def _walk(root: Path, notice: Callable[[str], None]) -> Iterator[Path]:
    """Return a folder's files in sorted order; links are followed, but not in cycles."""
    visited: set[tuple[int, int]] = set()
    found = ignored = 0

    def refuse(error: OSError) -> None:
        raise from_os_error(error)

    for folder, folders, names in os.walk(root, followlinks=True, onerror=refuse):
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in visited:
            folders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            if name.startswith(".") or not is_known(path) or not path.is_file():
                ignored += 1
                continue
            if is_our_output(path):
                notice(f"{path} is an output of lowtide: left out")
                continue
            found += 1
            yield path
    if ignored:
        notice(f"{root}: {counted(ignored, 'file')} of other kinds ignored")
    if not found:
        raise DataError(
            "no text in this folder (txt, md, jsonl, parquet, plain or compressed)",
            path=root,
            next_step=f"name it as {HUB_PREFIX}{root}: a Hugging Face dataset is in it"
            if any((root / name).exists() for name in ("dataset_dict.json", "state.json"))
            else "name the files themselves, they are then read as text",
        )
