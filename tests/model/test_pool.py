"""The threads of the row kernels, on a build that ends at the first unguarded access."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

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
