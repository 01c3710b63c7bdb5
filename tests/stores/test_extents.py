"""The cache by itself: what it keeps, what it removes, and what a full disk does to it."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.errors import BudgetError, DataError, LowtideError
from lowtide.stores import extentfiles, extentfolder, extents
from lowtide.stores.extentfiles import CachedObject, Extent
from lowtide.stores.extents import ExtentCache, PlannedUse, open_cache
from lowtide.stores.objects import open_store
from lowtide.stores.urls import StoreURL

pytestmark = pytest.mark.usefixtures("small_extents")
URL = StoreURL("s3", "bucket", "big")
EXTENT = 8192  # on disk
BASE = 4096  # the file that counts


@pytest.fixture
def big(server: Any) -> CachedObject:
    server.objects["big"] = bytes(os.urandom(20 * 8176))
    return CachedObject(open_store(URL).head(URL))


def read(cache: ExtentCache, extent: Extent) -> bytes:
    data = bytearray(extent.size)
    cache.read_into(extent, 0, memoryview(data))
    return bytes(data)


def open_files(folder: Path) -> int:
    """How many descriptors of this process lead into a folder, removed files counted."""
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum(str(link.readlink()).startswith(str(folder)) for link in links)


def names(cache: ExtentCache) -> set[str]:
    return {path.name for path in (cache.folder.path / "extents").iterdir()}


def test_what_is_wanted_last_goes_first(big: CachedObject, tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "c", BASE + 4 * EXTENT)
    parts = [Extent(big, number) for number in range(5)]
    uses = [PlannedUse(0, until) for until in (50, 20, 40, 30)]
    cache.plan(0, 0, zip(parts, uses, strict=False))
    cache.wait_until_idle()
    assert names(cache) == {extent.name for extent in parts[:4]}
    read(cache, parts[4])  # what nobody planned needs room now
    assert names(cache) == {parts[number].name for number in (1, 2, 3, 4)}
    cache.plan(0, 25, [])  # past what 1 was wanted for
    read(cache, parts[0])  # and nobody ever wanted 4
    assert names(cache) == {parts[number].name for number in (0, 1, 2, 3)} or names(cache) == {
        parts[number].name for number in (0, 2, 3, 4)
    }


def test_nothing_wanted_sooner_is_removed_for_what_is_wanted_later(
    big: CachedObject, server: Any, tmp_path: Path
) -> None:
    # One thread: several reserve in the order they come.
    cache = ExtentCache(tmp_path / "c", BASE + 3 * EXTENT, fetch_threads=1)
    plan = [(Extent(big, number), PlannedUse(0, 10 * number + 10)) for number in range(8)]
    cache.plan(0, 0, plan)
    cache.wait_until_idle()
    assert names(cache) == {extent.name for extent, _ in plan[:3]}
    assert server.count("GET") == 3
    cache.close()


def test_an_extent_that_a_thread_has_taken_is_left_to_fetch(
    big: CachedObject, server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end of the queue and the request of what came last there is work left."""
    cache = ExtentCache(tmp_path / "c", BASE + 3 * EXTENT, fetch_threads=2)
    mutex = cache.folder.mutex
    was_taken, was_last, may_go_on = (threading.Event() for _ in range(3))

    class Late(Extent):
        @property
        def name(self) -> str:  # asked for outside of the lock when it is about to be fetched
            if not mutex._is_owned():
                was_taken.set()
                may_go_on.wait(100)
            return super().name

    def wanted() -> Iterator[Extent]:
        yield Late(big, 0)
        was_last.set()

    cache.fetch_ahead(0, wanted())
    assert was_taken.wait(100) and was_last.wait(100)
    idle: list[bool] = []
    here = threading.get_ident()

    def noting(is_idle: Callable[[], bool]) -> bool:
        if threading.get_ident() == here:  # not a thread that waits for more to fetch
            idle.append(is_idle())
            may_go_on.set()
        return threading.Condition.wait_for(mutex, is_idle)

    with monkeypatch.context() as patch:
        patch.setattr(mutex, "wait_for", noting)
        cache.wait_until_idle()
    assert idle == [False]
    assert server.count("GET") == 1
    cache.close()


def test_a_extent_that_is_read_is_not_removed(big: CachedObject, tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "c", BASE + EXTENT)
    first, second = Extent(big, 0), Extent(big, 1)
    read(cache, first)
    held = cache.folder.open_extent(first)
    assert held is not None
    with pytest.raises(BudgetError, match="full of what is being read"):
        read(cache, second)
    os.close(held)
    assert len(read(cache, second)) == second.size
    assert cache.folder.used_bytes() <= BASE + EXTENT


