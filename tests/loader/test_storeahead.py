"""What is fetched ahead of a run and how large its cache must be, by stand-ins of both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from lowtide.errors import BudgetError
from lowtide.loader import shuffledblocks, storeahead
from lowtide.loader.shuffledblocks import BlockOrder
from lowtide.loader.storeahead import ReadAhead, WindowPlaces

EXTENT, TOKENS = 40, 1000  # bytes, of two each
SPLIT = 2 * TOKENS + 50 * 4096
SPARE = 500 - 300 + 2 * 2 * (EXTENT + 10)
PLACES = WindowPlaces(seq_len=9, stride=10, reach=3, num_windows=99)


class Piece(NamedTuple):
    number: int
    size: int = EXTENT


class Row:
    """A shard of a thousand tokens in fifty extents."""

    shards = (SimpleNamespace(tokens=SimpleNamespace(info=SimpleNamespace(size=2 * TOKENS))),)
    ends = (TOKENS,)

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def extents(self, begin: int, end: int, item_bytes: int) -> Iterator[Piece]:
        self.asked.append((begin, end))
        last = (end * item_bytes - 1) // EXTENT
        return map(Piece, range(begin * item_bytes // EXTENT, last + 1))


class Cache:
    """Notes what is planned and fetched."""

    def __init__(self, max_bytes: int) -> None:
        self.folder = SimpleNamespace(
            max_bytes=max_bytes, path=Path("cache"), require_disk=self._require_disk,
            used_bytes=lambda: 500, removable_bytes=lambda: 300,
        )  # fmt: skip
        self.plans: list[tuple[int, dict[int, tuple[int, float]]]] = []
        self.fetched: list[list[int]] = []
        self.disk: list[int] = []

    def _require_disk(self, needed: int) -> None:
        self.disk.append(needed)

    def plan(self, owner: int, position: int, wanted: Any) -> None:
        uses = {extent.number: (use.until, use.again) for extent, use in wanted}
        self.plans.append((position, uses))

    def fetch_ahead(self, owner: int, extents: Any) -> None:
        self.fetched.append([extent.number for extent in extents])


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extents of twenty tokens, blocks of ten windows, groups of two blocks, two threads."""
    monkeypatch.setattr(storeahead, "EXTENT_BYTES", EXTENT)
    monkeypatch.setattr(storeahead, "FETCH_THREADS", 2)
    monkeypatch.setattr(storeahead, "disk_bytes", lambda size: size + 10)
    monkeypatch.setattr(shuffledblocks, "BLOCK_TOKENS", 100)
    monkeypatch.setattr(shuffledblocks, "GROUP_BLOCKS", 2)


def open_ahead(max_bytes: int = 10_000, **limits: int) -> tuple[ReadAhead, Cache]:
    cache = Cache(max_bytes)
    url: Any = "s3://bucket/data"
    row: Any = Row()
    given: Any = cache
    return ReadAhead(row, given, url=url, windowing=PLACES, item_bytes=2, **limits), cache


ORDER = BlockOrder(seed=5, size=99, block_windows=10)


