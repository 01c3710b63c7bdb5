"""Workers on the nodes of a Ray cluster: a stand-in for the rules."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.engine import raynodes
from lowtide.engine.raynodes import run_on_ray
from lowtide.errors import BudgetError, DataError, UsageError


class LostError(Exception):
    pass


class FakeRay:
    """Nodes by name with (memory, CPUs); a worker's call runs when its result is awaited."""

    def __init__(self, nodes: dict[str, tuple[float, float]]) -> None:
        self.resources = nodes
        self.started: list[tuple[str, int, int]] = []
        self.waiting: dict[int, Callable[[], Any]] = {}
        self.results: dict[int, Any] = {}
        self.exceptions = SimpleNamespace(RayError=LostError)
        self.util = SimpleNamespace(
            scheduling_strategies=SimpleNamespace(
                NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft)
            )
        )

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "Alive": cpus >= 0, "Resources": {"memory": memory, "CPU": cpus}}
            for name, (memory, cpus) in self.resources.items()
        ]

    def remote(self, **given: int) -> Any:
        assert given == {"max_retries": 0, "max_calls": 1}

        def decorate(function: Any) -> Any:
            def options(*, num_cpus: int, memory: int, scheduling_strategy: Any) -> Any:
                node, soft = scheduling_strategy
                assert not soft

                def remote(work: Any) -> int:
                    self.started.append((node, num_cpus, memory))
                    number = len(self.started)
                    self.waiting[number] = lambda: function(lambda: work(node))
                    return number

                return SimpleNamespace(remote=remote)

            return SimpleNamespace(options=options)

        return decorate

    def wait(self, references: list[int], timeout: float) -> tuple[list[int], list[int]]:
        first = min(references)
        return [first], references[1:]

    def get(self, reference: int) -> Any:
        return self.waiting.pop(reference)()


def run(
    ray: FakeRay,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[str], int],
    *,
    num_cpus: int | None = None,
    memory_bytes: int = 100,
) -> tuple[int, list[str], int]:
    notices: list[str] = []
    polls: list[int] = []
    monkeypatch.setattr("lowtide.engine.raynodes.import_package", lambda *names: ray)
    peak = run_on_ray(
        work,  # type: ignore[arg-type]
        address=None,
        num_cpus=num_cpus,
        memory_bytes=memory_bytes,
        on_poll=lambda: polls.append(1),
        on_notice=notices.append,
    )
    return peak, notices, len(polls)


def test_every_node_that_can_hold_one_has_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {"a": (100, 4), "small": (99, 4), "b": (500, 1), "gone": (500, -1), "none": (500, 0)}
    ray = FakeRay(nodes)
    peaks = {"a": 50, "b": 70}
    peak, notices, polls = run(ray, monkeypatch, lambda node: peaks[node])
    assert ray.started == [("a", 4, 100), ("b", 1, 100)]
    assert (peak, notices, polls) == (70, [], 2)


