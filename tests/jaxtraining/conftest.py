"""One process computes all that the tests here compare, beside what torch computes in this one."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def run_jax(script, *arguments, compiled, check=True):
    """Run a script of this folder with eight virtual devices; `compiled` keeps JAX's programs."""
    # Compiling is most of the time: the kernels of so small a model need not be good ones.
    options = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    options += "--xla_cpu_use_fusion_emitters=false --xla_llvm_disable_expensive_passes=true"
    flags = {"XLA_FLAGS": options, "JAX_PLATFORMS": "cpu"}
    cache = {"JAX_COMPILATION_CACHE_DIR": str(compiled)}
    environment = {**os.environ, **flags, **cache, "PYTHONPATH": str(HERE)}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert not check or done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """One for all processes of a run of tests: nothing here is computed twice."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "jax"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def compiled(folder, request):
    """Where compiled programs stay for the next run of tests: JAX knows them by what they do."""
    cache = getattr(request.config, "cache", None)  # not there where it is switched off
    return cache.mkdir("jax") if cache is not None else folder / "compiled"


@pytest.fixture(scope="session")
def found(folder, compiled):
    """What JAX computed; runs that torch begins are there before, and one that was killed."""
    pytest.importorskip("jax")
    from .torchruns import begin_runs

    torch.set_num_threads(1)
    answers = folder / "answers.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not answers.exists():
            begin_runs(folder)
            assert run_jax("killed.py", folder, compiled=compiled, check=False).returncode == -9
            done = run_jax("runs.py", folder, compiled=compiled)
            answers.write_text(done.stdout.splitlines()[-1])
    return json.loads(answers.read_text())
