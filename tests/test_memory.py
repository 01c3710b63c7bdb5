"""Sizes, limits, budgets, and peaks that are what the kernel saw."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import threading
import types
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import memory
from lowtide.errors import BudgetError, UsageError
from lowtide.memory import (
    MIB,
    MemoryBudget,
    PeakMeter,
    available_bytes,
    default_budget_bytes,
    format_size,
    parse_size,
    process_peak_bytes,
    release_free_memory,
    resident_bytes,
    round_up_mib,
    smallest_budget,
    tree_resident_bytes,
    usable_cores,
)


@pytest.fixture(autouse=True)
def ordinary_process() -> None:
    """Here the measures themselves are tested: none is replaced."""


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30),
        ("500MB", 500_000_000),
        ("1.5 gib", 3 << 29),
        (".5k", 500),
        ("4096", 4096),
        ("7b", 7),
        (" 1 TiB ", 1 << 40),
        (12, 12),
    ],
)
def test_sizes_as_people_write_them(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "2 GiBs", "1e9", "two", "-1", "0", "1..5k", 0, -5])
def test_what_is_no_size_is_refused(text: str | int) -> None:
    with pytest.raises(UsageError, match="size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["99999PB", "9" * 5000, "9" * 400 + ".5GB", 1 << 70])
def test_a_size_beyond_64_bits_is_refused(text: str | int) -> None:
    with pytest.raises(UsageError, match="size"):
        parse_size(text)
    assert parse_size("4000PB") == 4 * 10**18


@given(st.integers(min_value=1, max_value=1 << 50))
def test_a_formatted_size_reads_back_to_within_its_last_digit(size: int) -> None:
    again = parse_size(format_size(size))
    last_digit = 0.05 * 1024 ** (max(0, size.bit_length() - 1) // 10)
    assert abs(again - size) <= max(last_digit, size / 1000) + 1  # whole bytes, rounded down


def test_formatted_sizes_never_show_1024_of_a_unit() -> None:
    assert format_size((1 << 20) - 1) == "1.0 MiB"
    assert format_size(1023) == "1023 B"


def test_the_tighter_of_machine_and_cgroup_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "headroom_bytes", lambda: 12345)
    assert available_bytes() == 12345
    assert default_budget_bytes() == 12345 // 2
    monkeypatch.setattr(memory, "headroom_bytes", lambda: 1 << 60)
    assert available_bytes() <= psutil.virtual_memory().total


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (2.5, 3), (0.3, 1), (64.0, 8)])
def test_usable_cores(monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(memory, "quota_cores", lambda: quota)
    assert usable_cores() == cores


def test_peak_is_seen_though_it_is_gone_again() -> None:
    with PeakMeter() as meter:
        before = meter.peak_bytes
        block = bytearray(64 * MIB)
        block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])
        del block
        assert meter.peak_bytes >= before + 60 * MIB
        assert meter.peak_bytes <= before + 80 * MIB


def test_a_later_meter_is_not_charged_with_an_earlier_peak() -> None:
    with PeakMeter():
        block = bytearray(64 * MIB)
        block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])
        del block
    with PeakMeter() as meter:
        assert meter.peak_bytes < tree_resident_bytes() + 16 * MIB
    assert process_peak_bytes() == pytest.approx(meter.peak_bytes, abs=8 * MIB)


def test_an_inner_meter_reads_the_outermost_whose_peak_is_that_of_all_parts() -> None:
    with PeakMeter() as outer:
        before = outer.peak_bytes
        block = bytearray(64 * MIB)
        block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])
        del block
        with PeakMeter() as inner:
            inner.set_budget(before + 32 * MIB)
            assert inner.peak_bytes == outer.peak_bytes >= before + 60 * MIB
        assert outer.excess_bytes == inner.excess_bytes >= 28 * MIB
    with PeakMeter() as later:
        assert later.peak_bytes < before + 32 * MIB
        assert later.excess_bytes == 0


def test_a_meter_of_the_whole_process_counts_from_its_start() -> None:
    code = (
        "block = bytearray(64 << 20); block[::4096] = b'x' * len(block[::4096]); del block\n"
        "from lowtide.memory import PeakMeter\n"
        "with PeakMeter(whole_process={}) as meter: print(meter.peak_bytes >> 20)"
    )
    peaks = [
        int(subprocess.check_output([sys.executable, "-c", code.format(whole)]))
        for whole in (True, False)
    ]
    assert peaks[0] >= 64 > 48 > peaks[1]


GREEDY_CHILD = (
    "import sys; block = bytearray(48 << 20); block[::4096] = b'x' * len(block[::4096])\n"
    "print('ready', flush=True); sys.stdin.read()"
)


def test_memory_of_children_and_grandchildren_counts() -> None:
    nested = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {GREEDY_CHILD!r}], check=True)"
    )
    with PeakMeter() as meter:
        before = tree_resident_bytes()
        with subprocess.Popen(
            [sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            assert child.stdin is not None
            assert child.stdout.readline() == b"ready\n"
            during = tree_resident_bytes()
            for _ in range(2000):  # at most 100 s for the meter's own thread to take a sample
                if meter.peak_bytes >= before + 48 * MIB:
                    break
                meter._stop.wait(0.05)
            child.stdin.close()
            assert child.wait() == 0
    assert during >= before + 48 * MIB
    assert meter.peak_bytes >= before + 48 * MIB
    assert tree_resident_bytes() < during


def test_a_child_that_has_not_begun_yet_is_not_counted_beside_its_parent(tmp_path: Path) -> None:
    """Starting a program runs in its parent's memory until its files are open: here, a pipe's."""
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    code = (
        "import os, sys; block = bytearray(64 << 20); block[::4096] = b'x' * len(block[::4096])\n"
        "print('ready', flush=True)\n"
        "action = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)\n"
        "pid = os.posix_spawn('/bin/true', ['true'], os.environ, file_actions=[action])\n"
        "os.waitpid(pid, 0)"
    )
    before = tree_resident_bytes()
    with subprocess.Popen([sys.executable, "-c", code, str(fifo)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        for _ in range(20_000):  # until it is there
            if memory._child_pids(child.pid):
                break
            threading.Event().wait(0.005)
        (waiting,) = memory._child_pids(child.pid)
        assert memory._status_kib(b"VmRSS", waiting) >= 64 << 10  # its parent's
        during = tree_resident_bytes()
        fifo.open("w").close()
        assert child.wait() == 0
    assert before + 60 * MIB < during < before + 110 * MIB


def test_children_are_found_without_the_kernels_list(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in memory._child_pids()
        read_text = Path.read_text

        def no_list(self: Path, *arguments: object, **options: object) -> str:
            if self.name == "children":
                raise FileNotFoundError(2, "No such file", str(self))
            return read_text(self)

        monkeypatch.setattr(Path, "read_text", no_list)
        assert child.pid in memory._child_pids()
        child.communicate(b"\n")
    assert memory._child_pids(child.pid) == []


def test_shares_add_up_and_come_back() -> None:
    budget = MemoryBudget(100 * MIB, used_bytes=30 * MIB)
    assert budget.reserve("table", wanted_bytes=50 * MIB) == 50 * MIB
    assert budget.reserve("cache", wanted_bytes=40 * MIB, minimum_bytes=5 * MIB) == 20 * MIB
    assert budget.remaining_bytes == 0
    budget.release("cache")
    assert budget.remaining_bytes == 20 * MIB


def test_what_does_not_fit_is_refused_with_the_size_that_would() -> None:
    budget = MemoryBudget(parse_size("1MiB"), used_bytes=30 * MIB)
    with pytest.raises(BudgetError) as caught:
        budget.require({"table": 50 * MIB, "cache": 4 * MIB})
    error = caught.value
    assert "a budget of 1.0 MiB is too small: program 30.0 MiB, table 50.0 MiB" in error.message
    assert error.next_step == "give at least --memory 88MiB"
    again = MemoryBudget(parse_size("88MiB"), used_bytes=30 * MIB)
    again.require({"table": 50 * MIB, "cache": 4 * MIB})
    with pytest.raises(BudgetError):
        again.reserve("table", wanted_bytes=90 * MIB, minimum_bytes=59 * MIB)
    assert again.shares == {"program": 30 * MIB}


def test_the_program_itself_is_the_first_share() -> None:
    budget = MemoryBudget.from_setting("64GiB")
    assert budget.shares["program"] == pytest.approx(tree_resident_bytes(), abs=16 * MIB)
    assert MemoryBudget.from_setting(None).total_bytes > 0


def test_a_budget_that_is_exactly_enough_is_enough() -> None:
    budget = MemoryBudget(100, used_bytes=40)
    budget.require({"table": 60})
    assert budget.reserve("table", wanted_bytes=60) == 60
    assert budget.remaining_bytes == 0
    with pytest.raises(BudgetError):
        budget.require({"cache": 1})


def test_advice_leaves_a_mebibyte_and_is_a_multiple_of_eight() -> None:
    assert [round_up_mib(size << 20) for size in (0, 6, 7, 8, 15, 16)] == [8, 8, 8, 16, 16, 24]
    assert round_up_mib((7 << 20) + 1) == 16
    assert smallest_budget(63 << 20) == "give at least --memory 64MiB"


def test_every_unit_is_what_it_says() -> None:
    units = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
    for unit, size in units.items():
        assert parse_size(f"3{unit}") == parse_size(f"3{unit.upper()}B") == 3 * size
    for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1):
        assert parse_size(f"3{unit}") == 3 << (10 * power)
        assert format_size(3 << (10 * power)) == f"3.0 {unit}"
    assert parse_size("1") == parse_size("1b") == 1
    assert format_size(1023) == "1023 B" and format_size(1024) == "1.0 KiB"
    assert format_size(-1536) == "-1.5 KiB"
    assert format_size(1023.94 * 1024) == "1023.9 KiB"
    assert format_size(1023.95 * 1024) == "1.0 MiB"


def test_a_budget_counts_shares_by_name_and_names_only_what_takes_something() -> None:
    budget = MemoryBudget(100 << 20, used_bytes=0)
    assert budget.shares == {"program": 0} and budget.remaining_bytes == 100 << 20
    assert budget.reserve("a", wanted_bytes=10 << 20) == 10 << 20
    assert budget.reserve("a", wanted_bytes=5 << 20) == 5 << 20
    budget.count("a", 1 << 20)
    budget.count("b", 2 << 20)
    assert budget.shares == {"program": 0, "a": 16 << 20, "b": 2 << 20}
    assert budget.reserve("c", wanted_bytes=1 << 30, minimum_bytes=1) == 82 << 20
    assert budget.remaining_bytes == 0
    with pytest.raises(BudgetError) as caught:
        budget.require({"a": 1 << 20, "d": 3 << 20})
    message = "a budget of 100.0 MiB is too small: a 17.0 MiB, b 2.0 MiB, c 82.0 MiB, d 3.0 MiB"
    assert caught.value.message == message
    assert caught.value.next_step == "give at least --memory 112MiB"
    budget.release("c")
    assert "c" not in budget.shares
    assert MemoryBudget.from_setting("5MiB").total_bytes == 5 << 20


def test_half_of_what_is_available_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1001)
    assert memory.default_budget_bytes() == 500
    assert MemoryBudget.from_setting(None).total_bytes == 500


def test_samples_come_twenty_times_a_second_unless_they_cost_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meter = PeakMeter()
    waits: list[float] = []
    cpu = iter([0.0, 0.0, 5.0, 5.002])
    resident = iter([700, 300])
    monkeypatch.setattr(memory.time, "thread_time", lambda: next(cpu))
    monkeypatch.setattr(memory, "_has_children", lambda: True)
    monkeypatch.setattr(memory, "tree_resident_bytes", lambda: next(resident))
    monkeypatch.setattr(meter._stop, "wait", lambda s: waits.append(s) or len(waits) == 3)
    meter._sample()
    assert waits == pytest.approx([0.05, 0.05, 0.2])
    assert meter._sampled_bytes == 700
    assert meter._thread.daemon


def test_the_larger_of_samples_and_the_kernels_peak_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = PeakMeter()
    monkeypatch.setattr(memory, "process_peak_bytes", lambda: 1000)
    assert (meter.peak_bytes, meter.excess_bytes) == (1000, 0)
    meter._sampled_bytes = 1500
    assert meter.peak_bytes == 1500
    meter.set_budget(1400)
    assert (meter.budget_bytes, meter.excess_bytes) == (1400, 100)
    meter.set_budget(1500)
    assert meter.excess_bytes == 0


def test_meters_begin_and_end_with_the_outermost(monkeypatch: pytest.MonkeyPatch) -> None:
    resets: list[int] = []
    monkeypatch.setattr(memory, "reset_process_peak", lambda: resets.append(1))
    monkeypatch.setattr(PeakMeter, "_outermost", None)
    with PeakMeter() as outer:
        assert PeakMeter._outermost is outer and outer._thread.is_alive()
        with PeakMeter() as inner:
            assert inner._lead is outer and not inner._thread.is_alive()
            inner.set_budget(5)
        assert outer.budget_bytes == 5 and PeakMeter._outermost is outer
        assert outer._thread.is_alive() and outer._num_users == 1
    assert PeakMeter._outermost is None and not outer._thread.is_alive()
    assert resets == [1]
    with PeakMeter(whole_process=True):
        pass
    assert resets == [1]  # the process is measured from its first instruction


def test_what_the_kernel_says_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_status_kib", lambda field, pid="self": {"self": 7, 5: 2}[pid])
    monkeypatch.setattr(memory, "_descendant_pids", lambda: [5])
    monkeypatch.setattr(memory, "_has_children", lambda: True)
    assert memory.tree_resident_bytes() == 9 * 1024
    monkeypatch.setattr(memory, "_has_children", lambda: False)
    assert memory.tree_resident_bytes() == 7 * 1024
    assert memory.process_peak_bytes() == 7 * 1024


def test_fields_of_a_process_that_is_gone_are_nothing() -> None:
    assert memory._status_kib(b"VmRSS") > 1000
    assert memory._status_kib(b"NoSuchField") == 0
    assert memory._status_kib(b"VmRSS", 2**31 - 1) == 0


def test_memory_of_the_c_library_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    calls: list[int] = []
    library = types.SimpleNamespace(malloc_trim=calls.append)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    release_free_memory()
    assert calls == [0]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: types.SimpleNamespace())
    release_free_memory()  # another C library has no such call


def test_systems_without_proc_are_asked_in_their_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil  # which looks at the platform when it is imported

    assert psutil.Process().is_running()
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "waitid")
    assert usable_cores() >= 1
    assert resident_bytes() > MIB
    assert resident_bytes(2**22) == 0  # no such process
    assert process_peak_bytes() > 0
    assert tree_resident_bytes() > MIB


def test_blocks_of_a_megabyte_and_more_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    library = types.SimpleNamespace(mallopt=lambda *given: told.append(given))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    memory.return_large_blocks()
    assert told == [(-3, 1 << 20), (-1, 1 << 20)]  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
    monkeypatch.setattr(ctypes, "CDLL", lambda name: types.SimpleNamespace())
    memory.return_large_blocks()  # another C library has no such call


def test_the_kernel_is_asked_for_any_child_and_none_is_taken_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "waitid", lambda *given: asked.append(given))
    assert memory._has_children() is True
    assert asked == [(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)]

    def none(*given: int) -> None:
        raise ChildProcessError

    monkeypatch.setattr(os, "waitid", none)
    assert memory._has_children() is False


def test_which_processes_share_their_memory_is_asked_only_where_sizes_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, ...]] = []
    answers = iter([0, 1])
    library = types.SimpleNamespace(syscall=lambda *given: asked.append(given) or next(answers))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    sizes = {5: 10, 6: 10, 7: 11}
    fields: list[bytes] = []
    monkeypatch.setattr(
        memory, "_status_kib", lambda field, pid: fields.append(field) or sizes[pid]
    )
    machine = ["x86_64"]
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(machine=machine[0]))
    assert memory._is_in_same_memory(5, 7) is False
    assert asked == []
    assert memory._is_in_same_memory(5, 6) is True
    assert memory._is_in_same_memory(5, 6) is False
    assert asked == [(312, 5, 6, 1, 0, 0)] * 2  # kcmp of KCMP_VM
    assert set(fields) == {b"VmSize"}
    machine[0] = "riscv64"
    assert memory._is_in_same_memory(5, 6) is False
    assert len(asked) == 2


def test_children_in_their_parents_memory_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()
    children = {"self": [1, 2], 1: [3], 2: [4], 3: [], 4: [5], 5: []}
    monkeypatch.setattr(memory, "_child_pids", lambda pid="self": children[pid])
    monkeypatch.setattr(
        memory, "_is_in_same_memory", lambda parent, pid: (parent, pid) in {(own, 2), (1, 9)}
    )
    assert sorted(memory._descendant_pids()) == [1, 3]


def test_memory_of_pyarrow_is_given_back_where_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    pool = types.SimpleNamespace(release_unused=lambda: calls.append("pyarrow"))
    loaded = types.SimpleNamespace(default_memory_pool=lambda: pool)
    monkeypatch.setitem(sys.modules, "pyarrow", loaded)
    library = types.SimpleNamespace(malloc_trim=lambda pad: calls.append(f"trim {pad}"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    release_free_memory()
    assert calls == ["pyarrow", "trim 0"]


def test_cores_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "quota_cores", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0: {0, 1, 2}, 1: {0}}[pid])
    assert usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


def test_the_kernels_peak_is_forgotten_by_its_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, str]] = []
    monkeypatch.setattr(Path, "write_text", lambda self, text: written.append((str(self), text)))
    memory.reset_process_peak()
    assert written == [("/proc/self/clear_refs", "5")]


def test_what_the_machine_has_is_read_from_the_kernel_or_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "headroom_bytes", lambda: None)
    monkeypatch.setattr(Path, "read_bytes", lambda self: b"MemFree: 1 kB\nMemAvailable:   7 kB\n")
    assert available_bytes() == 7 << 10
    there = types.SimpleNamespace(available=12345)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: there)
    monkeypatch.setattr(Path, "read_bytes", lambda self: b"MemFree: 1 kB\n")
    assert available_bytes() == 12345

    def gone(self: Path) -> bytes:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_bytes", gone)
    assert available_bytes() == 12345


def test_an_advised_budget_holds_where_the_program_has_a_little_more() -> None:
    """With 200,000 files it had up to a MiB more when the command was given again."""
    budget = MemoryBudget(100 * MIB, used_bytes=42 * MIB)
    budget.spread_bytes = 3 * MIB
    with pytest.raises(BudgetError) as caught:
        budget.require({"all": 125 * MIB})
    assert (
        caught.value.next_step == "give at least --memory 176MiB"
    )  # 168 MiB would have 1 to spare
    budget = MemoryBudget(176 * MIB, used_bytes=45 * MIB)
    budget.require({"all": 125 * MIB})


def test_the_program_is_measured_with_room_for_how_much_it_varies() -> None:
    """`prepare --engine files` had 31.0 MiB in one run and 32.1 in the next, and was refused."""
    measured = MemoryBudget(MIB)
    program = measured.shares["program"]
    needed = 8 * MIB + -(program + MIB) % (8 * MIB)  # with a MiB to spare it is a round number
    with pytest.raises(BudgetError) as caught:
        measured.require({"all": needed})
    (advised,) = re.findall(r"--memory (\d+)MiB", str(caught.value.next_step))
    MemoryBudget(int(advised) * MIB, used_bytes=program + 2 * MIB).require({"all": needed})
