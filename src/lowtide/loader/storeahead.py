"""Plan what a run reads from an object store: the cache size it needs, and what to prefetch.

In:      the order of a run and its position
Out:     plans for the cache (stores.extents); an error if the cache is too small
Memory:  the extents of two groups; if the cache is smaller than the split, 8 bytes a block
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from lowtide.errors import BudgetError
from lowtide.loader.ordering import Indices, Order
from lowtide.loader.shuffledblocks import BlockOrder, Group
from lowtide.loader.storedtokens import ShardRow
from lowtide.memory import format_size
from lowtide.quickclasses import dataclass
from lowtide.stores.extentfiles import EXTENT_BYTES, Extent, disk_bytes
from lowtide.stores.extents import FETCH_THREADS, ExtentCache, PlannedUse
from lowtide.stores.urls import StoreURL

__all__ = ["ReadAhead", "WindowPlaces"]

_SLACK_BATCHES = 64
_MOST_RANKED_BLOCKS = 1 << 20
_ANY_ORDER: tuple[Order, ...] = ("shuffle", "shifted", "random")
_owners = itertools.count()


@dataclass(frozen=True)
class WindowPlaces:
    """The positions of a dataset's windows in its tokens."""

    seq_len: int
    stride: int
    reach: int
    """By how many tokens a window may begin after its position."""
    num_windows: int


