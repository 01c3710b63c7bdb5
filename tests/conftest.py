"""Rules for all tests: no randomness, no clock, a working Ctrl-C, a list of skipped tests.

Also the scheduling: a file is run by one process, so that what its tests share is made once, and
long files come first, so that no process waits for another at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Before anything imports torch. There are as many processes as cores: more threads would only
# compete for them, and the memory that programs use is measured once for all processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Hundreds of programs are started; their imports are compiled once for all of them, also
# if the shell's environment disables compiled files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import psutil
import pytest
from hypothesis import settings

from lowtide import _native, files, memory, progress
from lowtide.loader import selftest

sys.dont_write_bytecode = False

# The same examples every time, so that a failure is caused by the change; `make chance` tries
# new ones. The time of an example depends on the machine, not on the code.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("chance", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("fixed")

# A shell starts background jobs with SIGINT ignored, and children inherit that: the programs under
# test would ignore the Ctrl-C that a test sends them, and the test would wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Hundreds of thousands of small files are created and removed, which takes longer on a disk than
# the tests: they are kept in memory if there is enough. pytest reads the folder from this variable.
_IN_MEMORY, _ENOUGH_BYTES = Path("/dev/shm"), 8 << 30


def _has_room() -> bool:
    """True if there is enough memory for files, and programs in that folder can be executed."""
    if not os.access(_IN_MEMORY, os.W_OK) or os.statvfs(_IN_MEMORY).f_flag & os.ST_NOEXEC:
        return False
    return min(shutil.disk_usage(_IN_MEMORY).free, memory.available_bytes()) >= _ENOUGH_BYTES


def _remove_remains() -> None:
    """Remove folders of killed runs, which use memory: pytest would keep them for three days."""
    for lock in _IN_MEMORY.glob("pytest-of-*/pytest-*/.lock"):
        with contextlib.suppress(OSError, ValueError):
            if not psutil.pid_exists(int(lock.read_text())):
                shutil.rmtree(lock.parent, ignore_errors=True)


if "PYTEST_XDIST_WORKER" not in os.environ and _has_room():
    _remove_remains()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_IN_MEMORY))


# Files that share something costly: results computed by JAX, torch's compiler, imports of
# transformers (seconds), our files as syntax trees, and a process that has imported torch.
_TOGETHER = {
    "jax": ("tests/jaxtraining/test_",),
    "compiler": (
        "tests/training/test_compiling.py",
        "tests/model/test_gpt.py",
        "tests/model/test_float8_linear.py",
        "tests/model/test_graphs.py",
    ),
    "transformers": (
        "tests/model/test_families.py",
        "tests/model/test_export.py",
        "tests/model/test_growing.py",
        "tests/model/test_roundtrips.py",
        "tests/tokenizer/test_huggingface.py",
    ),
    "sources": (
        "tests/test_house.py",
        "tests/test_suite.py",
        "tests/test_aliases.py",
        "tests/test_errors.py",
        "tests/test_packages.py",
        "tests/test_returns.py",
    ),
    "forked": (
        "tests/training/test_distributed.py",
        "tests/memory/test_models.py",
        "tests/resume/test_training_kill.py",
        "tests/resume/test_prepare.py",
        "tests/dataset/test_staged.py",
        "tests/model/test_kernels.py",
        "tests/model/test_float8.py",
        "tests/model/test_rotation.py",
        "tests/training/test_partkernels.py",
        "tests/training/test_muonkernels.py",
        "tests/model/test_headkernels.py",
        "tests/ladder/test_packing.py",
    ),
}
# Files and groups of some seconds and more, longest first, so that short ones run last.
_LONGEST = (
    "tests/jaxtraining/test_parity.py",
    "tests/jaxtraining/test_runs.py",
    "tests/memory/test_advice.py",
    "tests/training/test_distributed.py",
    "tests/damage/test_damage.py",
    "tests/docs/test_docs.py",
    "tests/model/test_families.py",
    "tests/training/test_compiling.py",
    "tests/tokenizer/test_counting.py",
    "tests/dataset/test_raycluster.py",
    "tests/equality/test_families.py",
    "tests/training/test_loop.py",
    "tests/planning/test_estimates.py",
    "tests/memory/test_offload.py",
    "tests/test_packages.py",
    "tests/tokenizer/test_patterns.py",
    "tests/training/test_guides.py",
    "tests/tokenizer/test_merging.py",
    "tests/tokenizer/test_training.py",
    "tests/memory/test_prepare.py",
    "tests/equality/test_tokenizer.py",
    "tests/tokenizer/test_tokenizer.py",
    "tests/stores/test_datasets.py",
    "tests/dataset/test_preparation.py",
    "tests/model/test_gpt.py",
    "tests/memory/test_train_tokenizer.py",
    "tests/dataset/test_staged.py",
    "tests/readme/test_readme.py",
    "tests/resume/test_train_tokenizer.py",
    "tests/dataset/test_appending.py",
    "tests/memory/test_loading.py",
    "tests/training/test_footprint.py",
    "tests/training/test_start.py",
    "tests/memory/test_text_verbs.py",
    "tests/threads/test_stages.py",
    "tests/reporting/test_pages.py",
)

_CAPABILITIES_3 = 0x20080522  # the version of the call's structures; from linux/capability.h
_ORDINARY_BYTES = 64 << 20  # approximate memory of a command without training at its start
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1 << 1, 1 << 2


@pytest.fixture
def ordinary_user() -> Iterator[None]:
    """Apply file permissions to root as well, until the end of the test.

    Root can write everywhere; this removes that capability from this thread, which threads and
    programs it starts inherit.
    """
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
    before = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32 bits
    assert libc.capget(header, before) == 0
    less = (ctypes.c_uint32 * 6)(*before)
    less[0] &= ~(_DAC_OVERRIDE | _DAC_READ_SEARCH)
    assert libc.capset(header, less) == 0
    yield
    assert libc.capset(header, before) == 0


# The original functions, and the memory to subtract from what they measure.
_measure_own, _measure_peak = memory.resident_bytes, memory.process_peak_bytes
_surplus = {"own": 0, "beside": 0}


def _resident_bytes(pid: int | str = "self") -> int:
    if pid != "self":
        return _measure_own(pid)
    return max(_ORDINARY_BYTES, _measure_own() - _surplus["own"]) - _surplus["beside"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Measure this process before each test, and before fixtures are set up for the first."""
    beside = memory._descendant_pids() if memory._has_children() else []
    _surplus["own"] = max(0, _measure_own() - _ORDINARY_BYTES)
    _surplus["beside"] = sum(map(_measure_own, beside))


