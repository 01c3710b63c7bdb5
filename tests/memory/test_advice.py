"""The budget that a refusal names is one that works: fed back, every verb succeeds inside it.

Each verb is given 1 MiB, then what it advised: exit code 0, and the kernel's peak is no more. The
dataset has a vocabulary of 50,257 tokens, so that what a tokenizer takes is no small part.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lowtide import prepare_dataset
from lowtide.files import write_json
from lowtide.memory import format_size, parse_size
from lowtide.model.config import GPTConfig

from .zero_models import write_model

_MEASURE = """
import os, sys
pid = os.posix_spawn(sys.executable, [sys.executable, "-m", "lowtide", *sys.argv[1:]], os.environ)
_, status, usage = os.wait4(pid, 0)
print("\\npeak", usage.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""
_TRAIN = (
    "train --checkpoints-dir {out} --num-layers 1 --width 16 --num-heads 1 --seq-len 16 "
    "--batch-size 4 --max-iters 1 --eval-iters 1 --sample-tokens 0 --device cpu "
)
_LETTERS = str.maketrans("0123456789", "ghijklmnop")  # between a digit and a letter is a cut
VERBS = {
    "train-tokenizer": "train-tokenizer --input {text} --vocab-size 400 --out-dir {out}/t "
    "--processes 3",
    "train-tokenizer char": "train-tokenizer --input {text} --kind char --out-dir {out}/t "
    "--processes 7",
    "train-tokenizer on a letter": "train-tokenizer --input {letter} --vocab-size 300 "
    "--out-dir {out}/t --processes 3",
    "train-tokenizer char of a script": "train-tokenizer --input {script} --kind char "
    "--out-dir {out}/t",
    "prepare": "prepare --input-files {text} --out-dir {out}/d --processes 7",
    "prepare char of a script": "prepare --input-files {script} --tokenization char --no-filter "
    "--out-dir {out}/d --processes 3",
    "append": "append {own} --input-files {more} --processes 3",
    "pretokenize": "pretokenize {text} --out-path {out}/ids.npy --processes 7",
    "pretokenize a word": "pretokenize {word} --out-path {out}/ids.npy --processes 3",
    "pretokenize char of a script": "pretokenize {script} --tokenization char "
    "--out-path {out}/ids.npy --processes 3",
    "convert": "convert {data} {out}/ids.npy --to npy",
    "verify": "verify {data} --processes 7",
    "prepare against items": "prepare --input-files {text} --decontaminate {items} "
    "--out-dir {out}/data",
    "inspect": "inspect {data}",
    "export": "export --model-name {model} --out-dir {out}/hf",
    "report": "report {run} --out {out}/page.html",
    "report a tokenizer": "report {model} --sample {text} --out {out}/page.html",
    "inspect a tokenizer on a word": "inspect {model} --sample {word}",
    "train": _TRAIN + "--dataset-dir {data} --num-workers 3",
    # Logits of 25 MB come and go: what stayed between other tensors passed the budget.
    "train with many small batches": _TRAIN
    + "--dataset-dir {data} --width 32 --seq-len 64 --batch-size 8 --max-iters 4",
    "train on a long row": _TRAIN + "--dataset-id {rows}",
    "train on a large cell": _TRAIN + "--dataset-id {cell}",
    "train on a tokenized cell": _TRAIN + "--input-file {cell} --tokenization gpt2",
    "evaluate": "evaluate --model-name {model} --dataset-dir {data} --eval-iters 1 --device cpu",
    "evaluate a long question": "evaluate --model-name {model} --tasks {items} --device cpu",
    "generate": "generate --model-name {model} --prompt words --max-new-tokens 2 --device cpu",
}


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    exit_code: int
    peak_bytes: int
    output: str

    @property
    def advice(self) -> list[str]:
        """The budgets it names."""
        return re.findall(r"give at least --memory (\w+)", self.output)


def run(words: str, memory: str) -> Ran:
    done = subprocess.run(
        [sys.executable, "-S", "-c", _MEASURE, *words.split(), "--memory", memory],
        capture_output=True,
        text=True,
        check=False,
    )
    peak = int(re.findall(r"^peak (\d+)$", done.stdout, re.MULTILINE)[-1])
    return Ran(done.returncode, peak, done.stdout + done.stderr)


def some_text(num_lines: int, seed: int) -> str:
    source = random.Random(seed)
    words = ["".join(source.choices("etaoinshr", k=source.randrange(2, 9))) for _ in range(500)]
    return "\n".join(" ".join(source.choices(words, k=12)) for _ in range(num_lines))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One input of each kind."""
    root = tmp_path_factory.mktemp("advice")
    names = ("text", "more", "data", "own", "model", "run", "rows", "cell")
    found = {name: root / name for name in names}
    found["text"] = root / "text.txt"
    found["more"] = root / "more.txt"
    found["rows"] = root / "rows.jsonl"
    found["cell"] = root / "cell.parquet"
    found["letter"] = root / "letter.txt.gz"
    found["word"] = root / "word.txt"
    found["items"] = root / "items.jsonl"
    found["script"] = root / "script.txt"
    found["text"].write_text(some_text(4000, seed=1))
    found["more"].write_text(some_text(2000, seed=2))
    # What only the text itself says, and nobody knows who has not read it.
    found["letter"].write_bytes(gzip.compress(b"a" * 1_000_000, 1))
    word = random.Random(3).randbytes(3 << 20).hex().translate(_LETTERS)
    found["word"].write_text("a line\n" + word)
    found["script"].write_text("\n".join(chr(code) for code in range(0x20000, 0x40000)))
    for name in ("data", "own"):
        prepare_dataset(input_files=[found["text"]], out_dir=found[name])
    write_model(found["model"], GPTConfig(50304, 16, 1, 16, 1))
    found["run"].mkdir()
    write_json(found["run"] / "settings.json", {"batch_size": 4})
    row = {"time": 1.0, "job": "train", "step": 1, "loss": 1.0, "memory_bytes": 1}
    (found["run"] / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    item = {"context": "a question \U0001f30a " * 100_000, "choices": ["yes", "no"], "answer": 0}
    found["items"].write_text(json.dumps(item, ensure_ascii=False) + "\n")
    long = "two words\té\n" * 1_000_000  # of which every end and accent is an escape in JSON
    found["rows"].write_text("\n".join(json.dumps({"text": text}) for text in ("a", long, "b")))
    pq.write_table(pa.table({"text": ["a few words", long, "a few more"]}), found["cell"])
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_the_first_advice_works(verb: str, places: dict[str, Path], tmp_path: Path) -> None:
    words = VERBS[verb].format(**places, out=tmp_path)
    refused = run(words, "1MiB")
    assert refused.exit_code == 1 and len(refused.advice) == 1, refused.output
    done = run(words, refused.advice[0])
    assert done.exit_code == 0, done.output
    budget = parse_size(refused.advice[0])
    assert done.peak_bytes <= budget
    # The peak is held against the budget at the end, so that a passed one would be told.
    assert re.search(rf"peak memory .* of {re.escape(format_size(budget))} budget", done.output)
