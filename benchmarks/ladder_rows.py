"""Rows of the memory ladder on a GPU, some in parallel, each with its own limits.

Every row is a separate command (gpu_offload.py, rung_bits.py, offload_peers.py, gpu_shared.py) with
a limit on its host memory, by a control group, and on its time. Rows whose speed counts run alone;
the others run in parallel as far as the host's memory allows, so that their tokens per second mean
little.

    python benchmarks/ladder_rows.py --out rows.jsonl --logs logs
    python benchmarks/ladder_rows.py --only 14 17 --dry-run
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hostlimits import end_group, limit_memory

HERE = Path(__file__).parent
GIB = 1 << 30
RESERVE_GIB = 4  # of the host, for everything else


@dataclass(frozen=True)
class Row:
    """One command."""

    name: str
    command: str
    host_gib: float
    """Its limit of host memory."""
    seconds: float
    """It is killed after this time."""
    alone: bool = False


def _steps(vram: int, params: str, rung: str, rows: int, parts: int, more: str = "") -> str:
    shape = f"--vram {vram} --params {params} --offload {rung} --rows {rows} --parts {parts}"
    return f"gpu_offload.py {shape} {more}"


LOWER = "--learning-rate 2e-6"
FILE = "--steps 6 --offload-dir {scratch}"
BITS = "rung_bits.py --params 3e8 --steps 4 --cases packed"
ROWS = [
    Row("14", _steps(16, "1.4e10", "layers", 2, 4, LOWER), 99, 170),
    Row("3.5", _steps(24, "3.5e9", "gradients", 4, 4), 14, 100),
    Row("disk-all", _steps(8, "1e9", "disk-all", 4, 4, FILE), 5, 150),
    Row("bits", f"{BITS} packed layers layers packed= layers= disk-all= --no-compile", 12, 100),
    Row("disk", _steps(8, "1e9", "disk", 4, 4, FILE), 8, 120),
    Row("2.2", _steps(16, "2.2e9", "gradients", 4, 4), 10, 90),
    Row("bits-compiled", f"{BITS} layers packed= layers=", 12, 110),
    Row("1.0", _steps(8, "1e9", "gradients", 4, 4), 7, 70),
    Row("9", _steps(24, "9e9", "optimizer", 4, 4), 52, 240),
    Row("5.5-packed", _steps(0, "5.5e9", "packed", 4, 8, "--steps 6"), 20, 90, alone=True),
    Row("5.5", _steps(16, "5.5e9", "optimizer", 4, 8), 40, 110, alone=True),
    Row("5.5-layers", _steps(0, "5.5e9", "layers", 4, 4, "--steps 6"), 60, 90, alone=True),
    Row("2.5", _steps(8, "2.5e9", "optimizer", 4, 4), 18, 100),
    Row("fsdp2", "offload_peers.py fsdp2 --params 3e8 --seconds 40", 60, 85, alone=True),
    Row("own-packed", _steps(0, "3e8", "packed", 4, 8, "--steps 8"), 20, 50, alone=True),
    Row("own-optimizer", _steps(0, "3e8", "optimizer", 4, 8, "--steps 8"), 20, 50, alone=True),
    Row("own-none", "offload_peers.py none --params 3e8", 20, 50, alone=True),
    Row("shared", "gpu_shared.py --seconds 45", 40, 150, alone=True),
    Row("17", _steps(24, "1.7e10", "layers", 2, 2, LOWER), 117, 200),
    Row("own-layers", _steps(0, "3e8", "layers", 4, 8, "--steps 8"), 20, 50, alone=True),
]


@dataclass
class Running:
    """A running command."""

    row: Row
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    began: float
    is_limited: bool


def start(row: Row, options: argparse.Namespace) -> Running:
    """Start a row under its limits."""
    words = row.command.format(scratch=options.scratch).split()
    command = [sys.executable, str(HERE / words[0]), *words[1:]]
    command += ["--out", str(options.out)]
    if words[0] != "rung_bits.py":
        command += ["--data", str(options.data)]
    limited = limit_memory(f"lowtide-{row.name}", int(row.host_gib * GIB))
    log = (options.logs / f"{row.name}.log").open("wb")
    # The compiler's worker processes, one per core, would exceed the limit; large blocks in large
    # pages are filled faster.
    more = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    process = subprocess.Popen(
        command, stdout=log, stderr=log, preexec_fn=limited, env={**os.environ, **more}
    )
    print(f"{row.name}: begun", flush=True)
    return Running(row, process, log, time.monotonic(), limited is not None)


def finish(running: Running, options: argparse.Namespace) -> None:
    """Print how a row ended, and the end of its output."""
    running.log.close()
    row, took = running.row, time.monotonic() - running.began
    held = end_group(f"lowtide-{row.name}")
    about: dict[str, Any] = {
        "row": row.name,
        "status": running.process.returncode,
        "seconds": round(took, 1),
        "host_limit_gib": row.host_gib if running.is_limited else None,
        "group_peak_gib": None if held is None else round(held / GIB, 2),
    }
    with options.out.open("a") as file:
        file.write(json.dumps(about) + "\n")
    said = (options.logs / f"{row.name}.log").read_text(errors="replace").splitlines()
    print(f"== {json.dumps(about)}")
    print("\n".join(line[:600] for line in said[-options.lines :]), flush=True)


def may_start(row: Row, running: list[Running], total_gib: float, beside: int) -> bool:
    """True if a row may start in addition to the running ones."""
    if any(one.row.alone for one in running) or (row.alone and running):
        return False
    held = sum(one.row.host_gib for one in running)
    return len(running) < beside and held + row.host_gib <= max(total_gib, row.host_gib)


def host_gib() -> float:
    """Memory of this machine, less the reserve for everything else."""
    first = Path("/proc/meminfo").read_text().splitlines()[0]
    return int(first.split()[1]) / (1 << 20) - RESERVE_GIB


def run_all(rows: list[Row], options: argparse.Namespace) -> None:
    """Start rows in order, each as soon as it may, and stop those whose time is over."""
    waiting, running = list(rows), list[Running]()
    ends = time.monotonic() + options.seconds
    while waiting or running:
        for row in list(waiting):
            if time.monotonic() + row.seconds / 3 > ends:
                print(f"{row.name}: left out, no time", flush=True)
                waiting.remove(row)
            elif may_start(row, running, options.host_gib, options.beside):
                running.append(start(row, options))
                waiting.remove(row)
        for one in list(running):
            late = time.monotonic() > min(one.began + one.row.seconds, ends)
            if late and one.process.poll() is None:
                one.process.kill()
                one.process.wait()
            if one.process.poll() is not None:
                running.remove(one)
                finish(one, options)
        time.sleep(0.1)


def main() -> None:
    """Run the selected rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [row.name for row in ROWS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--skip", nargs="+", choices=names, default=[])
    parser.add_argument("--data", type=Path, default=Path("carry/ladder/train.bin"))
    parser.add_argument("--out", type=Path, default=Path("ladder.jsonl"))
    parser.add_argument("--logs", type=Path, default=Path("ladder-logs"))
    parser.add_argument("--scratch", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--seconds", type=float, default=420, help="of all rows together")
    parser.add_argument("--host-gib", type=float, default=host_gib(), help="for all rows at once")
    parser.add_argument("--beside", type=int, default=3, help="rows at once, at most")
    parser.add_argument("--lines", type=int, default=12, help="of each row's output to show")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    rows = [row for row in ROWS if row.name in options.only and row.name not in options.skip]
    if options.dry_run:
        print("\n".join(f"{row.name}: {row.command}" for row in rows))
        return
    options.logs.mkdir(parents=True, exist_ok=True)
    run_all(rows, options)


if __name__ == "__main__":
    main()
