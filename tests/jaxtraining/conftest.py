"""One process computes all that the tests here compare, beside what torch computes in this one."""

import contextlib
import fcntl
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def jaxlib_version():
    """The first two numbers of the installed release."""
    return tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2]))


def start_jax(script, *arguments, compiled, devices=8):
    """Start a script of this folder with virtual devices; `compiled` keeps JAX's programs."""
    # Compiling is most of the time: the kernels of so small a model need not be good ones.
    options = f"--xla_force_host_platform_device_count={devices} "
    options += "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    if jaxlib_version() < (0, 11):  # later ones stop at a flag that they no longer know
        options += " --xla_cpu_use_fusion_emitters=false"
    flags = {"XLA_FLAGS": options, "JAX_PLATFORMS": "cpu"}
    cache = {"JAX_COMPILATION_CACHE_DIR": str(compiled)}
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **flags, **cache, "PYTHONPATH": paths}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def run_jax(script, *arguments, compiled):
    """Run a script of this folder to its end; return the last line that it printed."""
    process = start_jax(script, *arguments, compiled=compiled)
    out, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    return out.splitlines()[-1]


def run_pair(folder, *arguments, compiled):
    """Run two processes that train together, a device each; return (status, output, errors)."""
    with socket.socket() as found:  # a free place for the first one to listen at
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    pair = [
        start_jax("together.py", folder, number, address, *arguments, compiled=compiled, devices=1)
        for number in range(2)
    ]
    if "die" in arguments:
        while all(process.poll() is None for process in pair):
            with contextlib.suppress(subprocess.TimeoutExpired):
                pair[0].wait(timeout=0.2)
        for process in pair:  # the one that still lives waits for the other
            process.kill()
    ends = [process.communicate() for process in pair]
    return [(process.returncode, *end) for process, end in zip(pair, ends, strict=True)]


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
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return os.environ["JAX_COMPILATION_CACHE_DIR"]
    cache = getattr(request.config, "cache", None)  # not there where it is switched off
    return cache.mkdir("jax") if cache is not None else folder / "compiled"


@pytest.fixture(scope="session")
def found(folder, compiled):
    """What JAX computed; runs that torch begins are there before, and a pair's that was killed."""
    pytest.importorskip("jax")
    from .torchruns import begin_runs

    torch.set_num_threads(1)
    answers = folder / "answers.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not answers.exists():
            begin_runs(folder)
            ends = [end[0] for end in run_pair(folder, "die", compiled=compiled)]
            assert -9 in ends, ends
            found = json.loads(run_jax("runs.py", folder, compiled=compiled))
            found["pair"] = run_pair(folder, compiled=compiled)
            answers.write_text(json.dumps(found))
    return json.loads(answers.read_text())
