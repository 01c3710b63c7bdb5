"""Memory: sizes as text, available and used memory, and a budget of named shares.

Out:     MemoryBudget (named shares of one number), PeakMeter (measured use)
Memory:  a few hundred bytes
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from lowtide.cgroups import headroom_bytes, quota_cores
from lowtide.errors import BudgetError, UsageError

__all__ = [
    "MemoryBudget",
    "PeakMeter",
    "available_bytes",
    "default_budget_bytes",
    "format_size",
    "parse_size",
    "process_peak_bytes",
    "release_free_memory",
    "reset_process_peak",
    "resident_bytes",
    "return_large_blocks",
    "round_up_mib",
    "smallest_budget",
    "tree_resident_bytes",
    "usable_cores",
]

MIB = 1 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # for glibc's mallopt
_SAMPLE_SECONDS = 0.05
_LARGEST_SIZE = 4096 << 50  # with room in 64 bits for the sums and products of native code

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}{b}": 1000**n for n, prefix in enumerate("kmgtp", 1) for b in ("", "b")},
    **{f"{prefix}ib": 1 << 10 * n for n, prefix in enumerate("kmgtp", 1)},
}
_SIZE = re.compile(r"\s*([0-9]{1,40}(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*")


def parse_size(text: str | int) -> int:
    """Return the bytes of a size in the usual notation.

    >>> parse_size("2GiB"), parse_size("500MB"), parse_size(4096)
    (2147483648, 500000000, 4096)
    """
    if isinstance(text, int):
        size = text
    else:
        match = _SIZE.fullmatch(text)
        unit = _UNITS.get(match.group(2).lower()) if match else None
        if match is None or unit is None:
            raise UsageError(
                f"{text!r} is not a size", next_step='write it as "2GiB", "500MB" or bytes'
            )
        size = (
            int(float(match.group(1)) * unit)
            if "." in match.group(1)
            else int(match.group(1)) * unit
        )
    if size <= 0:
        raise UsageError(
            f"size {text!r} is not positive", next_step='write it as "2GiB", "500MB" or bytes'
        )
    if size > _LARGEST_SIZE:
        raise UsageError(
            f"size {text!r} is too large", next_step=f"at most {format_size(_LARGEST_SIZE)}"
        )
    return size


def format_size(size: float) -> str:
    """Return bytes in a readable unit.

    >>> format_size(1536), format_size(3 << 30)
    ('1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < (1024 if unit == "B" else 1023.95):  # 1023.95 would read "1024.0 KiB"
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} PiB"


def available_bytes() -> int:
    """Return the memory that this process can still use: the machine's, or its cgroup's if less."""
    machine = _machine_available_bytes()
    headroom = headroom_bytes()
    return machine if headroom is None else min(machine, headroom)


def _machine_available_bytes() -> int:
    with contextlib.suppress(OSError):
        rows = Path("/proc/meminfo").read_bytes()
        if match := re.search(rb"^MemAvailable:\s+(\d+) kB", rows, re.MULTILINE):
            return int(match.group(1)) << 10
    import psutil  # 0.035 s, and other systems ask

    return psutil.virtual_memory().available


def default_budget_bytes() -> int:
    """Return the default budget: half of what is available."""
    return available_bytes() // 2


def _status_kib(field: bytes, pid: int | str = "self") -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return 0
    match = re.search(rb"^" + field + rb":\s+(\d+) kB", status, re.MULTILINE)
    return int(match.group(1)) if match else 0


def _has_children() -> bool:
    """True if this process has any child, running or not yet waited for.

    One system call: reading the lists of 100 threads takes 2000 times as long, and most jobs have
    threads and no children.
    """
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _child_pids(pid: int | str = "self") -> list[int]:
    """Return the direct children of a process.

    The kernel lists them per thread. psutil reads all processes of the machine instead, too slow
    for 20 samples a second, so it is used only if the kernel has no list.
    """
    children: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    except FileNotFoundError:  # no such process, thread, or list in the kernel
        import psutil

        with contextlib.suppress(psutil.Error):
            process = psutil.Process(None if pid == "self" else int(pid))
            children = [child.pid for child in process.children()]
    except OSError:
        pass  # it ended meanwhile
    return children


