"""The demo's stages are commands that their verbs understand, and that can be given again."""

from __future__ import annotations

import shlex
from pathlib import Path

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
