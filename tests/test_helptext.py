"""Help of the verbs: short for most, whole on request, in groups, every flag described."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import tyro

from lowtide import cli
from lowtide.dataset.settings import PrepareSettings
from lowtide.helptext import describe_verb, field_texts, flags_of, has_more
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
            r"^Cleaning and duplicates\n  --no-filter +On unless this flag",
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
def test_headings_of_groups_are_whole(name: str) -> None:
    """Those written over two lines of the source, too."""
    headings = {flag.group for flag in flags_of(VERBS[name].settings_class())}
    assert [heading for heading in headings if heading and not heading[0].isupper()] == []


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
    assert "they get the first ids (<|endoftext|>)" in text


def test_switches_that_are_on_are_shown_as_what_switches_them_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = " ".join(shown(["train", "--help-all"], capsys).split())
    assert "--no-tie-weights On unless this flag is given: Use the embedding" in text
    assert "--overwrite First remove an earlier run" in text


@dataclasses.dataclass(frozen=True)
class Kinds:
    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Files to look at; more is said here."""
    # What is looked at.
    size: int = 4
    """How many bytes are looked at; more than these are not. They are the first ones of a file, and
    all of it where it is short."""
    rate: float | None = None
    """Share that is looked at."""
    # How it is shown.
    kind: Literal["plain", "long"] = "plain"
    """How it is shown."""
    names: tuple[str, ...] = ("a", "b")
    """Names that are shown (abcde)."""
    others: tuple[int, ...] = (1,)
    """Others that are shown (abcdef)."""
    mark: str = "\t"
    """What stands between."""
    quick: bool = True
    """Look at the beginning alone."""
    slow: bool = False
    """Look at all of it."""
    a_long_setting: Path | str = ""
    """Anything."""
    a_longer_setting: Path | None = None
    common_flags: ClassVar[tuple[str, ...]] = ("files", "size", "kind", "quick")
    flag_words: ClassVar[dict[str, str]] = {"rate": "share"}


@dataclasses.dataclass(frozen=True)
class One:
    path: Annotated[Path, tyro.conf.Positional]
    """A file; or a folder."""
    size: int = 1
    """A size; in bytes."""


HEAD = """usage: lowtide look FILES … [flags]

Look at files.

  lowtide look a.txt
  lowtide look --slow b.txt

"""
WHOLE = """Arguments
  FILES …                 Files to look at; more is said here

What is looked at
  --size INT              How many bytes are looked at; more than these are not. They are the first
                          ones of a file, and all of it where it is short (4)
  --share FLOAT           Share that is looked at

How it is shown
  --kind plain|long       How it is shown (plain)
  --names TEXT …          Names that are shown (abcde)
  --others INT …          Others that are shown (abcdef) (1)
  --mark TEXT             What stands between (\\t)
  --no-quick              On unless this flag is given: Look at the beginning alone
  --slow                  Look at all of it
  --a-long-setting TEXT   Anything
  --a-longer-setting PATH
                          \n
Also: --json"""
COMMON = """Arguments
  FILES …                 Files to look at

What is looked at
  --size INT              How many bytes are looked at (4)

How it is shown
  --kind plain|long       How it is shown (plain)
  --no-quick              On unless this flag is given: Look at the beginning alone

Also: --json
lowtide look --help-all shows the other 7 flags."""


def test_help_word_by_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    about: dict[str, Any] = {
        "program": "lowtide look", "summary": "Look at files",
        "examples": ("lowtide look a.txt", "lowtide look --slow b.txt"), "also": "--json",
    }  # fmt: skip
    assert describe_verb(Kinds, **about, whole=True) == HEAD + WHOLE
    assert describe_verb(Kinds, **about, whole=False) == HEAD + COMMON
    one = describe_verb(One, **about, whole=False)
    assert one.startswith("usage: lowtide look PATH [flags]\n")
    assert "\nArguments\n  PATH                    A file; or a folder\n\nFlags\n" in one
    assert "  --size INT              A size; in bytes (1)\n\nAlso: --json" in one
    assert (has_more(Kinds), has_more(One)) == (True, False)
    monkeypatch.setenv("COLUMNS", "60")
    narrow = describe_verb(Kinds, **about, whole=True).splitlines()
    assert max(map(len, narrow)) <= 60
    assert "  --size INT              How many bytes are looked at; more" in narrow
    monkeypatch.setenv("COLUMNS", "20")
    assert "  --size INT              How many bytes are looked at;" in describe_verb(
        Kinds, **about, whole=True
    )


def test_every_kind_of_setting_is_described() -> None:
    found = {flag.name: flag for flag in flags_of(Kinds)}
    several = [name for name, flag in found.items() if flag.repeated]
    assert several == ["files", "names", "others"]
    assert [name for name, flag in found.items() if flag.positional] == ["files"]
    assert {name: flag.choices for name, flag in found.items() if flag.choices} == {
        "kind": ("plain", "long")
    }
    assert field_texts(One) == {"path": "A file; or a folder.", "size": "A size; in bytes."}
