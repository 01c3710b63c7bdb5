"""Completion: verbs, flags and choices, as the shells themselves complete them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from lowtide import cli
from lowtide.verbs import VERBS

CASES = [
    ("lowtide pre", ["prepare", "pretokenize"]),
    ("lowtide train --lay", ["--layout"]),
    ("lowtide train --layout ", ["gpt2", "qwen3", "tide"]),
    ("lowtide train --no-tie", ["--no-tie-weights"]),
    ("lowtide verify --qui", ["--quiet"]),
    ("lowtide completion ", ["bash", "fish", "zsh"]),
]


def write_script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_bash(line: str, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = line.split(" ")
    program = write_script("bash", capsys) + (
        f"\nCOMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}"
        '\n_lowtide; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash"], input=program, capture_output=True, text=True, check=True)
    assert (sorted(done.stdout.split()), done.stderr) == (expected, "")


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_fish(line: str, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    script = write_script("fish", capsys)
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    program = f"{script}\ncomplete -C '{line}'\n"
    done = subprocess.run(["fish"], input=program, capture_output=True, text=True, check=True)
    assert sorted(row.split("\t")[0] for row in done.stdout.splitlines()) == expected


def test_zsh(capsys: pytest.CaptureFixture[str]) -> None:
    script = write_script("zsh", capsys)
    assert script.startswith("#compdef lowtide\n")
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    program = (
        f"autoload -U compinit; compinit -D -u\n{script}\nprint ${{_comps[lowtide]}}\n"
        "emulate -L sh; setopt ksharrays; "
        "COMP_WORDS=(lowtide train --lay); COMP_CWORD=2; _lowtide; echo ${COMPREPLY[@]}\n"
    )
    done = subprocess.run(["zsh", "-f"], input=program, capture_output=True, text=True, check=True)
    assert "_lowtide" in done.stdout and "--layout" in done.stdout, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_verb_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = write_script(shell, capsys)
    assert all(name in script for name in VERBS)
