"""Tokens of a store as one stream, by stand-ins of its objects and of the cache: as numpy does it.

The stand-ins refuse to be read beyond an extent, and note what is read.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from lowtide.errors import DataError
from lowtide.loader import storestreams
from lowtide.loader.storeahead import WindowPlaces
from lowtide.loader.storestreams import StoreStream

EXTENT = 40
SIZES = (1000, 0, 37, 700)  # tokens of shards
IDS = np.arange(sum(SIZES), dtype="<u2") * 7 % 997


class Piece(NamedTuple):
    data: bytes
    start: int
    size: int


class Stored:
    """An object of a store, in extents of forty bytes."""

    def __init__(self, name: str, data: bytes) -> None:
        self.data = data
        self.info = SimpleNamespace(url=SimpleNamespace(name=name), size=len(data))

    def extents(self, begin: int, end: int) -> Iterator[Piece]:
        assert 0 <= begin < end <= len(self.data)
        for start in range(begin // EXTENT * EXTENT, end, EXTENT):
            part = self.data[start : start + EXTENT]
            yield Piece(part, start, len(part))


class Cache:
    def __init__(self) -> None:
        self.fetched: list[list[Piece]] = []
        self.reads: list[tuple[int, int]] = []

    def fetch_now(self, extents: Any) -> None:
        self.fetched.append(list(extents))

    def read_into(self, extent: Piece, inside: int, out: memoryview) -> None:
        assert inside >= 0 and 0 < len(out) <= extent.size - inside
        self.reads.append((extent.start + inside, len(out)))
        out[:] = extent.data[inside : inside + len(out)]


def ends_of(size: int, seed: int) -> list[int]:
    dice = random.Random(seed)
    return [*sorted(dice.sample(range(1, size), size // 2)), size] if size > 100 else [size]


def open_stream(
    ends: list[list[int]] | None = None, id_limit: int = 1000, begins: tuple[int, ...] = ()
) -> tuple[Any, Cache]:
    """A stream of the shards, and where its documents end; the second has no tokens."""
    shards: list[Any] = []
    borders = [0, *itertools.accumulate(SIZES)]
    for number, (begin, end) in enumerate(itertools.pairwise(borders)):
        places = (ends or [ends_of(size, number) for size in SIZES])[number] if end > begin else []
        documents = Stored(f"{number}.ends", np.array(places, "<u8").tobytes())
        tokens = Stored(f"{number}.bin", IDS[begin:end].tobytes())
        shards.append(
            SimpleNamespace(
                tokens=tokens, num_tokens=end - begin, documents=documents if number != 2 else None,
                num_documents=len(places), begins_document=number in begins,
            )
        )  # fmt: skip
    cache = Cache()
    stored: Any = SimpleNamespace(
        shards=tuple(shards), cache=SimpleNamespace(open=lambda: cache), url="s3://bucket/data"
    )
    places = WindowPlaces(seq_len=9, stride=10, reach=3, num_windows=99)
    return StoreStream(stored, dtype=IDS.dtype, id_limit=id_limit, windowing=places), cache


def starts_of_documents() -> list[int]:
    """By the definition: behind every end that is known, but the last."""
    borders = [0, *itertools.accumulate(SIZES)]
    found = [
        borders[number] + end
        for number, size in enumerate(SIZES)
        for end in (ends_of(size, number) if size and number != 2 else [])
    ]
    return [place for place in found if place < len(IDS)]


def test_windows_are_those_of_one_array() -> None:
    stream, cache = open_stream()
    dice = random.Random(5)
    starts = np.array([0, 995, 1000, 1030, *(dice.randrange(1700) for _ in range(50))], np.uint64)
    inputs, targets = (np.zeros((len(starts), 30), np.int64) for _ in range(2))
    stream.gather(starts, None, inputs, targets)
    for row, start in enumerate(starts.tolist()):
        assert inputs[row].tolist() == IDS[start : start + 30].tolist()
        assert targets[row].tolist() == IDS[start + 1 : start + 31].tolist()
    (fetched,) = cache.fetched  # each once, in order, all before any is read
    spans = [stream._row.extents(start, start + 31, 2) for start in sorted(starts.tolist())]
    assert fetched == list(dict.fromkeys(itertools.chain.from_iterable(spans)))
    rows = np.arange(len(starts), dtype=np.uint64)[::-1]
    turned = np.zeros_like(inputs)
    stream.gather(starts, rows, turned, np.zeros_like(inputs))
    assert np.array_equal(turned[::-1], inputs)


def test_a_stretch_is_read_across_shards_and_no_byte_more() -> None:
    stream, cache = open_stream()
    out = np.zeros(150, np.int32)
    stream.read(950, out)
    assert out.tolist() == IDS[950:1100].tolist()
    assert sum(size for _, size in cache.reads) == 2 * len(out)


def test_an_id_that_is_too_large_is_named_with_its_place() -> None:
    stream, _ = open_stream(id_limit=996)
    place = int(np.flatnonzero(IDS == 996)[1])  # in the last shard
    shard, inside = ("3.bin", place - 1037) if place >= 1037 else ("0.bin", place)
    with pytest.raises(DataError, match=rf"{shard} has id 996 at token {inside}, .* is 995"):
        stream.read(place - 7, np.zeros(20, np.int32))
    with pytest.raises(DataError, match=f"id 996 at token {inside}"):
        stream.gather(np.array([place - 7], np.uint64), None, *np.zeros((2, 1, 20), np.int32))
    stream.read(place - 20, np.zeros(20, np.int32))


def test_documents_begin_where_a_plain_count_says() -> None:
    stream, _ = open_stream()
    known = starts_of_documents()
    dice = random.Random(6)
    for _ in range(200):
        after = dice.randrange(-1, 1737)
        before = after + dice.choice([0, 1, 2, 5, 60, 900])
        found = list(stream._document_starts(after, before))
        assert found == [place for place in known if after < place <= before], (after, before)


def test_ends_are_searched_and_not_all_read() -> None:
    """Of five hundred: one is looked at to choose a half, and 256 are read at once at the most."""
    stream, cache = open_stream()
    shard = stream._row.shards[0]
    known = ends_of(1000, 0)
    for place, reads in ((-1, [1, 256, 245]), (known[250], [1, 250])):
        cache.reads.clear()
        assert list(stream._ends_beyond(shard, place)) == [end for end in known if end > place]
        assert sum(size for _, size in cache.reads) == 8 * sum(reads)


def test_a_shard_that_begins_where_one_looks_last_is_not_looked_into() -> None:
    stream, cache = open_stream()
    assert list(stream._document_starts(1010, 1037)) == []
    assert cache.reads == []


def test_as_many_ends_as_are_read_at_once_are_not_searched() -> None:
    ends = [*range(1, 256), 1000]
    stream, cache = open_stream([ends, [], [37], [700]])
    assert list(stream._ends_beyond(stream._row.shards[0], 3)) == ends[3:]
    assert sum(size for _, size in cache.reads) == 8 * 256


@pytest.mark.parametrize("wrong", [[5, 4, 1000], [5, 1001]])
def test_ends_out_of_order_or_beyond_the_shard_are_damage(wrong: list[int]) -> None:
    stream, _ = open_stream([wrong, [], [37], [700]])
    with pytest.raises(DataError, match=f"a document ends at token {wrong[1]}, before the one"):
        list(stream._document_starts(0, 999))


def test_documents_without_tokens_are_none() -> None:
    stream, _ = open_stream([[0, 5, 5, 1000], [], [37], [700]])
    assert list(stream._document_starts(-1, 999)) == [0, 5, 5]


def test_a_shard_may_begin_a_document_of_its_own() -> None:
    """Where the shard before ends within a document, and once where it does not."""
    ends = [[5, 1000], [], [], [4]]
    assert SIZES[:3] == (1000, 0, 37)
    found = [
        list(open_stream(ends, begins=begins)[0]._document_starts(0, 1999))
        for begins in ((), (2,), (1, 2, 3))
    ]
    assert found == [[5, 1000, 1041], [5, 1000, 1041], [5, 1000, 1037, 1041]]
    stream, _ = open_stream(ends, begins=(3,))
    assert list(stream._document_starts(1037, 1999)) == [1041]
    assert list(stream._document_starts(1036, 1037)) == [1037]
    assert list(stream._document_starts(1036, 1036)) == []


def test_windows_move_to_documents() -> None:
    stream, _ = open_stream()
    known = starts_of_documents()
    places = list(range(1200))
    starts = np.array(places, np.uint64)
    stream.align_to_documents(starts, 4)
    for place, moved in zip(places, starts.tolist(), strict=True):
        near = [at for at in known if place <= at < place + 4]
        assert moved == (near[0] if near and place else place)


@pytest.mark.parametrize("start", [0, 7, 400, 980, 981, 982, 983, 1300, 1301, 1302, 1303])
def test_windows_know_their_documents(start: int) -> None:
    stream, _ = open_stream()
    begins = [at - start for at in starts_of_documents() if start < at < start + 40]
    segments, positions = (np.zeros((3, 40), np.int32) for _ in range(2))
    stream.segments(np.array([start], np.uint64), np.array([1]), segments, positions)
    assert segments[1].tolist() == [sum(at <= token for at in begins) for token in range(40)]
    assert positions[1].tolist() == [
        token - max([0, *(at for at in begins if at <= token)]) for token in range(40)
    ]
    assert not segments[::2].any() and not positions[::2].any()


def test_requests_are_under_way_at_once_and_the_first_error_is_raised() -> None:
    requests = storestreams._Requests(3)
    assert all(thread.daemon for thread in requests._threads)  # nobody waits for a store at exit
    meeting = threading.Barrier(3, timeout=60)
    requests.run([meeting.wait, meeting.wait, meeting.wait])

    def fail(number: int) -> None:
        raise ValueError(number)

    done: list[int] = []
    jobs = [lambda n=n: fail(n) if n in (1, 2) else done.append(n) for n in range(6)]
    with pytest.raises(ValueError, match=r"1|2"):
        requests.run(jobs)
    requests.run([lambda: done.append(9)])
    assert sorted(done) == [0, 3, 4, 5, 9]
    requests.close()
    for thread in requests._threads:
        thread.join(60)
        assert not thread.is_alive()


def test_windows_are_requests_of_their_own_where_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many bytes as they have, from their objects; the threads are made once."""
    stream, cache = open_stream()
    monkeypatch.setattr(type(stream.ahead), "is_direct", property(lambda _: True))
    asked: list[tuple[str, int, int]] = []
    by_name = {shard.tokens.info.url.name: shard.tokens for shard in stream._row.shards}

    def read(info: Any, start: int, size: int) -> bytes:
        asked.append((info.url.name, start, size))
        return by_name[info.url.name].data[start : start + size]

    monkeypatch.setattr(storestreams, "open_store", lambda url: SimpleNamespace(read=read))
    starts = np.array([995, 3, 1500], np.uint64)
    for _ in range(2):
        asked.clear()
        inputs, targets = (np.zeros((3, 9), np.int64) for _ in range(2))
        stream.gather(starts, None, inputs, targets)
        for row, start in enumerate(starts.tolist()):
            assert inputs[row].tolist() == IDS[start : start + 9].tolist()
            assert targets[row].tolist() == IDS[start + 1 : start + 10].tolist()
        assert sorted(asked) == [
            ("0.bin", 6, 20), ("0.bin", 1990, 10), ("2.bin", 0, 10), ("3.bin", 926, 20),
        ]  # fmt: skip
    assert cache.fetched == [] == cache.reads
    requests = stream._requests
    assert len(requests._threads) == 32
    requests.close()
    for thread in requests._threads:
        thread.join(10)
        assert not thread.is_alive()
