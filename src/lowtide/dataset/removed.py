"""Combine all removals from blocks: duplicates, near copies, evaluation items.

In:      duplicate lines; finders with `marks` and `leave_out`
Out:     RemovedText: all removals, block by block; hashes of the lines that are kept
Memory:  one block's rows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lowtide.arrays import np

__all__ = ["Finder", "RemovedText", "leave_out_with", "list_finders"]


class Finder(Protocol):
    """Finds the documents and lines to remove, by the index of their block in the corpus."""

    def marks(self, block: int, /) -> bytes:
        """Marked lines and documents, in the form that encoding expects."""
        ...

    def leave_out(self, block: int, hashes: memoryview, /) -> memoryview:
        """Hashes of a block without those of removed documents, which later text may repeat."""
        ...

    def notices(self) -> list[str]:
        """Notices for the user."""
        ...


def list_finders(*found: Finder | None) -> list[Finder]:
    """The finders that were used."""
    return [finder for finder in found if finder is not None]


class _Lines(Protocol):
    def load(self, block: int, /) -> memoryview: ...


class RemovedText:
    """Removals from blocks of a part that begins at `first_block`."""

    def __init__(
        self, lines: _Lines | None, finders: Sequence[Finder], *, first_block: int = 0
    ) -> None:
        self._lines = lines
        self._finders = finders
        self._first = first_block

    def load(self, block: int) -> memoryview:
        """Return the sorted lines (and marked documents) to leave out of a block, as uint32."""
        lines = self._lines.load(block) if self._lines is not None else memoryview(b"")
        marks = b"".join(finder.marks(self._first + block) for finder in self._finders)
        if not marks:
            return lines
        rows: Any = np.frombuffer(lines.tobytes() + marks, dtype="<u4")
        return memoryview(np.sort(rows).tobytes())


def leave_out_with(
    finders: Sequence[Finder], *, first_block: int = 0
) -> Callable[[int, memoryview], memoryview] | None:
    """A function that combines the removals of all finders; None without finders.

    Finders count blocks from `first_block` on; blocks before it are unchanged.
    """
    if not finders:
        return None

    def leave_out(block: int, hashes: memoryview) -> memoryview:
        if block < first_block:
            return hashes
        for finder in finders:
            hashes = finder.leave_out(block - first_block, hashes)
        return hashes

    return leave_out
