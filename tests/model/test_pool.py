"""The threads of the kernels: on a build that ends at the first unguarded access, after a fork,
where the system allows no more of them, and after a job with more of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..forks import run_children, run_program

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
def test_callers_at_once_share_nothing_unguarded(tmp_path: Path) -> None:
    assert COMPILER is not None
    program = tmp_path / "pool_threads"
    native = [ROOT / "native/model" / name for name in ("thread_pool.cpp", "row_kernels.cpp")]
    options = ["-std=c++20", "-I", ROOT / "native", "-g", "-O1", "-fsanitize=thread", "-pthread"]
    sources = [*native, ROOT / "tests/model/pool_threads.cpp"]
    built = subprocess.run(
        [COMPILER, *options, "-o", program, *sources], capture_output=True, text=True, check=False
    )
    if "tsan" in built.stderr:
        pytest.skip("the compiler has no thread sanitizer")
    assert built.returncode == 0, built.stderr
    # In the sanitizer stage another sanitizer is loaded before every program.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    ran = subprocess.run([program], capture_output=True, text=True, check=False, env=environment)
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("the kernel places memory where the thread sanitizer cannot be")
    assert (ran.returncode, ran.stdout) == (0, "ok\n"), ran.stderr


# Two small heads, each a block for a thread.
ATTEND = """
import numpy as np
from lowtide import _native

def attend(num_threads=2, num_heads=2, num_tokens=2):
    heads = np.ones((1, num_tokens, num_heads, 4), np.float32)
    out, sums = np.empty_like(heads), np.empty((1, num_heads, num_tokens), np.float32)
    strides = (heads.size, 4 * num_heads, 4) * 3
    sizes = (1, num_tokens, num_tokens, num_heads, num_heads, 4, 0)
    room = out.ctypes.data, sums.ctypes.data
    _native.attend([heads.ctypes.data] * 3, strides, sizes, *room, num_threads, 128)
    assert (out == 1).all()
"""

NO_MORE_THREADS = """
import resource

attend(1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20),) * 2)
for _ in range(3):
    attend(64, num_heads=256)
"""

MANY_THREADS = """
import time

def cost():
    start = time.process_time()
    for _ in range(300):
        attend(2, num_heads=8, num_tokens=100)
    return time.process_time() - start

attend()
few = min(cost() for _ in range(3))
attend(64, num_heads=256)
many = min(cost() for _ in range(3))
assert many < 2.5 * few, (few, many)  # four times, when all of them looked for work
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_child_made_while_other_threads_compute_computes_too() -> None:
    run_children(ATTEND, "attend()", children=150)


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux only")
def test_work_is_done_where_the_system_allows_no_more_threads() -> None:
    run_program(ATTEND + NO_MORE_THREADS)


def test_threads_that_are_not_wanted_any_more_take_no_time() -> None:
    run_program(ATTEND + MANY_THREADS)
