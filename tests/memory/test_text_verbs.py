"""Six times the text takes no more memory, in every verb that reads text, with GPT-2's vocabulary.

Each check is shown to fail when the stage is made to hold its input.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

MIB = 1 << 20
SMALL, LARGE = 6 * MIB, 36 * MIB
SLACK = (LARGE - SMALL) // 2
BUDGET = 256 * MIB

# Runs a command in a process of its own, so that the peak is the command's; with "hold" the stage
# keeps every block of text that goes through it.
_RUN = """
import re, sys
held = []
if sys.argv[1] == "hold":
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
from lowtide.cli import main
code = main(sys.argv[2:])
status = open("/proc/self/status").read()
print("PEAK", int(re.search(r"VmHWM:\\s+(\\d+)", status).group(1)) * 1024)
sys.exit(code)
"""

# A small process in between: the kernel charges a child with what its parent held when it started
# it, and pytest holds much.
_BETWEEN = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"


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


def run(mode: str, *words: object) -> int:
    """Run a command; its peak as the kernel counted it."""
    command = [sys.executable, "-c", _RUN, mode, *map(str, words)]
    ended = subprocess.run(
        [sys.executable, "-S", "-c", _BETWEEN, *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout.split("PEAK ")[1].split()[0])


def words_of(verb: str, text: Path, out: Path) -> list[object]:
    limits = ["--memory", "256MiB", "--processes", "1"]
    if verb == "train-tokenizer":
        return [verb, "--input", text, "--out-dir", out / "tok", "--vocab-size", 400, *limits]
    if verb == "prepare":
        return [verb, "--input-files", text, "--out-dir", out / "data", *limits]
    if verb == "append":
        first = out / "first.txt"
        first.parent.mkdir(parents=True)
        first.write_text("".join(f"a few lines to begin with, number {n}\n" for n in range(100)))
        run("plain", "prepare", "--input-files", first, "--out-dir", out / "data", *limits)
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
    small = run("plain", *words_of(verb, texts.small, tmp_path / "small"))
    large = run("plain", *words_of(verb, texts.large, tmp_path / "large"))
    held = run("hold", *words_of(verb, texts.large, tmp_path / "held"))
    assert max(small, large) < BUDGET
    assert large - small < SLACK
    assert held - small > SLACK  # so the line above can fail