@pytest.fixture(scope="module", autouse=True)
def ordinary_process() -> Iterator[None]:
    """Let a budget see a program of ordinary size, whatever earlier tests left in this process.

    Hundreds of tests share one process, and imported libraries stay loaded: it exceeds the budgets
    that a test gives. Programs that a test starts measure themselves. The functions replaced are
    those that all other measurements call, in every module that imports them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "resident_bytes", _resident_bytes)
        patch.setattr(memory, "process_peak_bytes", lambda: _measure_peak() - _surplus["own"])
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Do not wait for flushes: tests kill processes, but never cut the power.

    Tens of thousands of files are written, each with two waits of milliseconds. Tests of flushes
    use their own stand-ins; programs that a test starts do wait.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # an invalid descriptor is an error, too
        patch.setattr(_native, "flush_files", _flush_in_python)
        yield


def _flush_in_python(paths: Sequence[bytes], num_threads: int) -> tuple[int, int] | None:
    """Like the native one, by `os.fsync`, whose stand-ins then see these files, too."""
    for number, path in enumerate(paths):
        try:
            files.flush_file(os.fsdecode(path))
        except OSError as error:
            return number, error.errno or errno.EIO
    return None


@pytest.fixture(scope="session", autouse=True)
def quick_clock() -> Iterator[None]:
    """Measurements of batches per second that take two seconds take a fiftieth of that."""
    clock = SimpleNamespace(perf_counter=lambda: 50 * time.perf_counter())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selftest, "time", clock)
        yield


@pytest.fixture
def events_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rows of metrics by time, once a second: their number depends on the machine."""
    never = progress.Intervals(metrics_seconds=float("inf"))
    monkeypatch.setattr(progress, "USUAL_INTERVALS", never)


# Imports that take seconds, once; each script then runs in a fork. When Triton is imported, the
# environment must already say that nothing is compiled for a GPU.
_FORKS = """
import importlib.util, json, os, sys, traceback
if os.fork():
    os._exit(0)  # so that nobody's child is left: what a test holds is measured with its children
os.environ["TRITON_INTERPRET"] = "1"
import torch
if importlib.util.find_spec("triton"):
    import triton, triton.language
import lowtide.cli, lowtide.training.trainer
os.fsync = os.fstat
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

def run(script, arguments, environment, log):
    code = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1), os.dup2(descriptor, 2)
        os.environ.update(environment)
        sys.argv = ["script", *arguments]
        exec(compile(script, "script", "exec"), {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)

for line in sys.stdin:
    children = []
    for job in json.loads(line):
        children.append(os.fork())
        if not children[-1]:
            run(*job)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(codes), file=answers, flush=True)
"""

StartForks = Callable[..., Callable[[], tuple[list[int], str]]]


@pytest.fixture(scope="session")
def start_forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartForks]:
    """Run scripts in parallel, each in a process with torch and Triton already imported.

    `start_forks((script, arguments, environment), ...)` returns a function that waits for them and
    returns their exit codes and output.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    log = tmp_path_factory.getbasetemp() / "forks.log"
    process.wait()
    questions, answers = process.stdin, process.stdout
    assert questions is not None and answers is not None

    def start(*jobs: tuple[str, Sequence[object], dict[str, str]]) -> Any:
        given = [[s, [str(word) for word in words], names, str(log)] for s, words, names in jobs]
        log.write_text("")
        questions.write(json.dumps(given) + "\n")
        questions.flush()
        return lambda: (json.loads(answers.readline()), log.read_text())

    with process:
        yield start
        questions.close()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute whole files, and files that share something costly together."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return next((name for name, of in _TOGETHER.items() if path.startswith(of)), path)

    config.option.loadscopereorder = False
    return Files(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, if several processes share them."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return  # in the order given
    ranks = {path: rank for rank, path in enumerate(_LONGEST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


def pytest_collection(session: pytest.Session) -> None:
    """Disable garbage collection while modules are imported, which are never freed."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Enable it again, without the million objects of modules, whose scan takes half a second."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List every skipped test at the end, by reason."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        place = report.longrepr
        reason = place[2] if isinstance(place, tuple) else str(place)
        by_reason[reason.removeprefix("Skipped: ")].append(report.nodeid)
    if not by_reason:
        return
    terminalreporter.section("not run here")
    for reason, tests in sorted(by_reason.items()):
        terminalreporter.write_line(f"{reason}: {len(tests)}")
        for test in sorted(tests):
            terminalreporter.write_line(f"  {test}")
