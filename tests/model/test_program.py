"""What the program takes is measured once for each set of versions, and never guessed."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lowtide import packages
from lowtide.errors import LowtideError, UsageError
from lowtide.model import program as program_module
from lowtide.model.program import MIB, Program, find_program, program_here


@pytest.fixture
def probes(tmp_path, monkeypatch):
    """Count the probes that run, each of which finds another size; the cache is a new folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ran = []

    def probe(part, device):
        ran.append((part, device))
        sizes = {"plain": 300, "recompute": 440, "8bit": 490, "compile": 900}
        return Program(290 * MIB, sizes[part] * MIB)

    monkeypatch.setattr(program_module, "_probe", probe)
    forget()
    yield ran
    forget()


def forget():
    """Do as a new process does."""
    program_module._find_part.cache_clear()
    program_module._environment.cache_clear()


def test_a_probe_runs_once_for_these_versions(probes, monkeypatch):
    assert find_program().trained_bytes == 300 * MIB
    forget()
    assert find_program().trained_bytes == 300 * MIB
    assert probes == [("plain", "auto")]
    monkeypatch.setattr(program_module, "__version__", "other")
    forget()
    find_program()
    assert len(probes) == 2


def test_parts_are_measured_only_where_a_run_uses_them(probes):
    program = find_program("cpu", use_8bit=True)
    assert program.bytes_for() == 300 * MIB
    assert program.bytes_for(use_8bit=True) == 490 * MIB
    assert program.bytes_for(recomputes=True) == 440 * MIB
    assert probes == [("plain", "cpu"), ("recompute", "cpu"), ("8bit", "cpu")]
    compiled = find_program("cpu", compiles=True)
    assert compiled.bytes_for(compiles=True) == 900 * MIB


def test_what_parts_share_is_counted_once(probes, monkeypatch):
    program = find_program("cpu", use_8bit=True, compiles=True, recomputes=True)
    assert program.bytes_for(use_8bit=True, recomputes=True) == 490 * MIB
    assert program.bytes_for(compiles=True, recomputes=True) == 900 * MIB
    assert program.bytes_for(use_8bit=True, compiles=True) == 950 * MIB
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    before = program_here(0, device="cpu")
    assert before.extra_bytes["recompute"] == 140 * MIB
    assert before.extra_bytes["8bit"] == 50 * MIB
    monkeypatch.setitem(sys.modules, "torch._dynamo", sys)
    assert program_here(0, device="cpu").extra_bytes["recompute"] == 0
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert program_here(0, device="cpu").extra_bytes["recompute"] == 0


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null/folder"])
def test_a_cache_that_cannot_be_written_is_no_error(probes, monkeypatch, place):
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    assert find_program().trained_bytes == 300 * MIB
    forget()
    assert find_program().trained_bytes == 300 * MIB
    assert len(probes) == 2


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 1}', "null"])
def test_a_damaged_cache_is_measured_again(probes, tmp_path, content):
    find_program()
    (path,) = (tmp_path / "cache" / "lowtide").iterdir()
    path.write_text(content)
    forget()
    assert find_program().trained_bytes == 300 * MIB
    assert len(probes) == 2


def test_without_torch_nothing_is_measured(probes, monkeypatch):
    monkeypatch.setattr(packages, "has_package", lambda name: False)
    assert find_program() is program_module._UNMEASURED
    assert probes == []


def test_a_probe_that_fails_says_how_to_see_more(monkeypatch):
    def run(command, **options):
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nImportError: libcudart")

    monkeypatch.setattr(program_module.subprocess, "run", run)
    with pytest.raises(LowtideError, match=r"ImportError: libcudart(.|\n)*lowtide.training.probe"):
        program_module._probe("plain", "cpu")


def test_a_probe_without_its_device_says_what_is_missing(monkeypatch):
    printed = (
        "Traceback\nlowtide.errors.UsageError: device is 'gpu', none here\n  next: leave it out"
    )

    def run(command, **options):
        return subprocess.CompletedProcess(command, 1, "", printed + "\n")

    monkeypatch.setattr(program_module.subprocess, "run", run)
    with pytest.raises(UsageError) as caught:  # as without a budget: the same exit code
        program_module._probe("jax", "gpu")
    assert str(caught.value) == "device is 'gpu', none here\n  next: leave it out"