def _descendant_pids() -> list[int]:
    found: list[int] = []
    waiting = [(os.getpid(), pid) for pid in _child_pids()]
    while waiting:
        parent, pid = waiting.pop()
        if _is_in_same_memory(parent, pid):
            continue
        found.append(pid)
        waiting += [(pid, child) for child in _child_pids(pid)]
    return found


_KCMP = {"x86_64": 312, "aarch64": 272}
_KCMP_VM = 1


def _is_in_same_memory(parent: int, pid: int) -> bool:
    """True for a child that has not started its program yet and still shares its parent's memory.

    Programs are started this way (vfork); counted separately, such a child would double the peak of
    a large process for the moment that it takes to start another one.
    """
    number = _KCMP.get(os.uname().machine)
    if number is None or _status_kib(b"VmSize", pid) != _status_kib(b"VmSize", parent):
        return False
    import ctypes  # 4 ms, and most commands do not ask

    return ctypes.CDLL(None).syscall(number, parent, pid, _KCMP_VM, 0, 0) == 0


def tree_resident_bytes() -> int:
    """Return the resident memory of this process and its descendants, including mapped pages.

    Pages that several processes share are counted for each, so the result is never too small.
    """
    pids: list[int | str] = ["self", *(_descendant_pids() if _has_children() else ())]
    return sum(map(resident_bytes, pids))


def resident_bytes(pid: int | str = "self") -> int:
    """Return the resident memory of one process; 0 if the system does not report it."""
    if sys.platform == "linux":
        return _status_kib(b"VmRSS", pid) * 1024
    import psutil

    try:
        return psutil.Process(None if pid == "self" else int(pid)).memory_info().rss
    except psutil.Error:
        return 0


def release_free_memory() -> None:
    """Return to the system the freed blocks kept by the C library, and by pyarrow if loaded."""
    import ctypes  # 4 ms, and most commands do not ask

    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()

    with contextlib.suppress(OSError, AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)


def return_large_blocks() -> None:
    """Make the C library return blocks of a megabyte and more when they are freed.

    After the first are freed, it begins to keep them for reuse, up to 32 MiB each: memory that a
    budget has to include in addition to what is used.
    """
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # a C library other than glibc
        mallopt = ctypes.CDLL(None).mallopt
        for threshold in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            mallopt(threshold, 1 << 20)


