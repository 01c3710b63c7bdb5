"""Settings in groups: flat by name outside, nested inside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from lowtide.arguments import parse_settings
from lowtide.errors import UsageError
from lowtide.flags import settings_as_flags
from lowtide.flatsettings import (
    from_flat,
    group_classes,
    groups_of,
    replace_settings,
    setting_fields,
    setting_types,
    setting_values,
)
from lowtide.helptext import flags_of
from lowtide.settings import build_settings, require, settings_as_json
from lowtide.training.settings import TrainSettings


@dataclass(frozen=True)
class Batch:
    # The rows.
    rows: int = 4
    """Rows at once."""
    parts: int = 1
    """How many of them."""

    def __post_init__(self) -> None:
        require(self.rows >= 1, "rows", self.rows, "at least 1")


@dataclass(frozen=True)
class Rate:
    learning_rate: float | None = None
    """The peak."""
    resume: bool = True
    """Go on."""


@dataclass(frozen=True)
class Settings:
    batch: Batch = field(default_factory=Batch)
    rate: Rate = field(default_factory=Rate)


@dataclass(frozen=True)
class Mixed:
    count: int = 1
    batch: Batch = field(default_factory=Batch)


NAMES = ["rows", "parts", "learning_rate", "resume"]


def test_names_are_flat_and_in_order():
    assert list(setting_fields(Settings)) == list(setting_types(Settings)) == NAMES
    assert setting_values(Settings()) == {
        "rows": 4, "parts": 1, "learning_rate": None, "resume": True,
    }  # fmt: skip
    assert group_classes(Settings) == [Batch, Rate] and groups_of(Batch) == {}
    assert settings_as_json(Settings()) == setting_values(Settings())


def test_a_class_with_a_setting_of_its_own_has_no_groups():
    assert group_classes(Mixed) == [Mixed]
    assert list(setting_fields(Mixed)) == ["count", "batch"]
    assert settings_as_json(Mixed()) == {"count": 1, "batch": {"rows": 4, "parts": 1}}
    assert build_settings(Mixed, {"batch": {"rows": 2}}).batch.rows == 2


def test_values_find_their_groups():
    made = from_flat(Settings, {"learning_rate": 0.5, "rows": 2})
    assert made == Settings(Batch(rows=2), Rate(learning_rate=0.5))
    assert replace_settings(made, rows=3, resume=False) == Settings(
        Batch(rows=3), Rate(learning_rate=0.5, resume=False)
    )
    with pytest.raises(TypeError, match="width"):
        from_flat(Settings, {"width": 3})
    with pytest.raises(UsageError, match="rows is 0, expected at least 1"):
        replace_settings(made, rows=0)


@pytest.mark.parametrize("more", [[], ["--parts", "1"]])
@pytest.mark.parametrize(
    "words", [["--rows", "7", "--no-resume"], ["--rows=7", "--resume", "False"]]
)
def test_flags_know_no_groups(words: list[str], more: list[str]):
    def parse(words: list[str]) -> Any:
        return parse_settings(Settings, words, program="lowtide x", summary="")

    if "False" in words:  # neither reader takes it
        with pytest.raises(SystemExit):
            parse([*words, *more])
        return
    made = parse([*words, *more])
    assert (made.batch.rows, made.rate.resume) == (7, False)
    assert settings_as_flags(made) == ["--rows", "7", "--no-resume"]


def test_headings_go_on_from_group_to_group():
    assert {flag.group for flag in flags_of(Settings)} == {"The rows"}
    assert [flag.help for flag in flags_of(Settings)] == [
        "Rows at once.", "How many of them.", "The peak.", "Go on.",
    ]  # fmt: skip


def test_no_setting_of_training_stands_in_two_groups():
    counted = [name for group in group_classes(TrainSettings) for name in setting_fields(group)]
    assert len(counted) == len(set(counted)) == len(setting_fields(TrainSettings))
    assert not set(counted) & set(groups_of(TrainSettings))


def test_settings_know_what_was_left_out(tmp_path):
    def named(settings):
        return {*setting_fields(TrainSettings)} - settings.left_out

    def flags(*words):
        return named(parse_settings(TrainSettings, [*words], program="train", summary="Train"))

    assert flags("--seed", "1337", "--no-resume", "--lr=1e-3") == {
        *("seed", "resume", "learning_rate"),
    }
    (tmp_path / "run.json").write_text('{"width": 8}')
    given = ("--config-file", str(tmp_path / "run.json"), "--no-tie-weights", "--lr=1", "--seed=1")
    assert flags(*given) == {"width", "tie_weights", "learning_rate", "seed"}
    made = build_settings(TrainSettings, {"seed": 1337, "lr": 0.1})
    assert named(made) == {"seed", "learning_rate"}
    assert named(replace_settings(made, order="random")) == {"seed", "learning_rate", "order"}
    assert TrainSettings().left_out == frozenset()
