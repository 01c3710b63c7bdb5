"""Ranges of task results as local files, for native code: a path and an offset.

In:      outputs (engine.outputs), on a disk or in a store
Out:     a path and an offset: of the output itself, with verified checksums, or of a copy
Memory:  one buffer
Disk:    copies of ranges from a store, until `clear`
"""

from __future__ import annotations

from pathlib import Path

from lowtide.engine.outputs import Output
from lowtide.stores.paths import is_stored

__all__ = ["LocalCopies"]


class LocalCopies:
    """Copies in one file of a scratch folder, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "copies"

    def find(
        self, output: Output, name: str, *, begin: int = 0, end: int | None = None
    ) -> tuple[Path, int]:
        """Path and offset of bytes `begin` to `end` of a section on a local disk."""
        if not is_stored(output.path):
            output.check(name, begin=begin, end=end)
            return output.path, output.sections[name][0] + begin
        with self._path.open("ab") as file:
            offset = file.tell()
            output.copy(name, file, begin=begin, end=end)
        return self._path, offset

    def clear(self) -> None:
        """Remove the copies."""
        self._path.unlink(missing_ok=True)
