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
