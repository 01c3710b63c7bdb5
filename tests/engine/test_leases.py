from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lowtide.engine import leases as module
from lowtide.engine import storefolders
from lowtide.engine.leases import (
    MOST_FAILURES,
    MOST_LOSSES,
    Leases,
    count_losses,
    list_failures,
    list_leases,
    note_failure,
    note_loss,
    require_no_hopeless_task,
)
from lowtide.engine.records import Records, describe_worker
from lowtide.engine.tasks import Task
from lowtide.errors import DataError
from lowtide.stores.paths import StorePath

from ..stores.memorystore import MemoryStore

TASK = Task("hash", 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_one_worker_has_a_task(tmp_path: Path) -> None:
    with Leases(Records(tmp_path)) as mine, Leases(Records(tmp_path)) as other:
        assert mine.take(TASK) and not other.take(TASK)
        assert list_leases(tmp_path) == {"hash-0000001": describe_worker()}
        mine.release(TASK)
        with other.hold(TASK) as is_ours:
            assert is_ours
            with mine.hold(TASK) as is_mine:
                assert not is_mine
        assert list_leases(tmp_path) == {}


def test_a_lease_that_takes_long_to_renew_keeps_nobody_waiting(tmp_path: Path) -> None:
    class Hanging:
        begun, end = threading.Event(), threading.Event()

        def renew(self, content: bytes) -> None:
            self.begun.set()
            self.end.wait()

        def release(self) -> None:
            pass

    with Leases(Records(tmp_path), 0.03) as mine:
        mine._held[TASK] = Hanging()
        assert Hanging.begun.wait(60)
        other = threading.Thread(target=lambda: mine.take(Task("other", 0)), daemon=True)
        other.start()
        other.join(10)
        is_kept = other.is_alive()
        Hanging.end.set()
        other.join()
        assert not is_kept


def test_a_released_lease_is_not_renewed(tmp_path: Path) -> None:
    """The number of its descriptor may then belong to another file."""
    with Leases(Records(tmp_path)) as mine:
        assert mine.take(TASK)
        lease = mine._held[TASK]
        mine.release(TASK)
        with (tmp_path / "other").open("w+b") as file:  # it gets the free number
            lease.renew(b"not this one's")
            lease.release()
            assert file.read() == b""


def test_leaving_gives_everything_back(tmp_path: Path) -> None:
    with Leases(Records(tmp_path)) as mine:
        assert mine.take(TASK) and mine.take(Task("hash", 2))
    assert list_leases(tmp_path) == {}
    assert not mine._thread.is_alive()


def test_a_lease_that_does_not_change_is_taken_over(tmp_path: Path, clock: list[float]) -> None:
    with Leases(Records(tmp_path), 30.0) as dead, Leases(Records(tmp_path), 30.0) as other:
        assert dead.take(TASK)
        for later, taken in ((0, False), (29.9, False), (0.2, True)):
            clock[0] += later
            assert other.take(TASK) is taken
        dead.release(TASK)  # it resumed: the lease is no longer its own
        assert list(list_leases(tmp_path)) == ["hash-0000001"]
        assert count_losses(tmp_path) == {"hash-0000001": 1}


def test_a_lease_that_is_renewed_is_left_alone(tmp_path: Path, clock: list[float]) -> None:
    with Leases(Records(tmp_path), 30.0) as slow, Leases(Records(tmp_path), 30.0) as other:
        assert slow.take(TASK)
        for _ in range(5):
            assert not other.take(TASK)
            clock[0] += 29
            slow._beats += 1
            slow._held[TASK].renew(slow._content())
        assert not other.take(TASK)


@pytest.mark.parametrize("ahead", [3600.0, -3600.0], ids=["ahead", "behind"])
@pytest.mark.parametrize("is_store", [False, True], ids=["disk", "store"])
def test_clocks_that_disagree_by_an_hour_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float, is_store: bool
) -> None:
    """Each worker has its own clock, and file times come from the writer's clock."""
    store = MemoryStore()
    monkeypatch.setattr(storefolders, "open_store", lambda url: store)
    folder = StorePath("s3://bucket/work") if is_store else tmp_path
    with Leases(Records(folder), 30.0) as first, Leases(Records(folder), 30.0) as second:
        clocks = {id(first): 1e6, id(second): 1e6 + ahead}
        now = [0.0]
        for name in ("time", "monotonic"):
            monkeypatch.setattr(module.time, name, lambda: now[0])

        def turn(worker: Leases, *, takes: bool = True) -> bool:
            """Let a worker renew what it has, or try to take the task."""
            now[0] = clocks[id(worker)]
            worker._beats += 1
            if TASK in worker._held:
                worker._held[TASK].renew(worker._content())
            found = worker.take(TASK) if takes else False
            for path in tmp_path.glob("leases/*"):
                os.utime(path, (now[0], now[0]))
            return found

        def wait(seconds: float) -> None:
            for worker in clocks:
                clocks[worker] += seconds

        assert turn(first)
        for _ in range(4):  # alive, however late the other's clock is
            assert not turn(second)
            wait(29)
            turn(first, takes=False)
        assert not turn(second)
        wait(29)
        assert not turn(second)
        wait(2)
        assert turn(second)  # no change for 30 s by the clock of the new owner
        for _ in range(4):
            assert not turn(first)  # resumed, it has to wait as long
            wait(29)
            turn(second, takes=False)
        first.release(TASK)
        assert len(list_leases(folder)) == 1
        assert count_losses(folder) == {"hash-0000001": 1}


