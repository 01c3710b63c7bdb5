"""Plain flags are read as tyro reads them; anything else is left to it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import tyro
from hypothesis import given
from hypothesis import strategies as st

from lowtide import arguments, flags
from lowtide.dataset.settings import (
    AppendSettings,
    ConvertSettings,
    InspectSettings,
    PrepareSettings,
)
from lowtide.errors import UsageError
from lowtide.flags import read_plain_flags
from lowtide.settings import build_settings
from lowtide.tokenizer.settings import TokenizerTrainingSettings
from lowtide.training.settings import TrainSettings

NEEDED = ["--input-files", "a.txt", "--out-dir", "out"]


def read_by_tyro(cls: type[Any], words: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(arguments, "read_plain_flags", lambda *given: None)
        return arguments.parse_settings(cls, words, program="x", summary="x")


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (PrepareSettings, NEEDED),
        (PrepareSettings, ["--input_files", "a", "b", "c", "--out_dir", "out", "--no_shuffle"]),
        (PrepareSettings, [*NEEDED, "--memory", "2GiB", "--num-workers=3", "--seed", "1e3"]),
        (PrepareSettings, [*NEEDED, "--val-fraction", "0.25", "--lowercase", "--dry-run"]),
        (PrepareSettings, [*NEEDED, "--document-separator", "", "--text-field=a=b"]),
        (PrepareSettings, [*NEEDED, "--no-filter"]),
        (PrepareSettings, [*NEEDED, "--engine", "files", "--work-dir", "work"]),
        (InspectSettings, ["x", "--split", "val"]),
        (TokenizerTrainingSettings, ["--input", "a", "--out-dir", "o", "--kind=char"]),
        (AppendSettings, ["data/mine", "--input-files", "a", "b"]),
        (InspectSettings, ["data/mine", "--start", "5", "--show-ids", "--sample", "x.txt"]),
        (ConvertSettings, ["in", "out", "--tokens-per-shard", "1_000"]),
    ],
)
def test_the_same_settings_as_tyro(
    cls: type[Any], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = read_plain_flags(cls, words)
    assert quick is not None
    assert quick == read_by_tyro(cls, words, monkeypatch)


@given(
    st.lists(
        st.sampled_from(
            [
                *("--seed", "--seed=7", "3", "--no-dedup", "--dedup", "--memory", "1GiB", "a.txt"),
                *("--input-files", "--out-dir", "--out-dir=o", "--no-seed", "-1", "--"),
                *("--engine", "files", "--engine=threads"),
            ]
        ),
        max_size=9,
    )
)
def test_what_is_read_is_what_tyro_would_read(words: list[str]) -> None:
    quick = read_plain_flags(PrepareSettings, words)
    if quick is not None:
        with pytest.MonkeyPatch.context() as patch:
            assert quick == read_by_tyro(PrepareSettings, words, patch)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--help"],
        ["-h"],
        [*NEEDED, "--sed", "3"],
        [*NEEDED, "--seed"],
        [*NEEDED, "--seed", "x"],
        [*NEEDED, "--seed", "1.5"],
        [*NEEDED, "--seed", "-1"],
        [*NEEDED, "--seed", "1", "2"],
        [*NEEDED, "--seed", "1", "--seed", "2"],
        [*NEEDED, "--no-seed"],
        [*NEEDED, "--no-dedup", "yes"],
        [*NEEDED, "--dedup=no"],
        [*NEEDED, "--engine", "file"],
        [*NEEDED, "--engine", ""],
        [*NEEDED, "--engine", "files', 'ray"],
        [*NEEDED, "--engine"],
        ["stray", *NEEDED],
        ["--input-files", "--out-dir", "out"],
        ["--out-dir", "out"],
    ],
)
def test_anything_else_is_left_to_tyro(words: list[str]) -> None:
    assert read_plain_flags(PrepareSettings, words) is None


SWITCH = "--save-in-background"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([SWITCH], True),
        (["--no-save-in-background"], False),
        (["--no_save_in_background", "--optimizer", "muon"], False),
        (["--optimizer", "muon", SWITCH, "--max-iters", "3"], True),
        (["--optimizer", "muon"], None),
    ],
)
def test_a_switch_that_may_be_left_open_needs_no_value(
    words: list[str], expected: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--input-file", "a.txt", *words]
    for read in (arguments.parse_settings, lambda *given, **_: read_by_tyro(*given, monkeypatch)):
        settings = read(TrainSettings, words, program="x", summary="x")
        assert settings.saving.save_in_background is expected


def test_kinds_of_fields_that_are_not_read_here() -> None:
    assert read_plain_flags(ConvertSettings, ["in", "out", "--from", "npy"]) is None
    assert read_plain_flags(ConvertSettings, ["in", "out", "--source-kind", "npy"]) is None


def test_values_are_checked_as_ever() -> None:
    with pytest.raises(UsageError, match="val-fraction"):
        read_plain_flags(PrepareSettings, [*NEEDED, "--val-fraction", "2"])


@dataclasses.dataclass
class Kinds:
    first: Annotated[str, tyro.conf.Positional]
    rest: Annotated[tuple[int, ...], tyro.conf.Positional] = ()
    choice: Literal["a", "b"] = "a"
    either: Literal["a"] | bool = "a"
    pair: tuple[int, str] = (1, "")
    sizes: tuple[int, ...] | None = None
    fast: bool = False
    often: tuple[bool, ...] = ()
    tasks: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["x"], Kinds("x")),
        (["x", "1", "2"], Kinds("x", (1, 2))),
        (["x", "--choice", "b"], Kinds("x", choice="b")),
        (["x", "--sizes", "1", "2k"], Kinds("x", sizes=(1, 2000))),
        (["x", "--fast"], Kinds("x", fast=True)),
        (["x", "--no-fast"], Kinds("x")),
        (["x", "1", "a"], None),
        (["--first", "x"], None),
        (["x", "--either", "a"], None),
        (["x", "--pair", "1", "a"], None),
        (["x", "--choice", "a", "b"], None),
        (["x", "--often"], None),
        (["x", "--no-choice"], None),
        (["x", "--no-fast", "x"], None),
        (["x", "-f"], None),
        ([], None),
    ],
)
def test_words_by_the_kind_of_their_field(words: list[str], expected: Kinds | None) -> None:
    assert read_plain_flags(Kinds, words) == expected


def test_words_of_position_are_known_and_one_too_many_is_named() -> None:
    @dataclasses.dataclass
    class One:
        first: Annotated[str, tyro.conf.Positional]
        size: int = 1

    assert flags.positional_names(Kinds) == ["first", "rest"]
    assert flags.positional_names(One) == ["first"]
    assert flags.stray_word(One, ["a", "b", "--size", "1"]) == "b"
    assert flags.stray_word(One, ["a", "--size", "1", "2"]) is None
    assert flags.stray_word(One, []) is None
    assert flags.stray_word(Kinds, ["a", "1", "2"]) is None


def test_settings_as_words_and_back() -> None:
    settings = Kinds("x", choice="b", sizes=(1, 2), fast=True, tasks=("s", "t"))
    words = ["--first", "x", "--choice", "b", "--sizes", "1", "2", "--fast"]
    tasks = ["--tasks", "s", "--tasks", "t"]
    assert flags.settings_as_flags(settings) == [*words, *tasks]
    assert flags.settings_as_flags(settings, leave_out=("tasks", "first")) == words[2:]
    assert flags.repeat_flags(Kinds, ["--tasks", "s", "t", "u", "--fast", "v", "w"]) == [
        "--tasks", "s", "--tasks", "t", "--tasks", "u", "--fast", "v", "w"
    ]  # fmt: skip
    assert flags.repeat_flags(Kinds, ["a", "b"]) == ["a", "b"]


@pytest.mark.parametrize(
    "words",
    [
        ["--input-files", "a", "--input-files", "b", "c"],
        ["--input-files=a", "--input_files=b", "c"],
        ["--input-files", "a", "--seed", "3", "--input-files", "b", "--input-files", "c"],
        ["--input-files", "a", "--no-shuffle", "--input-files=b", "c"],
    ],
)
def test_no_value_of_a_repeated_flag_is_lost(words: list[str], monkeypatch: Any) -> None:
    """Read quickly and by tyro, which would keep the last ones only; a single value is replaced."""
    found = arguments.parse_settings(
        PrepareSettings, [*words, "--out-dir", "o"], program="x", summary="x"
    )
    assert (found.input_files, found.out_dir) == (("a", "b", "c"), Path("o"))
    words = [*words, "--out-dir", "first", "--out-dir", "last"]
    found = read_by_tyro(PrepareSettings, words, monkeypatch)
    assert (found.input_files, found.out_dir) == (("a", "b", "c"), Path("last"))


def test_values_that_begin_as_flags_stay_where_they_are() -> None:
    words = ["--special-tokens=--a", "--special-tokens", "b", "--json", "--special-tokens=-c"]
    assert flags.gather_flags(TokenizerTrainingSettings, words) == words


@pytest.mark.parametrize("flag", ["--config-file", "--config_file"])
def test_two_config_files_are_refused(flag: str) -> None:
    words = [*NEEDED, "--config-file", "a.json", f"{flag}=b.json"]
    with pytest.raises(UsageError, match="--config-file is given twice"):
        arguments.parse_settings(PrepareSettings, words, program="x", summary="x")


def test_a_path_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    for word, path in (
        ("~/data", "/home/ada/data"),
        ("~", "/home/ada"),
        ("a/~", "a/~"),
        ("./~", "~"),
        ("~nobody at all/data", "~nobody at all/data"),
    ):
        assert flags.read_path(word) == Path(path)
        assert build_settings(PathSettings, {"out_dir": word}).out_dir == Path(path)


@dataclasses.dataclass(frozen=True)
class PathSettings:
    out_dir: Path | None = None


@pytest.mark.parametrize("word", ["", "a\0b", "\0"])
def test_a_path_that_names_nothing_is_refused(word: str) -> None:
    with pytest.raises(ValueError):
        flags.read_path(word)
