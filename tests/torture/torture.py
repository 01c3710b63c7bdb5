"""Kill every writing verb at random moments, give the same command again, and compare every byte.

    python tests/torture/torture.py --kills 200 --seed 1

For each verb an undisturbed run is made first. Then, over and over: the same command in a fresh
folder, with a random budget and a random number of workers each time it is started; SIGKILL at a
random moment, one to three times; at last the command once more, to its end. What it leaves must be
what the undisturbed run left, byte for byte: no file more, none less, none other. Left out are the
measurements (metrics.jsonl), and in JSON what says how it was made (budget, workers, times).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))
sys.path.insert(0, str(Path(__file__).parents[1] / "stores"))
from cases import CASES, TRAIN, Case
from fasttext_files import TinyModel

from conftest import RangeServer

_WORDS = ("tide", "low", "water", "sand", "moon", "wind", "salt", "wave", "shore", "foam", "sea")
_STEP = "def keep(text):\n    return text.replace('foam', 'spray') if len(text) % 7 else None\n"
_VARIES = {"memory", "processes", "seconds", "created", "time", "peak_bytes", "peak_memory_bytes"}
_VARIES |= {"budget_bytes", "modified_ns", "phase_seconds", "elapsed_seconds", "history", "workers"}


def write_texts(folder: Path, megabytes: float) -> None:
    """Texts of words, with lines that come again, in several formats."""
    rng = random.Random(0)
    (folder / "text").mkdir(parents=True)
    lines = [" ".join(rng.choices(_WORDS, k=rng.randint(5, 30))) for _ in range(30_000)]

    def document() -> str:
        return "\n".join(rng.choices(lines, k=rng.randint(2, 12))) + f"\nnumber {rng.random()}\n"

    TinyModel([*_WORDS], ["x", "y"], dim=2, seed=3).write(folder / "language.bin")
    TinyModel([*_WORDS], ["hq", "lq"], dim=2, seed=4).write(folder / "score.bin")
    (folder / "step.py").write_text(_STEP)
    (folder / "tokens.txt").write_text("tidewater\nmoonshore\nsaltfoam\n")
    items = [{"question": " ".join(line.split()[:15])} for line in lines[:40]]
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    size = int(megabytes * (1 << 20))
    for name, share in (("a.txt", 0.6), ("b.txt", 0.2)):
        with (folder / "text" / name).open("w") as file:
            while file.tell() < size * share:
                file.write(document() + "<|endoftext|>")
    for path, share in ((folder / "text" / "c.jsonl", 0.2), (folder / "more.jsonl", 0.3)):
        with path.open("w") as file:
            while file.tell() < size * share:
                file.write(json.dumps({"text": document()}) + "\n")


def start(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a command in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "lowtide", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "stderr.txt").open("ab"),
        start_new_session=True,  # workers are killed with it
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
    )


def finish(words: list[str], folder: Path) -> None:
    """Run a command to its end; what it said is in the error if it fails."""
    code = start(words, folder).wait(timeout=600)
    if code != 0:
        said = (folder / "stderr.txt").read_text(errors="replace")
        raise AssertionError(f"exit code {code} of lowtide {' '.join(words)}\n{said[-1500:]}")


def with_chance(case: Case, rng: random.Random) -> list[str]:
    """The command with a random budget and a random number of workers."""
    words = case.command.split()
    if case.varies:
        words += ["--memory", f"{rng.choice([450, 600, 1000, 2000])}MiB"]
        words += ["--processes", str(rng.choice([1, 2, 3, 4]))]
    return words


def snapshot(path: Path, place: Path) -> dict[str, Any]:
    """Names and bytes in an output; JSON without `place` and without what may differ."""
    if path.is_file():
        return {path.name: path.read_bytes()}
    found: dict[str, Any] = {}
    for file in sorted(path.rglob("*")):
        name = str(file.relative_to(path))
        # Checksums are those of the files beside them, times included: the files are compared.
        if file.is_dir() or file.name.endswith(("metrics.jsonl", ".lock", "checksums.json")):
            continue
        data = file.read_bytes()
        if file.suffix in (".json", ".jsonl"):  # which name files by their folder
            data = data.replace(os.fsencode(place), b"PLACE")
        found[name] = _plain(json.loads(data)) if file.suffix == ".json" else data
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("file") == "decontamination.jsonl":  # it names files by their folder
            value = {key: item for key, item in value.items() if key != "xxh3_128"}
        return {key: _plain(item) for key, item in value.items() if key not in _VARIES}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def describe_difference(wanted: dict[str, Any], found: dict[str, Any]) -> str | None:
    """The first thing that differs between two outputs, or None."""
    for name in sorted({*wanted, *found}):
        if name not in found:
            return f"{name} is missing"
        if name not in wanted:
            return f"{name} is left over"
        if wanted[name] != found[name]:
            if isinstance(wanted[name], dict) and isinstance(found[name], dict):
                keys = [key for key in wanted[name] if wanted[name][key] != found[name].get(key)]
                return f"{name} differs in {keys}"
            return f"{name} differs"
    return None


class Bench:
    """Inputs, undisturbed outputs and how long they took."""

    def __init__(self, folder: Path, megabytes: float, cases: list[Case]) -> None:
        self.inputs = folder / "inputs"
        self.work = folder / "work"
        self.work.mkdir()
        write_texts(self.inputs, megabytes)
        for line in (
            "train-tokenizer --input text --vocab-size 500 --out-dir tok",
            "prepare --input-files text --tokenization tok --out-dir data --tokens-per-shard 60000",
            "prepare --input-files text --tokenization tok --out-dir near --tokens-per-shard 60000 "
            "--near-dedup 0.7 --decontaminate items.jsonl",
            "convert data nanogpt --to nanogpt",
            f"train --dataset-dir data --model-name base {TRAIN}",
            "export --model-name base --out-dir hf",
        ):
            finish(line.split(), self.inputs)
        self._serve()
        self.wanted: dict[str, dict[str, Any]] = {}
        self.seconds: dict[str, float] = {}
        for case in cases:
            place = self.fresh_folder(case)
            begin = time.monotonic()
            finish(case.command.split(), place)
            self.seconds[case.name] = time.monotonic() - begin
            self.wanted[case.name] = snapshot(place / case.out, place)
            print(f"{case.name:22} undisturbed: {self.seconds[case.name]:.1f} s", flush=True)

    def _serve(self) -> None:
        """Put texts and the dataset into a store, and tell all commands where that is."""
        store = RangeServer()
        for name in ("text", "data"):
            store.upload(self.inputs / name, name)
        os.environ.update(
            AWS_ACCESS_KEY_ID="test-id",
            AWS_SECRET_ACCESS_KEY="test-secret-of-nobody",
            AWS_REGION="us-east-1",
            AWS_ENDPOINT_URL=store.url,
            AWS_ALLOW_HTTP="true",
        )

    def fresh_folder(self, case: Case) -> Path:
        """A folder with copies of what a case needs."""
        place = Path(tempfile.mkdtemp(dir=self.work))
        for name in case.needs:
            source, target = self.inputs / name, place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            # Modification times are part of what a command remembers of its inputs.
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)
        return place

    def torture(self, case: Case, rng: random.Random, kills: int) -> tuple[int, str | None]:
        """Kill a case up to `kills` times, end it, compare: (kills that hit, what is wrong)."""
        place = self.fresh_folder(case)
        hits = 0
        for _ in range(kills):
            processes = [start(with_chance(case, rng), place) for _ in range(case.workers)]
            for process in processes:
                try:
                    process.wait(timeout=rng.uniform(0.02, 1.1) * self.seconds[case.name])
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    hits += 1
        try:
            finish(with_chance(case, rng), place)
        except AssertionError as error:
            return hits, str(error)
        wrong = describe_difference(self.wanted[case.name], snapshot(place / case.out, place))
        if wrong is None:
            shutil.rmtree(place)
        return hits, wrong if wrong is None else f"{wrong}, see {place}"


def rounds(rng: random.Random, cases: list[Case]) -> Iterator[Case]:
    """Cases without end: each comes as often as the others."""
    chosen = list(cases)
    while True:
        rng.shuffle(chosen)
        yield from chosen


def main() -> int:
    """Torture until so many kills have hit; 1 if anything came out wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--seconds", type=float, help="end then, however many kills there were")
    parser.add_argument("--only", default="", help="names of cases that begin so")
    parser.add_argument("--without", nargs="*", default=[], help="names of cases to leave out")
    options = parser.parse_args()
    cases = [case for case in CASES if case.name.startswith(options.only)]
    cases = [case for case in cases if case.name not in options.without]
    if not cases:
        parser.error(f"there are {', '.join(case.name for case in CASES)}")
    rng = random.Random(options.seed)
    hits: Counter[str] = Counter()
    trials: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    folder = Path(tempfile.mkdtemp(prefix="lowtide-torture-"))
    bench = Bench(folder, options.megabytes, cases)
    begin = time.monotonic()
    for case in rounds(rng, cases):
        passed = time.monotonic() - begin
        if hits.total() >= options.kills or passed > (options.seconds or passed):
            break
        count, problem = bench.torture(case, rng, rng.choice([1, 1, 2, 3]))
        hits[case.name] += count
        trials[case.name] += 1
        if problem is not None:
            wrong[case.name] += 1
            print(f"WRONG {case.name}: {problem}", flush=True)
    print(f"\nseed {options.seed}, {time.monotonic() - begin:.0f} s")
    for name in sorted(trials):
        print(f"{name:22} {trials[name]:4} runs {hits[name]:4} kills {wrong[name]:3} wrong")
    print(f"{'all':22} {trials.total():4} runs {hits.total():4} kills {wrong.total():3} wrong")
    if not wrong:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
