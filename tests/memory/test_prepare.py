"""`prepare --memory 256MiB` stays inside it, whatever the size of the text or of a document."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))
from fasttext_files import TinyModel

MIB = 1 << 20
BUDGET = 256 * MIB

# A small process in between: the kernel charges a child with what its parent held when it started
# it, and pytest holds much.
_MEASURE = """
import os, sys
pid = os.posix_spawn(sys.executable, [sys.executable, "-m", "lowtide", *sys.argv[1:]], os.environ)
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak_of(text: Path, out: Path, *more: str) -> int:
    """Prepare a file; give the peak as the kernel counted it."""
    words = ["prepare", "--input-files", str(text), "--out-dir", str(out), "--tokenization", "char"]
    ended = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            _MEASURE,
            *words,
            "--memory",
            "256MiB",
            "--processes",
            "2",
            *more,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout.splitlines()[-1])


def write_text(path: Path, *, size_bytes: int, separator: str) -> None:
    source = random.Random(0)
    words = [
        "".join(source.choices("etaoinshrdlu", k=source.randrange(2, 10))) for _ in range(9000)
    ]
    endings = [" ".join(source.choices(words, k=60)) for _ in range(400)]
    with path.open("w") as file:
        written = number = 0
        while written < size_bytes:
            number += 1
            line = f"{number} {endings[number % 400]}\n"
            written += file.write(line + (separator if number % 5 == 0 else ""))


@pytest.fixture(scope="module")
def peaks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The peaks of the same text once, 28 MiB longer, and as one document."""
    folder = tmp_path_factory.mktemp("texts")
    # With 12 MiB both workers are busy: 68.8 MiB for 4, 79.5 for 12, 84.1 for 40.
    sizes = {"small": (12, "<|endoftext|>"), "large": (40, "<|endoftext|>"), "one": (40, "")}
    found: dict[str, int] = {}
    for name, (size, separator) in sizes.items():
        write_text(folder / f"{name}.txt", size_bytes=size * MIB, separator=separator)
        found[name] = peak_of(folder / f"{name}.txt", folder / name)
    return found


@pytest.fixture(scope="module")
def rule_peaks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Peaks with rules of quality, of documents with as many words as are held: a million each."""
    folder = tmp_path_factory.mktemp("dense")
    source = np.random.default_rng(0)
    words = np.array([f"{number:03x} ".encode() for number in range(4096)])
    found: dict[str, int] = {}
    for name, count in [("small", 2), ("large", 5)]:
        with (folder / f"{name}.txt").open("wb") as file:
            for _ in range(count):
                drawn = words[source.integers(4096, size=1_040_000)].tobytes()
                file.write(drawn[:-1] + b".<|endoftext|>")
        found[name] = peak_of(
            folder / f"{name}.txt", folder / name, "--rules", "gopher-repetition,c4,fineweb",
            "--rule-limit", "c4.min-sentences=0", "--max-line-chars", "0",
        )  # fmt: skip
    return found


def test_rules_of_quality_stay_inside_the_budget(rule_peaks: dict[str, int]) -> None:
    assert max(rule_peaks.values()) < BUDGET, rule_peaks


def test_rules_take_no_more_for_more_text(rule_peaks: dict[str, int]) -> None:
    assert rule_peaks["large"] < rule_peaks["small"] + 24 * MIB, rule_peaks


def test_a_model_of_a_quarter_of_the_budget_stays_inside_of_it(tmp_path: Path) -> None:
    """61 MB in a tree, which cannot be folded; what it takes is not there for workers."""
    row = [0.5] * 64
    model = TinyModel(
        words=["tide"], labels=list("abc"), loss="hs", dim=64, word_ngrams=2, bucket=240_000,
        rows=[row] * 240_001,
    )  # fmt: skip
    model.write(tmp_path / "model.bin")
    write_text(tmp_path / "text.txt", size_bytes=12 * MIB, separator="<|endoftext|>")
    peak = peak_of(
        tmp_path / "text.txt", tmp_path / "out", "--score", str(tmp_path / "model.bin"),
        "--score-label", "a", "--keep-top", "1",
    )  # fmt: skip
    assert 61_000_000 < peak < BUDGET


def test_near_copies_take_no_more_for_more_text(
    peaks: dict[str, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A row of signatures for each of 66,000 documents, most of them in pairs: all on the disk."""
    folder = tmp_path_factory.mktemp("near")
    write_text(folder / "large.txt", size_bytes=40 * MIB, separator="<|endoftext|>")
    (folder / "items.jsonl").write_text('{"text": "one two three four five six seven eight"}')
    peak = peak_of(
        folder / "large.txt", folder / "out", "--near-dedup", "0.8", "--no-dedup",
        "--decontaminate", str(folder / "items.jsonl"),
    )  # fmt: skip
    assert peak < peaks["large"] + 24 * MIB, (peak, peaks)


def test_all_sizes_stay_inside_the_budget(peaks: dict[str, int]) -> None:
    assert max(peaks.values()) < BUDGET, peaks


def test_more_text_takes_no_more(peaks: dict[str, int]) -> None:
    assert peaks["large"] - peaks["small"] < 14 * MIB, peaks


def test_one_large_document_takes_no_more(peaks: dict[str, int]) -> None:
    assert peaks["one"] - peaks["large"] < 24 * MIB, peaks
