"""Words to settings: flags over config file over preset over defaults; help and usage errors."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lowtide import arguments, flagerrors
from lowtide.arguments import parse_settings
from lowtide.dataset.settings import InspectSettings, PrepareSettings, VerifySettings
from lowtide.errors import LowtideError, UsageError
from lowtide.planning.settings import PlanSettings
from lowtide.training.settings import EvaluateSettings, TrainSettings


@dataclasses.dataclass(frozen=True)
class CountSettings:
    """What a verb that counts would take."""

    input_files: tuple[Path, ...]
    """Text files to count."""
    out_dir: Path | None = None
    """Folder for the counts."""
    num_rounds: int = 1
    """How often to count."""
    share: float = 0.5
    """How much of each file."""
    memory: str | int | None = None
    """Memory budget."""
    normalize: bool = True
    """Clean the text first."""

    def __post_init__(self) -> None:
        if self.num_rounds < 0:
            raise UsageError(f"num_rounds is {self.num_rounds}, expected at least 0")


@dataclasses.dataclass(frozen=True)
class PresetSettings:
    """Settings that belong together can be named."""

    presets_dir: ClassVar[Path] = Path()
    width: int
    """How wide."""
    depth: int = 1
    """How deep."""


@dataclasses.dataclass(frozen=True)
class OwnFlagsSettings:
    """A verb that does something of its own with the flags every verb has."""

    config_file: Path | None = None
    """A file of its own."""
    debug: bool = False
    """Show more."""


def parse(words: list[str], cls: type[Any] = CountSettings) -> Any:
    return parse_settings(
        cls, words, program="lowtide count", summary="Count", examples=["lowtide count --help"]
    )


def test_dashes_and_underscores_are_the_same() -> None:
    words = ["--input_files", "a", "b", "--num_rounds", "3", "--no_normalize"]
    settings = parse(words)
    assert settings == parse([word.replace("_", "-") for word in words])
    assert settings.input_files == (Path("a"), Path("b"))
    assert (settings.num_rounds, settings.normalize) == (3, False)


@pytest.mark.parametrize("words", [["--output-prefix", "x"], ["--output_prefix=x"]])
def test_names_of_other_programs_are_ours(words: list[str]) -> None:
    assert parse(["--input-files", "a", *words]).out_dir == Path("x")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["notes.txt"], "put its flag before it (--input-files is missing); lowtide count --help"),
        (["notes.txt", "--input-files", "a"], "put its flag before it; lowtide count --help"),
    ],
)
def test_a_word_without_a_flag_is_answered_with_the_flag_that_is_missing(
    words: list[str], expected: str
) -> None:
    with pytest.raises(UsageError, match=r"'notes\.txt' stands after no flag") as failure:
        parse(words)
    assert expected in str(failure.value.next_step)


def test_a_flag_that_is_given_for_each_value_takes_several_at_once() -> None:
    words = ["--tasks", "a.jsonl", "b=b.jsonl", "--model-name", "m", "--tasks", "c.jsonl"]
    settings = parse(words, EvaluateSettings)
    assert settings.tasks == ("a.jsonl", "b=b.jsonl", "c.jsonl")
    assert settings.model_name == "m"


def test_a_word_more_than_the_verb_takes_by_position_is_named() -> None:
    with pytest.raises(UsageError, match="'b' is one too many: lowtide count takes 1 value by"):
        parse(["a", "b"], InspectSettings)


def test_flag_beats_config_file_beats_default(tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    config.write_text(
        json.dumps({"input-files": ["x.txt"], "num_rounds": 5, "description": "for the reader"})
    )
    settings = parse(["--config-file", str(config)])
    assert (settings.input_files, settings.num_rounds) == ((Path("x.txt"),), 5)
    settings = parse([f"--config_file={config}", "--num-rounds", "7"])
    assert (settings.input_files, settings.num_rounds) == ((Path("x.txt"),), 7)
    assert (settings.normalize, settings.share) == (True, 0.5)


def test_what_is_missing_in_a_config_file_can_be_a_flag(tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    config.write_text('{"normalize": false, "memory": 1024}')
    settings = parse(["--config-file", str(config), "--input-files", "a"])
    assert settings == CountSettings((Path("a"),), normalize=False, memory=1024)


@pytest.mark.parametrize(
    ("content", "code", "expected"),
    [
        ('{"num_round": 5}', 2, "did you mean num_rounds?"),
        ('{"num_rounds": "five"}', 2, "setting num_rounds is 'five', expected a whole number"),
        ('{"input_files": 3}', 2, "expected a list"),
        ('{"num_rounds": -1, "input_files": []}', 2, "expected at least 0"),
        ("[1]", 1, "holds a list, expected an object"),
        ("{", 1, "config file is not JSON"),
        (None, 1, "config file not found"),
    ],
)
def test_bad_config_files_are_explained(
    tmp_path: Path, content: str | None, code: int, expected: str
) -> None:
    config = tmp_path / "c.json"
    if content is not None:
        config.write_text(content)
    with pytest.raises(LowtideError) as caught:
        parse(["--config-file", str(config)])
    assert expected in str(caught.value)
    assert caught.value.exit_code == code


def test_a_config_file_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "150M.json").write_text("{}")
    with pytest.raises(LowtideError) as caught:
        parse(["--config-file", str(tmp_path / "150m.json")])
    assert f"{tmp_path} has 150M.json" in str(caught.value.next_step)
    with pytest.raises(LowtideError) as caught:
        parse(["--config-file", str(tmp_path / "nowhere" / "150M.json")])
    assert "check the path" in str(caught.value.next_step)


@pytest.mark.parametrize("words", [["--config-file"], ["--config-file="]])
def test_config_file_without_a_name(words: list[str]) -> None:
    with pytest.raises(UsageError, match="--config-file needs a value"):
        parse(words)


def test_flags_beat_config_file_beats_preset_beats_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PresetSettings, "presets_dir", tmp_path)
    (tmp_path / "wide.json").write_text('{"width": 10, "depth": 20}')
    config = tmp_path / "c.json"
    config.write_text('{"depth": 30}')
    assert parse(["--preset", "wide"], PresetSettings) == PresetSettings(10, 20)
    words = ["--preset", "wide", "--config-file", str(config)]
    assert parse(words, PresetSettings) == PresetSettings(10, 30)
    assert parse([*words, "--depth", "40"], PresetSettings) == PresetSettings(10, 40)
    with pytest.raises(UsageError, match="wide"):  # names those there are
        parse(["--preset", "high"], PresetSettings)


def test_a_shape_by_flag_takes_the_place_of_one_in_a_preset_or_a_file(tmp_path: Path) -> None:
    """Two kinds of shape are an error only where one place gives both."""
    small = parse(["--preset", "small-data", "--target-params", "1M"], TrainSettings).model
    assert (small.target_params, small.num_layers, small.num_kv_heads) == (10**6, None, None)
    config = tmp_path / "c.json"
    config.write_text('{"num_layers": 3, "width": 96, "num_heads": 3, "num_kv_heads": 1}')
    words = ["--preset", "small-data", "--config-file", str(config)]
    given = parse([*words, "--num-heads", "2"], TrainSettings).model
    assert (given.num_layers, given.width, given.num_heads, given.num_kv_heads) == (3, 96, 2, None)
    config.write_text('{"target_params": 2000000}')
    assert parse(words, TrainSettings).model.num_layers is None
    assert parse([*words, "--width", "64"], TrainSettings).model.target_params is None
    both = parse(["--preset", "h100", "--target-params", "1M", "--width", "64"], TrainSettings)
    assert (both.model.target_params, both.model.width) == (10**6, 64)  # refused later, with both


@pytest.mark.parametrize("word", ["--presett=wide", "--prest", "--config-fil", "--config_files"])
def test_a_flag_beside_the_settings_is_named_where_it_is_nearly_one(word: str) -> None:
    wanted = "--preset" if word.startswith("--p") else "--config-file"
    with pytest.raises(UsageError, match="there is no flag --") as refused:
        parse([word], PresetSettings)
    assert refused.value.next_step == f"did you mean {wanted}?"


@pytest.mark.parametrize(
    ("cls", "words", "said", "meant"),
    [
        (CountSettings, ["--inputfiles", "a"], "--inputfiles, and --input-files is missing",
         "--input-files"),
        (CountSettings, ["--num-roundz", "2"], "--num-roundz, and --input-files is missing",
         "--num-rounds"),
        (CountSettings, ["--no-normalise", "--shar=1"],
         "--no-normalise or --shar, and --input-files is missing", "--no-normalize and --share"),
        (PlanSettings, ["--input-file", "a", "--token", "2B", "--szie", "1M"], "--token",
         "--tokens"),
        (InspectSettings, ["--smple", "a.txt"], "--smple", "--sample"),
        (PrepareSettings, ["--input-files", "a", "--outdir", "d", "--procesess", "2"],
         "--outdir or --procesess, and --out-dir is missing", "--out-dir and --processes"),
        (CountSettings, ["--input-files", "a", "--num-roundz", "2"], "--num-roundz",
         "--num-rounds"),
    ],
)  # fmt: skip
def test_flags_that_are_nearly_one_are_named_also_where_another_is_missing(
    cls: type[Any], words: list[str], said: str, meant: str
) -> None:
    with pytest.raises(UsageError) as refused:
        parse(words, cls)
    assert refused.value.message == f"there is no flag {said}"
    assert refused.value.next_step == f"did you mean {meant}?"


def test_an_unknown_preset_names_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="did you mean h100") as refused:
        parse(["--preset", "h10"], TrainSettings)
    assert refused.value.next_step == "--preset h100"


def test_a_verb_may_keep_the_flags_that_every_verb_has() -> None:
    settings = parse(["--config-file", "x.json", "--debug"], OwnFlagsSettings)
    assert settings == OwnFlagsSettings(Path("x.json"), debug=True)
    assert parse(["--input-files", "a", "--debug"]) == CountSettings((Path("a"),))


@pytest.mark.parametrize(
    ("word", "number"),
    [("1e6", 1_000_000), ("1_000", 1000), ("12345678901234567", 12345678901234567)],
)
@pytest.mark.parametrize("more", [[], ["--normalize", "--config-file"]], ids=["plain", "tyro"])
def test_whole_numbers_as_people_write_them(
    tmp_path: Path, word: str, number: int, more: list[str]
) -> None:
    if more:  # with a config file the flags are read by tyro
        path = tmp_path / "c.json"
        path.write_text('{"share": 1.0}')
        more = [*more, str(path)]
    assert parse(["--input-files", "a", "--num-rounds", word, *more]).num_rounds == number


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "--input-files is missing"),
        (["--nonsense", "2"], "there is no flag --nonsense"),
        (["--input-files", "a", "--num-roundz", "2"], "there is no flag --num-roundz"),
        *(
            (["--input-files", "a", "--num-rounds", word], f"--num-rounds is '{word}', expected a")
            for word in ("two", "1.5", "1e-3", "inf", "nan")
        ),
    ],
)
def test_wrong_flags_are_errors_of_usage(
    capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        parse(words)
    assert capsys.readouterr() == ("", "")


def test_what_has_no_explanation_is_shown_as_the_parser_says_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flagerrors, "explain_flags", lambda *given, **_: None)
    with pytest.raises(SystemExit) as caught:
        parse(["--input-files", "a", "--num-rounds", "x\x1b[31m"])
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert "--num-rounds" in captured.err
    assert "\x1b[31m" not in captured.err
    assert captured.out == ""


def test_the_settings_check_themselves() -> None:
    with pytest.raises(UsageError, match="num_rounds is -2, expected at least 0"):
        parse(["--input-files", "a", "--num-rounds=-2"])


def test_help_comes_from_field_docstrings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for expected in ("lowtide count --help", "How often to count", "--config-file", "--debug"):
        assert expected in out
    assert "--preset" not in out
    assert "--memory TEXT" in out  # an optional value is shown plainly
    assert "{None}" not in out


def test_the_flags_beside_settings_are_named_as_a_verb_has_them() -> None:
    rest = "--json (the result as an object), --quiet (no progress)"
    file = "--config-file FILE (JSON, TOML or YAML; flags override it)"
    debug = "--debug (traceback on error)"
    assert arguments.common_flags(VerifySettings) == f"{file}, {rest}, {debug}"
    preset = "--preset NAME (settings that belong together; file and flags override it)"
    assert arguments.common_flags(TrainSettings) == f"{file}, {preset}, {rest}"
    assert arguments.common_flags(PlanSettings) == f"{rest}, {debug}"


@pytest.mark.parametrize(
    ("kind", "metavar", "word", "value"),
    [
        (int | None, "INT", "1k", 1000),
        (float, "FLOAT", "0.5", 0.5),
        (Path | None, "PATH", "a", Path("a")),
        (str | int | None, "TEXT", "2GiB", "2GiB"),
        (str, "TEXT", "a", "a"),
    ],
)
def test_values_are_read_and_shown_as_plain_ones(
    kind: Any, metavar: str, word: str, value: Any
) -> None:
    spec = rule_of(kind)
    assert (spec.nargs, spec.metavar) == (1, metavar)
    assert spec.instance_from_str([word]) == value
    assert [spec.is_instance(one) for one in (None, value, [])] == [True, True, False]
    assert spec.is_instance(7)  # a whole number may stand for any of them
    assert spec.str_from_instance(value) == [str(value)]
    assert spec.str_from_instance(None) == ["none"]


@pytest.mark.parametrize("kind", [int | float, bool, tuple[int, ...], int | str | float])
def test_other_kinds_are_left_as_they_are(kind: Any) -> None:
    assert rule_of(kind) is None


def rule_of(kind: Any) -> Any:
    from tyro.constructors import ConstructorRegistry, PrimitiveTypeInfo

    rules: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConstructorRegistry, "primitive_rule", lambda self, rule: rules.append(rule))
        arguments._plain_values()
    (rule,) = rules
    return rule(PrimitiveTypeInfo.make(kind, set()))


@pytest.mark.parametrize("flag", ["--score", "--language-model", "--step", "--language_model"])
def test_a_model_named_by_an_empty_word_is_refused(flag: str) -> None:
    """An unset variable of the shell switched off what the user asked for."""
    name = flag.replace("_", "-")
    for words in ([flag, ""], [f"{flag}="]):
        with pytest.raises(UsageError, match=f"{name} is '', expected a name") as caught:
            parse_settings(
                PrepareSettings,
                ["--input-files", "a.txt", "--out-dir", "out", *words],
                program="lowtide prepare",
                summary="",
            )
        assert "variable of the shell" in str(caught.value.next_step)
