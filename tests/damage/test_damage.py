"""Damaged files and nonsense flags get the right output or an error of ours, never a surprise.

A small part of what `python tests/damage/throw.py` throws, the same every time: each file with each
kind of damage once, each flag of the text verbs with a few words.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from throw import Blow, every_file_blow, flag_blows, strike
from world import BASES, TARGETS, make_world

TEXT_VERBS = ["train-tokenizer", "prepare", "pretokenize", "append", "verify", "inspect"]
TEXT_VERBS += ["convert", "report", "plan", "train-classifier"]

_FEW = ("truncated", "bits flipped", "JSON changed", "a pipe")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder, with_model=False)
    return folder


def assert_answers(blows: list[Blow], world: Path, tmp_path: Path) -> None:
    assert blows
    wrong = [f"{blow}\n{problem}" for blow in blows if (problem := strike(blow, world, tmp_path))]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("path", sorted({target.path for target in TARGETS[False]}))
def test_damaged_files(path: str, world: Path, tmp_path: Path) -> None:
    rng = random.Random(path)
    blows = [blow for blow in every_file_blow(rng, with_model=False) if blow.target == path]
    if blows[0].again or path.startswith(("quality", "judged")):  # made by slower commands
        blows = [blow for blow in blows if blow.damage in _FEW]
    assert_answers(blows, world, tmp_path)


@pytest.mark.parametrize("verb", TEXT_VERBS)
def test_nonsense_flags(verb: str, world: Path, tmp_path: Path) -> None:
    assert verb in BASES
    assert_answers(list(flag_blows(verb, ["-1", "1e30", "\x1b[31m"])), world, tmp_path)


def test_the_judge_can_say_no(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lowtide.dataset import verification

    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("x")

    monkeypatch.setattr(verification, "verify_dataset", fail)
    problem = strike(Blow("nothing", ("verify", "data")), world, tmp_path)
    assert problem is not None
    assert "none of the user's business" in problem
