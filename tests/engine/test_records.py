from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lowtide.engine import storefolders
from lowtide.engine.folders import DiskFolder
from lowtide.engine.outputs import OutputWriter
from lowtide.engine.records import Records, describe_worker
from lowtide.engine.tasks import Task
from lowtide.errors import DataError, UsageError
from lowtide.stores import paths
from lowtide.stores.paths import StorePath

from ..stores.memorystore import MemoryStore

TASK = Task("count", 3)


def writer(data: bytes = b"12345", header: int = 1) -> Any:
    def write(output: OutputWriter) -> dict[str, int]:
        output.section("data", data)
        return {"number": header}

    return write


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_task_is_done_when_it_has_a_record(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert not records.is_done(TASK) and records.list_done("count") == set()
    records.commit(TASK, writer(), facts=lambda: {"rows": 7})
    assert records.is_done(TASK) and records.list_done("count") == {3}
    record = records.read(TASK)
    assert record["facts"] == {"rows": 7} and record["by"] == describe_worker()
    assert list(record["files"]) == ["count-0000003.out"]
    output = records.open(TASK)
    assert output.header == {"number": 1} and bytes(output.read("data")) == b"12345"
    assert names(tmp_path) == ["count-0000003.done", "count-0000003.out"]


def test_what_is_written_has_no_name_before_it_is_committed(tmp_path: Path) -> None:
    records = Records(tmp_path)
    written = records.write(TASK, writer(), facts=lambda: {"rows": 7})
    assert not records.is_done(TASK)
    assert [name[0] for name in names(tmp_path)] == ["."]
    written.commit()
    assert records.read(TASK)["facts"] == {"rows": 7}
    assert names(tmp_path) == ["count-0000003.done", "count-0000003.out"]


@pytest.mark.parametrize("commits", [True, False])
def test_what_comes_first_is_committed_before_or_discarded_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    records, created = Records(tmp_path), list[str]()
    create = records.place.create
    monkeypatch.setattr(
        records.place, "create", lambda name, data: created.append(name) or create(name, data)
    )
    other = Task("encode", 3)
    first = records.write(other, writer(header=2))
    written = records.write(TASK, writer(), after=first)
    assert created == []
    if commits:
        written.commit()
        assert created == ["encode/encode-0000003.done", "count/count-0000003.done"]
        assert records.open(other).header == {"number": 2}
    else:
        written.discard()
        assert names(tmp_path) == []


def test_a_task_that_fails_discards_what_comes_first(tmp_path: Path) -> None:
    records = Records(tmp_path)

    def fail(output: Any) -> dict[str, int]:
        raise ValueError("no")

    first = records.write(Task("encode", 3), writer())
    with pytest.raises(ValueError, match="no"):
        records.write(TASK, fail, after=first)
    assert names(tmp_path) == []


def test_done_again_it_finds_its_own_bytes(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for _ in range(2):
        records.commit(TASK, writer(), facts=lambda: {"pair": (1, 2)})
    assert len(names(tmp_path)) == 2


def test_a_result_without_its_record_is_taken_again(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.commit(TASK, writer())
    records.record_path(TASK).unlink()
    records.commit(TASK, writer())
    assert records.is_done(TASK)


@pytest.mark.parametrize(
    ("write", "facts"),
    [(writer(b"12346"), {}), (writer(b"123456"), {}), (writer(header=2), {}), (writer(), {"n": 1})],
)
def test_two_results_are_an_error_that_names_the_task(
    tmp_path: Path, write: Any, facts: dict[str, int]
) -> None:
    records = Records(tmp_path)
    records.commit(TASK, writer())
    before = {name: (tmp_path / "count" / name).read_bytes() for name in names(tmp_path)}
    with pytest.raises(DataError, match="count-0000003 was done twice, with two results"):
        records.commit(TASK, write, facts=lambda: facts)
    assert {name: (tmp_path / "count" / name).read_bytes() for name in names(tmp_path)} == before


def test_a_file_of_another_size_than_its_record_is_refused(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.commit(TASK, writer())
    with records.record_path(TASK).with_suffix(".out").open("ab") as file:
        file.write(b"x")
    with pytest.raises(DataError, match="but the record of task count-0000003 says"):
        Records(tmp_path).open(TASK)


def test_a_record_of_another_task_is_refused(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.commit_record(TASK, facts={})
    os.link(records.record_path(TASK), records.record_path(Task("count", 4)))
    with pytest.raises(DataError, match="expected the record of task count-0000004"):
        records.read(Task("count", 4))


def test_of_many_creators_one_wins(tmp_path: Path) -> None:
    records = Records(tmp_path)
    won: list[int] = []
    start = threading.Barrier(16)

    def create(number: int) -> None:
        start.wait()
        if records.create("one", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and (tmp_path / "one").read_bytes() == b"%d" % won[0]
    assert names(tmp_path) == ["one"]


def test_a_repeated_request_that_had_succeeded_is_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    assert Records(tmp_path).create("one", b"1")


def test_workers_that_count_otherwise_are_refused(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.agree_on_count("hash", 5)
    records.agree_on_count("hash", 5)
    with pytest.raises(UsageError, match="stage hash has 5 tasks for other workers, 6 for this"):
        records.agree_on_count("hash", 6)
    records.agree_on_count("encode", 5)
    assert records.list_stages() == [("hash", 5), ("encode", 5)]


def test_the_number_of_tasks_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Records(tmp_path).agree_on_count("hash", 5)
    monkeypatch.setattr(DiskFolder, "create", lambda *_: 1 / 0)
    Records(tmp_path).agree_on_count("hash", 5)
    with pytest.raises(ZeroDivisionError):
        Records(tmp_path).agree_on_count("encode", 5)


def test_what_a_task_needs_meanwhile_goes_with_it(tmp_path: Path) -> None:
    records = Records(tmp_path)
    with pytest.raises(KeyError), records.scratch_folder() as folder:
        (folder / "a").write_text("x")
        with records.scratch_folder() as other:
            assert other != folder
        raise KeyError
    assert not folder.exists()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    made = MemoryStore()
    for module in (storefolders, paths):
        monkeypatch.setattr(module, "open_store", lambda url: made)
    monkeypatch.setattr(paths, "_infos", type(paths._infos)())
    return made


def test_results_are_looked_at_once(store: MemoryStore) -> None:
    """Only the last few: neither a record nor its file ever changes."""
    records = Records(StorePath("s3://bucket/work"))
    tasks = [Task("count", number) for number in range(260)]
    for task in tasks:
        records.commit(task, writer(header=task.index))
    records = Records(StorePath("s3://bucket/work"))
    assert [records.open(task).header["number"] for task in tasks] == list(range(260))
    kept = len(records._outputs)
    assert kept == 256
    store.calls.clear()
    assert records.open(tasks[-1]).header == {"number": 259}
    assert store.calls == []
    records.open(tasks[260 - kept])  # the oldest that is kept: now the newest
    records.open(tasks[0])
    store.calls.clear()
    records.open(tasks[260 - kept])
    assert store.calls == []
    records.open(tasks[261 - kept])  # this one was dropped for it
    assert {"read_whole", "head"} <= {call[0] for call in store.calls}
    assert len(records._outputs) == kept


def test_what_was_committed_here_is_known_as_others_read_it(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.commit(TASK, lambda output: output.section("data", b"12") or {"rows": {3: (1, 2)}})
    here = records.open(TASK)
    assert here == Records(tmp_path).open(TASK)
    assert here.header == {"rows": {"3": [1, 2]}}
    assert bytes(here.read("data")) == b"12"
    records.record_path(TASK).unlink()
    assert records.open(TASK) is here


def test_places_of_sections_are_remembered_for_the_first_tasks(tmp_path: Path) -> None:
    records = Records(tmp_path, places_kept=2)
    tasks = [Task("count", number) for number in range(3)]
    for task in tasks:
        records.commit(task, writer(header=task.index))
    found = [records.open_sections(task, ["data"]) for task in tasks]
    assert [output.header for output in found] == [{}] * 3
    assert [list(output.sections) for output in found] == [["data"]] * 3
    assert bytes(found[2].read("data")) == b"12345"
    again = [records.open_sections(task, ["data"]) for task in tasks]
    assert [one is other for one, other in zip(found, again, strict=True)] == [True, True, False]
    with pytest.raises(KeyError):
        records.open_sections(tasks[0], ["none"])


def test_only_records_count_as_done(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for number in (0, 12):
        records.commit_record(Task("count", number), facts={})
    for name in ("count-0000001.out", "count-x.done", "notes.done", "count"):
        (tmp_path / "count" / name).write_text("x")
    assert records.list_done("count") == {0, 12}
    assert records.list_done("none") == set()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON: "),
        ("[1]", "expected the record of task count-0000003"),
        ('{"task": "count-0000002"}', "expected the record of task count-0000003"),
        (
            '{"task": "count-0000003", "checksum": "x"}',
            "the record of task count-0000003 is damaged",
        ),
    ],
)
def test_damaged_records_are_refused(tmp_path: Path, text: str, message: str) -> None:
    records = Records(tmp_path)
    path = records.record_path(TASK)
    assert path == tmp_path / "count" / "count-0000003.done"
    with pytest.raises(DataError, match="file not found"):
        records.read(TASK)
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        records.read(TASK)
    assert caught.value.message.startswith(message) and caught.value.path == path
    assert caught.value.next_step == (
        "remove the work folder, and give the command again: it starts over"
    )
    path.write_text('{"task": "count-0000003"}')
    assert records.read(TASK) == {"task": "count-0000003"}  # as earlier versions wrote it


def test_counts_of_stages_are_numbers_in_the_order_of_their_begin(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for number, stage in enumerate(("second", "first", "third")):
        records.agree_on_count(stage, number, place=number)
    (count,) = {path.name for path in (tmp_path / "first").iterdir()}
    for stage, when in (("first", 1.0), ("second", 2.0), ("third", 3.0)):
        os.utime(tmp_path / stage / count, (when, when))
        assert records.find_begin(stage) == when
    (tmp_path / "other").mkdir()
    assert records.list_stages() == [("first", 1), ("second", 0), ("third", 2)]
    for path in tmp_path.glob(f"*/{count}"):  # a store's times are whole seconds
        os.utime(path, (3.0, 3.0))
    assert records.list_stages() == [("second", 0), ("first", 1), ("third", 2)]
    (tmp_path / "third" / count).write_text("5")  # as earlier versions wrote it
    assert records.list_stages() == [("second", 0), ("first", 1), ("third", 5)]
    for text in ("[true, 0]", "[1]", '{"a": 1}'):
        (tmp_path / "third" / count).write_text(text)
        with pytest.raises(DataError, match="expected how many tasks there are"):
            records.list_stages()
    (tmp_path / "third" / count).write_text("true")
    with pytest.raises(DataError, match="expected how many tasks there are") as caught:
        records.list_stages()
    assert caught.value.path == tmp_path / "third" / count
    (tmp_path / "third" / count).unlink()
    with pytest.raises(DataError, match="file not found"):
        records._read_count("third")


def test_leftovers_and_strangers_are_told_from_our_own(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert records.find_leftover() is None
    records.agree_on_count("count", 5)
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases" / "a-0000001.done").write_text("{}")
    assert records.find_leftover() is None  # the number of tasks, and no result
    records.commit_record(TASK, facts={})
    assert records.find_leftover() == "count"
    records.refuse_strangers(["count"])
    with pytest.raises(UsageError) as caught:
        records.refuse_strangers(["hash"])
    assert caught.value.message == "count is here, which no worker made"
    assert caught.value.next_step == "give a folder of its own as --work-dir"


def test_a_file_without_a_name_is_another_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(tmp_path)
    monkeypatch.setattr(records.place, "publish", lambda *given: None)
    with pytest.raises(DataError, match="was done twice, with two results") as caught:
        records.commit(TASK, writer())
    assert caught.value.path == records.record_path(TASK)
    assert not records.is_done(TASK)
