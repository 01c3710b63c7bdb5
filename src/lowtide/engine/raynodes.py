"""Start a worker on every node of a Ray cluster, restart lost ones, until the work is done.

In:      the function of a worker (workers coordinate through a folder, see shared); a cluster
Out:     the work is done
Memory:  Ray's own processes on every node (some 400 to 650 MB, and 80 MB for each of its idle
         workers) do not count towards budgets; Ray's object store is not used

Ray only starts workers and lists nodes. Tasks, records and leases are in the shared folder, so a
lost node costs only its unfinished tasks, and the result is the same.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import field
from typing import Any

from lowtide.errors import BudgetError, LowtideError, UsageError, from_os_error
from lowtide.memory import format_size, usable_cores
from lowtide.packages import import_package
from lowtide.quickclasses import dataclass

__all__ = ["run_on_ray"]

_OBJECT_STORE_BYTES = 80 << 20  # the least that Ray starts with
_POLL_SECONDS = 0.5
_CONNECT_SECONDS = 20.0
_MOST_LOSSES = 3
"""After losing this many workers, no new one is started on a node."""


def run_on_ray(
    work: Callable[[], int],
    *,
    address: str | None,
    num_cpus: int | None,
    memory_bytes: int,
    on_poll: Callable[[], None],
    on_notice: Callable[[str], None],
) -> int:
    """Run `work` on every node that can hold it, until one of them reports that the work is done.

    `work` returns a worker's peak memory, and this function the highest. `address` is that of a
    cluster; None starts a temporary one on this machine. A worker takes `num_cpus` of its node, by
    default all, and `memory_bytes`. `on_poll` is called regularly.
    """
    ray: Any = import_package("ray", "--engine ray")
    was_there = ray.is_initialized()
    # Ray prints messages about workers on stdout, which is for the command's result.
    with contextlib.redirect_stdout(sys.stderr):
        if not was_there:
            _connect(ray, address)
        try:
            return _Nodes(ray, work, num_cpus, memory_bytes, on_notice).run(on_poll)
        finally:
            if not was_there:
                ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics are sent
        options |= {
            "num_cpus": usable_cores(),
            "object_store_memory": _OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
    try:
        _try_address(address or "")
        # "local": without it Ray would use any cluster that runs on this machine.
        ray.init(address=address or "local", **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"no Ray cluster answers at {address or 'this machine'}: {error}",
            next_step="start one with ray start --head, and give its address as --ray-address",
        ) from None


def _try_address(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT; Ray would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


@dataclass
class _Nodes:
    """The nodes of a cluster, and the worker on each."""

    ray: Any
    work: Callable[[], int]
    num_cpus: int | None
    memory_bytes: int
    on_notice: Callable[[str], None]
    running: dict[Any, str] = field(default_factory=dict)
    """The node of each worker."""
    losses: dict[str, int] = field(default_factory=dict)
    cause: str = ""
    """Cause of the last loss, as Ray reports it."""
    error: LowtideError | None = None
    """Error of the last worker that ended with one."""
    peaks: list[int] = field(default_factory=list)
    """Peak memory of workers that reported the end of the work."""

    def run(self, on_poll: Callable[[], None]) -> int:
        self.require_room()
        while not self.peaks or self.running:
            if not self.peaks:
                self.start_missing()
            if not self.running:
                raise self.error or UsageError(
                    f"workers were lost on every node, {_MOST_LOSSES} times on each; the last: "
                    f"{self.cause}",
                    next_step="see Ray's logs; give less --memory, or fewer --processes",
                )
            finished, _ = self.ray.wait(list(self.running), timeout=_POLL_SECONDS)
            on_poll()
            for reference in finished:
                self.take(reference)
        return max(self.peaks)

    def fitting_nodes(self) -> dict[str, dict[str, float]]:
        """Available nodes that can hold a worker, with their resources."""
        return {
            node["NodeID"]: node["Resources"]
            for node in self.ray.nodes()
            if node["Alive"]
            and node["Resources"].get("memory", 0) >= self.memory_bytes
            and node["Resources"].get("CPU", 0) >= (self.num_cpus or 1)
        }

    def require_room(self) -> None:
        """Raise an error if no node has room for a worker; Ray would wait forever."""
        if self.fitting_nodes():
            return
        rows = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        memory = max((row.get("memory", 0) for row in rows), default=0)
        cpus = max((row.get("CPU", 0) for row in rows), default=0)
        raise BudgetError(
            f"no node of the Ray cluster has {format_size(self.memory_bytes)} and "
            f"{self.num_cpus or 1} cores; the largest has {format_size(memory)} and {cpus:.0f}",
            next_step=f"give --memory {int(memory) >> 20}MiB or less"
            + (f" and --processes {cpus:.0f} or less" if self.num_cpus else ""),
        )

    def start_missing(self) -> None:
        """Start a worker on every node that has none, also on new nodes."""
        busy = set(self.running.values())
        for node, resources in self.fitting_nodes().items():
            if node in busy or self.losses.get(node, 0) >= _MOST_LOSSES:
                continue
            strategy = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                node, soft=False
            )
            # max_calls: the process ends with its work, and frees its memory.
            remote = self.ray.remote(max_retries=0, max_calls=1)(_run_work).options(
                num_cpus=self.num_cpus or int(resources["CPU"]),
                memory=self.memory_bytes,
                scheduling_strategy=strategy,
            )
            self.running[remote.remote(self.work)] = node

    def take(self, reference: Any) -> None:
        """Handle the end of a worker: work finished, an error of ours, or its loss."""
        node = self.running.pop(reference)
        try:
            result = self.ray.get(reference)
        except self.ray.exceptions.RayError as lost:
            self.losses[node] = self.losses.get(node, 0) + 1
            name = type(lost).__name__
            self.cause = (str(lost).strip() or name).splitlines()[-1]
            self.on_notice(f"the worker on node {node[:8]} was lost ({name}): others go on")
            return
        if isinstance(result, LowtideError):
            self.leave_out(node, result)
        else:
            self.peaks.append(result)

    def leave_out(self, node: str, error: LowtideError) -> None:
        """Continue without a node: its error may not occur elsewhere, for example with its disk."""
        self.error = error
        self.losses[node] = _MOST_LOSSES
        if self.running:
            place = "" if error.path is None else f"{error.path}: "
            text = f"the worker on node {node[:8]} ended, others go on: {place}{error.message}"
            self.on_notice(text)


def _run_work(work: Callable[[], int]) -> int | LowtideError:
    """Runs on a node: does the work, and returns lowtide's own errors as values."""
    try:
        return work()
    except LowtideError as error:
        return error
    except OSError as error:
        return from_os_error(error)