def test_bytes_are_counted_anew_when_nobody_else_is_there(
    big: CachedObject, tmp_path: Path
) -> None:
    cache = open_cache(tmp_path / "c", 1 << 20)
    read(cache, Extent(big, 3))
    extents.close_caches()
    (tmp_path / "c" / "usage").write_text("nonsense")
    (tmp_path / "c" / "extents" / "1.00.fetching").write_bytes(b"x" * 9000)
    cache = open_cache(tmp_path / "c", 1 << 20)
    assert cache.folder.used_bytes() == BASE + EXTENT
    assert not list((tmp_path / "c" / "extents").glob("*.fetching"))


def test_only_files_of_the_cache_are_removed(big: CachedObject, tmp_path: Path) -> None:
    mine = tmp_path / "c" / "extents" / "thesis.docx"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"years of work")
    cache = open_cache(tmp_path / "c", BASE + 4096 + EXTENT)
    for number in range(5):
        read(cache, Extent(big, number))
    assert mine.read_bytes() == b"years of work"


def test_a_full_disk_is_named_after_room_was_made(
    big: CachedObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache(tmp_path / "c", 1 << 20)
    first, second = Extent(big, 0), Extent(big, 1)
    read(cache, first)
    write, full = extentfiles.write_extent, [True]

    def write_once_full(path: Path, data: Any) -> None:
        if full and full.pop():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, data)

    monkeypatch.setattr(extents, "write_extent", write_once_full)
    assert len(read(cache, second)) == second.size
    assert first.name not in names(cache)
    full.extend([True, True])
    with pytest.raises(LowtideError, match=r"disk is full[\s\S]*--cache-dir"):
        read(cache, first)
    assert cache.folder.used_bytes() == BASE + EXTENT * len(names(cache))


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("")
    with pytest.raises(DataError, match="expected a folder for the cache"):
        open_cache(tmp_path / "c", 1 << 20)


def test_plans_are_forgotten_with_the_extents_they_were_for(
    big: CachedObject, tmp_path: Path
) -> None:
    """A run through a split larger than the cache keeps what it planned of the cache alone."""
    cache = ExtentCache(tmp_path / "c", BASE + 3 * EXTENT, many_uses=4)
    for number in range(19):
        pair = [Extent(big, number), Extent(big, number + 1)]
        cache.plan(0, number, [(extent, PlannedUse(0, number + 2, again=1e9)) for extent in pair])
        cache.wait_until_idle()
    assert len(cache._uses) <= 4 + 3
    cache.close()


