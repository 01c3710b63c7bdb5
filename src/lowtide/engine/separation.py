"""The work folder is separate from what a command reads and makes: it is removed at the end.

In:      a work folder; inputs, as they were given, and outputs
Out:     an error for one that lies in the work folder
Memory:  none

Workers remove only folders that have names of theirs, but `out`, `new` and `hash` are also names
that people give.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.stores.urls import show_path, store_url

__all__ = ["require_separate"]


def require_separate(work_dir: Path, paths: Iterable[str | Path]) -> None:
    """Raise an error for a path or pattern in a work folder."""
    folder = os.path.join(_resolve(work_dir), "")  # noqa: PTH118
    for path in paths:
        if _resolve(re.split(r"[*?\[]", show_path(path))[0]).startswith(folder):
            raise UsageError(
                f"this is in the work folder {show_path(work_dir)}, whose contents are removed",
                path=show_path(path),
                next_step="give a folder of its own as --work-dir",
            )


def _resolve(path: str | Path) -> str:
    """A URL as it is, a path without links."""
    is_url = store_url(path) is not None
    return show_path(path) if is_url else os.path.realpath(os.path.expanduser(path))  # noqa: PTH111
