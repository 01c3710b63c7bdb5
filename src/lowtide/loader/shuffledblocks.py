"""The order `blocks`, for data read in large ranges: a two-level shuffle of blocks and windows.

In:      seed, number of windows, windows of a block, sample numbers
Out:     indices of windows, each once per epoch; which windows a run reads next
Memory:  only the requested indices

Blocks of neighbouring windows are permuted; each GROUP_BLOCKS consecutive blocks of that order are
a group, and the windows of a group are permuted together. So a run reads a few ranges of the data
at a time, completely, instead of random windows everywhere. Windows after the last whole block
belong to the last group of every epoch: then all other groups have the same number of windows, and
the position of a sample follows from its number alone. Data of at most one group is shuffled as a
whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowtide.loader.ordering import Indices, derive_seed, order_indices
from lowtide.quickclasses import dataclass

__all__ = ["BLOCK_TOKENS", "GROUP_BLOCKS", "BlockOrder", "Group"]

BLOCK_TOKENS = 1 << 22
"""Tokens of a block: 8 MiB of 16-bit ids, so that little extra is read at its borders."""
GROUP_BLOCKS = 8


@dataclass(frozen=True)
class Group:
    """Windows that are shuffled together."""

    first_sample: int
    """The number of its first sample in the run."""
    runs: tuple[tuple[int, int], ...]
    """Its windows as runs of neighbours: the first one, and how many."""

    @property
    def num_windows(self) -> int:
        """Windows of all its runs."""
        return sum(count for _, count in self.runs)


@dataclass(frozen=True)
class BlockOrder:
    """The order of the windows of one dataset; samples are numbered over all epochs."""

    seed: int
    size: int
    block_windows: int

    @classmethod
    def of(cls, *, seed: int, size: int, stride: int) -> BlockOrder:
        """Make the order of `size` windows that begin every `stride` tokens."""
        return cls(seed, size, max(1, BLOCK_TOKENS // stride))

    @property
    def num_blocks(self) -> int:
        """Whole blocks of an epoch."""
        return self.size // self.block_windows

    @property
    def num_groups(self) -> int:
        """Number of groups of an epoch, at least one."""
        return max(1, -(-self.num_blocks // GROUP_BLOCKS))

    def group(self, number: int) -> Group:
        """Group `number`, counted over all epochs."""
        epoch, inside = divmod(number, self.num_groups)
        first_block = inside * GROUP_BLOCKS
        count = min(GROUP_BLOCKS, self.num_blocks - first_block)
        blocks = self.permuted_blocks(epoch, first_block, max(0, count))
        runs = [(int(block) * self.block_windows, self.block_windows) for block in blocks]
        rest = self.size - self.num_blocks * self.block_windows
        if inside == self.num_groups - 1 and rest:
            runs.append((self.size - rest, rest))
        return Group(epoch * self.size + first_block * self.block_windows, tuple(runs))

    def permuted_blocks(self, epoch: int, first: int = 0, count: int | None = None) -> Indices:
        """The blocks of an epoch in its order, from position `first` on."""
        return order_indices(
            "shuffle",
            seed=derive_seed(self.seed, "blocks"),
            size=max(1, self.num_blocks),
            first=epoch * self.num_blocks + first,
            count=self.num_blocks if count is None else count,
        )

    def group_of(self, sample: int) -> int:
        """The number of the group that a sample of the run is in."""
        epoch, inside = divmod(sample, self.size)
        full = GROUP_BLOCKS * self.block_windows
        return epoch * self.num_groups + min(inside // full, self.num_groups - 1)

    def groups_from(self, sample: int) -> Iterator[Group]:
        """The group of a sample, and all groups after it, endlessly."""
        number = self.group_of(sample)
        while True:
            yield self.group(number)
            number += 1

    def indices(self, first: int, count: int) -> Indices:
        """The windows of samples `first` to `first + count`.

        >>> order = BlockOrder(seed=1, size=10, block_windows=1)
        >>> sorted(order.indices(0, 10).tolist()) == list(range(10))
        True
        """
        windows = np.empty(count, dtype=np.uint64)
        done = 0
        for number, group in enumerate(self.groups_from(first), self.group_of(first)):
            inside = first + done - group.first_sample
            here = min(count - done, group.num_windows - inside)
            windows[done : done + here] = self._place(number, group, inside, here)
            done += here
            if done == count:
                return windows
        raise AssertionError("groups have no end")

    def _place(self, number: int, group: Group, inside: int, count: int) -> Indices:
        places = order_indices(
            "shuffle",
            seed=derive_seed(self.seed, f"group {number}"),
            size=group.num_windows,
            first=inside,
            count=count,
        )
        # All runs but the last are a block long, and the last one follows them.
        run = np.minimum(places // np.uint64(self.block_windows), np.uint64(len(group.runs) - 1))
        firsts = np.array([first for first, _ in group.runs], dtype=np.uint64)
        return firsts[run] + (places - run * np.uint64(self.block_windows))
