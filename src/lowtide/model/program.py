"""Memory of the program itself (interpreter, torch and its libraries), always measured.

In:      the environment: which torch is installed, on which Python, for which device
Out:     Program: resident bytes without a run's own weights and activations
Memory:  a few hundred bytes; the measurement runs in a separate process (probe.py)

One build of torch takes 320 MiB and another 700 for the same training, so a constant would be
wrong. A probe trains a model of a few hundred numbers for a step and reads the kernel's peak. The
result is stored in the user's cache folder under a key made of the versions, so that the next plan
is immediate; if that folder cannot be written, the probe runs every time.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowtide import __version__, errors, ranks
from lowtide.errors import DataError, LowtideError
from lowtide.files import checksum_bytes, read_json, write_json
from lowtide.memory import release_free_memory, tree_resident_bytes, usable_cores
from lowtide.packages import first_missing, installed_version
from lowtide.quickclasses import dataclass
from lowtide.scratch import scratch_folder

__all__ = ["Program", "find_program", "program_here"]

MIB = 1 << 20
_TIMEOUT_SECONDS = 900
_PROBE_VERSION = 5  # part of the key: a new one measures again
# Loaded on demand by the first step, if no probe has measured it (13 to 26 MiB on two builds).
_LATER_BYTES = 40 * MIB
_USUAL_EXTRA_BYTES = {"8bit": 40 * MIB, "compile": 350 * MIB, "recompute": 160 * MIB}
_PYARROW_BYTES = 40 * MIB  # imported: 36 MiB with pyarrow 21 to 24
PARTS = ("recompute", "8bit", "compile")  # the first is in the others
_PACKAGES = ("torch", "triton", "numpy", "safetensors", "bitsandbytes")


@dataclass(frozen=True)
class Program:
    """Resident bytes of the program, measured by a probe or in this process."""

    imported_bytes: int
    """With everything that training imports."""
    trained_bytes: int
    """After a step, an evaluation, a sample and a checkpoint of a tiny model."""
    device: str = "cpu"
    """The device of the probe: the meaning of `--device auto` here."""
    extra_bytes: dict[str, int] = dataclasses.field(default_factory=dict)
    """Additional memory of parts: recompute (activation checkpointing loads torch's compiler), on
    top of it 8bit (bitsandbytes) and compile (its processes); parquet (pyarrow)."""

    def bytes_for(
        self,
        *,
        use_8bit: bool = False,
        compiles: bool = False,
        recomputes: bool = False,
        reads_parquet: bool = False,
    ) -> int:
        """Bytes of the program with the parts a run uses."""
        size = self.trained_bytes
        size += self.extra_bytes.get("parquet", _PYARROW_BYTES) if reads_parquet else 0
        wanted = {"8bit": use_8bit, "compile": compiles}
        wanted["recompute"] = recomputes or use_8bit or compiles
        return size + sum(
            self.extra_bytes.get(part, 0) for part, is_used in wanted.items() if is_used
        )


# A machine without torch can plan for one that has it: the CPU build, and bitsandbytes.
_UNMEASURED = Program(300 * MIB, 325 * MIB, extra_bytes=_USUAL_EXTRA_BYTES)
# The same with JAX 0.10 for CPUs, its compiler included.
_UNMEASURED_JAX = Program(190 * MIB, 560 * MIB)
# Without a framework: Python and NumPy take 25 MiB when prompts are known, and 31 after the first
# token; a command imports 5 MiB more after reading its options.
_WRITING_BYTES, _IMPORTED_BYTES = 12 * MIB, 10 * MIB


def find_program(
    device: str = "auto",
    *,
    use_8bit: bool = False,
    compiles: bool = False,
    recomputes: bool = False,
    backend: str = "torch",
) -> Program:
    """Return the program's memory, by a probe if it is unknown for these versions."""
    if backend == "native":  # this process will be the one that computes
        here = program_here(0, backend=backend)
        return dataclasses.replace(here, trained_bytes=here.trained_bytes + _IMPORTED_BYTES)
    if backend != "torch":  # JAX includes the compiler and 8-bit moments
        return _find_part(backend, device) or _UNMEASURED_JAX
    program = _find_part("plain", device)
    if program is None:
        return _UNMEASURED
    wanted = {
        "recompute": recomputes or use_8bit or compiles,
        "8bit": use_8bit,
        "compile": compiles,
    }
    found = {part: _find_part(part, device) for part in PARTS if wanted[part]}
    return dataclasses.replace(program, extra_bytes=_extras(program, found))


def _extras(plain: Program, found: Mapping[str, Program | None]) -> dict[str, int]:
    """The additional memory of each measured part over the part that it includes."""
    extra: dict[str, int] = {}
    below = plain
    for part in PARTS:
        if (program := found.get(part)) is None:
            continue
        extra[part] = max(0, program.trained_bytes - below.trained_bytes)
        below = program if part == "recompute" else below
    return extra


def program_here(held_bytes: int, *, device: str = "auto", backend: str = "torch") -> Program:
    """Measure the program in this process, which has imported everything that training imports.

    `held_bytes` are weights that are loaded already and counted elsewhere. Memory that the first
    steps load on demand is added: as a probe measured it, if one has run.
    """
    release_free_memory()
    now = max(0, tree_resident_bytes() - held_bytes)
    if backend == "native":
        return Program(now, now + _WRITING_BYTES)
    is_torch = backend == "torch"
    known = _read(_cache_path("plain" if is_torch else backend, device))
    if known is None:
        later = _LATER_BYTES
        if not is_torch:
            later = _UNMEASURED_JAX.trained_bytes - _UNMEASURED_JAX.imported_bytes
        return Program(now, now + later, extra_bytes=_extra_here())
    found = {part: _read(_cache_path(part, device)) for part in PARTS if is_torch}
    extra = {**_extra_here(), **_extras(known, found)}
    if "torch._dynamo" in sys.modules:
        extra["recompute"] = 0
    later = max(0, known.trained_bytes - known.imported_bytes)
    trained = max(now + later, known.trained_bytes)
    return dataclasses.replace(known, imported_bytes=now, trained_bytes=trained, extra_bytes=extra)


def _extra_here() -> dict[str, int]:
    """The usual memory of further parts in this process, which may have imported one already."""
    usual = {**_USUAL_EXTRA_BYTES, "parquet": _PYARROW_BYTES}
    there = {"recompute": "torch._dynamo", "parquet": "pyarrow.parquet"}
    return {**usual, **{part: 0 for part, name in there.items() if name in sys.modules}}


@functools.cache
def _find_part(part: str, device: str) -> Program | None:
    """Return the cached result of a part, else measure it; None without the package it needs."""
    needed = {"8bit": "bitsandbytes", "jax": "jax"}.get(part, "torch")
    if first_missing(needed) is not None:
        return None
    path = _cache_path(part, device)
    found = _read(path)
    if found is not None:
        return found
    found = _probe(part, device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, dataclasses.asdict(found))
    except OSError:
        pass  # measured again next time
    return found


def _probe(part: str, device: str) -> Program:
    command = [sys.executable, "-m", "lowtide.training.probe", part, device]
    environment = {"OMP_WAIT_POLICY": "passive", **ranks.alone(os.environ)}
    try:
        # An empty cache folder, since cached kernels would not start the compiler.
        with scratch_folder("probe") as folder:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_SECONDS,
                check=False,
                env={**environment, "TORCHINDUCTOR_CACHE_DIR": str(folder)},
            )
        return Program(**json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        reason = f"no end in {_TIMEOUT_SECONDS} seconds"
    except (IndexError, ValueError, TypeError):
        printed = done.stderr  # pyright: ignore[reportPossiblyUnboundVariable]
        told = re.search(r"^lowtide\.errors\.(\w+): (.*)\n +next: (.*)$", printed, re.M)
        if told is not None:  # what we say ourselves, such as of a device that is not there
            kind: type[LowtideError] = getattr(errors, told[1], LowtideError)
            raise kind(told[2], next_step=told[3]) from None
        lines = printed.strip().splitlines()
        reason = lines[-1] if lines else "it ended without a word"
    raise LowtideError(
        f"what {'jax' if part == 'jax' else 'torch'} takes of the memory could not be measured: "
        f"{reason}",
        next_step=f"run {' '.join(command)}   to see more",
    )


def _read(path: Path) -> Program | None:
    try:
        return Program(**read_json(path))
    except (OSError, DataError, TypeError, ValueError):
        return None  # missing, or owned by another user


def _cache_path(part: str, device: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    folder = Path(base) if base else Path.home() / ".cache"
    about = [_PROBE_VERSION, part, device, *_environment()]
    about += map(installed_version, ("jax", "jaxlib")) if part == "jax" else ()
    key = checksum_bytes(json.dumps(about).encode())[:16]
    return folder / "lowtide" / f"program-{key}.json"


@functools.cache
def _environment() -> tuple[Any, ...]:
    """Everything that resident memory depends on, determined without imports."""
    versions = map(installed_version, _PACKAGES)
    spec = importlib.util.find_spec("torch")
    place: list[Any] = []
    if spec is not None and spec.origin is not None:  # builds of one version differ: which is it
        place = [spec.origin, Path(spec.origin).stat().st_mtime_ns]
    gpus = Path("/proc/driver/nvidia/gpus")
    num_gpus = len(list(gpus.iterdir())) if gpus.is_dir() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    threads = [os.environ.get("OMP_NUM_THREADS"), usable_cores()]
    return (*versions, *place, num_gpus, visible, *threads, __version__, sys.version,
            platform.platform())  # fmt: skip
