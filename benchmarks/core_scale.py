"""What is the speedup of prepare and train-tokenizer with more workers? Takes a few minutes.

    python benchmarks/core_scale.py --sample sample.txt [--seconds 220] [--gigabytes 2 10]

The text consists of copies of the sample (some megabytes, `<|endoftext|>` between documents): each
line ends with the copy's number and digits are exchanged, so that no line is a duplicate, and in a
twentieth of each copy letters are exchanged, so that new words keep occurring. It is one large
file, or one file per copy, each slightly longer than the one before: files of equal size are
compared. Commands run one after the other, each in its own process; commands that would not end
within `--seconds` are skipped, and listed. Shards must be the same for every number of workers.
Printed: one JSON row for each command (`other_s` is time outside of phases: start, end and between;
then page faults, and voluntary and involuntary switches of threads), what the threads of some
commands waited for (thread_samples.py; such a run is in no ratio), how long the disk alone takes to
write and flush as many bytes; then ratios to one worker.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers import describe_machine

_SLICES = 20
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_DIGITS = b"0123456789"
_IN_MEMORY = "in memory"


def make_copy(sample: bytes, number: int) -> bytes:
    """The sample with lines, numbers and some words that no other copy has; of equal length."""
    size = len(sample) // _SLICES
    first = number % _SLICES * size
    turn = number // _SLICES % 25 + 1
    words = bytes.maketrans(_LETTERS, _LETTERS[turn:] + _LETTERS[:turn])
    numbers = bytes.maketrans(_DIGITS, _DIGITS[number % 10 :] + _DIGITS[: number % 10])
    text = b"".join(
        [
            sample[:first],
            sample[first : first + size].translate(words),
            sample[first + size :],
        ]
    )
    return text.translate(numbers).replace(b"\n", b" (%05d)\n" % number) + b"<|endoftext|>"


def write_copy(sample_path: Path, number: int, large: Path, folder: Path) -> None:
    """Write one copy at its offset in the large file, and into its own file."""
    data = make_copy(sample_path.read_bytes(), number)
    (folder / f"{number:05d}.txt").write_bytes(data + b"." * number)
    with large.open("r+b") as file:
        file.seek(number * len(data))
        file.write(data)


@dataclass(frozen=True)
class Text:
    """The same text as one file and as many files."""

    large: Path
    folder: Path
    num_files: int
    num_bytes: int

    @classmethod
    def make(cls, sample: Path, gigabytes: float, folder: Path) -> Text:
        """Write it, on all cores."""
        copy_bytes = len(make_copy(sample.read_bytes(), 0))
        count = max(round(gigabytes * 1e9 / copy_bytes), 1)
        text = cls(folder / "large.txt", folder / "many", count, count * copy_bytes)
        text.folder.mkdir(parents=True)
        text.large.touch()
        with multiprocessing.Pool() as pool:
            rows = ((sample, number, text.large, text.folder) for number in range(count))
            pool.starmap(write_copy, rows, chunksize=1)
        os.sync()  # else the system writes it while the first command runs
        return text


@dataclass
class Measurements:
    """Runs commands within a time limit, and stores their measurements."""

    until: float
    out: Path
    memory_out: Path
    memory: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    checksums: dict[str, str] = field(default_factory=dict)

    def run(self, verb: str, source: Path, flags: Sequence[str], facts: dict[str, Any]) -> None:
        """Run one command, unless it may take longer than the remaining time."""
        expected = self.expect(facts)
        if time.monotonic() + expected > self.until:
            print(json.dumps({"left out": facts, "expected_s": round(expected, 1)}), flush=True)
            return
        out = self.memory_out if facts.get("output") == _IN_MEMORY else self.out
        samples = self.out.with_name("samples.json")
        program = ["-m", "lowtide"]
        if facts.get("sampled"):
            program = [str(Path(__file__).with_name("thread_samples.py")), str(samples)]
        words = [sys.executable, *program, verb, *flags, "--out-dir", str(out)]
        words += ["--memory", self.memory, "--num-workers", str(facts["workers"]), "--quiet"]
        words += ["--input-files" if verb == "prepare" else "--input", str(source)]
        begin = time.perf_counter()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"failed: {' '.join(words)}")
        row: dict[str, Any] = {
            **facts,
            "wall_s": round(wall, 2),
            "user_s": round(used.ru_utime, 2),
            "system_s": round(used.ru_stime, 2),
            "faults": used.ru_minflt,
            "switches": [used.ru_nvcsw, used.ru_nivcsw],
            **read_metrics(out / "metrics.jsonl"),
        }
        if "phases" in row:
            row["other_s"] = round(wall - sum(row["phases"].values()), 3)
        print(json.dumps(row), flush=True)
        if facts.get("sampled"):
            print(json.dumps(json.loads(samples.read_text()), indent=1), flush=True)
        else:
            self.rows.append(row)
        self.require_same(facts, out)
        shutil.rmtree(out)

    def expect(self, facts: dict[str, Any]) -> float:
        """Estimated seconds of a command: those of the nearest one that was run, plus a third."""
        speeds = [
            row["wall_s"] / row["gigabytes"] * max(row["workers"] / facts["workers"], 1)
            for row in self.rows
            if row["verb"] == facts["verb"] and row["workers"] >= facts["workers"]
        ]
        by_hand = 10 / facts["workers"] ** 0.5  # seconds a gigabyte, nothing being known
        return 1.33 * facts["gigabytes"] * min([*speeds, by_hand])

    def require_same(self, facts: dict[str, Any], out: Path) -> None:
        """Raise an error if a different number of workers gave a different result."""
        names = ("dataset_metadata.json", "tokenizer.json")
        path = next(out / name for name in names if (out / name).exists())
        value = json.loads(path.read_bytes())
        made = json.dumps(value.get("shards", value.get("model")), sort_keys=True)
        key = f"{facts['verb']} {facts['text']} {facts['gigabytes']}"
        if self.checksums.setdefault(key, made) != made:
            raise SystemExit(f"other bytes with {facts['workers']} workers: {key}")

    def print_ratios(self) -> None:
        """Print the speedups relative to one worker, by the best run of each."""
        best: dict[tuple[str, str, str, float], dict[int, float]] = {}
        for row in self.rows:
            text = ", output ".join([row["text"], *([row["output"]] if "output" in row else [])])
            key = (row["verb"], row["engine"], text, row["gigabytes"])
            walls = best.setdefault(key, {})
            walls[row["workers"]] = min(walls.get(row["workers"], row["wall_s"]), row["wall_s"])
        for (verb, engine, text, size), walls in best.items():
            one = walls.get(1) or best.get((verb, "threads", text, size), {}).get(1)
            ratios = {count: round(one / wall, 2) for count, wall in walls.items()} if one else {}
            print(f"{verb} --engine {engine}, {size} GB, {text}: {walls} s; times one: {ratios}")


def read_metrics(path: Path) -> dict[str, Any]:
    """Peak memory and seconds of each phase; empty if a command writes no metrics."""
    if not path.exists():
        return {}
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    phases = {row["phase"]: row["phase_seconds"] for row in rows if "phase_seconds" in row}
    return {"peak_mib": rows[-1]["peak_memory_bytes"] >> 20, "phases": phases}


Measurement = tuple[str, Path, list[str], dict[str, Any]]


@dataclass(frozen=True)
class Measured:
    """The measurements to make with a text."""

    text: Text
    workers: Sequence[int]

    @property
    def most(self) -> int:
        """Workers."""
        return max(self.workers)

    @property
    def facts(self) -> dict[str, Any]:
        """Settings of all measurements with one file."""
        size = round(self.text.num_bytes / 1e9, 2)
        return {"engine": "threads", "text": "one file", "gigabytes": size}

    def prepare(self, count: int, **more: Any) -> Measurement:
        facts = {"verb": "prepare", **self.facts, **more, "workers": count}
        engine = facts["engine"]
        return "prepare", self.text.large, ["--engine", engine] * (engine != "threads"), facts

    def prepare_many(self, count: int, **more: Any) -> Measurement:
        name = f"{self.text.num_files} files"
        verb, _, flags, facts = self.prepare(count, text=name, **more)
        return verb, self.text.folder, flags, facts

    def learn(self, count: int, **more: Any) -> Measurement:
        facts = {"verb": "train-tokenizer", **self.facts, **more, "workers": count}
        return "train-tokenizer", self.text.large, ["--vocab-size", "32000"], facts

    def iter_wanted(self) -> Iterator[Measurement]:
        """First measurements, with the first text."""
        most = self.most
        yield from (self.prepare(most), self.prepare(1), self.prepare(most, engine="files"))
        yield from (self.learn(most), self.learn(1))
        yield from (self.prepare_many(most), self.prepare_many(1))

    def iter_large(self) -> Iterator[Measurement]:
        """Measurements with the other texts."""
        yield from (self.prepare(self.most), self.prepare(1))

    def iter_rest(self) -> Iterator[Measurement]:
        """Measurements with the first text if time is left."""
        most = self.most
        yield self.prepare(most, engine="files", sampled=True)
        yield from (self.prepare(most, sampled=True), self.learn(most, sampled=True))
        yield from (self.prepare(most), self.prepare_many(most), self.learn(most))
        yield from (self.prepare(count, output=_IN_MEMORY) for count in (most, 1))
        for measure in (self.prepare, self.prepare_many):
            for count in sorted(set(self.workers) - {1, most}, reverse=True):
                yield measure(count)
        yield self.prepare_many(most, sampled=True)


def make_text(sample: Path, gigabytes: float, folder: Path) -> Text:
    """Create a text, and print how long that took."""
    begin = time.perf_counter()
    text = Text.make(sample, gigabytes, folder)
    made = round(time.perf_counter() - begin, 1)
    print(json.dumps({"text_bytes": text.num_bytes, "made_in_s": made}), flush=True)
    return text


def measure_disk(folder: Path, num_bytes: int, num_files: int) -> float:
    """Seconds to write this many bytes into some files at once, and to flush them."""
    data = os.urandom(1 << 20)

    def write(path: Path) -> None:
        with path.open("wb", buffering=0) as file:
            for _ in range(num_bytes // num_files >> 20):
                file.write(data)
            os.fsync(file.fileno())

    begin = time.perf_counter()
    paths = [folder / f"disk-{number}" for number in range(num_files)]
    with ThreadPoolExecutor(num_files) as pool:
        list(pool.map(write, paths))
    took = time.perf_counter() - begin
    for path in paths:
        path.unlink()
    return round(took, 2)


def find_text_folder(needed: int) -> Path:
    """A folder in memory if there is space, else the usual one."""
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).free > 3 * needed:
        return shared
    return Path(tempfile.gettempdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=Path, required=True)
    parser.add_argument("--sample-megabytes", type=float, default=20)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[2, 10])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--memory", default="8GiB")
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    needed = int(max(given.gigabytes) * 1e9)
    with (
        tempfile.TemporaryDirectory(prefix="core-scale-") as out,
        tempfile.TemporaryDirectory(dir=find_text_folder(needed)) as texts,
    ):
        sample = Path(texts) / "sample.txt"
        data = given.sample.read_bytes()[: int(given.sample_megabytes * 1e6)]
        sample.write_bytes(data.decode("utf-8", "ignore").encode())
        print(f"{describe_machine()}; text in {Path(texts).parent}, output in {out}", flush=True)
        disk = {count: measure_disk(Path(out), 1 << 30, count) for count in (1, max(given.workers))}
        print(json.dumps({"seconds of the disk for 1 GiB, by files at once": disk}), flush=True)
        measured = Measurements(until, Path(out) / "out", Path(texts) / "out", given.memory)
        first, *others = given.gigabytes
        small = Measured(make_text(sample, first, Path(texts) / "first"), given.workers)
        for row in small.iter_wanted():
            measured.run(*row)
        for size in others:
            if time.monotonic() + 5 * size > until:  # creating it, and one command
                print(json.dumps({"left out": {"gigabytes": size}}), flush=True)
                continue
            folder = Path(texts) / "large"
            for row in Measured(make_text(sample, size, folder), given.workers).iter_large():
                measured.run(*row)
            shutil.rmtree(folder)
        for row in small.iter_rest():
            measured.run(*row)
        measured.print_ratios()


if __name__ == "__main__":
    main()