def extents_of(runs: Any) -> set[int]:
    """By the definition: every token of every window, moved by up to the reach."""
    windows = [first + place for first, count in runs for place in range(count)]
    tokens = {10 * w + t for w in windows for t in range(9 + 1 + 3) if 10 * w + t < TOKENS}
    return {2 * token // EXTENT for token in tokens}


def test_extents_of_windows_are_those_of_their_tokens() -> None:
    ahead, _ = open_ahead()
    for window, count in ((0, 1), (1, 1), (7, 4), (97, 2), (98, 1)):
        found = {extent.number for extent in ahead._window_extents(window, count)}
        assert found == extents_of([(window, count)])


@pytest.mark.parametrize(
    ("window", "count", "tokens"),
    [
        (0, 1, (0, 13)),
        (3, 2, (30, 53)),
        (7, 4, (70, 113)),
        (98, 1, (980, 993)),
        (97, 3, (970, 1000)),
    ],
)
def test_tokens_of_windows_reach_from_the_first_to_the_target_of_the_last(
    window: int, count: int, tokens: tuple[int, int]
) -> None:
    ahead, _ = open_ahead()
    list(ahead._window_extents(window, count))
    row: Any = ahead._row
    assert row.asked == [tokens]


def test_a_cache_that_holds_the_split_is_enough_for_any_order() -> None:
    assert open_ahead()[0].split_bytes == SPLIT
    for order in ("shuffle", "shifted", "random", "blocks", "sequential"):
        ahead, cache = open_ahead(SPLIT + SPARE)
        assert ahead.require_cache(order) is None  # type: ignore[arg-type]
        assert cache.disk == [SPLIT + SPARE]
        warning = open_ahead(SPLIT + SPARE - 1)[0].require_cache(order)  # type: ignore[arg-type]
        assert (warning is not None) == (order in ("shuffle", "shifted", "random"))
    assert warning is None
    warning = open_ahead(20_000)[0].require_cache("shuffle")
    assert warning == (
        "the cache of 19.5 KiB cannot hold the split (202.0 KiB): with order shuffle each of its "
        "99 windows is a request of its own; --order blocks takes about 59"
    )


def needed_for(order: str) -> int:
    if order == "sequential":
        return 4 * 2 * (EXTENT + 10) + SPARE
    groups = itertools.islice(ORDER.groups_from(0), 2)
    return sum(len(extents_of(group.runs)) for group in groups) * (EXTENT + 10) * 9 // 8 + SPARE


@pytest.mark.parametrize("order", ["blocks", "sequential"])
def test_a_smaller_cache_holds_what_two_groups_or_threads_need(order: Any) -> None:
    needed = needed_for(order)
    ahead, cache = open_ahead(needed)
    assert ahead.require_cache(order, seed=5) is None and cache.disk == [needed]
    ahead, cache = open_ahead(needed - 1)
    with pytest.raises(BudgetError, match="is too small to read s3://bucket/data") as refused:
        ahead.require_cache(order, seed=5)
    assert refused.value.path == Path("cache") and not cache.disk
    assert refused.value.next_step == "give --cache-size 1MiB or more"


def next_use(window: int) -> float:
    """The first sample of the second epoch's block that a window of the first is in."""
    if window >= 90:
        return 2.0 * 99
    blocks = ORDER.permuted_blocks(1).tolist()
    return 99.0 + 10 * blocks.index(window // 10)


def test_blocks_plan_this_group_and_the_next_with_their_next_use() -> None:
    ahead, cache = open_ahead()
    ahead.look_ahead("blocks", seed=5, first=0, count=1)
    ((position, uses),) = cache.plans
    wanted: dict[int, tuple[int, float]] = {}
    for number in (0, 1):
        group = ORDER.group(number)
        until = group.first_sample + 20 + 5  # a quarter of a group longer, at the most
        here: dict[int, float] = {}
        for run in group.runs:
            for extent in extents_of([run]):
                here[extent] = min(next_use(run[0]), here.get(extent, 1e9))
        for extent, again in here.items():
            wanted.setdefault(extent, (until, again))
    assert position == 0 and uses == wanted


def test_plans_change_when_a_group_begins_and_when_the_last_is_over() -> None:
    ahead, cache = open_ahead()
    for first in range(45):
        ahead.look_ahead("blocks", seed=5, first=first, count=1)
    assert [position for position, _ in cache.plans] == [0, 5, 20, 25, 40]
    ahead.look_ahead("blocks", seed=6, first=44, count=1)  # another order
    assert len(cache.plans) == 6
    ahead, cache = open_ahead()
    for first in range(25):
        ahead.look_ahead("blocks", seed=5, first=first, count=64)  # no more than a quarter
    assert [position for position, _ in cache.plans] == [0, 5, 20]


def test_where_the_split_fits_only_its_rest_comes_again() -> None:
    ahead, cache = open_ahead(SPLIT + SPARE)
    ahead.look_ahead("blocks", seed=5, first=0, count=1)
    assert {again for _, again in cache.plans[0][1].values()} == {float("inf")}
    ahead.look_ahead("blocks", seed=5, first=98, count=1)  # the group with the last nine windows
    assert {again for _, again in cache.plans[1][1].values()} == {float("inf"), 198.0}


def test_a_sequence_plans_as_much_as_threads_fetch_twice_over() -> None:
    ahead, cache = open_ahead()
    for first in range(4):
        ahead.look_ahead("sequential", seed=0, first=first, count=3)
    windows = EXTENT // (2 * 10) + 3
    plans = [
        (first, {place + n: first + (n + 1) * windows + 64 * 3 for n in range(4)})
        for first, place in ((0, 0), (2, 1))
    ]
    found = [(at, {n: until for n, (until, _) in uses.items()}) for at, uses in cache.plans]
    assert found == plans
    ahead.look_ahead("sequential", seed=0, first=99 + 97, count=3)  # of the second epoch
    assert list(cache.plans[-1][1]) == [48, 49]


def test_any_order_fetches_all_once_where_it_fits_and_nothing_where_it_does_not() -> None:
    ahead, cache = open_ahead(SPLIT + SPARE)
    for first in range(3):
        ahead.look_ahead("shuffle", seed=0, first=first, count=1)
    assert cache.fetched == [list(range(50))] and not ahead.is_direct
    ahead.look_ahead("random", seed=0, first=0, count=1)
    assert len(cache.fetched) == 2 and not cache.plans
    ahead, cache = open_ahead()
    ahead.look_ahead("shuffle", seed=0, first=0, count=1)
    assert ahead.is_direct and not cache.fetched
    ahead.look_ahead("sequential", seed=0, first=0, count=1)
    assert not ahead.is_direct and len(cache.plans) == 1


def test_too_many_blocks_to_rank_have_no_next_use() -> None:
    for most, known in ((9, True), (8, False)):
        ahead, cache = open_ahead(most_ranked_blocks=most)
        ahead.look_ahead("blocks", seed=5, first=0, count=1)
        uses = cache.plans[0][1].values()
        assert all((again < float("inf")) == known for _, again in uses)