class ReadAhead:
    """The plans of one user of a cache."""

    def __init__(
        self,
        row: ShardRow,
        cache: ExtentCache,
        *,
        url: StoreURL,
        windowing: WindowPlaces,
        item_bytes: int,
        most_ranked_blocks: int = _MOST_RANKED_BLOCKS,
    ) -> None:
        self._most_ranked_blocks = most_ranked_blocks
        self._row = row
        self._cache = cache
        self._url = url
        self._windowing = windowing
        self._item_bytes = item_bytes
        self._owner = next(_owners)
        self._lock = threading.Lock()
        self._order: Order | None = None
        self._fits = True
        self._planned: Any = None
        self._ranks: tuple[int, Indices] | None = None

    @functools.cached_property
    def split_bytes(self) -> int:
        """Bytes of the whole split in the cache."""
        sizes = [shard.tokens.info.size for shard in self._row.shards]
        return sum(size + (-(-size // EXTENT_BYTES)) * 4096 for size in sizes)

    def require_cache(self, order: Order, *, seed: int = 0) -> str | None:
        """Refuse a cache that is too small for an order; return a warning if that order is costly.

        The size it advises includes what is fetched while the largest extent is read.
        """
        cache, most, spare = self._cache.folder, self.split_bytes, self._spare_bytes()
        if self._holds_split(spare):
            needed = most + spare
        elif order in _ANY_ORDER:
            count = self._windowing.num_windows
            return (
                f"the cache of {format_size(cache.max_bytes)} cannot hold the split "
                f"({format_size(most)}): with order {order} each of its {count:,} windows is a "
                f"request of its own; --order blocks takes about {self._count_extents():,}"
            )
        elif order == "blocks":
            groups = itertools.islice(self._block_order(seed).groups_from(0), 2)
            needed = sum(
                disk_bytes(extent.size) for group in groups for extent in self._group_extents(group)
            )
            needed = min(most, needed * 9 // 8) + spare
        else:
            needed = min(most, 4 * FETCH_THREADS * disk_bytes(EXTENT_BYTES)) + spare
        if cache.max_bytes < needed:
            raise BudgetError(
                f"a cache of {format_size(cache.max_bytes)} is too small to read {self._url} in "
                f"order {order}: it needs {format_size(needed)}",
                path=cache.path,
                next_step=f"give --cache-size {-(-needed // (1 << 20))}MiB or more",
            )
        cache.require_disk(needed)
        return None

    def _spare_bytes(self) -> int:
        """Bytes of the cache besides extents, and of extents being fetched."""
        cache = self._cache.folder
        fetched = 2 * FETCH_THREADS * disk_bytes(EXTENT_BYTES)
        return cache.used_bytes() - cache.removable_bytes() + fetched

    def _holds_split(self, spare_bytes: int) -> bool:
        """True if the whole split fits into the cache, so that it is fetched only once."""
        return self._cache.folder.max_bytes >= self.split_bytes + spare_bytes

    def _count_extents(self) -> int:
        """Requests of an epoch in blocks: every extent once, those at block borders twice."""
        sizes = (shard.tokens.info.size for shard in self._row.shards)
        extents = sum(-(-size // EXTENT_BYTES) for size in sizes)
        return extents + self._block_order(0).num_blocks

    def _block_order(self, seed: int) -> BlockOrder:
        return BlockOrder.of(
            seed=seed, size=self._windowing.num_windows, stride=self._windowing.stride
        )

    def look_ahead(self, order: Order, *, seed: int, first: int, count: int) -> None:
        """Prefetch what a run in this order reads from sample `first` on."""
        with self._lock:
            if order != self._order:
                self.require_cache(order, seed=seed)
                self._order, self._planned = order, None
                self._fits = self._holds_split(self._spare_bytes())  # once: it reads the disk
            if order == "blocks":
                self._plan_blocks(self._block_order(seed), first, count)
            elif order == "sequential":
                self._plan_sequence(first, count)
            elif self._planned is None and not self.is_direct:
                self._planned = order  # all of it fits: fetched once, from the beginning
                everything = self._row.extents(0, self._row.ends[-1], self._item_bytes)
                self._cache.fetch_ahead(self._owner, everything)

    @property
    def is_direct(self) -> bool:
        """True if each window should be a separate request."""
        return self._order in _ANY_ORDER and not self._fits

    def _plan_blocks(self, order: BlockOrder, first: int, count: int) -> None:
        """Plan this group and the next: when it begins, and when the one before it is finished.

        Batches are made by several threads, so the last group is read a little longer.
        """
        number = order.group_of(first)
        group = order.group(number)
        slack = min(_SLACK_BATCHES * count, group.num_windows // 4)
        planned = (order.seed, number, first >= group.first_sample + slack)
        if self._planned == planned:
            return
        self._planned = planned
        wanted: dict[Extent, PlannedUse] = {}
        for later in (group, order.group(number + 1)):
            until = later.first_sample + later.num_windows + slack
            for extent, again in self._group_extents(later, order).items():
                wanted.setdefault(extent, PlannedUse(self._owner, until, again))
        self._cache.plan(self._owner, first, wanted.items())

    def _group_extents(self, group: Group, order: BlockOrder | None = None) -> dict[Extent, float]:
        """The extents of a group, each with the sample that needs it in the next epoch."""
        extents: dict[Extent, float] = {}
        for run in group.runs:
            again = float("inf") if order is None else self._next_use(order, group, run[0])
            for extent in self._window_extents(*run):
                extents[extent] = min(again, extents.get(extent, again))
        return extents

    def _next_use(self, order: BlockOrder, group: Group, window: int) -> float:
        """The sample of the next epoch that needs a block again; unknown with very many blocks."""
        epoch = group.first_sample // order.size + 1
        count = order.num_blocks
        if window >= count * order.block_windows:
            return float((epoch + 1) * order.size)
        if count > self._most_ranked_blocks or self._fits:
            return float("inf")
        if self._ranks is None or self._ranks[0] != epoch:
            ranks = np.empty(count, dtype=np.uint64)
            ranks[order.permuted_blocks(epoch)] = np.arange(count, dtype=np.uint64)
            self._ranks = epoch, ranks
        rank = int(self._ranks[1][window // order.block_windows])
        return float(epoch * order.size + rank * order.block_windows)

    def _plan_sequence(self, first: int, count: int) -> None:
        """Plan the extents from here on, twice as many as threads may fetch."""
        windowing = self._windowing
        place = first % windowing.num_windows
        extents = itertools.islice(
            self._window_extents(place, windowing.num_windows - place), 2 * FETCH_THREADS
        )
        ahead = list(extents)
        if self._planned == ahead[:1]:
            return
        self._planned = ahead[:1]
        windows = EXTENT_BYTES // (self._item_bytes * windowing.stride) + count
        uses = (
            PlannedUse(self._owner, first + (number + 1) * windows + _SLACK_BATCHES * count)
            for number in itertools.count()
        )
        self._cache.plan(self._owner, first, zip(ahead, uses, strict=False))

    def _window_extents(self, window: int, count: int) -> Iterator[Extent]:
        """The extents of neighbouring windows."""
        windowing = self._windowing
        begin = window * windowing.stride
        stop = begin + (count - 1) * windowing.stride + windowing.seq_len + 1 + windowing.reach
        return self._row.extents(begin, min(stop, self._row.ends[-1]), self._item_bytes)
