"""Shards of many parts: how ranges are counted and cut, and what is read of each part."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from lowtide.dataset.sharding import LAST_KEY, PlannedShard, ShardPlan
from lowtide.dataset.staged import gathering
from lowtide.dataset.staged.gathering import Cut, GatherStage, load_cut
from lowtide.dataset.staged.keyranges import ChosenKeys, RowRange, find_rows
from lowtide.engine.tasks import Task
from lowtide.errors import DataError
from lowtide.stores.paths import StorePath


def shard(tokens: int, number: int = 0, split: str = "train") -> PlannedShard:
    return PlannedShard(split, number, 0, tokens)


@pytest.mark.parametrize(
    ("tokens", "most", "ends"),
    [
        ([5, 5, 5], 10, [2, 3]),
        ([5, 5], 10, [2]),
        ([4, 5, 1], 10, [3]),
        ([20, 1, 1], 10, [1, 3]),
        ([1], 10, [1]),
        ([], 10, []),
    ],
)
def test_groups_are_full_or_the_last(tokens: list[int], most: int, ends: list[int]) -> None:
    plan: Any = SimpleNamespace(shards=[shard(count) for count in tokens])
    assert gathering._group(plan, most) == ends


def test_a_group_has_the_shards_behind_those_of_the_last() -> None:
    shards = tuple(shard(1, number) for number in range(5))
    cut = Cut("tag", [2, 3, 5], ShardPlan("content", [], {}, shards))
    numbers = [[one.number for one in cut.group(index)] for index in range(3)]
    assert numbers == [[0, 1], [2], [3, 4]]


def job_of(
    parts: list[Any], *, shuffle: bool, buckets: int = 8, cut_range_bytes: int = 1 << 30
) -> Any:
    def open_task(task: Task) -> Any:
        documents, tokens = parts[task.index]
        data = memoryview(np.array(tokens, "<i8").tobytes())
        return SimpleNamespace(header={"documents": documents}, read=lambda name: data)

    return SimpleNamespace(
        parts=parts, records=SimpleNamespace(open=open_task),
        settings=SimpleNamespace(shuffle=shuffle), sizes=SimpleNamespace(num_buckets=8),
        limits=SimpleNamespace(cut_range_bytes=cut_range_bytes),
    )  # fmt: skip


def test_ranges_of_a_shuffle_are_buckets_of_all_parts_together() -> None:
    first = [[1, 2], [1, 2, 3, 4, 5, 6, 7, 8, *([10] * 8)]]
    second = [[3, 4], [100] * 8 + [0] * 8]
    width = (1 << 64) // 8
    for group, size, count in (
        (10_000, 1 << 30, 1),
        (458, 1 << 30, 2),  # 916 tokens in all
        (100, 1 << 30, 8),  # at most as many as buckets
        (0, 1 << 30, 8),
        (10_000, 128 * 5, 2),  # ten documents of 128 bytes
        (10_000, 128 * 10, 1),
        (458, 128 * 3, 4),
    ):
        job = job_of([first, second], shuffle=True, cut_range_bytes=size)
        bounds, tokens, documents = gathering._count_ranges(job, group)
        step = 8 // count
        assert list(bounds) == [number * step * width for number in range(count)]
        train = [101, 102, 103, 104, 105, 106, 107, 108]
        assert tokens[0] == [sum(train[at : at + step]) for at in range(0, 8, step)]
        assert tokens[1] == [10 * step] * count
        assert documents == [4, 6]


def test_ranges_in_order_are_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tally = SimpleNamespace(first_blocks=[0, 3, 9])
    monkeypatch.setattr(gathering.Tally, "load", lambda job: tally)
    job = job_of([[[1, 2], [7, 1]], [[3, 4], [8, 2]]], shuffle=False)
    bounds, tokens, documents = gathering._count_ranges(job, 5)
    assert list(bounds) == [0, 3 << 32]
    assert tokens == [[7, 8], [1, 2]]
    assert documents == [4, 6]


def test_borders_of_buckets_are_even() -> None:
    assert gathering._bucket_borders(8, 3) == [0, 2, 5, 8]
    assert gathering._bucket_borders(8, 1) == [0, 8]
    chosen = ChosenKeys(1 << 61, (1 << 62) - 1, 2, None, 0)
    assert chosen.find_buckets(8) == (1, 1)
    assert ChosenKeys(0, LAST_KEY, 2, None, 0).find_buckets(8) == (0, 7)


class Rows:
    """A stand-in for the native rows of a range."""

    made: ClassVar[list[Rows]] = []

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.damaged: tuple[int, int] | None = None
        Rows.made.append(self)

    def add(self, *given: Any, **more: Any) -> None:
        self.calls.append(("add", given, more))

    def add_outputs(self, described: Any, **more: Any) -> Any:
        self.calls.append(("outputs", described, more))
        return DAMAGED.pop() if DAMAGED else None

    def finish(self) -> None:
        self.calls.append("finish")


DAMAGED: list[tuple[int, int]] = []


def output(number: int) -> Any:
    sections = {"ids": 10, "index": 20, "row_ends": 30, "token_ends": 40}
    return SimpleNamespace(
        path=Path(f"part-{number}"), num_bytes=100 + number, size=lambda name: 96,
        find=lambda name: sections[name] + number,
        read=lambda name, *, begin, end: (name, begin, end),
        damaged_page=lambda page: DataError(f"part {number} page {page}"),
    )  # fmt: skip


def ranges_of(folder: Path, *, parts: int = 3, shuffle: bool = True, mode: str = "content") -> Any:
    asked: list[Any] = []

    def open_sections(task: Task, names: Any) -> Any:
        asked.append((task.stage, task.index, names))
        return output(task.index)

    job: Any = SimpleNamespace(
        records=SimpleNamespace(folder=folder, open_sections=open_sections),
        parts=list(range(parts)), sizes=SimpleNamespace(num_buckets=8),
    )  # fmt: skip
    shard_job: Any = SimpleNamespace(vocab_size=300, shuffle=shuffle, val_limit=77)
    plan = ShardPlan(mode, [0, 1 << 62, 1 << 63], {}, ())
    cleared: list[int] = []
    found: list[Any] = []

    def find(output: Any, name: str, *, begin: int, end: int | None) -> tuple[Path, int]:
        found.append((name, begin, end))
        return output.path, 5

    copies: Any = SimpleNamespace(clear=lambda: cleared.append(1), find=find)
    made: Any = gathering._PartRanges(job, shard_job, plan, copies)
    made.asked, made.cleared, made.found = asked, cleared, found
    return made


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> list[Rows]:
    Rows.made.clear()
    DAMAGED.clear()
    monkeypatch.setattr(gathering._native, "RangeRows", Rows)
    return Rows.made


ENDS = ("docs", "bin")
CHOSEN = {"id_bytes": 2, "val_limit": 77}


def test_a_range_of_parts_on_a_disk_is_read_by_native_code(
    tmp_path: Path, native: list[Rows]
) -> None:
    ranges = ranges_of(tmp_path, parts=1500)
    ranges.load("train", 0)
    first, second, end = native[0].calls
    assert end == "finish"
    assert [len(call[1]) for call in (first, second)] == [1024, 476]
    assert second[1][0] == (b"part-1024", 1124, 1034, 1044, 1054, 1064)
    assert first[2] == {
        "page_bytes": 4096, "num_buckets": 8, "first": 0, "last": 1, "low": 0,
        "high": (1 << 62) - 1, "val": False, **CHOSEN,
    }  # fmt: skip
    assert ranges.asked[0] == ("encode", 0, ("ids", "index", "row_ends", "token_ends"))
    DAMAGED.append((2, 9))
    with pytest.raises(DataError, match="part 2 page 9"):
        ranges_of(tmp_path).load("val", 1)


@pytest.mark.parametrize(
    ("mode", "split", "number", "val", "low", "high"),
    [
        ("content", "val", 1, True, 1 << 62, (1 << 63) - 1),
        ("content", "train", 2, False, 1 << 63, LAST_KEY),
        ("tail", "val", 0, None, 0, (1 << 62) - 1),
    ],
)
def test_keys_and_split_of_a_range(
    tmp_path: Path, native: list[Rows], mode: str, split: str, number: int, val: bool | None,
    low: int, high: int,
) -> None:  # fmt: skip
    ranges_of(tmp_path, mode=mode).load(split, number)
    options = native[0].calls[0][2]
    assert (options["val"], options["low"], options["high"]) == (val, low, high)


def test_the_last_range_is_kept(tmp_path: Path, native: list[Rows]) -> None:
    ranges = ranges_of(tmp_path)
    first = ranges.load("train", 0)
    assert ranges.load("train", 0) is first
    assert ranges.load("val", 0) is not first  # other documents
    ranges.load("val", 1)
    assert len(ranges.cleared) == len(native) == 3
    tail = ranges_of(tmp_path, mode="tail")
    assert tail.load("train", 0) is tail.load("val", 0)  # the same documents


def test_a_range_in_order_is_a_part(tmp_path: Path, native: list[Rows]) -> None:
    ranges = ranges_of(tmp_path, shuffle=False)
    ranges.load("train", 1)
    assert [index for _, index, _ in ranges.asked] == [1]
    ((name, given, more), end) = native[0].calls
    assert (name, end) == ("add", "finish")
    assert given == (os.fsencode("part-1"), ("index", 0, 96))  # three rows of 32 bytes
    assert more["ids_at"] == 5
    assert ranges.found == [("ids", 0, None)]


def test_rows_of_parts_in_a_store_are_copied(
    native: list[Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([RowRange(1, 3, 10, 20), RowRange(2, 2, 0, 0),
                  RowRange(0, 1, 0, 7)])  # fmt: skip
    monkeypatch.setattr(gathering, "find_rows", lambda output, chosen, buckets: next(found))
    ranges = ranges_of(StorePath("s3://bucket/work"))
    ranges.load("train", 0)
    assert ranges.found == [("ids", 20, 40), ("ids", 0, 14)]  # two bytes per id
    assert [call[1][1] for call in native[0].calls[:-1]] == [("index", 32, 96), ("index", 0, 32)]


def test_where_the_rows_of_keys_are_in_a_part(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    ends = {"row_ends": [1, 4, 9, 9], "token_ends": [10, 40, 90, 95]}

    def read(file: Any, name: str, *, begin: int, end: int) -> memoryview:
        data = np.array(ends[name], "<i8").tobytes()
        return memoryview(data[begin:end])

    part: Any = SimpleNamespace(path=tmp_path / "a", read_from=read)
    width = (1 << 64) // 4
    for first, last, expected in (
        (0, 0, (0, 1, 0, 10)), (0, 3, (0, 9, 0, 95)), (1, 2, (1, 9, 10, 90)), (3, 3, (9, 9, 90, 95))
    ):  # fmt: skip
        chosen = ChosenKeys(first * width, (last + 1) * width - 1, 2, None, 0)
        assert find_rows(part, chosen, 4) == expected


def test_shards_are_listed_as_their_records_say(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {0: [("train", "a"), ("val", "b")], 1: [("train", "c")]}
    records = SimpleNamespace(
        read=lambda task: {"facts": {"shards": [{"split": s, "n": n} for s, n in rows[task.index]]}}
    )
    monkeypatch.setattr(gathering, "shard_from_row", lambda root, row: (root, row["n"]))
    job: Any = SimpleNamespace(records=records)
    stage = GatherStage(job, lambda: None)  # type: ignore[arg-type,return-value]
    stage.__dict__["_cut"] = SimpleNamespace(groups=[2, 3])
    assert stage.count_tasks() == 2
    assert stage.list_shards("root") == {  # type: ignore[arg-type]
        "train": [("root", "a"), ("root", "c")], "val": [("root", "b")],
    }  # fmt: skip


class Group:
    """The stage's last task, of the shards 1 and up, whose files are beside the root."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, shards: int = 2, waiting: int = 9,
        is_stored: bool = False,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.root = folder / "root"
        self.published: list[Any] = []
        self.committed: list[Any] = []
        self.written: list[int] = []
        job: Any = SimpleNamespace(
            records=SimpleNamespace(
                scratch_folder=lambda: contextlib.nullcontext(folder),
                commit_record=lambda task, *, facts: self.committed.append((task, facts)),
            ),
            destination=SimpleNamespace(
                stage=lambda: contextlib.nullcontext(self.root),
                publish=self.publish,
                takes_one=is_stored,
            ),
            limits=SimpleNamespace(unnamed_shards=waiting),
        )
        made = SimpleNamespace(root=self.root)
        monkeypatch.setattr(gathering, "make_shard_job", lambda *row: made)
        monkeypatch.setattr(gathering, "write_shard", self.write)
        monkeypatch.setattr(gathering, "shard_row", lambda root, shard: {"file": shard.path.name})
        self.stage = GatherStage(job, lambda: None)  # type: ignore[arg-type,return-value]
        planned = tuple(shard(1, number) for number in range(shards))
        planned += (shard(1, shards, "val"),)
        plan = ShardPlan("content", [], {}, planned)
        self.stage.__dict__["_cut"] = Cut("tag", [1, 1 + shards], plan)

    def write(self, job: Any, plan: Any, ranges: Any, wanted: Any, *, publisher: Any) -> Any:
        assert (self.root / wanted.split).is_dir()
        for unnamed, path in self.files(wanted.number):
            unnamed.touch()
            publisher(unnamed, path)
        self.written.append(wanted.number)
        return SimpleNamespace(path=self.folder / f"{wanted.number}.bin")

    def files(self, number: int) -> list[tuple[Path, Path]]:
        folder = self.folder
        return [(folder / f"unnamed-{number}.{end}", folder / f"{number}.{end}") for end in ENDS]

    def publish(self, root: Path, rows: Any) -> None:
        assert root == self.root
        self.published += rows
        for unnamed, path in rows:
            unnamed.rename(path)

    def count_open(self) -> int:
        """How many files of shards are open."""
        links = []
        for place in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                links.append(str(place.readlink()))
        return sum(link.startswith(f"{self.folder}/") for link in links)