def test_here_the_program_is_what_is_resident_less_what_is_counted_elsewhere(probes):
    block = bytearray(64 * MIB)
    block[::4096] = b"x" * len(block[::4096])
    all_of_it = program_here(0)
    less = program_here(64 * MIB)
    assert all_of_it.imported_bytes - less.imported_bytes == pytest.approx(64 * MIB, abs=4 * MIB)
    assert all_of_it.trained_bytes > all_of_it.imported_bytes
    assert probes == []  # it never starts a probe beside what is there already


def test_the_probe_measures_what_a_real_start_takes(tmp_path):
    """The one test that runs it: in an environment of its own, as a command does."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    code = (
        "import dataclasses, json, sys; from lowtide.model.program import find_program\n"
        "print(json.dumps([dataclasses.asdict(find_program('cpu')), 'torch' in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    found, imported_torch = json.loads(done.stdout)
    assert not imported_torch
    code = (
        "import lowtide.training.start\n"
        "from lowtide.training.backends import open_backend; open_backend('torch')\n"
        "from lowtide.memory import tree_resident_bytes; print(tree_resident_bytes())"
    )
    imported = int(subprocess.check_output([sys.executable, "-c", code]))
    assert found["imported_bytes"] == pytest.approx(imported, rel=0.05)
    assert 1.02 * imported < found["trained_bytes"] < imported + 100 * MIB
    assert found["device"] == "cpu"


def test_native_code_is_this_process_and_what_it_will_import(monkeypatch):
    here = Program(10, 20 * MIB)
    asked = []
    monkeypatch.setattr(
        program_module, "program_here", lambda held, backend: asked.append((held, backend)) or here
    )
    found = find_program(backend="native")
    assert found == Program(10, 20 * MIB + program_module._IMPORTED_BYTES) and asked == [
        (0, "native")
    ]


@pytest.mark.parametrize("cache", [None, "cache"])
def test_where_a_measurement_is_kept(tmp_path, monkeypatch, cache):
    monkeypatch.setenv("HOME", str(tmp_path))
    if cache is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
    about = [(part, device) for part in ("plain", "jax") for device in ("auto", "cpu")]
    paths = {program_module._cache_path(*one) for one in about}
    assert len(paths) == 4
    assert {path.parent for path in paths} == {tmp_path / (cache or ".cache") / "lowtide"}
    assert all(re.fullmatch(r"program-[0-9a-f]{16}\.json", path.name) for path in paths)
    monkeypatch.setattr(program_module, "installed_version", lambda name: "0.0")
    assert {program_module._cache_path("jax", device) for device in ("auto", "cpu")} - paths


def test_jax_is_as_measured_or_as_usual(probes, monkeypatch):
    monkeypatch.setattr(program_module, "tree_resident_bytes", lambda: 250 * MIB)
    monkeypatch.setattr(program_module, "release_free_memory", lambda: None)
    here = program_here(50 * MIB, backend="jax")
    assert (here.imported_bytes, here.trained_bytes) == (200 * MIB, 570 * MIB)
    assert here.extra_bytes == program_module._extra_here()
    known = Program(100 * MIB, 400 * MIB)
    monkeypatch.setattr(program_module, "_read", lambda path: known)
    found = program_here(50 * MIB, backend="jax")
    assert (found.imported_bytes, found.trained_bytes) == (200 * MIB, 500 * MIB)
    small = program_here(240 * MIB, backend="jax")
    assert (small.imported_bytes, small.trained_bytes) == (10 * MIB, 400 * MIB)
    with monkeypatch.context() as patch:
        patch.setattr(program_module, "_find_part", lambda part, device: None)
        assert find_program(backend="jax") is program_module._UNMEASURED_JAX
        patch.setattr(program_module, "_find_part", lambda part, device: (part, device))
        assert find_program("cpu", backend="jax") == ("jax", "cpu")


def test_another_build_of_torch_is_another_program(monkeypatch, tmp_path):
    """Builds of one version differ: the file that torch is imported from is part of the key."""
    found = []
    for name, written in (("a", 1), ("a", 2), ("b", 2), (None, 0)):
        origin = None if name is None else tmp_path / name
        if origin is not None:
            origin.touch()
            os.utime(origin, ns=(0, written))
        spec = None if origin is None else SimpleNamespace(origin=str(origin))
        monkeypatch.setattr(program_module.importlib.util, "find_spec", lambda name, s=spec: s)
        found.append(program_module._environment.__wrapped__())
    assert len(set(found)) == 4
    assert str(tmp_path / "a") in found[0] and 1 in found[0]
