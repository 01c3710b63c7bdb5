"""Help of the verbs: short for most, whole on request, in groups, every flag described."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lowtide import cli
from lowtide.dataset.settings import PrepareSettings
from lowtide.helptext import flags_of
from lowtide.training.settings import TrainSettings
from lowtide.verbs import VERBS


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("verb", "settings", "part"),
    [
        ("train", TrainSettings, r"^How long\n  --max-iters INT +Steps to train\n"),
        (
            "prepare",
            PrepareSettings,
            r"^Cleaning and duplicates\n  --no-filter +switches this",
        ),
    ],
)
def test_help_of_verbs_with_many_flags_fits_a_screen(
    verb: str,
    settings: Any,
    part: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = shown([verb, "--help"], capsys)
    flags = re.findall(r"^  (--[a-z0-9-]+)", text, re.MULTILINE)
    assert len(flags) == len(settings.common_flags) == 15
    assert len(text.splitlines()) <= 50
    rest = len(list(flags_of(settings))) - 15
    assert f"lowtide {verb} --help-all shows the other {rest} flags." in text
    assert re.search(part, text, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(VERBS))
def test_whole_help_has_every_flag_with_its_description(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = shown([name, "--help-all"], capsys)
    words = " ".join(text.split())
    for flag in flags_of(VERBS[name].settings_class()):
        assert flag.help, f"{flag.name} has no docstring"
        assert f"{flag.usage} " in words
        assert flag.help.rstrip(".") in words
    examples = VERBS[name].examples
    assert all(len(line) <= 80 for line in text.splitlines() if line.strip() not in examples)


def test_a_flag_with_a_name_of_its_own_is_shown_by_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(["convert", "--help"], capsys)
    assert "--from lowtide|nanogpt" in text and "source" not in text


def test_a_list_that_is_the_default_is_shown_as_it_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = " ".join(shown(["train-tokenizer", "--help"], capsys).split())
    assert "the first ids are theirs (<|endoftext|>)" in text


def test_switches_that_are_on_are_shown_as_what_switches_them_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = " ".join(shown(["train", "--help-all"], capsys).split())
    assert "--no-tie-weights switches this off: Use the embedding" in text
    assert "--overwrite Remove an earlier run" in text
