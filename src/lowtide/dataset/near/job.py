"""The data shared by all stages of finding near copies, with any engine.

In:      Likeness; parts of a clean corpus
Out:     NearJob
Memory:  a few numbers

A document's place is a 64-bit number: its block in the corpus (high half) and its row in the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from lowtide import _native
from lowtide.dataset.near.likeness import Likeness
from lowtide.engine.partitions import PartitionSections
from lowtide.engine.records import Records
from lowtide.quickclasses import dataclass

__all__ = ["NEAR_SECTIONS", "BlockText", "NearJob", "NearLimits"]

NEAR_SECTIONS = PartitionSections("near_rows", "near_ends", _native.NEAR_ROW_BYTES)
BlockText = tuple[memoryview, memoryview]
"""A clean block: its text, and its documents' rows."""


@dataclass(frozen=True)
class NearLimits:
    """Limits of what is read and held at a time; the result does not depend on them."""

    least_rows: int = 1 << 12
    """Rows or pairs that are held even if the budget has no room for them."""
    step_rows: int = 1 << 16
    step_bytes: int = 1 << 20
    blocks_in_part: int = 16


@dataclass(frozen=True)
class NearJob:
    """A search for near copies as one worker sees it."""

    options: Likeness
    records: Records
    sign_stage: str
    """The stage that stores the signatures."""
    num_parts: int
    num_partitions: int
    leave_copies: bool
    """True if exact copies of kept documents, from `first_block` on, are removed elsewhere."""
    table_bytes: int
    """Memory limit of a task for rows and pairs."""
    load_first_blocks: Callable[[], Sequence[int]]
    """The index of each part's first block in the corpus, and the number of all blocks."""
    iter_part: Callable[[int], Iterator[Callable[[], BlockText]]]
    """A part's blocks, each loaded when it is needed."""
    first_block: int = 0
    """Documents of blocks before it are always kept: others are only compared with them."""
    limits: NearLimits = NearLimits()

    @cached_property
    def first_blocks(self) -> Sequence[int]:
        """Known after the corpus was read."""
        return self.load_first_blocks()
