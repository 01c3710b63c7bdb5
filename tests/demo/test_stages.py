"""The demo's stages are commands that their verbs understand, and that can be given again."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from lowtide import cli
from lowtide.demo.stages import DemoSettings, plan_stages, resume_command, write_commands
from lowtide.verbs import VERBS


def test_every_command_is_understood_by_its_verb(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some words\n")
    settings = DemoSettings(text=text, out_dir=tmp_path)
    stages = plan_stages(settings, text)
    assert [stage.verb for stage in stages] == ["train-tokenizer", "prepare", "train", "generate"]
    for stage in stages:
        assert VERBS[stage.verb].parse(stage.verb, stage.words[1:])
    write_commands(tmp_path / "commands.sh", settings, stages)
    lines = (tmp_path / "commands.sh").read_text().splitlines()
    assert [line for line in lines if line.startswith("lowtide")] == [
        stage.command for stage in stages
    ]


def test_the_command_to_go_on_names_what_was_asked_for() -> None:
    assert resume_command(DemoSettings()) == "lowtide demo"
    settings = DemoSettings(text=Path("my text.txt"), max_iters=7, memory="1MB", prompt="it's")
    words = shlex.split(resume_command(settings))
    assert VERBS["demo"].parse("demo", [*words[2:], "--memory", "1MB"]) == settings


def test_the_commands_run_twice_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the shell would take commands.sh apart, in this process."""
    smallest = {"--num-layers": 1, "--width": 16, "--num-heads": 1}
    text = tmp_path / "my text.txt"
    lines = [f"some words of the demo, number {number}\n" for number in range(600)]
    text.write_text("<|endoftext|>".join(lines))
    folder = tmp_path / "demo"
    folder.mkdir()
    settings = DemoSettings(text=text, out_dir=folder, max_iters=2, vocab_size=300, memory="4GiB")
    write_commands(
        folder / "commands.sh", settings, plan_stages(settings, text, model_flags=smallest)
    )
    subprocess.run(["sh", "-n", folder / "commands.sh"], check=True)
    script = (folder / "commands.sh").read_text().splitlines()
    commands = [shlex.split(line)[1:] for line in script if line.startswith("lowtide ")]
    assert [words[0] for words in commands] == ["train-tokenizer", "prepare", "train", "generate"]
    monkeypatch.chdir(folder)
    printed: list[str] = []
    for _ in range(2):
        for words in commands:
            assert cli.main(words) == 0, capsys.readouterr().err
        printed.append(capsys.readouterr().out)
    assert "was there already" in printed[1] and "was there already" not in printed[0]
    assert printed[0].splitlines()[-1] == printed[1].splitlines()[-1], "the same text generated"


def test_every_word_of_the_stages(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("some words\n")
    library = tmp_path / "text" / "python.jsonl"
    library.parent.mkdir()
    library.write_text("{}\n")
    gathered = plan_stages(DemoSettings(out_dir=tmp_path), library)
    given = plan_stages(DemoSettings(out_dir=tmp_path, text=own, max_iters=3), own)
    asked = plan_stages(DemoSettings(out_dir=tmp_path, text=own, max_iters=17, prompt="it"), own)
    assert [stage.command for stage in gathered] == [
        "lowtide train-tokenizer --input text/python.jsonl --vocab-size 2048 --out-dir tokenizer "
        "--memory 1GiB",
        "lowtide prepare --input-files text/python.jsonl --tokenization tokenizer --no-normalize "
        "--no-filter --no-dedup --out-dir data --memory 1GiB",
        "lowtide train --dataset-dir data --model-name demo --num-layers 4 --width 128 "
        "--num-heads 4 --seq-len 128 --batch-size 16 --max-iters 400 --eval-interval 100 "
        "--eval-iters 10 --save-interval 50 --memory 1GiB",
        "lowtide generate --model-name demo --prompt 'def __init__(self' --max-new-tokens 160 "
        "--seed 1",
    ]
    assert f"--input {own} " in given[0].command
    assert "--prompt The " in given[3].command and "--prompt it " in asked[3].command
    assert "--max-iters 3 --eval-interval 1 --eval-iters 10 --save-interval 1 " in given[2].command
    assert "--max-iters 17 --eval-interval 4 --eval-iters 10 --save-interval 2" in asked[2].command
    assert [(stage.amount, stage.unit, stage.metrics_dir) for stage in given] == [
        (11, "B", "tokenizer"),
        (11, "B", "data"),
        (3 * 16 * 128, "tokens", "checkpoints/demo"),
        (160, "tokens", None),
    ]
    assert given[1].result == {
        "--input-files": str(own), "--tokenization": "tokenizer", "--no-normalize": "None",
        "--no-filter": "None", "--no-dedup": "None", "--out-dir": "data",
    }  # fmt: skip


def test_the_script_says_which_text_it_is_and_may_be_run(tmp_path: Path) -> None:
    path = tmp_path / "commands.sh"
    write_commands(path, DemoSettings(out_dir=tmp_path), [])
    assert path.stat().st_mode & 0o777 == 0o755
    lines = path.read_text().splitlines()
    assert lines[0] == "#!/bin/sh"
    assert lines[3:] == [
        "# The text is text/python.jsonl: one document per source file.", "set -e",
        'cd "$(dirname "$0")"',
    ]  # fmt: skip
    write_commands(path, DemoSettings(out_dir=tmp_path, text=Path("a")), [])
    assert "# The text is yours." in path.read_text()
