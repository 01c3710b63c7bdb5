"""How a dataset is split and divided into shards, computed from numbers alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from lowtide.dataset import sharding
from lowtide.dataset.sharding import (
    LAST_KEY,
    PlannedShard,
    ShardJob,
    number_shards,
    remove_other_shards,
    val_limit,
)


def job_of(**options: Any) -> ShardJob:
    usual: dict[str, Any] = {
        "root": Path("out"), "encoded": [], "shuffle": True, "val_fraction": 0.1,
        "tokens_per_shard": 100, "vocab_size": 300,
    }  # fmt: skip
    return ShardJob(**(usual | options))


@pytest.mark.parametrize(
    ("fraction", "train", "val", "documents", "mode"),
    [
        (0.1, 900, 100, (90, 10), "content"),
        (0.1, 950, 50, (90, 10), "content"),  # half of the share
        (0.1, 951, 49, (90, 10), "tail"),
        (0.1, 700, 300, (90, 10), "content"),  # three times of it
        (0.1, 699, 301, (90, 10), "tail"),
        (0.6, 200, 800, (90, 10), "content"),  # half of what is left for training
        (0.6, 199, 801, (90, 10), "tail"),
        (0.0, 900, 100, (90, 10), "tail"),
        (0.1, 900, 100, (100, 0), "tail"),
        (0.1, 900, 100, (0, 100), "tail"),
        (0.1, 0, 0, (90, 10), "tail"),
    ],
)
def test_documents_are_split_by_content_where_that_is_fair(
    fraction: float, train: int, val: int, documents: tuple[int, int], mode: str
) -> None:
    job = job_of(val_fraction=fraction)
    assert sharding._choose_mode(job, train, val, documents) == mode
    assert number_shards(job, [0], [[train], [val]], documents).split_mode == mode


def test_a_split_by_content_needs_so_many_documents() -> None:
    fewest = sharding._MIN_SPLIT_DOCUMENTS
    job = job_of()
    for count, mode in ((fewest, "content"), (fewest - 1, "tail")):
        assert sharding._choose_mode(job, 900, 100, (count - 1, 1)) == mode


def test_shards_of_both_splits_are_numbered_on() -> None:
    job = job_of(split_mode="content", tokens_per_shard=4, first_number=7)
    plan = number_shards(job, [0, 1 << 63], [[5, 4], [0, 3]], (1, 1))
    assert plan.shards == (
        PlannedShard("train", 7, 0, 4), PlannedShard("train", 8, 4, 8),
        PlannedShard("train", 9, 8, 9), PlannedShard("val", 10, 0, 3),
    )  # fmt: skip
    assert [shard.num_tokens for shard in plan.shards] == [4, 4, 1, 3]
    assert {split: list(rows) for split, rows in plan.range_tokens.items()} == {
        "train": [0, 5, 9], "val": [0, 0, 3],
    }  # fmt: skip
    assert list(plan.bounds) == [0, 1 << 63]


@pytest.mark.parametrize(
    ("fraction", "total", "expected"),
    [
        (0.25, 8, [("train", 0, 4), ("train", 4, 6), ("val", 6, 8)]),
        (0.001, 8, [("train", 0, 4), ("train", 4, 7), ("val", 7, 8)]),  # one at least
        (0.999, 8, [("train", 0, 1), ("val", 1, 5), ("val", 5, 8)]),  # and one to train on
        (0.0, 5, [("train", 0, 4), ("train", 4, 5)]),
        (0.5, 1, [("train", 0, 1)]),
        (0.5, 0, []),
    ],
)
def test_the_end_of_the_text_is_validation(
    fraction: float, total: int, expected: list[tuple[str, int, int]]
) -> None:
    job = job_of(split_mode="tail", tokens_per_shard=4, val_fraction=fraction)
    plan = number_shards(job, [0], [[total], [0]], (1, 0))
    assert [(shard.split, shard.first, shard.last) for shard in plan.shards] == expected
    assert [shard.number for shard in plan.shards] == list(range(len(expected)))
    assert list(plan.range_tokens["train"]) == list(plan.range_tokens["val"]) == [0, total]
    both = number_shards(job, [0, 5], [[1, 2], [3, 4]], (1, 1))
    assert list(both.range_tokens["val"]) == [0, 4, 10]


def test_keys_are_cut_into_ranges_that_fit() -> None:
    row = sharding.ENCODED_ROW_BYTES_HELD
    for documents, count in ((0, 1), (1, 1), (10, 1), (11, 2), (20, 2), (21, 3)):
        keys = list(sharding._cut_keys(job_of(num_documents=documents, range_bytes=10 * row)))
        assert keys == [number * ((1 << 64) // count) for number in range(count)]
    paths = [Path("a"), Path("b"), Path("c")]
    in_order = sharding._cut_keys(job_of(shuffle=False, encoded=paths, first_block=5))
    assert list(in_order) == [5 << 32, 6 << 32, 7 << 32]
    assert list(sharding._cut_keys(job_of(shuffle=False, first_block=2))) == [2 << 32]


@pytest.mark.parametrize(
    ("fraction", "limit"), [(0.0, 0), (0.5, 1 << 63), (1.0, LAST_KEY), (0.25, 1 << 62)]
)
def test_hashes_below_a_share_of_all_are_validation(fraction: float, limit: int) -> None:
    assert val_limit(fraction) == limit == job_of(val_fraction=fraction).val_limit


def test_shards_that_are_not_known_are_removed(tmp_path: Path) -> None:
    names = [f"shard_{number:05d}-01234567-bc013c54" for number in range(3)]
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        for name in names:
            (tmp_path / split / f"{name}.bin").touch()
            (tmp_path / split / f"{name}.docs").touch()
        (tmp_path / split / "shard_mine.bin").touch()
    remove_other_shards(tmp_path, [tmp_path / "train" / f"{names[1]}.bin"])
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert left == {
        f"train/{names[1]}.bin", f"train/{names[1]}.docs", "train/shard_mine.bin",
        "val/shard_mine.bin",
    }  # fmt: skip


class Reader:
    """A stand-in for the native reader of a range: ids that encode their range and place."""

    opened: ClassVar[list[tuple[int, int, int]]] = []

    def __init__(self, number: int, item_bytes: int, open_files: int) -> None:
        self.number = number
        Reader.opened.append((number, item_bytes, open_files))

    def read(self, begin: int, end: int, item_bytes: int) -> Any:
        return self.number, begin, end


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 4, [(0, 0, 4)]),
        (4, 5, [(0, 4, 5)]),
        (5, 6, [(2, 0, 1)]),  # after a range without a token
        (3, 9, [(0, 3, 5), (2, 0, 4)]),
        (5, 16, [(2, 0, 4), (2, 4, 7), (3, 0, 4)]),
        (0, 17, [(0, 0, 4), (0, 4, 5), (2, 0, 4), (2, 4, 7), (3, 0, 4), (3, 4, 5)]),
    ],
)
def test_a_shard_is_read_from_the_ranges_it_lies_in(
    monkeypatch: pytest.MonkeyPatch, first: int, last: int, expected: list[tuple[int, int, int]]
) -> None:
    monkeypatch.setattr(sharding._native, "RangeReader", Reader)
    Reader.opened.clear()
    starts = {"train": [0, 5, 5, 12, 17], "val": [0, 0, 0, 0, 0]}
    plan = sharding.ShardPlan("content", [0, 1, 2, 3], starts, ())
    ranges: Any = SimpleNamespace(load=lambda split, number: number)
    for most in (100, 7):
        job = job_of(chunk_bytes=8, max_open_files=most)  # four ids of two bytes
        wanted = PlannedShard("train", 0, first, last)
        assert list(sharding._iter_chunks(job, plan, ranges, wanted)) == expected
        numbers = list(dict.fromkeys(number for number, _, _ in expected))
        assert Reader.opened == [(number, 2, most) for number in numbers]
        Reader.opened.clear()


def test_the_last_ranges_are_kept_and_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, int]] = []

    def load(job: Any, plan: Any, split: str, number: int) -> Any:
        loaded.append((split, number))
        if number == 9:
            raise ValueError("damaged")
        return object()

    monkeypatch.setattr(sharding, "_load_range", load)
    plan = sharding.ShardPlan("content", [], {}, ())
    cache = sharding._RangeCache(job_of(), plan, capacity=2)
    first = cache.load("train", 0)
    assert cache.load("train", 0) is first
    cache.load("val", 0)
    assert cache.load("train", 0) is first  # now the newest
    cache.load("train", 1)
    assert cache.load("train", 0) is first
    cache.load("val", 0)
    assert loaded == [("train", 0), ("val", 0), ("train", 1), ("val", 0)]
    tail = sharding._RangeCache(job_of(), sharding.ShardPlan("tail", [], {}, ()), capacity=2)
    assert tail.load("train", 0) is tail.load("val", 0)  # all documents, whatever the split
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            tail.load("train", 9)


@pytest.mark.parametrize("at_once", [True, False])
def test_shards_that_are_flushed_are_taken_and_few_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """At most twice as many as there are workers wait to be flushed; more where they are small."""
    events: list[Any] = []

    class Flushed:
        """A stand-in for a shard that is being written."""

        def __init__(self, number: int) -> None:
            self.number = number

        def done(self) -> bool:
            return at_once

        def result(self) -> Any:
            events.append(10 + self.number)
            path = tmp_path / ("val" if self.number == 6 else "train") / str(self.number)
            return SimpleNamespace(path=path, num_tokens=10 + self.number)

    def write_once(job: Any, plan: Any, ranges: Any, wanted: Any, *others: Any) -> Any:
        events.append(f"write {wanted.number}")
        return Flushed(wanted.number)

    monkeypatch.setattr(sharding, "_write_once", write_once)
    shards = tuple(PlannedShard("train", number, 0, 1) for number in range(7))
    pool: Any = SimpleNamespace(num_workers=2, run=lambda tasks: (task() for task in tasks))
    job = job_of(root=tmp_path, done_folder=tmp_path / "done", tokens_per_shard=1 << 19)
    plan = sharding.ShardPlan("content", [0], {}, shards)
    found = sharding.write_shards(job, plan, pool, on_done=events.append)
    assert [one.num_tokens for one in found["train"]] == list(range(10, 16))
    assert [one.num_tokens for one in found["val"]] == [16]
    writes = [f"write {number}" for number in range(7)]
    if at_once:
        assert events == [event for number in range(7) for event in (writes[number], 10 + number)]
    else:
        assert events == [
            *writes[:5], 10, writes[5], 11, writes[6], 12, 13, 14, 15, 16
        ]  # fmt: skip
    assert all((tmp_path / name).is_dir() for name in ("train", "val", "done"))
    events.clear()
    small = job_of(root=tmp_path, tokens_per_shard=(1 << 19) - 1)
    sharding.write_shards(small, plan, pool, on_done=events.append)
    if not at_once:
        assert events == [*writes, *range(10, 17)]