def test_a_thread_renews(tmp_path: Path) -> None:
    path = tmp_path / "leases" / "hash-0000001.lease"
    with Leases(Records(tmp_path), 0.03) as mine:
        assert mine.take(TASK)
        first = path.read_bytes()
        for _ in range(500):
            if path.read_bytes() != first:
                break
            time.sleep(0.01)
        assert path.read_bytes() != first


def test_a_dead_process_of_this_machine_needs_no_waiting(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "from lowtide.engine.leases import Leases; from lowtide.engine.records import Records\n"
        "from lowtide.engine.tasks import Task\n"
        "with Leases(Records(Path(sys.argv[1]))) as leases:\n"
        "    leases.take(Task('hash', 1)); os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert list(list_leases(tmp_path)) == ["hash-0000001"]
    path = tmp_path / "leases" / "hash-0000001.lease"
    row = json.loads(path.read_bytes())
    with Leases(Records(tmp_path)) as other:
        path.write_text(json.dumps({**row, "machine": "another"}))
        assert not other.take(TASK)  # its process id means nothing on another machine
        path.write_text(json.dumps(row))
        assert other.take(TASK)


def test_what_failed_too_often_stops_everybody(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for number in range(1, MOST_FAILURES):
        assert note_failure(records, TASK, DataError("no text")) == number
    require_no_hopeless_task(tmp_path)
    assert note_failure(records, TASK, DataError("still none")) == MOST_FAILURES
    assert note_failure(records, TASK, DataError("again")) == MOST_FAILURES
    with pytest.raises(DataError, match=r"hash-0000001 failed 3 times, .*still none"):
        require_no_hopeless_task(tmp_path)


def lease(number: int) -> bytes:
    return json.dumps({"worker": "a:1", "nonce": f"{number:04d}"}).encode()


def test_losing_workers_is_forgiven_for_longer(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for number in range(MOST_LOSSES - 1):
        assert note_loss(records, TASK, lease(number))
        assert not note_loss(records, TASK, lease(number))  # one death is noticed by many
    require_no_hopeless_task(tmp_path)
    assert note_loss(records, TASK, b"half a le")
    assert count_losses(tmp_path) == {"hash-0000001": 20}
    with pytest.raises(DataError, match="hash-0000001 has lost 20 workers"):
        require_no_hopeless_task(tmp_path)


def test_of_many_watchers_one_takes_over(tmp_path: Path, clock: list[float]) -> None:
    with Leases(Records(tmp_path), 30.0) as dead:
        assert dead.take(TASK)
        watchers = [Leases(Records(tmp_path), 30.0) for _ in range(3)]
        name = "leases/hash-0000001.lease"

        def look() -> list[bool]:
            return [watcher._may_take_over(TASK, name) is not None for watcher in watchers]

        assert look() == [False] * 3
        clock[0] += 31
        assert look() == [True, False, False]
        clock[0] += 30  # the worker that was to take it over died first
        assert watchers[1]._may_take_over(TASK, name)
        assert count_losses(tmp_path) == {"hash-0000001": 1}


def test_a_program_that_ends_does_not_wait_for_its_leases(tmp_path: Path) -> None:
    with Leases(Records(tmp_path)) as leases:
        assert leases._thread.daemon
    assert not leases._thread.is_alive()


@pytest.mark.parametrize(
    "content", [b"cut off", b"{}", b'{"machine": "x"}', b'{"machine": 1, "pid": []}', b"[]"]
)
def test_what_is_no_lease_is_of_no_dead_process(content: bytes) -> None:
    assert module._is_of_dead_process(content) is False


@pytest.mark.parametrize(
    "text",
    ["", "[" * 100_000, "[]", "3", '{"by": 1}', '{"nonce": "../../x"}', '{"nonce": []}', "\xff"],
)
def test_damaged_leases_and_failures_are_no_errors(tmp_path: Path, text: str) -> None:
    """They save work, and no result depends on them."""
    records, data = Records(tmp_path), text.encode("latin-1")
    for name in ("leases/hash-0000007.lease", "failures/hash-0000007-1", "failures/hash"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert list_leases(tmp_path) == {} and list_failures(tmp_path) == {}
    assert module._is_of_dead_process(data) is False
    assert note_loss(records, TASK, data) is True
    assert note_loss(records, TASK, data) is False
    assert count_losses(tmp_path) == {TASK.name: 1}
    assert len(list((tmp_path / "losses").iterdir())) == 1


def test_a_process_is_dead_on_its_own_machine_alone() -> None:
    machine = module._find_machine()
    for where, pid, dead in (
        (machine, 2**22 + 1, True),
        ("other", 2**22 + 1, False),
        (machine, 1, False),
    ):
        content = json.dumps({"machine": where, "pid": pid}).encode()
        assert module._is_of_dead_process(content) is dead


def test_what_a_lease_says_of_its_worker(tmp_path: Path) -> None:
    leases = Leases(Records(tmp_path))
    first, second = json.loads(leases._content()), json.loads(Leases(Records(tmp_path))._content())
    assert first.pop("nonce") != second.pop("nonce")
    assert first == second == {
        "worker": describe_worker(), "machine": module._find_machine(), "pid": os.getpid(),
        "beat": "00000000",
    }  # fmt: skip
    leases._beats = 12
    assert json.loads(leases._content())["beat"] == "00000012"


def test_a_lease_is_renewed_three_times_before_it_looks_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = Leases(Records(tmp_path), seconds=30.0)
    waited: list[float] = []
    beats: list[str] = []

    class Held:
        def renew(self, content: bytes) -> None:
            beats.append(json.loads(content)["beat"])

    leases._held[TASK] = Held()  # pyright: ignore
    monkeypatch.setattr(leases._stop, "wait", lambda s: waited.append(s) or len(waited) == 3)
    leases._renew()
    assert waited == [10.0] * 3
    assert len(beats) == 2 and beats[0] != beats[1]


def test_failures_and_losses_are_counted_by_task(tmp_path: Path) -> None:
    records = Records(tmp_path)
    other = Task("hash", 2)
    assert [note_failure(records, TASK, DataError(f"error {n}")) for n in range(4)] == [1, 2, 3, 3]
    assert note_failure(records, other, DataError("once")) == 1
    worker = describe_worker()
    assert list_failures(tmp_path) == {
        "hash-0000001": (3, f"{worker}: error 2", None),
        "hash-0000002": (1, f"{worker}: once", None),
    }
    (tmp_path / "failures" / "hash-0000003-1").write_text("cut of")
    assert "hash-0000003" not in list_failures(tmp_path)
    assert note_loss(records, TASK, b'{"nonce": "a"}') is True
    assert note_loss(records, TASK, b'{"nonce": "a"}') is False  # the same death
    assert note_loss(records, TASK, b'{"nonce": "b"}') is True
    assert note_loss(records, TASK, b"cut off") is True
    assert note_loss(records, TASK, b"cut off") is False
    assert count_losses(tmp_path) == {"hash-0000001": 3}


def test_leases_are_those_of_a_stage(tmp_path: Path) -> None:
    with Leases(Records(tmp_path)) as leases, leases.hold(TASK):
        assert leases.has_any("hash") is True
        assert leases.has_any("has") is False
        assert leases.has_any("encode") is False
        (tmp_path / "leases" / "other").write_text("{}")
        (tmp_path / "leases" / "cut-1.lease").write_text("{")
        assert list(list_leases(tmp_path)) == ["hash-0000001"]


def test_a_lease_looks_dead_from_a_moment_on(tmp_path: Path, clock: list[float]) -> None:
    with Leases(Records(tmp_path)) as mine:
        assert mine.take(TASK)
        # A worker of another machine: whether its process is alive is unknown.
        path = tmp_path / "leases" / "hash-0000001.lease"
        row = {**json.loads(path.read_bytes()), "machine": "other", "nonce": "n"}
        path.write_text(json.dumps(row))
        first, second = (Leases(Records(tmp_path), seconds=30.0) for _ in range(2))
        assert [one.take(TASK) for one in (first, second)] == [False, False]
        clock[0] += 29.999
        assert not first.take(TASK)
        clock[0] += 0.001
        name = "leases/hash-0000001.lease"
        assert first._may_take_over(TASK, name) is not None  # and notes the loss
        assert second._may_take_over(TASK, name) is None  # another was first
        clock[0] += 29.999
        assert second._may_take_over(TASK, name) is None
        clock[0] += 0.001
        assert second._may_take_over(TASK, name) is not None  # the first has died as well