def test_a_disk_that_cannot_be_read_is_named_and_nothing_stays_open(
    big: CachedObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, first = open_cache(tmp_path / "c", 1 << 20), Extent(big, 0)
    read(cache, first)
    before = open_files(tmp_path)

    def fail(*args: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "preadv", fail)
        with pytest.raises(LowtideError, match=r"the cache cannot be read[\s\S]*--cache-dir"):
            read(cache, first)
    cache.folder._checked.clear()
    with monkeypatch.context() as broken:
        broken.setattr(extentfolder, "is_whole", fail)
        with pytest.raises(LowtideError, match="the cache cannot be read"):
            read(cache, first)
    assert open_files(tmp_path) == before
    assert len(read(cache, first)) == first.size


def test_a_folder_that_was_removed_is_made_again_for_all_who_read(
    big: CachedObject, tmp_path: Path
) -> None:
    cache, first = open_cache(tmp_path / "c", 1 << 20), Extent(big, 0)
    data = read(cache, first)
    before = open_files(tmp_path)
    for _ in range(3):
        shutil.rmtree(tmp_path / "c")
        assert open_cache(tmp_path / "c", 1 << 20) is cache
        assert read(cache, first) == data
    assert open_files(tmp_path) == before
    assert cache.folder.used_bytes() == BASE + EXTENT


def test_threads_are_started_once_and_no_more_than_there_may_be(
    big: CachedObject, tmp_path: Path
) -> None:
    cache = open_cache(tmp_path / "c", BASE + 4 * EXTENT)
    for number in range(2):
        cache.fetch_ahead(0, [Extent(big, number)])
        cache.wait_until_idle()
        started = [thread.name for thread in cache._threads]
        assert started == [f"lowtide-fetch-{place}" for place in range(extents.FETCH_THREADS)]


def test_uses_that_are_over_are_forgotten_and_those_that_come_again_are_not(
    big: CachedObject, tmp_path: Path
) -> None:
    cache = open_cache(tmp_path / "c", BASE + 4 * EXTENT)
    later, over, again, other, gone = parts = [Extent(big, number) for number in range(5)]
    for extent in (later, over, again):
        read(cache, extent)
    cache._uses = {
        later.name: PlannedUse(0, 11),
        over.name: PlannedUse(0, 10),
        again.name: PlannedUse(0, 10, again=99),
        other.name: PlannedUse(1, 5),  # which another reader waits for
        gone.name: PlannedUse(0, 50),  # planned, and not in the cache
    }
    cache._positions = {0: 10}
    cache._forget_uses(0)
    assert set(cache._uses) == {later.name, again.name, other.name}
    assert len(parts) == 5


def test_only_what_is_farther_away_than_a_limit_is_removed(
    big: CachedObject, tmp_path: Path
) -> None:
    cache = open_cache(tmp_path / "c", BASE + 4 * EXTENT)
    parts = [Extent(big, number) for number in range(4)]
    for extent in parts:
        read(cache, extent)
    far = {extent.name: (float(number), False) for number, extent in enumerate(parts)}
    with cache.folder.counting() as count:
        before = count.bytes
        cache.folder.evict(count, 10 * EXTENT, far.__getitem__, beyond=1.0)
        assert names(cache) == {extent.name for extent in parts[:2]}
        assert before - count.bytes == 2 * EXTENT
        cache.folder.evict(count, 1, far.__getitem__, beyond=-1.0)  # the farthest one is enough
        assert names(cache) == {parts[0].name}


def test_how_far_away_a_use_is(big: CachedObject, tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "c", BASE + 4 * EXTENT)
    cache._positions = {0: 10}
    assert cache._distance(PlannedUse(0, 25, again=99)) == 15
    assert cache._distance(PlannedUse(0, 11, again=99)) == 1
    assert cache._distance(PlannedUse(0, 10, again=99)) == 89  # over: what counts is the next one
    assert cache._distance(PlannedUse(0, 10)) == float("inf")
    assert cache._distance(PlannedUse(0, 5, again=7)) == 0
    assert cache._distance(PlannedUse(1, 5)) == 5  # of one who has not begun
    cache._uses = {"known": PlannedUse(0, 12)}
    assert cache._rank("known") == (2.0, True)
    assert cache._rank("of nobody") == (float("inf"), False)


def test_what_is_read_in_a_moment_is_fetched_before_all_else(
    big: CachedObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache(tmp_path / "c", BASE + 8 * EXTENT)
    queued: list[tuple[int, list[str]]] = []

    def note(owner: int, wanted: Any) -> None:
        queued.append((owner, [extent.name for extent in wanted]))

    monkeypatch.setattr(cache, "fetch_ahead", note)
    parts = [Extent(big, number) for number in range(4)]
    read(cache, parts[0])
    cache.fetch_now(parts[:2])  # one that is there, and one that its reader fetches
    assert not queued
    cache._queues[extents._URGENT] = iter([parts[3]])
    cache.fetch_now(parts[:3])
    assert queued == [(extents._URGENT, [parts[3].name, parts[1].name, parts[2].name])]
    assert min(extents._URGENT, 0) == extents._URGENT  # owners are numbered from 0 on


def test_memory_of_reading_is_a_client_and_an_extent_for_each_thread() -> None:
    assert extents.buffer_bytes() == (16 << 20) + 4 * extents.EXTENT_BYTES


def test_the_cache_is_where_caches_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert extents.default_cache_dir() == Path("/somewhere/lowtide/objects")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/me")
    assert extents.default_cache_dir() == Path("/home/me/.cache/lowtide/objects")


def test_who_reads_what_a_thread_fetches_waits_for_it(
    big: CachedObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ExtentCache(tmp_path / "cache", 1 << 30)
    extent = next(big.extents(0, 1))
    fetched: list[Any] = []
    monkeypatch.setattr(cache, "_fetch_claimed", lambda *given: fetched.append(given))
    waited: list[bool] = []
    monkeypatch.setattr(cache._mutex, "wait_for", lambda is_done: waited.append(is_done()))
    cache._fetching.add(extent.name)
    cache._fetch(extent)
    assert (waited, fetched) == ([False], [])
    cache._fetching.clear()
    cache._fetch(extent)
    assert fetched == [(extent, None)]
    assert cache._fetching == {extent.name}
    cache.close()


def test_caches_of_this_process_are_closed_and_those_of_others_let_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    def cache(name: str) -> Any:
        return SimpleNamespace(close=lambda: closed.append(name))

    mine, other = (os.getpid(), "a"), (os.getpid() + 1, "a")
    monkeypatch.setattr(extents, "_caches", {mine: cache("mine"), other: cache("other")})
    extents.close_caches()
    assert closed == ["mine"]
    assert list(extents._caches) == [other]


def test_an_extent_that_became_shorter_is_fetched_again(big: CachedObject, tmp_path: Path) -> None:
    cache = ExtentCache(tmp_path / "cache", 1 << 30)
    extent = next(big.extents(0, 1))
    whole = read(cache, extent)
    path = cache.folder.path / "extents" / extent.name
    os.truncate(path, 100)  # by somebody else, after it was compared
    assert read(cache, extent) == whole
    assert path.stat().st_size == extent.size + 16
    cache.close()
