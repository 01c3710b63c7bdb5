"""Leases: files that show which worker runs which task, so that others take other tasks.

In:      a folder that workers share
Out:     FOLDER/leases/NAME.lease while a task runs; FOLDER/failures/NAME-N for each failure
Memory:  a few bytes for each lease that was read

A lease only avoids duplicate work. Correctness comes from results being created only once
(records), so clocks need not agree: a worker takes over a lease that has not changed for a while by
its own clock, and if the owner was only slow, the task is done twice, with one result.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from lowtide.engine.folders import Lease, SeenLease, open_folder, parse_note
from lowtide.engine.records import Records, describe_worker
from lowtide.engine.tasks import Task
from lowtide.errors import DataError, LowtideError
from lowtide.files import checksum_bytes
from lowtide.quickclasses import dataclass

__all__ = [
    "LEASE_SECONDS",
    "MOST_FAILURES",
    "MOST_LOSSES",
    "Failure",
    "Leases",
    "count_losses",
    "list_failures",
    "list_leases",
    "note_failure",
    "note_loss",
    "require_no_hopeless_task",
]

LEASE_SECONDS = 30.0
"""A lease that has not changed for this many seconds counts as a dead worker's."""
MOST_FAILURES = 3
"""A task that fails this often stops all workers."""
MOST_LOSSES = 20
"""A task that loses its worker this often also stops all workers. More losses than failures are
allowed, because machines may be taken away; but a task that needs too much memory kills every
worker that tries it."""


_LEASE = ".lease"


@dataclass
class _Sight:
    """The content of a lease when it was last read, and since when it has been the same."""

    content: bytes
    since: float