def test_a_group_is_written_published_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(tmp_path, monkeypatch)
    uncommitted = group.stage.run(1)
    assert group.written == [1, 2]
    assert group.published == group.committed == []
    assert len(list(tmp_path.glob("unnamed-*"))) == 4
    uncommitted.commit()
    assert group.published == [*group.files(1), *group.files(2)]
    rows = [{"split": "train", "file": "1.bin"}, {"split": "val", "file": "2.bin"}]
    assert group.committed == [(Task("gather", 1), {"shards": rows})]
    assert group.count_open() == 0


def test_few_shards_wait_for_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps two files open: a group of small shards would pass the limit of open files."""
    group = Group(tmp_path, monkeypatch, shards=9, waiting=3)
    uncommitted = group.stage.run(1)
    named = [row for number in range(1, 7) for row in group.files(number)]
    assert (group.published, group.committed, group.count_open()) == (named, [], 6)
    uncommitted.commit()
    assert group.published[len(named) :] == [
        row for number in (7, 8, 9) for row in group.files(number)
    ]
    assert len(group.committed[0][1]["shards"]) == 9
    assert group.count_open() == 0


def test_shards_without_names_are_removed_with_their_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(tmp_path, monkeypatch, shards=3, waiting=2)
    group.stage.run(1).discard()
    assert not list(tmp_path.glob("unnamed-*"))
    assert [path.name for path in sorted(tmp_path.glob("*.bin"))] == ["1.bin", "2.bin"]
    assert group.count_open() == 0
    monkeypatch.setattr(gathering, "shard_row", lambda *row: pytest.fail("damaged"))
    with pytest.raises(pytest.fail.Exception):
        group.stage.run(1)
    assert not list(tmp_path.glob("unnamed-*")) and group.count_open() == 0


def test_an_uploaded_shard_is_not_kept_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk gets its room back only then, and may have room for a single shard."""
    group = Group(tmp_path, monkeypatch, shards=4, is_stored=True)
    uncommitted = group.stage.run(1)
    assert len(group.published) == 8 and group.count_open() == 0
    uncommitted.commit()
    assert len(group.committed) == 1


def test_a_cut_is_read_as_it_was_written() -> None:
    sections = {
        "bounds": np.array([0, 1 << 63], "<u8"), "train_starts": np.array([0, 5, 9], "<i8"),
        "val_starts": np.array([0, 1, 2], "<i8"),
    }  # fmt: skip
    header = {"tag": "t", "groups": [1], "split_mode": "tail", "shards": [["train", 0, 0, 9]]}
    opened = SimpleNamespace(header=header, read=lambda name: memoryview(sections[name].tobytes()))
    job: Any = SimpleNamespace(records=SimpleNamespace(open=lambda task: opened))
    found = load_cut(job)
    assert (found.tag, found.groups, found.plan.split_mode) == ("t", [1], "tail")
    assert list(found.plan.bounds) == [0, 1 << 63]
    assert {split: list(rows) for split, rows in found.plan.range_tokens.items()} == {
        "train": [0, 5, 9], "val": [0, 1, 2],
    }  # fmt: skip
    assert found.plan.shards == (PlannedShard("train", 0, 0, 9),)
