"""One process computes all that the tests here compare, beside what torch computes in this one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def run_jax(script, *arguments, check=True):
    """Run a script of this folder with eight virtual devices."""
    # Compiling is most of the time: the kernels of so small a model need not be good ones.
    options = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    flags = {"XLA_FLAGS": options, "JAX_PLATFORMS": "cpu"}
    cache = {"JAX_COMPILATION_CACHE_DIR": str(arguments[0] / "compiled")}
    environment = {**os.environ, **flags, **cache, "PYTHONPATH": str(HERE)}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert not check or done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("jax")


@pytest.fixture(scope="session")
def found(folder):
    """What JAX computed; runs that torch begins are there before, and one that was killed."""
    pytest.importorskip("jax")
    from .torchruns import begin_runs

    torch.set_num_threads(1)
    begin_runs(folder)
    assert run_jax("killed.py", folder, check=False).returncode == -9
    return json.loads(run_jax("runs.py", folder).stdout.splitlines()[-1])