def process_peak_bytes() -> int:
    """Return the largest resident memory of this process alone, as the kernel counted it."""
    if sys.platform == "linux":
        return _status_kib(b"VmHWM") * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def reset_process_peak() -> None:
    """Reset the kernel's peak, so that a later stage does not include an earlier one's."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # a sandbox may forbid it; the peak then covers the whole process, never less


class PeakMeter:
    """Measures the peak of the process tree while it is open: the kernel's own peak, and samples.

    The kernel's count is exact for this process; children are sampled 20 times a second, less often
    where that would take more than a hundredth of a core (hundreds of threads or processes).

    Meters nest: an inner one reads the outermost, so that a job of several parts (text tokenized
    before training) has one peak, that of all parts. A command's meter is opened with
    `whole_process` and covers the process from its first instruction. A job called from Python
    shares its process, so its peak is measured from when its outermost meter was opened.
    """

    _outermost: ClassVar[PeakMeter | None] = None
    _nesting: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, *, whole_process: bool = False) -> None:
        self.budget_bytes: int | None = None
        """The budget of the jobs measured, from the last job that set one."""
        self._whole_process = whole_process
        self._lead = self
        self._num_users = 0
        self._stop = threading.Event()
        self._sampled_bytes = 0
        self._thread = threading.Thread(target=self._sample, name="lowtide-peak", daemon=True)

    def __enter__(self) -> PeakMeter:
        with PeakMeter._nesting:
            self._lead = PeakMeter._outermost or self
            self._lead._num_users += 1
            if self._lead is not self:
                return self
            PeakMeter._outermost = self
        if not self._whole_process:
            reset_process_peak()
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        lead = self._lead
        with PeakMeter._nesting:
            lead._num_users -= 1
            if lead._num_users:
                return
            PeakMeter._outermost = None
        lead._stop.set()
        lead._thread.join()

    def set_budget(self, budget_bytes: int) -> None:
        """Set the budget that the peak is compared with."""
        self.budget_bytes = self._lead.budget_bytes = budget_bytes

    def _sample(self) -> None:
        pause = _SAMPLE_SECONDS
        while not self._stop.wait(pause):
            began = time.thread_time()
            if _has_children():
                self._sampled_bytes = max(self._sampled_bytes, tree_resident_bytes())
            pause = max(_SAMPLE_SECONDS, 100 * (time.thread_time() - began))

    @property
    def peak_bytes(self) -> int:
        """The largest resident memory of the tree so far."""
        return max(self._lead._sampled_bytes, process_peak_bytes())

    @property
    def excess_bytes(self) -> int:
        """By how much the peak exceeds the budget; 0 if it does not, or without a budget."""
        budget = self.budget_bytes
        return 0 if budget is None else max(0, self.peak_bytes - budget)


class MemoryBudget:
    """A number of bytes, reserved in named shares; what does not fit is an error at the start.

    The memory that the process already uses (interpreter, libraries) is the first share.

    >>> budget = MemoryBudget(1 << 30)
    >>> budget.reserve("read windows", wanted_bytes=8 << 20)
    8388608
    """

    def __init__(self, total_bytes: int, *, used_bytes: int | None = None) -> None:
        self.total_bytes = total_bytes
        base = tree_resident_bytes() if used_bytes is None else used_bytes
        self.shares: dict[str, int] = {"program": base}
        # The program may have so much more when the command is given again, above all on a busy
        # machine: 30.5 to 32.1 MiB were measured.
        self.spread_bytes = MIB if used_bytes is None else 0

    @classmethod
    def from_setting(cls, memory: str | int | None) -> MemoryBudget:
        """Make the budget of a `--memory` setting; None means half of what is available."""
        return cls(default_budget_bytes() if memory is None else parse_size(memory))

    @property
    def remaining_bytes(self) -> int:
        """The bytes not reserved yet; negative if the program alone exceeds the budget."""
        return self.total_bytes - sum(self.shares.values())

    def reserve(self, name: str, *, wanted_bytes: int, minimum_bytes: int | None = None) -> int:
        """Reserve up to `wanted_bytes` for `name`, at least `minimum_bytes` (default: all)."""
        minimum = wanted_bytes if minimum_bytes is None else minimum_bytes
        self.require({name: minimum})
        given = min(wanted_bytes, self.remaining_bytes)
        self.shares[name] = self.shares.get(name, 0) + given
        return given

    def count(self, name: str, held_bytes: int) -> None:
        """Count memory that is used in any case; the next `require` checks whether it fits.

        The error then names all shares, and the budget it suggests is sufficient.
        """
        self.shares[name] = self.shares.get(name, 0) + held_bytes

    def require(self, minimums: Mapping[str, int], *, remark: str = "") -> None:
        """Raise an error if `minimums` do not fit; it names the smallest budget, then `remark`.

        >>> MemoryBudget(1 << 20, used_bytes=0).require({"table": 3 << 20, "cache": 4 << 20})
        Traceback (most recent call last):
        lowtide.errors.BudgetError: a budget of 1.0 MiB is too small: table 3.0 MiB, cache 4.0 MiB
          next: give at least --memory 8MiB
        """
        needs = dict(self.shares)
        for name, minimum in minimums.items():
            needs[name] = needs.get(name, 0) + minimum
        needed = sum(needs.values())
        if needed <= self.total_bytes:
            return
        parts = ", ".join(f"{name} {format_size(size)}" for name, size in needs.items() if size)
        raise BudgetError(
            f"a budget of {format_size(self.total_bytes)} is too small: {parts}",
            next_step=smallest_budget(needed + self.spread_bytes) + remark,
        )

    def release(self, name: str) -> None:
        """Free a share at the end of the phase that needed it."""
        del self.shares[name]


def round_up_mib(size: int) -> int:
    """Return whole MiB above `size`, with a margin of at least one.

    The memory of the interpreter and its libraries varies by up to a MiB between starts.
    """
    return -(-(size + MIB) // (8 * MIB)) * 8


def smallest_budget(needed_bytes: int) -> str:
    """The next step that names a sufficient budget.

    >>> smallest_budget(63 << 20)
    'give at least --memory 64MiB'
    """
    return f"give at least --memory {round_up_mib(needed_bytes)}MiB"


def usable_cores() -> int:
    """Return how many cores this process may keep busy: its affinity, or its cgroup's quota."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    quota = quota_cores()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))