@dataclass
class Leases:
    """The leases of this process, renewed by a thread, and those of others that it has read."""

    records: Records
    seconds: float = LEASE_SECONDS
    _held: dict[Task, Lease] = field(default_factory=dict)
    _seen: dict[Task, _Sight] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    _beats: int = 0

    def __enter__(self) -> Leases:
        self._thread = threading.Thread(target=self._renew, name="lowtide-leases", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._stop.set()
        self._thread.join()
        for task in list(self._held):
            self.release(task)

    def take(self, task: Task) -> bool:
        """Take a task, unless a live worker has it."""
        place, name = self.records.place, _lease_name(task)
        lease = place.create_lease(name, self._content())
        if lease is None:
            seen = self._may_take_over(task, name)
            lease = None if seen is None else place.replace_lease(name, self._content(), seen)
        if lease is None:
            return False
        with self._lock:
            self._held[task] = lease
        return True

    def has_any(self, stage: str) -> bool:
        """True if a task of a stage has a lease, of a live or a lost worker."""
        names = self.records.place.list_names("leases")
        return any(name.startswith(f"{stage}-") for name in names)

    def _may_take_over(self, task: Task, name: str) -> SeenLease | None:
        """The lease of a dead worker, if this worker is to take it over; else None."""
        found = self.records.place.read_lease(name)
        if found is None:  # released: look again later
            self._seen.pop(task, None)
            return None
        now = time.monotonic()
        sight = self._seen.get(task)
        if sight is None or sight.content != found.content:
            sight = self._seen[task] = _Sight(found.content, now)
        waited = now - sight.since
        if waited < self.seconds and not _is_of_dead_process(found.content):
            return None
        # If several workers notice it at once, the first takes it over; the others only if that one
        # has died as well.
        is_first = note_loss(self.records, task, found.content)
        return found if is_first or waited >= 2 * self.seconds else None

    def release(self, task: Task) -> None:
        """Release a task, done or not."""
        with self._lock:
            lease = self._held.pop(task)
        lease.release()

    @contextlib.contextmanager
    def hold(self, task: Task) -> Generator[bool]:
        """Hold a task within a `with` block; yields False if another worker has it."""
        if not self.take(task):
            yield False
            return
        try:
            yield True
        finally:
            self.release(task)

    def _renew(self) -> None:
        while not self._stop.wait(self.seconds / 3):
            self._beats += 1
            with self._lock:
                held = list(self._held.items())
            for _, lease in held:  # without the lock: a store may be slow to answer
                lease.renew(self._content())

    def _content(self) -> bytes:
        row = {
            "worker": describe_worker(),
            "machine": _find_machine(),
            "pid": os.getpid(),
            "nonce": self._nonce,
            "beat": f"{self._beats:08d}",
        }
        return json.dumps(row).encode()


def _lease_name(task: Task) -> str:
    return f"leases/{task.name}{_LEASE}"


@cache
def _find_machine() -> str | None:
    """An id of the boot and the process namespace that process ids belong to."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _is_of_dead_process(content: bytes) -> bool:
    """True if a lease belongs to a dead process of this machine, so there is no need to wait."""
    row = parse_note(content)
    machine, pid = row.get("machine"), row.get("pid")
    if machine is None or machine != _find_machine() or not isinstance(pid, int):
        return False
    return not Path(f"/proc/{pid}").exists()


def list_leases(folder: Path) -> dict[str, str]:
    """Running tasks, with the worker of each."""
    place = open_folder(folder)
    found: dict[str, str] = {}
    for name in place.list_names("leases"):
        if not name.endswith(_LEASE):
            continue
        with contextlib.suppress(OSError):
            row = parse_note(place.read(f"leases/{name}"))
            if "worker" in row:
                found[name.removesuffix(_LEASE)] = str(row["worker"])
    return found


class Failure(NamedTuple):
    """How often a task failed; the last failure's worker, error and next step."""

    times: int
    message: str
    next_step: str | None = None


def note_failure(records: Records, task: Task, error: Exception) -> int:
    """Record a failure of a task; return its number of failures."""
    own = {"by": describe_worker(), "nonce": secrets.token_hex(8)}
    row = json.dumps({**own, **_describe_error(error)}).encode()
    for number in range(1, 1 + MOST_FAILURES):
        if records.create(f"failures/{task.name}-{number}", row):
            return number
    return MOST_FAILURES


def _describe_error(error: Exception) -> dict[str, str | None]:
    """An error as other workers need it: they know neither the task's file nor the next step."""
    if not isinstance(error, LowtideError):
        return {"message": f"{error!r}"}
    place = "" if error.path is None else f"{error.path}: "
    return {"message": place + error.message, "next": error.next_step}


def note_loss(records: Records, task: Task, lease: bytes) -> bool:
    """Record that the owner of a lease is dead; False if another worker has already."""
    nonce = parse_note(lease).get("nonce")
    if not isinstance(nonce, str) or not nonce.isalnum():
        nonce = checksum_bytes(lease)[:16]  # its owner died before it wrote all of it
    row = {"by": describe_worker(), "nonce": secrets.token_hex(8)}
    return records.create(f"losses/{task.name}-{nonce}", json.dumps(row).encode())


def list_failures(folder: Path) -> dict[str, Failure]:
    """Failed tasks, with the last failure of each."""
    place = open_folder(folder)
    found: dict[str, Failure] = {}
    for name in place.list_names("failures"):
        task, _, number = name.rpartition("-")
        with contextlib.suppress(OSError):
            row = parse_note(place.read(f"failures/{name}"))
            if number.isdecimal() and "by" in row and "message" in row:
                text = f"{row['by']}: {row['message']}"
                found[task] = Failure(int(number), text, row.get("next"))
    return found


def count_losses(folder: Path) -> Counter[str]:
    """How often each task lost its worker."""
    return Counter(name.rpartition("-")[0] for name in open_folder(folder).list_names("losses"))


def require_no_hopeless_task(folder: Path) -> None:
    """Raise an error if a task failed too often to be tried again."""
    for name, (count, message, next_step) in list_failures(folder).items():
        if count >= MOST_FAILURES:
            raise DataError(
                f"task {name} failed {count} times, the last time on {message}",
                path=folder,
                next_step=f"{next_step or 'mend what it says'}; with other inputs or settings "
                f"remove {folder}, which starts over, otherwise {folder / 'failures'}, and start "
                "again",
            )
    for name, count in count_losses(folder).items():
        if count >= MOST_LOSSES:
            raise DataError(
                f"task {name} has lost {count} workers, perhaps for want of memory",
                path=folder,
                next_step=f"give less --memory, remove {folder / 'losses'}, and start again",
            )
