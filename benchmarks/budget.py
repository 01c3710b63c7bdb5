"""Is the budget kept on hostile inputs? Peak, time and exit code of every verb on each input.

In:      nothing; the inputs are generated (--scale changes their size), or kept with --folder
Out:     a Markdown table on stdout; exit code 1 if a row exceeded its budget and reported success

    python benchmarks/budget.py --results budget.jsonl
    python benchmarks/budget.py --results budget.jsonl --only-table
    python benchmarks/budget.py --inputs jsonl parquet-cell --verbs pretokenize --budgets 128MiB

With --results every row is appended to that file at once; a repeated command does not run existing
rows again, so a long table can be made in several parts.

A row is one verb on one input with one budget. "smallest" is the budget that the verb's error names
for 1 MiB. A verb may reject an input (exit code 1), but not with a budget that it named. The peak
is the kernel's (VmHWM) for the command, and of its process tree if it has children.
A new input is a row of INPUTS, a new verb a row of VERBS.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import lzma
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from lowtide.memory import parse_size

MIB = 1 << 20
Words = list[str | Path]
SMALLEST = "smallest"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command."""

    exit_code: int | None
    """None: stopped at the time limit."""
    peak_bytes: int
    seconds: float
    output: str


# Inputs: each function writes into a folder and returns what the verbs take.


def word_lines(scale: float, seed: int = 1) -> Iterator[bytes]:
    """Lines of words with a long tail, as real text has."""
    source = random.Random(seed)
    words = [
        "".join(source.choices("etaoinshrdlucm", k=source.randrange(2, 11))) for _ in range(30_000)
    ]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    left = int(24 * MIB * scale)
    while left > 0:
        line = " ".join(source.choices(words, weights, k=2000)).encode()
        for begin in range(0, len(line), 200):
            yield line[begin : begin + 200] + b"\n"
        left -= len(line)


def make_txt(folder: Path, scale: float) -> Path:
    """Ordinary text."""
    path = folder / "text.txt"
    with path.open("wb") as file:
        for number, line in enumerate(word_lines(scale)):
            file.write(line)
            if number % 20 == 19:
                file.write(b"<|endoftext|>")
    return path


def make_one_line(folder: Path, scale: float) -> Path:
    """The same words on one line."""
    path = folder / "one_line.txt"
    with path.open("wb") as file:
        for line in word_lines(scale):
            file.write(line.replace(b"\n", b" "))
    return path


def make_uncuttable(folder: Path, scale: float) -> Path:
    """DNA letters: one word as long as the file."""
    path = folder / "dna.txt"
    source = random.Random(2)
    with path.open("wb") as file:
        for _ in range(max(int(60 * scale), 1)):
            file.write(bytes(source.choices(b"ACGT", k=MIB)))
    return path


def make_jsonl(folder: Path, scale: float, *, escapes: bool = False) -> Path:
    """One row of tens of MB among short ones."""
    path = folder / ("escaped.jsonl" if escapes else "long.jsonl")
    text = b"".join(word_lines(2 * scale)).decode()
    if escapes:
        shift = {ord(letter): 0x3CF + ord(letter) for letter in "abcdefghijklmnopqrstuvwxyz"}
        text = text[: len(text) // 4].translate(shift)
    short = json.dumps({"text": "a short row of a few words\nand another line of it"})
    with path.open("w") as file:
        for row in (short, json.dumps({"id": 1, "text": text}), short):
            file.write(row + "\n")
    return path


def make_cell(folder: Path, scale: float) -> Path:
    """A parquet file with one very large cell."""
    text = b"".join(word_lines(3 * scale)).decode()
    path = folder / "cell.parquet"
    pq.write_table(pa.table({"text": ["a few words", text, "a few more"]}), path)
    return path


def make_unpacking(folder: Path, scale: float) -> Path:
    """A parquet column that unpacks far beyond its file: the same two long texts."""
    lines = b"".join(word_lines(0.1)).decode()
    texts = [lines[begin : begin + 1_000_000] for begin in range(0, 2_000_000, 1_000_000)]
    path = folder / "unpacking.parquet"
    pq.write_table(pa.table({"text": [texts[n % 2] for n in range(int(600 * scale))]}), path)
    return path


def make_documents(folder: Path, scale: float) -> Path:
    """Ordinary parquet with documents of 330 KB."""
    text = b"".join(word_lines(max(scale, 0.2))).decode()
    path = folder / "documents.parquet"
    cells = [text[at : at + 330_000] for at in range(0, len(text) - 330_000, 11_000)]
    pq.write_table(pa.table({"text": cells[: int(800 * scale)]}), path)
    return path


def make_gzip(folder: Path, scale: float) -> Path:
    """Gzip of a gigabyte of one letter."""
    path = folder / "letter.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(max(int(1024 * scale), 8)):
            file.write(b"a" * MIB)
    return path


def make_xz(folder: Path, scale: float) -> Path:
    """xz with a dictionary of 64 MiB."""
    path = folder / "large.txt.xz"
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 64 * MIB}]
    with lzma.open(path, "wb", filters=filters) as file:
        for line in word_lines(4 * scale):
            file.write(line)
    return path


