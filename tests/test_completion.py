"""Completion: verbs, flags and choices, as the shells themselves complete them."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
import tyro

from lowtide import cli
from lowtide.completion import completion_script
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


@dataclasses.dataclass(frozen=True)
class Look:
    kind: Annotated[Literal["run", "tokens"], tyro.conf.Positional]
    """What to look at."""
    place: Annotated[str, tyro.conf.Positional] = ""
    """Where."""
    size: int = 1
    """How much; in bytes."""
    mode: Literal["a", "b c"] = "a"
    """It's how."""
    fast: bool = False
    presets_dir: ClassVar[Path] = Path()


FISH = """# lowtide's verbs, flags and their choices.
complete -c lowtide -n __fish_use_subcommand -x -a look -d 'Look at it'
complete -c lowtide -n '__fish_seen_subcommand_from look' -x -a 'run tokens'
complete -c lowtide -n '__fish_seen_subcommand_from look' -l config-file -r
complete -c lowtide -n '__fish_seen_subcommand_from look' -l debug
complete -c lowtide -n '__fish_seen_subcommand_from look' -l fast
complete -c lowtide -n '__fish_seen_subcommand_from look' -l help
complete -c lowtide -n '__fish_seen_subcommand_from look' -l help-all
complete -c lowtide -n '__fish_seen_subcommand_from look' -l json
complete -c lowtide -n '__fish_seen_subcommand_from look' -l mode -x -a 'a b c' -d 'It'"'"'s how'
complete -c lowtide -n '__fish_seen_subcommand_from look' -l no-fast
complete -c lowtide -n '__fish_seen_subcommand_from look' -l preset -x -a 'one two' \
-d 'Settings that belong together'
complete -c lowtide -n '__fish_seen_subcommand_from look' -l quiet
complete -c lowtide -n '__fish_seen_subcommand_from look' -l size -r -d 'How much'"""


def test_scripts_word_by_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("two.json", "one.json", "three.txt"):
        (tmp_path / name).touch()
    monkeypatch.setattr(Look, "presets_dir", tmp_path)
    verbs = {"look": ("Look at it", Look)}
    assert completion_script("fish", verbs) == FISH
    bash = completion_script("bash", verbs)
    assert completion_script("zsh", verbs) == (
        f"#compdef lowtide\nautoload -U +X bashcompinit && bashcompinit\n{bash}"
    )
    lines = [line.strip() for line in bash.splitlines()]
    assert [line for line in lines if "_lowtide_reply" in line][1:] == [
        "_lowtide_reply look --help --version; return",
        '"look look") _lowtide_reply run tokens; return ;;',
        '"look --mode") _lowtide_reply a b c; return ;;',
        '"look --preset") _lowtide_reply one two; return ;;',
        "look) _lowtide_reply --config-file --debug --fast --help --help-all --json --mode "
        "--no-fast --preset --quiet --size ;;",
    ]