def test_cores_may_be_fewer_than_a_node_has(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay({"a": (100, 4), "b": (100, 2)})
    run(ray, monkeypatch, lambda node: 1, num_cpus=3)
    assert ray.started == [("a", 3, 100)]


def test_a_lost_worker_is_replaced_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay({"bad": (100, 1)})
    lost: list[str] = []

    def work(node: str) -> int:
        if node == "bad" and len(lost) < 2:
            lost.append(node)
            raise LostError
        return 1

    _, notices, _ = run(ray, monkeypatch, work)
    assert [row[0] for row in ray.started] == ["bad"] * 3
    assert notices == ["the worker on node bad was lost (LostError): others go on"] * 2


def test_workers_lost_everywhere_end_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay({"a": (100, 1), "b": (100, 1)})

    def work(node: str) -> int:
        raise LostError("Traceback:\n  in work\nModuleNotFoundError: No module named 'lowtide'\n")

    with pytest.raises(UsageError) as caught:
        run(ray, monkeypatch, work)
    assert caught.value.message == (
        "workers were lost on every node, 3 times on each; the last: ModuleNotFoundError: No "
        "module named 'lowtide'"
    )
    assert len(ray.started) == 6


def test_an_error_of_ours_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(node: str) -> int:
        raise DataError("no text in it")

    with pytest.raises(DataError, match="no text in it"):
        run(FakeRay({"a": (100, 1)}), monkeypatch, work)


def test_a_node_that_ends_with_an_error_is_left_out_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = FakeRay({"full": (100, 1), "b": (100, 1)})

    def work(node: str) -> int:
        if node == "full":
            raise OSError(errno.ENOSPC, "no", "/scratch")
        return 5

    peak, notices, _ = run(ray, monkeypatch, work)
    assert peak == 5 and [row[0] for row in ray.started] == ["full", "b"]
    assert notices == [
        "the worker on node full ended, others go on: /scratch: the disk is full"
    ]  # fmt: skip


def test_errors_on_every_node_are_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay({"a": (100, 1), "b": (100, 1)})

    def work(node: str) -> int:
        raise DataError(f"no text for {node}")

    with pytest.raises(DataError, match="no text for b"):
        run(ray, monkeypatch, work)
    assert len(ray.started) == 2


def test_what_no_node_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay({"a": (3 << 30, 1), "b": (1 << 30, 8), "gone": (9 << 40, -1)})
    with pytest.raises(
        BudgetError, match=r"has 4\.0 GiB and 1 cores; the largest has 3\.0 GiB"
    ) as e:
        run(ray, monkeypatch, lambda node: 1, memory_bytes=4 << 30)
    assert e.value.next_step == "give --memory 3072MiB or less"
    with pytest.raises(BudgetError, match="and 4 cores; the largest") as e:
        run(ray, monkeypatch, lambda node: 1, memory_bytes=2 << 30, num_cpus=4)
    assert e.value.next_step == "give --memory 3072MiB or less and --processes 8 or less"
    assert ray.started == []


@pytest.mark.parametrize("address", [None, "auto", "named"])
def test_ray_is_quiet_and_a_cluster_of_its_own_is_small(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")  # so that it is restored afterwards
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
    given: list[dict[str, Any]] = []
    raynodes._connect(SimpleNamespace(init=lambda **options: given.append(options)), address)
    # Not None: Ray would use any cluster running here, which rejects a number of cores.
    expected = {"address": address or "local", "log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        expected |= {"num_cpus": raynodes.usable_cores(), "include_dashboard": False}
        expected |= {"object_store_memory": raynodes._OBJECT_STORE_BYTES}
    assert given == [expected]
    assert os.environ.get("RAY_USAGE_STATS_ENABLED") == ("0" if address is None else None)


def test_the_cluster_that_the_environment_names_is_the_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    raynodes._connect(SimpleNamespace(init=lambda **options: given.append(options)), None)
    assert given == [{"address": "auto", "log_to_driver": False, "logging_level": "ERROR"}]


@pytest.mark.parametrize("form", ["{}:{}", "ray://{}:{}"])
def test_an_address_is_tried_before_ray_waits_for_it(form: str) -> None:
    given: list[Any] = []
    ray: Any = SimpleNamespace(init=lambda **options: given.append(options["address"]))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = form.format(*server.getsockname())
        raynodes._connect(ray, address)
    with pytest.raises(UsageError, match=f"no Ray cluster answers at {address}: "):
        raynodes._connect(ray, address)  # nothing listens there any more
    assert given == [address]


def test_what_ray_prints_is_not_taken_for_the_commands_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(node: str) -> int:
        print("(raylet) a worker died")
        return 1

    run(FakeRay({"a": (100, 1)}), monkeypatch, work)
    print("{}")
    assert capsys.readouterr() == ("{}\n", "(raylet) a worker died\n")


def nodes_of(rows: list[tuple[bool, dict[str, float]]], num_cpus: int | None = None) -> Any:
    nodes = [
        {"NodeID": str(number), "Alive": alive, "Resources": resources}
        for number, (alive, resources) in enumerate(rows)
    ]
    ray: Any = SimpleNamespace(nodes=lambda: nodes)
    return raynodes._Nodes(ray, lambda: 0, num_cpus, 100 << 20, lambda text: None)


def test_nodes_that_can_hold_a_worker_to_the_byte_and_core() -> None:
    size = 100 << 20
    rows = [
        (True, {"memory": size, "CPU": 1}), (True, {"memory": size - 1, "CPU": 9}),
        (False, {"memory": size, "CPU": 9}), (True, {"memory": size}), (True, {"CPU": 4}),
        (True, {"memory": size, "CPU": 4}),
    ]  # fmt: skip
    assert list(nodes_of(rows).fitting_nodes()) == ["0", "5"]
    assert list(nodes_of(rows, num_cpus=4).fitting_nodes()) == ["5"]
    assert list(nodes_of(rows, num_cpus=5).fitting_nodes()) == []


@pytest.mark.parametrize(
    ("rows", "num_cpus", "message", "step"),
    [
        ([], None, "and 1 cores; the largest has 0 B and 0", "give --memory 0MiB or less"),
        (
            [(True, {"memory": 50 << 20, "CPU": 4}), (True, {"memory": 20 << 20, "CPU": 7}),
             (False, {"memory": 1 << 40, "CPU": 99}), (True, {})],
            None,
            "and 1 cores; the largest has 50.0 MiB and 7", "give --memory 50MiB or less",
        ),
        (
            [(True, {"memory": 500 << 20, "CPU": 4})],
            5,
            "and 5 cores; the largest has 500.0 MiB and 4",
            "give --memory 500MiB or less and --processes 4 or less",
        ),
    ],
)  # fmt: skip
def test_what_the_largest_node_has_is_told(
    rows: Any, num_cpus: int | None, message: str, step: str
) -> None:
    with pytest.raises(BudgetError) as caught:
        nodes_of(rows, num_cpus).require_room()
    assert caught.value.message == f"no node of the Ray cluster has 100.0 MiB {message}"
    assert caught.value.next_step == step


@pytest.mark.parametrize("was_there", [False, True])
def test_a_cluster_that_was_started_here_is_ended(
    monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    calls: list[Any] = []
    ray = SimpleNamespace(
        is_initialized=lambda: was_there,
        shutdown=lambda: calls.append("shutdown"),
        init=lambda **options: calls.append(options["address"]),
    )
    monkeypatch.setattr(raynodes, "import_package", lambda *names: ray)
    monkeypatch.setattr(raynodes._Nodes, "run", lambda self, on_poll: 7)
    given: Any = {"address": "here", "num_cpus": 1, "memory_bytes": 1}
    found = run_on_ray(lambda: 0, **given, on_poll=lambda: None, on_notice=lambda text: None)
    assert found == 7
    assert calls == ([] if was_there else ["here", "shutdown"])


def test_an_address_where_nothing_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise ConnectionError("refused")

    ray: Any = SimpleNamespace(init=init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for address, where in (("10.0.0.1", "10.0.0.1"), (None, "this machine")):
        with pytest.raises(UsageError) as caught:
            raynodes._connect(ray, address)
        assert caught.value.message == f"no Ray cluster answers at {where}: refused"
