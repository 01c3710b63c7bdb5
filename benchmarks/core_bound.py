"""What speedup can this machine give at best? Separate commands at once, nothing shared.

    python benchmarks/core_bound.py --sample sample.txt [--megabytes 600] [--at-once 16]

`prepare` with one worker on its own text, alone and several times at once: these commands share no
threads, locks or files, so any slowdown compared with one alone is due to the machine (clock,
memory, disk). No number of workers in one command can gain more than this on the same cores. With
output in memory and on the disk. Also measured: hashing within a core's caches, and copying in
memory. Printed: JSON rows, `times_one` is the bound.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import Pool
from pathlib import Path

from core_scale import find_text_folder, make_copy
from peers import describe_machine

_HASHING = "import hashlib; d = b'x' * 65536; [hashlib.sha256(d).digest() for _ in range(24000)]"
_COPYING = (
    "d = bytearray(1 << 28); e = memoryview(bytearray(1 << 28))\nfor _ in range(24): e[:] = d"
)


def write_text(sample: Path, number: int, num_bytes: int, out: Path) -> None:
    """Copies of the sample, each with different text."""
    data = sample.read_bytes()
    with out.open("wb") as file:
        while file.tell() < num_bytes:
            file.write(make_copy(data, number))
            number += 1


def seconds_of(commands: Sequence[Sequence[str]]) -> float:
    """Run commands at once; the seconds until the last one has ended."""
    begin = time.perf_counter()
    running = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for words in commands]
    if any(process.wait() for process in running):
        raise SystemExit(f"failed: {' '.join(commands[0])}")
    return time.perf_counter() - begin


def prepare_words(text: Path, out: Path) -> list[str]:
    """`prepare` of one text with one worker."""
    words = [sys.executable, "-m", "lowtide", "prepare", "--input-files", str(text), "--quiet"]
    return [*words, "--num-workers", "1", "--memory", "1GiB", "--out-dir", str(out)]


def print_row(name: str, alone: float, together: float, count: int) -> None:
    """One kind of work: the speed of all cores as a multiple of one core's."""
    row = {"work": name, "alone_s": round(alone, 2), f"{count}_at_once_s": round(together, 2)}
    print(json.dumps({**row, "times_one": round(count * alone / together, 2)}), flush=True)


def main() -> None:
    """Measure all kinds, the best of two runs each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=Path, required=True)
    parser.add_argument("--sample-megabytes", type=float, default=20)
    parser.add_argument("--megabytes", type=float, default=600)
    parser.add_argument("--at-once", type=int, default=16)
    given = parser.parse_args()
    count, num_bytes = given.at_once, int(given.megabytes * 1e6)
    with (
        tempfile.TemporaryDirectory(dir=find_text_folder(count * num_bytes)) as memory,
        tempfile.TemporaryDirectory(prefix="core-bound-") as disk,
    ):
        print(f"{describe_machine()}; text in {Path(memory).parent}", flush=True)
        sample = Path(memory) / "sample.txt"
        data = given.sample.read_bytes()[: int(given.sample_megabytes * 1e6)]
        sample.write_bytes(data.decode("utf-8", "ignore").encode())
        texts = [Path(memory) / f"{number}.txt" for number in range(count)]
        with Pool() as pool:
            rows = [(sample, 1000 * n, num_bytes, text) for n, text in enumerate(texts)]
            pool.starmap(write_text, rows, chunksize=1)
        for name, code in (("hashing", _HASHING), ("copying", _COPYING)):
            words = [sys.executable, "-c", code]
            alone = min(seconds_of([words]) for _ in range(2))
            print_row(name, alone, min(seconds_of([words] * count) for _ in range(2)), count)
        for name, folder in (("prepare, output in memory", memory), ("on the disk", disk)):
            outs = [Path(folder) / f"out-{number}" for number in range(count)]
            commands = [prepare_words(*pair) for pair in zip(texts, outs, strict=True)]
            times: dict[int, float] = {}
            for number in (1, count, 1, count):
                took = seconds_of(commands[:number])
                times[number] = min(times.get(number, took), took)
                for out in outs[:number]:
                    shutil.rmtree(out)
            print_row(name, times[1], times[count], count)


if __name__ == "__main__":
    main()
