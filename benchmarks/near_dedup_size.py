"""Budget of `--near-dedup` on growing text: peak and processor time by size.

    python benchmarks/near_dedup_size.py --gigabytes 0.1 1 --folder /tmp/near enwiki.txt

The text is generated: the file repeated, with two other letters exchanged in every repetition, so
that all differ, and a tenth of the documents are those of the repetition before with one word
added. It is written as .txt.zst, prepared by one worker in `--memory` with near copies and without,
alternately for `--rounds`, and removed. Times are medians; the cost of near copies is the
difference.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import zstandard

SEPARATOR = b"<|endoftext|>"
PAIRS = list(itertools.combinations("tnshrdlcmfpgwybvk", 2))


def iter_text(data: bytes, size: int) -> Iterator[bytes]:
    """This many bytes, repetition by repetition."""
    copies: list[bytes] = []
    number = 0
    while size > 0:
        one, other = PAIRS[number % len(PAIRS)]
        table = bytes.maketrans((one + other).encode(), (other + one).encode())
        documents = [part.translate(table) for part in data.split(SEPARATOR)]
        for place, copy in enumerate(copies):
            documents[10 * place + 5] = copy + b" again%d" % number
        text = SEPARATOR.join([*documents, b""])[:size]
        yield text
        size -= len(text)
        copies = documents[0::10][: len(documents) // 10]
        number += 1


def write_text(source: Path, target: Path, size: int) -> None:
    with zstandard.open(target, "wb", cctx=zstandard.ZstdCompressor(level=1)) as file:
        for part in iter_text(source.read_bytes(), size):
            file.write(part)


def prepare(path: Path, out_dir: Path, memory: str, threshold: float) -> tuple[int, float]:
    """Prepare in a new process; its peak in kB, and its processor seconds."""
    shutil.rmtree(out_dir, ignore_errors=True)
    words = f"prepare --input-files {path} --out-dir {out_dir} --near-dedup {threshold}"
    more = ["--processes", "1", "--memory", memory]
    command = [sys.executable, "-m", "lowtide", *words.split(), *more]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the command failed: {status}")
    return used.ru_maxrss, used.ru_utime + used.ru_stime


def main() -> None:
    """Make each size, prepare it, print a row."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--gigabytes", nargs="+", type=float, default=[0.1, 1.0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print("| text | documents | near copies | peak | processor time | without them | MB/s |")
    print("|---|---|---|---|---|---|---|")
    for size in given.gigabytes:
        folder = given.folder / f"{size:g}"
        folder.mkdir(parents=True)
        text = folder / "text.txt.zst"
        # In a new process: a child's peak begins with its parent's memory.
        making = multiprocessing.Process(
            target=write_text, args=(given.file, text, int(size * 1e9))
        )
        making.start()
        making.join()
        plain: list[float] = []
        near: list[tuple[int, float]] = []
        for _ in range(given.rounds):
            plain.append(prepare(text, folder / "plain", given.memory, 0)[1])
            near.append(prepare(text, folder / "out", given.memory, 0.8))
        peak, seconds = max(row[0] for row in near), statistics.median(row[1] for row in near)
        without = statistics.median(plain)
        facts = json.loads((folder / "out/dataset_metadata.json").read_text())
        documents = facts["cleaning"]["documents_in"]
        removed = facts["cleaning"]["rules"].get("near_copy", {}).get("count", 0)
        rate = 1000 * size / (seconds - without)
        print(f"| {size:g} GB | {documents:,} | {removed:,} | {peak:,} kB | {seconds:.1f} s | "
              f"{without:.1f} s | {rate:.0f} |", flush=True)  # fmt: skip
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
