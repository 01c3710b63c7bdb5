from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lowtide.engine.outputs import OutputWriter
from lowtide.engine.records import Records, describe_worker
from lowtide.engine.tasks import Task
from lowtide.errors import DataError, UsageError

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
        records.open(TASK)


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


def test_what_a_task_needs_meanwhile_goes_with_it(tmp_path: Path) -> None:
    records = Records(tmp_path)
    with pytest.raises(KeyError), records.scratch_folder() as folder:
        (folder / "a").write_text("x")
        with records.scratch_folder() as other:
            assert other != folder
        raise KeyError
    assert not folder.exists()
