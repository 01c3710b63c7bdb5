from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.engine import shared, workstate
from lowtide.engine.heldoutputs import hold_output
from lowtide.engine.leases import (
    MOST_FAILURES,
    Leases,
    list_failures,
    list_leases,
    note_failure,
    note_loss,
)
from lowtide.engine.plans import commit_plan
from lowtide.engine.records import Records, describe_worker
from lowtide.engine.shared import run_shared
from lowtide.engine.tasks import Task, Uncommitted
from lowtide.engine.workstate import describe_work, is_work_folder
from lowtide.errors import DataError, UsageError
from lowtide.files import hold_lock
from lowtide.stores.paths import StorePath


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
    """A thread without a task polls for others' results with growing pauses, not for our own."""
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


@dataclass
class Waiting(Numbers):
    """A stage whose tasks are committed by the engine; `waiting` is called before that."""

    waiting: Callable[[int], None] = lambda index: None

    def run(self, index: int) -> Uncommitted:
        self.ran.append(index)
        commit = lambda: self.records.commit_record(Task(self.name, index), facts={})  # noqa: E731
        return Uncommitted((lambda: self.waiting(index), commit))


def test_the_next_task_begins_while_a_result_waits_for_the_disk(tmp_path: Path) -> None:
    records = Records(tmp_path)
    third = threading.Event()
    held: list[dict[str, str]] = []

    def wait(index: int) -> None:
        if index == 0:
            assert third.wait(60)
            held.append(list_leases(tmp_path))

    stage = Waiting("one", 3, records, waiting=wait)
    ran = stage.ran

    class Noted(list[int]):
        def append(self, value: int) -> None:
            ran.append(value)
            if len(ran) == 3:
                third.set()

    stage.ran = Noted()
    seen: list[int] = []
    run_shared([stage], records, num_workers=1, on_stage=lambda name, count: seen.append)
    assert ran == [0, 1, 2]  # the first was not committed before the third had begun
    assert "one-0000000" in held[0]  # no other worker starts it meanwhile
    assert seen[-1] == 3 and records.list_done("one") == {0, 1, 2}
    assert list_leases(tmp_path) == {}


