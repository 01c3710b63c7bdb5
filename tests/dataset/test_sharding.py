"""How a dataset is split and cut into shards, by numbers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
