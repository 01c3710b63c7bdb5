"""An append by many workers: handling of work that others have begun, added or changed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.dataset import appending
from lowtide.dataset.settings import AppendSettings
from lowtide.dataset.staged import adding, datasetplace
from lowtide.dataset.staged.datasetplace import open_place
from lowtide.engine.tasks import Task, run_task
from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.stores.paths import StorePath

MIB = 1 << 20


def test_what_one_of_several_appends_added(monkeypatch: pytest.MonkeyPatch) -> None:
    def event(first: int) -> dict[str, Any]:
        return {"first_shard": first, "cleaning": {"c": first}, "notices": [first], "tokens": first}

    rows = {
        "train": [
            *({"file": f"train/shard_{n:05d}.bin"} for n in (0, 3, 4, 6)), {"file": "mine.bin"},
        ],
        "val": [{"file": f"val/shard_{n:05d}.bin"} for n in (2, 5, 9)],
    }  # fmt: skip
    info = SimpleNamespace(metadata={"appended": [event(3), event(5), event(6)], "shards": rows})
    monkeypatch.setattr(adding, "load_any_info", lambda root: info)
    for number, first, shards in ((0, 3, 2), (1, 5, 1), (2, 6, 2)):
        found = adding.read_added(Path("root"), number)
        assert (found.report, found.notices) == ({"c": first}, [first])
        assert (found.added_tokens, found.added_shards, found.was_there) == (first, shards, False)


def test_partitions_follow_all_text_and_parts_the_new() -> None:
    inputs: Any = SimpleNamespace(total_bytes=100 * MIB)
    small = adding._choose_sizes(inputs, 0, Path("work"))
    large = adding._choose_sizes(inputs, 1 << 30, Path("work"))
    assert small == adding.Sizes.of(100 * MIB)
    assert large.num_partitions == adding.Sizes.of(100 * MIB + (4 << 30)).num_partitions
    assert large.num_partitions > small.num_partitions
    assert (large.part_bytes, large.group_bytes) == (small.part_bytes, small.group_bytes)
    there = adding._choose_sizes(inputs, 1 << 30, StorePath("s3://bucket/work"))
    stored = adding.Sizes.of(100 * MIB, is_stored=True)
    assert (there.part_bytes, there.group_bytes) == (stored.part_bytes, stored.group_bytes)
    everything = adding.Sizes.of(100 * MIB + (4 << 30), is_stored=True)
    assert there.num_partitions == everything.num_partitions > stored.num_partitions


def test_workers_meet_beside_the_dataset_or_where_they_are_told() -> None:
    settings: Any = SimpleNamespace(dataset_dir=Path("data/mine"), work_dir=None)
    assert adding.append_work_folder(settings) == Path("data/mine.work")
    settings.work_dir = Path("elsewhere")
    assert adding.append_work_folder(settings) == Path("elsewhere")


@pytest.mark.parametrize(
    ("plan", "is_stored"),
    [
        (None, False),
        ({"verb": "prepare", "dataset": "sum"}, False),
        ({"verb": "append", "dataset": "other"}, False),
        ({"verb": "append", "dataset": "sum"}, True),
    ],
)
def test_the_dataset_is_the_one_that_the_work_was_begun_on(
    monkeypatch: pytest.MonkeyPatch, plan: Any, is_stored: bool
) -> None:
    if plan is not None:
        plan |= {"first_number": 7, "shards": {"train": ["a", "b"], "val": ["c"]}}
    monkeypatch.setattr(adding, "read_plan", lambda records: plan)
    monkeypatch.setattr(adding, "first_free_number", lambda info: 3)
    monkeypatch.setattr(adding, "shard_from_row", lambda root, row: (root, row))
    monkeypatch.setattr(adding, "GrownDataset", lambda *given, **more: (given, more))
    info: Any = SimpleNamespace(shards="shards", root="root")
    found: Any = adding._open_grown(info, "stored", "sum", None)  # type: ignore[arg-type]
    if not is_stored:
        assert found == ((info, "stored", "shards", 3, "sum"), {})
        return
    shards = {"train": [("root", "a"), ("root", "b")], "val": [("root", "c")]}
    assert found == ((info, "stored"), {"shards": shards, "first_number": 7, "version": "sum"})


@pytest.mark.parametrize(
    ("plan", "removed"),
    [
        ({"verb": "append", "dataset": "old"}, True),
        ({"verb": "append", "dataset": "now"}, False),  # the next one, in progress
        ({"verb": "append", "dataset": "old", "other": 1}, False),  # to another dataset
        ({"verb": "append"}, False), ({"verb": "prepare", "dataset": "old"}, False),
        (None, False), ("error", False),
    ],
)  # fmt: skip
def test_only_work_of_an_append_is_removed_when_all_is_there(
    monkeypatch: pytest.MonkeyPatch, plan: Any, removed: bool
) -> None:
    def read(records: Any) -> Any:
        if plan == "error":
            raise DataError("not ours")
        shards = {"train": [{"file": "train/a"}], "val": [{"file": "val/b"}]}
        if plan and "other" in plan:
            shards["train"].append({"file": "train/other"})
        return plan and {**plan, "shards": shards}

    monkeypatch.setattr(adding, "read_plan", read)
    monkeypatch.setattr(adding, "checksum_plan", lambda records: "checksum")
    names: list[Any] = []
    records: Any = SimpleNamespace(remove=names.append)
    place: Any = SimpleNamespace(clear=names.append)
    rows = {"train": ["train/a", "train/new"], "val": ["val/b"]}
    shards = {key: [SimpleNamespace(path=Path(name)) for name in row] for key, row in rows.items()}
    info: Any = SimpleNamespace(shards=shards)
    adding._remove_finished(records, place, "now", info)
    assert names == (["checksum", adding._FOLDER_NAMES] if removed else [])


def test_metadata_and_its_checksum_are_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    for root in (Path("root"), StorePath("s3://bucket/root")):
        sums, loaded = iter(["1", "2", "2", "2"]), iter(["old", "new"])
        place: Any = open_place(root)
        monkeypatch.setattr(datasetplace.layout, "read_metadata", lambda root: {})
        monkeypatch.setattr(place, "find_version", lambda sums=sums: next(sums))
        load = lambda root, loaded=loaded: next(loaded)  # noqa: E731
        monkeypatch.setattr(datasetplace.layout, "load_dataset_info", load)
        monkeypatch.setattr(datasetplace, "load_any_info", load)
        assert place.load() == ("2", "new")


def test_a_folder_without_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="this is not a finished dataset"):
        open_place(tmp_path).load()


def test_unfinished_work_of_threads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding, "has_plan", lambda root: root == Path("begun"))
    adding._refuse_unfinished(Path("free"))
    with pytest.raises(UsageError) as caught:
        adding._refuse_unfinished(Path("begun"))
    assert caught.value.message == "unfinished work of --engine threads is here"
    assert caught.value.path == Path("begun/.work")


def append_of(*, version: str, events: list[Any]) -> Any:
    place = SimpleNamespace(
        find_version=lambda: version, read_metadata=lambda: {"appended": events}
    )
    job = SimpleNamespace(inputs=[SimpleNamespace(path=Path("a")), SimpleNamespace(path=Path("b"))])
    grown = SimpleNamespace(root=Path("root"), version="sum", num_appended=1)
    return adding._SharedAppend(job, grown, place, 5, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "events", "added"),
    [
        ("sum", [["a", "b"], ["a", "b"]], False),  # nothing has changed
        ("new", [["x"], ["a", "b"]], True),
        ("new", [["x"], ["y"], ["a", "b"]], True),
        ("new", [["a", "b"], ["y"]], False),  # the one before this work
        ("new", [["x"], ["b", "a"]], False),
        ("new", [["x"]], False),
    ],
)
def test_whether_the_text_was_added_meanwhile(
    version: str, events: list[list[str]], added: bool
) -> None:
    rows = [{"input_files": names} for names in events]
    assert append_of(version=version, events=rows).is_added() is added


@pytest.mark.parametrize("added", [True, False])
def test_a_plan_that_differs_is_no_error_once_the_text_is_there(
    monkeypatch: pytest.MonkeyPatch, added: bool
) -> None:
    def refuse(plan: Any, records: Any) -> None:
        raise UsageError("another plan")

    ran: list[Any] = []
    monkeypatch.setattr(adding, "commit_plan", refuse)
    monkeypatch.setattr(adding, "run_stages", lambda *given, **more: ran.append(more))
    run = append_of(version="sum", events=[])
    run._job.records = None
    run._make_plan = dict
    run.is_added = lambda: added
    if added:
        run._run(3.0)
    else:
        with pytest.raises(LowtideError, match="another plan"):
            run._run(3.0)
    assert ran == []
    monkeypatch.setattr(adding, "commit_plan", lambda plan, records: None)
    run._shares = SimpleNamespace(num_workers=4)
    run._iter_stages = lambda: iter(())
    run._run(3.0)
    assert ran == [{"num_workers": 4, "is_finished": run.is_added, "lease_seconds": 3.0}]


@pytest.mark.parametrize(
    ("added", "version", "expected"),
    [(True, "new", []), (False, "sum", ["add"]), (False, "new", None)],
)
def test_the_last_task_adds_once_and_only_to_the_same_dataset(
    tmp_path: Path, added: bool, version: str, expected: Any
) -> None:
    committed: list[Any] = []
    records = SimpleNamespace(
        folder=Path("work"),
        plan="plan",
        commit_record=lambda task, *, facts: committed.append((task, facts)),
    )
    job: Any = SimpleNamespace(records=records)
    grown: Any = SimpleNamespace(root=tmp_path, version="sum")
    gather: Any = None
    calls: list[str] = []
    place: Any = SimpleNamespace(
        hold=lambda: contextlib.nullcontext(tmp_path),
        find_version=lambda: version,
        clear=calls.append,
    )
    stage: Any = adding._FinishStage(job, grown, place, gather, lambda: added)
    stage._add = lambda folder: calls.append("add")
    assert stage.count_tasks() == 1
    if expected is None:
        with pytest.raises(DataError, match="the dataset has changed since this work was begun"):
            run_task(stage, 0)
        assert (committed, calls) == ([], ["plan"])  # the rest is no longer needed
        return
    run_task(stage, 0)
    assert calls == expected
    assert committed == [(Task(adding.FINISH_STAGE, 0), {})]


@pytest.mark.parametrize("engine", ["threads", "files", "ray"])
def test_which_way_an_append_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(appending.layout, "read_metadata", lambda root: calls.append("metadata"))
    monkeypatch.setattr(
        "lowtide.dataset.staged.adding.append_shared", lambda settings: calls.append("files")
    )
    monkeypatch.setattr(
        "lowtide.dataset.staged.onray.append_on_ray", lambda settings: calls.append("ray")
    )

    def append(settings: Any) -> None:
        assert list(tmp_path.iterdir()) != []  # its lock is held
        calls.append("threads")

    monkeypatch.setattr(appending, "_append", append)
    work: Any = {} if engine == "threads" else {"work_dir": tmp_path / "work"}
    settings = AppendSettings(
        dataset_dir=tmp_path,
        input_files=("a",),
        engine=engine,
        **work,  # type: ignore[arg-type]
    )
    appending.append_to_dataset(settings)
    assert calls == ["metadata", engine]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("items", [(), ("evals.jsonl",)])
def test_what_has_to_be_the_same_to_go_on(items: Any) -> None:
    info: Any = SimpleNamespace(metadata={"total_tokens": 5})
    settings: Any = SimpleNamespace(text_field="body", skip_bad_inputs=True)
    stored: Any = SimpleNamespace(decontaminate=items)
    more = {"decontaminate": True} if items else {}
    assert appending._decisive_settings(info, settings, stored) == {
        "text_field": "body", "skip_bad_inputs": True, "total_tokens": 5, **more,
    }  # fmt: skip


def test_a_dataset_as_it_is_before_anything_is_moved_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "shard_row", lambda root, shard: (root, shard))
    monkeypatch.setattr(appending, "first_free_number", lambda info: 9)
    info: Any = SimpleNamespace(
        metadata={"appended": [1, 2]}, root="root", shards={"train": ["a"], "val": []}
    )
    assert appending._facts_of(info) == {
        "num_appended": 2, "first_number": 9, "shards": {"train": [("root", "a")], "val": []},
    }  # fmt: skip