def test_no_more_results_wait_than_may_be_committed_at_a_time(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.place.least_committers = 2
    lock, now, most = threading.Lock(), [0], [0]

    def wait(index: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        if most[0] < 2:
            threading.Event().wait(0.01)
        with lock:
            now[0] -= 1

    stage = Waiting("one", 30, records, waiting=wait)
    run_shared([stage], records, num_workers=1, on_stage=ignore)
    assert 1 <= most[0] <= 2 and sorted(stage.ran) == list(range(30))


def test_a_result_that_cannot_be_committed_is_made_again(tmp_path: Path) -> None:
    failing = [OSError(errno.EIO, "bad disk")]

    def fail(index: int) -> None:
        if index == 1 and failing:
            raise failing.pop()

    stage = Waiting("one", 3, Records(tmp_path), waiting=fail)
    run_shared([stage], stage.records, num_workers=1, on_stage=ignore)
    assert stage.ran.count(1) == 2 and sorted(set(stage.ran)) == [0, 1, 2]
    assert list_failures(tmp_path)["one-0000001"][0] == 1
    assert stage.records.list_done("one") == {0, 1, 2}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_machine_that_cannot_commit_leaves(tmp_path: Path, code: int) -> None:
    def fail(index: int) -> None:
        raise OSError(code, os.strerror(code))

    stage = Waiting("one", 3, Records(tmp_path), waiting=fail)
    with pytest.raises(OSError, match=os.strerror(code)):
        run_shared([stage], stage.records, num_workers=1, on_stage=ignore)
    assert not list_failures(tmp_path) and list_leases(tmp_path) == {}


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


def test_a_failure_names_the_file_and_what_to_do(tmp_path: Path) -> None:
    def fail(index: int) -> None:
        raise DataError("not JSON", path="a.jsonl", next_step="skip such rows")

    stage = Numbers("one", 1, Records(tmp_path), fail)
    with pytest.raises(DataError, match="not JSON"):
        run_shared([stage], stage.records, num_workers=1, on_stage=ignore)
    other = Numbers("one", 1, Records(tmp_path))
    with (
        Leases(other.records) as leases,
        leases.hold(Task("one", 0)),
        pytest.raises(DataError) as caught,
    ):
        run_shared([other], other.records, num_workers=1, on_stage=ignore)
    said = f"{describe_worker()}: a.jsonl: not JSON"
    assert caught.value.message == f"task one-0000000 failed 3 times, the last time on {said}"
    assert caught.value.path == tmp_path
    assert caught.value.next_step == (
        f"skip such rows; with other inputs or settings remove {tmp_path}, which starts over, "
        f"otherwise {tmp_path / 'failures'}, and start again"
    )
    assert f"one-0000000, 3 times; the last: {said}" in describe_work(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EFBIG])
def test_a_machine_that_cannot_write_leaves_and_blames_no_task(tmp_path: Path, number: int) -> None:
    def fail(index: int) -> None:
        raise OSError(number, "no")

    stage = Numbers("one", 3, Records(tmp_path), fail)
    with pytest.raises(OSError, match="no") as caught:
        run_shared([stage], stage.records, num_workers=1, on_stage=ignore)
    is_full = number in (errno.ENOSPC, errno.EFBIG)
    assert caught.value.filename == (str(tmp_path) if is_full else None)
    assert len(stage.ran) == 1
    assert list_failures(tmp_path) == {} and list_leases(tmp_path) == {}


def test_a_full_disk_that_has_a_name_keeps_it(tmp_path: Path) -> None:
    def fail(index: int) -> None:
        raise OSError(errno.ENOSPC, "no", "out/shard.bin")

    stage = Numbers("one", 1, Records(tmp_path), fail)
    with pytest.raises(OSError, match="no") as caught:
        run_shared([stage], stage.records, num_workers=1, on_stage=ignore)
    assert caught.value.filename == "out/shard.bin"


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


def test_a_job_that_ends_while_it_is_looked_at_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(tmp_path)
    records.agree_on_count("one", 3)
    records.agree_on_count("two", 1)
    monkeypatch.setattr(Records, "list_done", lambda self, stage: self.remove(["one"]) or {0})
    with Leases(records) as leases, leases.hold(Task("one", 0)):
        lines = describe_work(tmp_path).splitlines()
    assert lines[1:] == [
        "  one         1 of 3 tasks, 1 in work", "  two         1 of 1 tasks",
        f"  in work     one-0000000 on {describe_worker()}",
    ]  # fmt: skip
    assert records.list_stages() == [("two", 1)]


def test_failed_tasks_and_lost_workers_are_shown(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.agree_on_count("one", 3)
    for message in ("first", "second"):
        note_failure(records, Task("one", 2), DataError(message))
    assert note_loss(records, Task("one", 1), b'{"nonce": "a"}')
    lines = describe_work(tmp_path).splitlines()
    assert lines == [
        f"{tmp_path}: work of lowtide that is not finished",
        "  one         0 of 3 tasks",
        f"  failed      one-0000002, 2 times; the last: {describe_worker()}: second",
        "  lost        the worker on one-0000001, 1 times",
    ]


@pytest.mark.parametrize(
    ("done", "now", "words"),
    [
        (4, 2.0, ", 2 a second, about 3.0s left"),
        (1, 8.0, ", 0.12 a second, about 1:12 left"),
        (10, 4.0, ", 2.5 a second, about 0.0s left"),
        (0, 8.0, ""),  # nothing yet
        (3, 0.0, ""),
        (3, -1.0, ""),  # the disk's clock is ahead of ours
    ],
)
def test_a_rate_is_told_once_there_is_one(
    monkeypatch: pytest.MonkeyPatch, done: int, now: float, words: str
) -> None:
    monkeypatch.setattr(workstate.time, "time", lambda: 1000.0 + now)
    records: Any = SimpleNamespace(find_begin=lambda stage: 1000.0)
    assert workstate._describe_rate(records, "one", done, 10) == words


def test_only_a_folder_with_a_plan_and_stages_is_one_of_work(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    assert is_work_folder(tmp_path) is False
    Records(tmp_path).agree_on_count("one", 1)
    assert is_work_folder(tmp_path) is True
    (tmp_path / "plan.json").unlink()
    assert is_work_folder(tmp_path) is False
    (tmp_path / "plan.json").write_text("not JSON")
    assert is_work_folder(tmp_path) is True
    Records(tmp_path).remove(["one"])
    assert is_work_folder(StorePath("s3://bucket")) is False  # never for a whole bucket


def test_work_is_shown_before_its_first_stage_and_after_its_last(tmp_path: Path) -> None:
    records = Records(tmp_path)
    commit_plan({"verb": "prepare"}, records)
    assert is_work_folder(tmp_path) is True
    first, *rest = describe_work(tmp_path).splitlines()
    assert first == f"{tmp_path}: work of lowtide that is not finished"
    assert rest == ["  no stage    none has begun, or all are done and being removed"]
    records.agree_on_count("one", 1)
    assert "none has begun" not in describe_work(tmp_path)


class Place:
    longest_pause = 3.0
    least_committers = 1


def stage_run(count: int, **changes: Any) -> Any:
    """A stage of `count` tasks whose records, leases and clock are stand-ins."""
    events: list[Any] = []
    records = SimpleNamespace(
        place=Place(),
        folder=Path("work"),
        list_done=lambda stage: events.append("look") or set(),
        is_done=lambda task: False,
    )
    leases = SimpleNamespace(has_any=lambda stage: False)
    run = shared._StageRun(
        SimpleNamespace(name="one", run=lambda index: events.append(index)),  # pyright: ignore
        count,
        records,  # pyright: ignore
        leases,  # pyright: ignore
        events.append,
        0.5,
    )
    for name, value in changes.items():
        setattr(run, name, value)
    run.events = events  # pyright: ignore
    return run


def test_pauses_double_up_to_the_longest_and_others_work_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = stage_run(4)
    waited: list[float] = []
    checked: list[Path] = []
    monkeypatch.setattr(shared, "require_no_hopeless_task", checked.append)
    chosen = iter([None, None, None, None, 2, None])
    places: list[int] = []

    def choose(at: int) -> int | None:
        places.append(at)
        return next(chosen)

    def wait(pause: float) -> None:
        waited.append(pause)
        if len(waited) == 5:
            run.done = {0, 1, 2, 3}

    run.choose, run.is_alone = choose, True
    monkeypatch.setattr(run.news, "wait", wait)
    run.work_until_done()
    assert waited == [0.5, 1.0, 2.0, 3.0, 0.5]  # the shortest again after a task of our own
    assert places == [0, 0, 0, 0, 0, 3]
    assert checked == [Path("work")] * 5
    assert run.events.count("look") == 5
    run = stage_run(4)
    run.choose, run.is_alone = (lambda at: None), True
    run.news.set()  # the last of our own is done: no need to check for others' results
    checks = iter([None, None])
    monkeypatch.setattr(
        shared, "require_no_hopeless_task",
        lambda folder: next(checks, None) or run.done.update(range(4)),
    )  # fmt: skip
    run.work_until_done()
    assert "look" not in run.events


def test_who_is_not_alone_begins_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(shared.random, "randrange", lambda count: asked.append(count) or 3)
    for others, first in ((True, 3), (False, 0)):
        run = stage_run(5)
        run.leases.has_any = lambda stage, others=others: others
        places: list[int] = []

        def choose(at: int, run: Any = run, places: list[int] = places) -> int:
            places.append(at)
            run.done = set(range(5))
            return at

        run.choose = choose
        run.run(1, lambda: None)
        assert places == [first]
    assert asked == [5]


def test_a_task_is_looked_for_in_a_circle_and_left_if_somebody_has_it() -> None:
    run = stage_run(5, done={4}, busy={0})
    tried: list[int] = []
    run.do = lambda index: tried.append(index) or index == 2
    assert run.choose(3) == 2
    assert tried == [3, 1, 2]
    assert run.busy == {0, 1, 2, 3}  # freed by the threads that do them
    run.busy.clear()
    run.do = lambda index: run.busy.clear()
    assert run.choose(0) is None
    tried.clear()
    run.do = lambda index: tried.append(index) or setattr(run, "error", ValueError())
    assert run.choose(3) is None  # an error of another thread ends the search
    assert tried == [3]


@pytest.mark.parametrize(
    ("answers", "ours", "ran", "result", "noted"),
    [
        ([True], True, False, True, True),  # done by another before
        ([False], False, False, False, False),  # another has it
        ([False, True], True, False, True, True),  # done just before its release
        ([False, False, "worked"], True, True, True, True),
        ([False, False, "failed", True], True, True, True, True),  # and another has done it
        ([False, False, "failed", False], True, True, True, False),  # it is tried again
    ],
)
def test_what_becomes_of_one_task(
    answers: list[Any], ours: bool, ran: bool, result: bool, noted: bool
) -> None:
    run = stage_run(5, busy={3})
    found = iter(answers)
    run.records.is_done = lambda task: next(found)
    run.leases.hold = lambda task: contextlib.nullcontext(ours)
    attempted: list[Task] = []
    run.attempt = lambda task, work: attempted.append(task) or next(found) == "worked"
    assert run.do(3) is result
    assert attempted == ([Task("one", 3)] if ran else [])
    assert run.done == ({3} if noted else set())
    assert list(found) == [] and run.busy == set()


def test_an_output_that_others_hold_is_waited_for_and_blames_no_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A suspended worker keeps the lock of its output after its lease is taken over."""
    out = tmp_path / "out"
    held = contextlib.ExitStack()
    held.enter_context(hold_lock(out, create_folder=True))

    def write(index: int) -> None:
        if len(stage.ran) > 2 * MOST_FAILURES:
            held.close()
        with hold_output(out, create_folder=True):
            pass

    stage = Numbers("one", 1, Records(tmp_path / "work"), write)
    run_shared([stage], stage.records, num_workers=1, on_stage=ignore, shortest_pause=1e-6)
    assert len(stage.ran) == 2 * MOST_FAILURES + 1
    assert list_failures(tmp_path / "work") == {} and list_leases(tmp_path / "work") == {}
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"{out}: this worker waits: another lowtide command is at work here")


def test_after_a_signal_no_other_task_begins(tmp_path: Path) -> None:
    heard = threading.Event()

    def interrupt(number: int, frame: object) -> None:
        heard.set()
        raise KeyboardInterrupt

    def stop_at_the_third(index: int) -> None:
        if index == 2:
            os.kill(os.getpid(), signal.SIGUSR2)
            assert heard.wait(30)

    stage = Numbers("one", 200, Records(tmp_path), stop_at_the_third)
    before = signal.signal(signal.SIGUSR2, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_shared([stage], stage.records, num_workers=1, on_stage=ignore)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert 3 <= len(stage.ran) < 100
    assert list_leases(tmp_path) == {} and list_failures(tmp_path) == {}


def test_the_last_task_wakes_who_waits() -> None:
    run = stage_run(2)
    run.note_done({0})
    assert not run.news.is_set()
    run.note_done({0, 1})
    assert run.news.is_set()
    assert run.events == [1, 2]


def test_an_error_ends_all_threads_and_the_first_is_told() -> None:
    run = stage_run(2)
    errors = iter([ValueError("first"), ValueError("second")])

    def fail() -> None:
        raise next(errors)

    run.work_until_done = fail
    run.work()
    assert run.news.is_set()
    run.work()
    with pytest.raises(ValueError, match="first"):
        run.run(1, lambda: None)


def test_the_first_task_does_not_wait_for_the_number_of_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recording it takes a flush to the disk, of each stage."""
    records, begun = Records(tmp_path), threading.Event()
    agree = Records.agree_on_count

    def agree_late(self: Records, *given: Any, **more: Any) -> None:
        assert begun.wait(60)
        agree(self, *given, **more)

    monkeypatch.setattr(Records, "agree_on_count", agree_late)
    stage = Numbers("one", 2, records, lambda index: begun.set())
    run_shared([stage], records, num_workers=1, on_stage=ignore)
    assert stage.ran == [0, 1] and records.list_stages() == [("one", 2)]


@pytest.mark.parametrize("done", [False, True])
def test_another_number_of_tasks_ends_the_work(tmp_path: Path, done: bool) -> None:
    records = Records(tmp_path)
    records.agree_on_count("one", 2)
    if done:
        for index in range(3):
            records.commit_record(Task("one", index), facts={"number": index})
    stages = [Numbers(name, 3, records) for name in ("one", "two")]
    with pytest.raises(UsageError, match="stage one has 2 tasks for other workers, 3 for this"):
        run_shared(stages, records, num_workers=1, on_stage=ignore)
    assert not stages[1].ran and list_leases(tmp_path) == {}


def test_phases_are_shown_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    class Shown:
        @contextlib.contextmanager
        def phase(self, name: str, *, total: int, unit: str) -> Any:
            told.append(("begin", name, total, unit))
            yield SimpleNamespace(update=lambda done: told.append((name, done)))
            told.append(("end", name))

    def run(stages: Any, records: Any, *, on_stage: Any, **options: Any) -> None:
        told.append(sorted(options.items()))
        for name in ("one", "own", "two"):
            on_stage(name, 3)(1)

    monkeypatch.setattr(shared, "run_shared", run)
    finished = lambda: False  # noqa: E731
    shared.run_in_phases(
        [], Records(tmp_path), Shown(), num_workers=2, is_finished=finished, lease_seconds=7.0,  # pyright: ignore
        without_phase=("own",), before_stage=lambda: told.append("before"),
    )  # fmt: skip
    assert told == [
        [("is_finished", finished), ("lease_seconds", 7.0), ("num_workers", 2)],
        "before", ("begin", "one", 3, "tasks"), ("one", 1), ("end", "one"),
        "before",
        "before", ("begin", "two", 3, "tasks"), ("two", 1), ("end", "two"),
    ]  # fmt: skip