def make_zstd(folder: Path, scale: float, *, window_log: int = 27) -> Path:
    """zstd with a window of 128 MiB (27), or of 2 GiB as --long=31 has."""
    path = folder / f"window{window_log}.txt.zst"
    parameters = zstandard.ZstdCompressionParameters.from_level(
        1, window_log=window_log, enable_ldm=True
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    with path.open("wb") as file, compressor.stream_writer(file) as writer:
        for line in word_lines(8 * scale):
            writer.write(line)
    return path


def make_small_files(folder: Path, scale: float) -> Path:
    """Two hundred thousand tiny files."""
    root = folder / "tiny"
    for number in range(int(200_000 * scale)):
        if number % 1000 == 0:
            (root / f"{number // 1000:04d}").mkdir(parents=True, exist_ok=True)
        path = root / f"{number // 1000:04d}" / f"a_file_of_some_name_{number:06d}.txt"
        path.write_text(f"a few words in file number {number}, and no more\n")
    return root


def make_verse(folder: Path, scale: float) -> Path:
    """Lines of Chinese characters: many distinct pieces, of which each is a line."""
    path = folder / "verse.txt"
    source = random.Random(3)
    characters = [chr(0x4E00 + number) for number in range(4000)]
    weights = [1 / (rank + 10) for rank in range(4000)]
    with path.open("w") as file:
        for _ in range(int(150 * scale)):
            drawn = source.choices(characters, weights, k=100_000)
            for at in range(0, 100_000, 7):
                file.write("".join(drawn[at : at + 7]) + ("，" if at % 2 else "。\n"))
    return path


def make_dataset(folder: Path, scale: float) -> Path:
    """A prepared dataset and a small model trained on it, for the verbs that take no text."""
    root = folder / "made"
    root.mkdir()
    text = make_txt(root, scale)
    lowtide("prepare", "--input-files", text, "--out-dir", root / "data")
    lowtide(*training(root / "runs"), "--dataset-dir", root / "data")
    return root


def lowtide(*words: str | Path) -> None:
    """Run a command that must succeed."""
    command = [sys.executable, "-m", "lowtide", *map(str, words)]
    subprocess.run(command, check=True, capture_output=True)


def training(runs: Path) -> Words:
    """The arguments of a small training run."""
    shape = "--num-layers 1 --width 32 --num-heads 2 --seq-len 64 --batch-size 8"
    rest = "--max-iters 3 --eval-iters 1 --device cpu"
    return ["train", "--checkpoints-dir", runs, *shape.split(), *rest.split()]


INPUTS: dict[str, Callable[[Path, float], Path]] = {
    "txt": make_txt,
    "one-line": make_one_line,
    "uncuttable": make_uncuttable,
    "jsonl": make_jsonl,
    "jsonl-escapes": lambda folder, scale: make_jsonl(folder, scale, escapes=True),
    "parquet-cell": make_cell,
    "parquet-unpacking": make_unpacking,
    "parquet-documents": make_documents,
    "gz": make_gzip,
    "xz": make_xz,
    "zst": make_zstd,
    "zst-long": lambda folder, scale: make_zstd(folder, scale, window_log=31),
    "small-files": make_small_files,
    "verse": make_verse,
    "dataset": make_dataset,
}


# Verbs: each returns the arguments after `lowtide` for an input and a folder to write to.

VERBS: dict[str, Callable[[Path, Path], Words]] = {
    "train-tokenizer": lambda source, out: [
        *("train-tokenizer", "--input", source, "--vocab-size", "8000", "--out-dir", out / "tok")
    ],
    "train-tokenizer-char": lambda source, out: [
        *("train-tokenizer", "--input", source, "--kind", "char", "--out-dir", out / "tok")
    ],
    "prepare": lambda source, out: [
        *("prepare", "--input-files", source, "--out-dir", out / "data")
    ],
    "prepare-near": lambda source, out: [
        *("prepare", "--input-files", source, "--out-dir", out / "data", "--near-dedup", "0.8")
    ],
    "prepare-clean": lambda source, out: [
        *("prepare", "--input-files", source, "--out-dir", out / "data"),
        *("--decontaminate", out / "items.jsonl", "--step", f"{out / 'step.py'}:keep"),
    ],
    "prepare-score": lambda source, out: [
        *("prepare", "--input-files", source, "--out-dir", out / "data"),
        *("--score", out / "good" / "model.bin", "--keep-top", "0.5"),
    ],
    "train-classifier": lambda source, out: [
        *("train-classifier", "--good", out / "first.txt", "--other", source),
        *("--out-dir", out / "classifier"),
    ],
    "append": lambda source, out: [*("append", out / "data", "--input-files", source)],
    "pretokenize": lambda source, out: (
        ["pretokenize", shutil.copytree(source, out / "texts")]  # ids are written beside each text
        if source.is_dir()
        else ["pretokenize", source, "--out-path", out / "ids.npy"]
    ),
    "train": lambda source, out: [*training(out), "--input-file", source],
    "train-streaming": lambda source, out: [*training(out), "--dataset-id", source],
    "verify": lambda source, out: ["verify", source / "data"],
    "inspect": lambda source, out: ["inspect", source / "data"],
    "convert": lambda source, out: ["convert", source / "data", out / "ids.npy", "--to", "npy"],
    "train-dataset": lambda source, out: [*training(out), "--dataset-dir", source / "data"],
    "evaluate": lambda source, out: [
        *("evaluate", "--model-name", source / "runs" / "model", "--dataset-dir", source / "data"),
        *("--eval-iters", "2", "--device", "cpu"),
    ],
    "generate": lambda source, out: [
        *("generate", "--model-name", source / "runs" / "model", "--max-new-tokens", "3"),
        *("--prompt-file", source / "text.txt", "--device", "cpu"),
    ],
    "generate-lines": lambda source, out: [
        *("generate", "--model-name", source / "runs" / "model", "--max-new-tokens", "3"),
        *("--prompt-file", out / "lines.txt", "--each-line", "--device", "cpu"),
    ],
    "evaluate-tasks": lambda source, out: [
        *("evaluate", "--model-name", source / "runs" / "model", "--tasks", out / "items.jsonl"),
        *("--device", "cpu"),
    ],
    "export-gguf": lambda source, out: [
        *("export", "--model-name", source / "runs" / "model", "--out-dir", out / "gguf"),
        *("--to", "gguf", "--type", "q8_0"),
    ],
    "train-packed": lambda source, out: [
        *(*training(out), "--dataset-dir", source / "data", "--offload", "packed"),
        *("--optimizer", "adamw"),
    ],
    "train-disk": lambda source, out: [
        *(*training(out), "--dataset-dir", source / "data", "--offload", "disk"),
        *("--optimizer", "adamw"),
    ],
    "train-compile": lambda source, out: [
        *(*training(out), "--dataset-dir", source / "data", "--compile")
    ],
    "convert-megatron": lambda source, out: [
        *("convert", out / "ids", out / "imported", "--from", "megatron", "--tokenizer", "gpt2")
    ],
    "export": lambda source, out: [
        *("export", "--model-name", source / "runs" / "model", "--out-dir", out / "hf")
    ],
    "report": lambda source, out: [
        *("report", source / "runs" / "model", "--out", out / "page.html")
    ],
}
ONE_FILE = ("train",)
"""Verbs that take no folder."""
ON_DATASET = tuple(VERBS)[tuple(VERBS).index("verify") :]
"""Verbs without text; all others need text."""


def set_up(verb: str, out: Path) -> None:
    """Create other files that a verb needs besides its input."""
    first = out / "first.txt"
    if verb in ("append", "prepare-score", "train-classifier"):
        lines = [f"some words to begin with, line {n}\n" for n in range(2000)]
        first.write_text("<|endoftext|>".join(lines))
    if verb == "append":
        lowtide("prepare", "--input-files", first, "--out-dir", out / "data")
    if verb == "prepare-score":
        other = out / "other.txt"
        other.write_text("<|endoftext|>".join(f"other text, number {n} of many" for n in range(99)))
        words: Words = ["train-classifier", "--good", first, "--other", other]
        lowtide(*words, "--out-dir", out / "good", "--buckets", "100000")
    if verb in ("prepare-clean", "evaluate-tasks"):
        write_items(out / "items.jsonl", long=verb == "evaluate-tasks")
    if verb == "prepare-clean":
        (out / "step.py").write_text("def keep(text):\n    return text\n")
    if verb == "generate-lines":  # the second prompt is the whole text
        line = b" ".join(part.rstrip() for part in word_lines(0.5))
        (out / "lines.txt").write_bytes(b"a short prompt\n" + line + b"\nanother\n")
    if verb == "convert-megatron":
        write_megatron(out, num_documents=4_000_000)


def write_items(path: Path, *, long: bool) -> None:
    """Write questions with choices; with `long` one of them has a question of megabytes."""
    rows = [
        {
            "context": f"what is the number that comes right after the number {n}",
            "choices": [f" {n + 1}", " no"],
            "answer": 0,
        }
        for n in range(50)
    ]
    if long:
        rows[7]["context"] = b"".join(word_lines(0.1)).decode()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_megatron(out: Path, *, num_documents: int) -> None:
    """Write a Megatron dataset of many documents of two tokens each."""
    sizes = np.full(num_documents, 2, dtype="<i4")
    with (out / "ids.idx").open("wb") as file:
        file.write(b"MMIDIDX\x00\x00" + np.array([1], "<u8").tobytes() + b"\x08")
        file.write(np.array([num_documents, num_documents + 1], "<u8").tobytes())
        file.write(sizes.tobytes())
        file.write((np.arange(num_documents, dtype="<i8") * 4).tobytes())
        file.write(np.arange(num_documents + 1, dtype="<i8").tobytes())
    np.full(2 * num_documents, 7, dtype="<u2").tofile(out / "ids.bin")


# A small process in between: the kernel counts the parent's memory at the start of a child as the
# child's. The command's own peak is the kernel's; with its children it is the largest sum of
# samples. A child as large as its parent has not started its own program yet, and shares its
# memory.
_MEASURE = """
import os, signal, sys, time
limit = float(sys.argv[1])
def resident(pid, parent_size=None):
    total = 0
    try:
        rows = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
        size = rows.get("VmSize")
        if size is not None and size != parent_size:
            total += int(rows["VmRSS"].split()[0]) * 1024
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in open(f"/proc/{pid}/task/{task}/children").read().split():
                total += resident(child, size)
    except OSError:
        pass
    return total
pid = os.posix_spawn(sys.executable, [sys.executable, "-m", "lowtide", *sys.argv[2:]], os.environ)
began, peak, stopped = time.monotonic(), 0, False
while True:
    done, status, usage = os.wait4(pid, os.WNOHANG)
    if done:
        break
    peak = max(peak, resident(pid))
    if time.monotonic() - began > limit and not stopped:
        os.kill(pid, signal.SIGKILL)
        stopped = True
    time.sleep(0.02)
code = "late" if stopped else os.waitstatus_to_exitcode(status)
print("MEASURED", code, max(peak, usage.ru_maxrss * 1024), time.monotonic() - began)
"""


def run(words: Words, memory: str, limit: float) -> Outcome:
    """Run one command with a budget."""
    command = [sys.executable, "-S", "-c", _MEASURE, str(limit), *map(str, words)]
    ended = subprocess.run(
        [*command, "--memory", memory], capture_output=True, text=True, check=False
    )
    _, code, peak, seconds = ended.stdout.splitlines()[-1].split()
    exit_code = None if code == "late" else int(code)
    return Outcome(exit_code, int(peak), float(seconds), ended.stdout + ended.stderr)


def named_budget(output: str) -> str | None:
    """The budget named in an error."""
    found = re.findall(r"--memory (\d+MiB)", output)
    return found[-1] if found else None


def measure(verb: str, source: Path, folder: Path, budget: str, limit: float) -> tuple[str, ...]:
    """One row of the table; the last cell tells if the budget was kept."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    set_up(verb, out)
    words = VERBS[verb](source, out)
    named = None
    if budget == SMALLEST:
        named = named_budget(run(words, "1MiB", limit).output)
        if named is None:
            return (budget, "-", "-", "-", "FAILED: names no smallest budget")
    memory = named or budget
    outcome = run(words, memory, limit)
    verdict = "kept"
    if named is not None and outcome.exit_code == 1:  # the input itself may need more: once
        verdict = f"kept, but {named} was named first"
        named = named_budget(outcome.output)
        if named is not None:
            memory = named
            outcome = run(words, memory, limit)
    if outcome.exit_code is None:
        verdict = f"FAILED: no end in {limit:.0f} s"
    elif outcome.exit_code == 1 and named is None and named_budget(outcome.output):
        verdict = f"refused: {named_budget(outcome.output)}"
    elif outcome.exit_code == 1 and "after cleaning" in outcome.output:
        verdict = "kept; the filters leave nothing of it"
    elif outcome.exit_code == 1 and re.search(r"tokens\S* .*\bone window of", outcome.output):
        verdict = "kept; too few tokens to train on"
    elif outcome.exit_code:
        verdict = "FAILED: " + next(
            (row for row in outcome.output.splitlines() if "error" in row), "?"
        )
    if outcome.peak_bytes > parse_size(memory) and not verdict.startswith("refused"):
        verdict = "FAILED: over the budget"
    code = "-" if outcome.exit_code is None else str(outcome.exit_code)
    peak = f"{outcome.peak_bytes / MIB:.0f}"
    return (memory, peak, f"{outcome.seconds:.1f}", code, verdict)


def made_input(name: str, folder: Path, scale: float) -> Path:
    """The path of an input, created if it does not exist."""
    place = folder / f"{name}-{scale:g}"
    if not place.exists():
        partial = folder / f".{name}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        INPUTS[name](partial, scale)
        partial.rename(place)
    return next(path for path in place.iterdir())


def size_of(source: Path) -> str:
    """The size of an input on the disk."""
    if source.is_file():
        return f"{source.stat().st_size / 1e6:.1f} MB"
    files = [path for path in source.rglob("*") if path.is_file()]
    return f"{len(files):,} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB"


def read_results(path: Path | None) -> dict[tuple[str, str, str], dict[str, object]]:
    """The rows of earlier runs, by input, verb and budget; the last of several counts."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {(row["input"], row["verb"], row["budget"]): row for row in rows}


def table_line(row: dict[str, object]) -> str:
    """A row of the Markdown table."""
    names = ("input", "size", "verb", "memory", "peak", "seconds", "code", "verdict")
    return "| " + " | ".join(str(row[name]) for name in names) + " |"


def main() -> None:
    """Create the inputs, run every verb on each with each budget, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--inputs", nargs="+", choices=INPUTS, default=list(INPUTS))
    parser.add_argument("--verbs", nargs="+", choices=VERBS, default=list(VERBS))
    parser.add_argument("--budgets", nargs="+", default=[SMALLEST, "256MiB", "1GiB"])
    parser.add_argument("--scale", type=float, default=1.0, help="size of the inputs")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a command may take")
    parser.add_argument("--folder", type=Path, help="where inputs are kept for the next time")
    parser.add_argument("--results", type=Path, help="where rows are kept, and found again")
    parser.add_argument("--only-table", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    known = read_results(arguments.results)
    failed = 0
    print("| input | size | verb | budget | peak MiB | seconds | exit code | budget |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="lowtide-budget-") as scratch:
        for name, verb, budget in itertools.product(
            arguments.inputs, arguments.verbs, arguments.budgets
        ):
            if (name == "dataset") != (verb in ON_DATASET):
                continue
            row = known.get((name, verb, budget))
            if row is None and arguments.only_table:
                continue
            if row is None:
                source = made_input(name, arguments.folder or Path(scratch), arguments.scale)
                if verb in ONE_FILE and source.is_dir():
                    continue
                found = measure(verb, source, Path(scratch), budget, arguments.limit)
                names = ("memory", "peak", "seconds", "code", "verdict")
                row = {"input": name, "size": size_of(source), "verb": verb, "budget": budget}
                row |= dict(zip(names, found, strict=True))
                if arguments.results is not None:
                    with arguments.results.open("a") as file:
                        file.write(json.dumps(row) + "\n")
            failed += str(row["verdict"]).startswith("FAILED")
            print(table_line(row), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
