"""Ten times the text takes no more memory, in every verb that reads text, with GPT-2's vocabulary.

Each check is shown to fail when the stage is made to hold its input.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from .commands import run_commands

MIB = 1 << 20
SMALL, LARGE = 8 * MIB, 80 * MIB  # several times what is in work at once: how much of it is chance
SLACK = (LARGE - SMALL) * 45 // 100
BUDGET = 256 * MIB

# The stage keeps every block of text that goes through it.
_HOLD = """
from lowtide.corpus import blockcleaning
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

blockcleaning.write_block = keeping(blockcleaning.write_block, keep_block)
counting._Job._count_plain = keeping(counting._Job._count_plain, keep_file)
npywriting.PlainFile.iter_steps = keeping(npywriting.PlainFile.iter_steps, keep_text)
"""


@dataclass(frozen=True)
class Texts:
    small: Path
    large: Path


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    """Text whose lines are all different, of the same few words, once and ten times as long."""
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
    memory = "384MiB" if verb == "prepare --step" else "256MiB"  # a process more
    limits = ["--memory", memory, "--processes", "1"]
    if verb == "train-tokenizer":
        return [verb, "--input", text, "--out-dir", out / "tok", "--vocab-size", 400, *limits]
    if verb.startswith("prepare"):
        step = ["--step", f"{out}.py:keep"] if "step" in verb else []
        return ["prepare", "--input-files", text, "--out-dir", out / "data", *step, *limits]
    if verb == "append":
        return [verb, out / "data", "--input-files", text, *limits]
    out.mkdir(parents=True)
    if verb == "train-classifier":
        good = out / "good.txt"
        good.write_text("<|endoftext|>".join(f"good text number {n} of many" for n in range(99)))
        sample = ["--max-examples", 400, "--epochs", 1]
        return [verb, "--good", good, "--other", text, "--out-dir", out / "q", *sample, *limits]
    return [verb, text, "--out-path", out / "ids.npy", *limits]


VERBS = ("train-tokenizer", "prepare", "append", "pretokenize", "train-classifier")


@pytest.mark.parametrize("verb", VERBS)
def test_ten_times_the_text_takes_no_more(verb: str, texts: Texts, tmp_path: Path) -> None:
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


# A step writes what its own process has come to hold: the peak of the command is of both.
_STEP = """
from pathlib import Path
held = []

def keep(text):
    {hold}
    peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    Path(__file__ + ".peak").write_text(peak)
    return text
"""


def test_ten_times_the_text_through_a_step_takes_no_more(texts: Texts, tmp_path: Path) -> None:
    commands: list[tuple[str, list[object]]] = []
    for name in ("first small", "small", "large", "own", "held"):
        hold = "held.append(text)" if name == "own" else ""
        (tmp_path / f"{name}.py").write_text(_STEP.format(hold=hold))
        text = texts.small if "small" in name else texts.large
        words = words_of("prepare --step", text, tmp_path / name)
        commands.append((_HOLD if name == "held" else "", words))
    runs = run_commands(commands, tmp_path)
    assert {ran.exit_code for ran in runs} <= {0, 3}, [ran.errors for ran in runs]
    small, large, own, held = (
        ran.peak_bytes + (int((tmp_path / f"{name}.py.peak").read_text()) << 10)
        for ran, name in zip(runs[1:], ("small", "large", "own", "held"), strict=True)
    )
    assert max(small, large) < 384 * MIB
    assert large - small < SLACK
    assert min(own, held) - small > SLACK  # a step that holds its texts, and a stage that does


def test_ten_times_the_text_compared(tmp_path: Path) -> None:
    """The ordinary way is what holds its input: on purpose, and found out by the same measure."""
    word = "".join(chr(97 + number % 26) for number in range(500))  # few pieces: the peer is slow
    words = [word[number:] + word[:number] for number in range(50)]
    commands: list[tuple[str, list[object]]] = []
    for name, count in (("small", 40), ("large", 400)):
        (tmp_path / name).write_text((" ".join(words) + "\n") * count)
        options = ["--vocab-size", 300, "--memory", "128MiB", "--processes", 1, "--json"]
        commands.append(("", ["compare-memory", "--input", tmp_path / name, *options]))
    runs = run_commands(commands, tmp_path)
    assert [ran.exit_code for ran in runs] == [0, 0], [ran.errors for ran in runs]
    added = (tmp_path / "large").stat().st_size - (tmp_path / "small").stat().st_size
    small, large = (json.loads(ran.output)["pairs"][0] for ran in runs)
    assert large["sparing_bytes"] < 128 * MIB
    assert large["sparing_bytes"] - small["sparing_bytes"] < added * 2 // 5
    assert large["ordinary_bytes"] - small["ordinary_bytes"] > added * 2 // 5
    assert runs[1].peak_bytes - runs[0].peak_bytes < added * 2 // 5  # of the command itself
