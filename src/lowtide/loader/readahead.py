"""Prefetch blocks of windows in a thread, and make batches from them.

In:      blocks (of texts being tokenized, or of tokens stored on disk), in order
Out:     rows of batches; which block the next window is in
Memory:  the blocks of the current batch, and one more

A thread prepares the next block while batches are made from the current ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field

from lowtide.errors import UsageError
from lowtide.loader.tokenblocks import BlockStart, TokenBlock
from lowtide.loader.windows import TokenDataset, Tokens
from lowtide.quickclasses import dataclass

__all__ = ["Block", "BlockReader", "StoredBlock"]


@dataclass(frozen=True)
class StoredBlock:
    """All windows of an epoch, over tokens that were written to disk once."""

    data: TokenDataset
    epoch: int
    seed: int
    shuffle: bool
    start: BlockStart = field(default_factory=BlockStart)

    @property
    def num_windows(self) -> int:
        return len(self.data)

    def fill(self, first: int, inputs: Tokens, targets: Tokens) -> None:
        order = "shuffle" if self.shuffle else "sequential"
        (plan,) = self.data.plan_rows(
            order,
            seed=self.seed,
            first=self.epoch * len(self.data) + first,
            count=len(inputs),
        )
        self.data.fill_rows(plan.starts, plan.rows, inputs, targets)


Block = TokenBlock | StoredBlock


class BlockReader:
    """The blocks of the current batch, and one more that a thread prepares.

    Windows are counted from the beginning of the `for` loop.
    """

    def __init__(self, blocks: Iterator[tuple[Block, int]]) -> None:
        self._blocks = blocks
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lowtide-text")
        self._pid = os.getpid()
        self._ahead: Future[tuple[Block, int] | None] = self._submit()
        self._open: list[tuple[int, int, Block]] = []  # first window, skipped, block
        self.seen_windows = 0

    def _submit(self) -> Future[tuple[Block, int] | None]:
        return self._pool.submit(next, self._blocks, None)

    def available(self, *, until: int) -> int:
        """Open blocks up to `until` windows or the end; return the number of windows."""
        if self._pid != os.getpid():  # its thread is in the other process: waiting would not end
            raise UsageError(
                "this loop over a stream was begun before the process was forked",
                next_step="begin another loop in the forked process; with load_state_dict(state) "
                "it goes on at the same place",
            )
        while self.seen_windows < until and (found := self._ahead.result()) is not None:
            block, skipped = found
            self._open.append((self.seen_windows, skipped, block))
            self.seen_windows += block.num_windows - skipped
            self._ahead = self._submit()
        return self.seen_windows

    def fill(self, first: int, inputs: Tokens, targets: Tokens) -> None:
        """Write windows `first` on into the rows of two arrays, across blocks."""
        row = 0
        for begin, skipped, block in self._open:
            end = begin + block.num_windows - skipped
            count = min(end, first + len(inputs)) - max(begin, first + row)
            if count > 0:
                inside = first + row - begin + skipped
                block.fill(inside, inputs[row : row + count], targets[row : row + count])
                row += count

    def drop(self, *, until: int) -> None:
        """Drop blocks that end before window `until`, but keep the last one for the position."""
        while len(self._open) > 1 and self._open[1][0] <= until:
            del self._open[0]

    def position(self, window: int) -> tuple[BlockStart, int]:
        """Return the block of a window, and the window's index in it."""
        begin, skipped, block = self._open[0]
        return block.start, window - begin + skipped

    def close(self) -> None:
        """Wait for the thread, which ends after at most one block."""
        self._pool.shutdown(wait=True, cancel_futures=True)
