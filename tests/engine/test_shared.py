from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lowtide.engine import shared
from lowtide.engine.leases import (
    Leases,
    list_failures,
    list_leases,
    note_failure,
    note_loss,
)
from lowtide.engine.records import Records, describe_worker
from lowtide.engine.shared import run_shared
from lowtide.engine.tasks import Task
from lowtide.engine.workstate import describe_work, is_work_folder
from lowtide.errors import DataError


@dataclass
class Numbers:
    """A stage whose tasks commit their number; `before` may fail."""

    name: str
    count: int
    records: Records
    before: Callable[[int], None] = lambda index: None
    ran: list[int] = field(default_factory=list)

    def count_tasks(self) -> int:
        return self.count

    def run(self, index: int) -> None:
        self.ran.append(index)
        self.before(index)
        self.records.commit_record(Task(self.name, index), facts={"number": index})


def ignore(name: str, count: int) -> Callable[[int], None]:
    return lambda done: None


def test_every_task_of_every_stage_is_done_once_and_in_order_of_stages(tmp_path: Path) -> None:
    records = Records(tmp_path)
    first = Numbers("one", 9, records)

    def check(index: int) -> None:
        assert len(first.ran) == 9

    second = Numbers("two", 4, records, check)
    seen: list[tuple[str, int, int]] = []

    def on_stage(name: str, count: int) -> Callable[[int], None]:
        return lambda done: seen.append((name, count, done))

    stages = [first, Numbers("none", 0, records), second]
    run_shared(stages, records, num_workers=3, on_stage=on_stage)
    assert sorted(first.ran) == list(range(9)) and sorted(second.ran) == list(range(4))
    assert ("one", 9, 9) in seen and seen[-1] == ("two", 4, 4) and seen[0] == ("one", 9, 0)
    assert list_leases(tmp_path) == {}
    run_shared(stages, records, num_workers=3, on_stage=ignore)
    assert len(first.ran) == 9  # nothing is done again


def test_who_waits_for_the_last_task_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread without a task waits for others' results longer and longer, not for our own."""
    waiting, wait = threading.Event(), threading.Event.wait

    def note(self: threading.Event, timeout: float | None = None) -> bool:
        if timeout == 600:
            waiting.set()
        return wait(self, timeout)

    monkeypatch.setattr(threading.Event, "wait", note)

    def before(index: int) -> None:
        if index == 0:
            waiting.wait()

    stage = Numbers("one", 2, Records(tmp_path), before)
    run_shared([stage], stage.records, num_workers=2, on_stage=ignore, shortest_pause=600.0)
    assert sorted(stage.ran) == [0, 1]


def test_two_processes_worth_of_workers_share(tmp_path: Path) -> None:
    stages = [Numbers("one", 40, Records(tmp_path)) for _ in range(2)]
    threads = [
        threading.Thread(
            target=run_shared,
            args=([stage], stage.records),
            kwargs={"num_workers": 2, "on_stage": ignore},
        )
        for stage in stages
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(stages[0].ran + stages[1].ran) == list(range(40))


def test_a_task_that_fails_is_tried_again(tmp_path: Path) -> None:
    failing = [ValueError("no"), OSError(errno.EIO, "bad disk")]

    def fail_twice(index: int) -> None:
        if index == 1 and failing:
            raise failing.pop()

    stage = Numbers("one", 3, Records(tmp_path), fail_twice)
    run_shared([stage], stage.records, num_workers=1, on_stage=ignore)
    assert stage.ran.count(1) == 3 and sorted(set(stage.ran)) == [0, 1, 2]
    assert list_failures(tmp_path)["one-0000001"][0] == 2


def test_the_third_failure_is_the_commands(tmp_path: Path) -> None:
    def fail(index: int) -> None:
        if index == 1:
            raise DataError("no text in it")

    stage = Numbers("one", 3, Records(tmp_path), fail)
    with pytest.raises(DataError, match="no text in it"):
        run_shared([stage], stage.records, num_workers=2, on_stage=ignore)
    assert stage.ran.count(1) == 3 and list_leases(tmp_path) == {}
    other = Numbers("one", 3, Records(tmp_path))
    with (
        Leases(other.records) as leases,
        leases.hold(Task("one", 1)),
        pytest.raises(DataError, match=r"one-0000001 failed 3 times, .*no text in it"),
    ):
        run_shared([other], other.records, num_workers=1, on_stage=ignore)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_machine_that_cannot_write_leaves_and_blames_no_task(tmp_path: Path, number: int) -> None:
    def fail(index: int) -> None:
        raise OSError(number, "no")

    stage = Numbers("one", 3, Records(tmp_path), fail)
    with pytest.raises(OSError, match="no"):
        run_shared([stage], stage.records, num_workers=1, on_stage=ignore)
    assert len(stage.ran) == 1
    assert list_failures(tmp_path) == {} and list_leases(tmp_path) == {}


def test_a_running_job_is_shown(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert not is_work_folder(tmp_path)
    run_shared([Numbers("one", 3, records)], records, num_workers=1, on_stage=ignore)
    records.agree_on_count("two", 8)
    records.commit_record(Task("two", 5), facts={})
    (tmp_path / "plan.json").write_text("{}")
    assert is_work_folder(tmp_path)
    with Leases(records) as leases, leases.hold(Task("two", 0)):
        text = describe_work(tmp_path)
    assert "  one         3 of 3 tasks\n" in text
    assert "  two         1 of 8 tasks, 1 in work, " in text and " left\n" in text
    assert "  in work     two-0000000 on " in text


@pytest.mark.parametrize(("num_workers", "num_tasks", "expected"), [(2, 5, 2), (7, 3, 3)])
def test_no_more_threads_than_workers_nor_than_tasks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_workers: int,
    num_tasks: int,
    expected: int,
) -> None:
    asked: list[int] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, count: int, **options: Any) -> None:
            asked.append(count)
            super().__init__(count, **options)

    monkeypatch.setattr(shared, "ThreadPoolExecutor", Pool)
    records = Records(tmp_path)
    stage = Numbers("one", num_tasks, records)
    run_shared([stage], records, num_workers=num_workers, on_stage=ignore)
    assert asked == [expected]


def test_failed_tasks_and_lost_workers_are_shown(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.agree_on_count("one", 3)
    for message in ("first", "second"):
        note_failure(records, Task("one", 2), message)
    assert note_loss(records, Task("one", 1), b'{"nonce": "a"}')
    lines = describe_work(tmp_path).splitlines()
    assert lines == [
        f"{tmp_path}: work of lowtide that is not finished",
        "  one         0 of 3 tasks",
        f"  failed      one-0000002, 2 times; the last: {describe_worker()}: second",
        "  lost        the worker on one-0000001, 1 times",
    ]
