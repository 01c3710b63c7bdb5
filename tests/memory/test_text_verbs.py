"""Six times the text takes no more memory, in every verb that reads text, with GPT-2's vocabulary.

Each check is shown to fail when the stage is made to hold its input.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from .commands import run_commands

MIB = 1 << 20
SMALL, LARGE = 6 * MIB, 36 * MIB
SLACK = (LARGE - SMALL) // 2
BUDGET = 256 * MIB

# The stage keeps every block of text that goes through it.
_HOLD = """
from lowtide.corpus import blocks
from lowtide.dataset import npywriting
from lowtide.tokenizer import counting

def keeping(function, text_of):
    def run(*given, **options):
        held.append(text_of(*given))
        return function(*given, **options)
    return run

def keep_block(job, block, *more):
    return block.data

def keep_file(self, source, *more):
    return source.path.read_bytes()

def keep_text(self, file, done):
    return self.source.path.read_bytes()

blocks.write_block = keeping(blocks.write_block, keep_block)
counting._Job._count_plain = keeping(counting._Job._count_plain, keep_file)
npywriting.PlainFile.iter_steps = keeping(npywriting.PlainFile.iter_steps, keep_text)
"""


@dataclass(frozen=True)
class Texts:
    small: Path
    large: Path


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    """Text whose lines are all different, of the same few words, once and six times as long."""
    folder = tmp_path_factory.mktemp("texts")
    words = "some words of a text that goes on and on with what it has to say about the sea"
    names = ["nought", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    said = {n: " ".join(names[int(digit)] for digit in str(n)) for n in range(1000)}
    for name, size in (("small", SMALL), ("large", LARGE)):
        with (folder / f"{name}.txt").open("w") as file:
            written = number = 0
            while written < size:
                lines = [f"{said[number]} and {said[n]}: {words}\n" for n in range(1000)]
                written += file.write("".join(lines) + "<|endoftext|>")
                number += 1
    return Texts(folder / "small.txt", folder / "large.txt")


def words_of(verb: str, text: Path, out: Path) -> list[object]:
    """The words of a command; what it goes on with is made by one before it."""
    limits = ["--memory", "256MiB", "--processes", "1"]
    if verb == "train-tokenizer":
        return [verb, "--input", text, "--out-dir", out / "tok", "--vocab-size", 400, *limits]
    if verb == "prepare":
        return [verb, "--input-files", text, "--out-dir", out / "data", *limits]
    if verb == "append":
        return [verb, out / "data", "--input-files", text, *limits]
    out.mkdir(parents=True)
    if verb == "train-classifier":
        good = out / "good.txt"
        good.write_text("<|endoftext|>".join(f"good text number {n} of many" for n in range(99)))
        sample = ["--max-examples", 400, "--epochs", 1]
        return [verb, "--good", good, "--other", text, "--out-dir", out / "q", *sample, *limits]
    return [verb, text, "--out-path", out / "ids.npy", *limits]


@pytest.mark.parametrize(
    "verb", ["train-tokenizer", "prepare", "append", "pretokenize", "train-classifier"]
)
def test_six_times_the_text_takes_no_more(verb: str, texts: Texts, tmp_path: Path) -> None:
    few = tmp_path / "few.txt"
    few.write_text("".join(f"a few lines to begin with, number {n}\n" for n in range(100)))
    commands: list[tuple[str, list[object]]] = []
    for name, text, before in (
        ("first", texts.small, ""),  # what a process comes to hold once is no part of the others
        ("small", texts.small, ""),
        ("large", texts.large, ""),
        ("held", texts.large, _HOLD),
    ):
        if verb == "append":
            commands.append(("", words_of("prepare", few, tmp_path / name)))
        commands.append((before, words_of(verb, text, tmp_path / name)))
    runs = run_commands(commands, tmp_path)
    assert {ran.exit_code for ran in runs} == {0}, [ran.errors for ran in runs]
    counted = runs[3::2] if verb == "append" else runs[1:]
    small, large, held = (ran.peak_bytes for ran in counted)
    assert max(small, large) < BUDGET
    assert large - small < SLACK
    assert held - small > SLACK  # so the line above can fail
