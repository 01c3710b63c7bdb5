"""Settings from keywords and JSON: types, unknown names, order of strength."""

from __future__ import annotations

import builtins
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from lowtide import settings as settings_module
from lowtide.dataset.settings import PrepareSettings
from lowtide.errors import DataError, UsageError
from lowtide.settings import (
    build_settings,
    import_when_used,
    read_config_file,
    settings_as_json,
)


@dataclasses.dataclass(frozen=True)
class Inner:
    width: int = 4


@dataclasses.dataclass(frozen=True)
class Settings:
    input_files: tuple[Path, ...]
    out_dir: Path | None = None
    rate: float = 0.1
    count: int = 1
    pair: tuple[int, str] = (1, "a")
    kind: Literal["a", "b"] = "a"
    open: Literal["a", "b"] | None = None
    source: str | Path = "gpt2"
    memory: str | int | None = None
    shuffle: bool = True
    names: dict[str, Path] = dataclasses.field(default_factory=dict[str, Path])
    inner: Inner = dataclasses.field(default_factory=Inner)


def test_values_take_the_type_of_their_field() -> None:
    settings = build_settings(
        Settings,
        {
            "input_files": ["a", Path("b")],
            "out_dir": "out",
            "rate": 1,
            "count": 1e6,
            "pair": [2, "b"],
            "memory": "2GiB",
            "names": {"general": "data/general"},
            "inner": {"width": 8},
        },
    )
    assert settings.input_files == (Path("a"), Path("b"))
    assert settings.out_dir == Path("out")
    assert isinstance(settings.rate, float)
    assert isinstance(settings.count, int)
    assert settings.pair == (2, "b")
    assert settings.memory == "2GiB"
    assert settings.names == {"general": Path("data/general")}
    assert settings.inner == Inner(8)
    assert settings.source == "gpt2"


def test_one_file_may_stand_for_a_list_of_files() -> None:
    for given in ("a.txt", Path("a.txt")):
        assert build_settings(Settings, {"input_files": given}).input_files == (Path("a.txt"),)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rates": 1}, "did you mean rate?"),
        ({"zzz": 1}, "known are count, "),
        ({"no_shuffle": True}, "unknown setting 'no_shuffle'; did you mean shuffle = false?"),
        ({"no_count": True}, "unknown setting 'no_count'; did you mean count?"),
        ({"count": 1.5}, "setting count is 1.5, expected a whole number"),
        ({"count": True}, "setting count is True, expected a whole number"),
        ({"count": "seven"}, "expected a whole number"),
        ({"shuffle": 1}, "expected true or false"),
        ({"rate": "fast"}, "expected a number"),
        ({"kind": "c"}, "expected a or b"),
        ({"open": "c"}, "setting open is 'c', expected a or b"),
        ({"pair": [1]}, "expected 2 values"),
        ({"memory": [1]}, "expected text or a whole number"),
        ({"names": ["x"]}, "an object of names and values"),
        ({"input_files": [7]}, "setting input_files is 7, expected a path"),
        ({"input_files": 7}, "setting input_files is 7, expected a list"),
        ({"pair": "ab"}, "expected 2 values"),
        ({"inner": {"widht": 8}}, "did you mean width?"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_settings(Settings, {"input_files": [], **options})
    assert words in str(caught.value)


def test_missing_settings_are_named() -> None:
    with pytest.raises(UsageError, match="missing setting: input_files"):
        build_settings(Settings, {})


def test_keyword_beats_config_file_beats_default(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"input-files": ["x"], "rate": 0.5, "count": 3, "name": "mine"}))
    settings = build_settings(Settings, {"config_file": path, "count": 9})
    assert (settings.input_files, settings.rate, settings.count) == ((Path("x"),), 0.5, 9)
    assert settings.kind == "a"


def test_other_programs_names_and_maps_are_understood(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Aliased:
        num_layers: int = 1
        eval_dataset_dir: tuple[str, ...] = ()

    path = tmp_path / "c.json"
    path.write_text('{"n_layer": 12, "eval_sets": {"general": "data/general"}}')
    expected = Aliased(num_layers=12, eval_dataset_dir=("general=data/general",))
    assert build_settings(Aliased, {"config_file": path}) == expected
    assert build_settings(Aliased, {"config_file": path, "n_layer": 7}).num_layers == 7
    with pytest.raises(UsageError, match="num_layers and n_layer are both given"):
        build_settings(Aliased, {"num_layers": 3, "n_layer": 7})


def test_config_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"rat": 1}')
    with pytest.raises(UsageError) as caught:
        read_config_file(path, for_settings=Settings)
    assert caught.value.path == path
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not JSON"):
        read_config_file(path)
    with pytest.raises(DataError, match="not found"):
        read_config_file(tmp_path / "absent.json")


def test_settings_survive_json(tmp_path: Path) -> None:
    settings = build_settings(
        Settings, {"input_files": ["a"], "names": {"v": "w"}, "inner": {"width": 2}}
    )
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(settings_as_json(settings)))
    assert build_settings(Settings, {"config_file": path}) == settings


def test_a_module_that_only_annotations_name_is_run_when_something_of_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "named_only.py").write_text("import builtins\nbuiltins.ran = True\nvalue = 5\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(builtins, "ran", False, raising=False)
    monkeypatch.delitem(sys.modules, "named_only", raising=False)
    module = import_when_used("named_only")
    assert sys.modules["named_only"] is module and not builtins.ran  # type: ignore[attr-defined]
    assert module.value == 5 and builtins.ran  # type: ignore[attr-defined]
    assert import_when_used("named_only") is module
    monkeypatch.delitem(sys.modules, "named_only")
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        import_when_used("not_there_at_all")


PAST = 1 << 63


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("a", Any, "a"),
        ([1], "int", [1]),  # an annotation that was not evaluated
        (3, Path | float, 3.0),
        ("x", str | Path, "x"),
        (Path("x"), str | Path, "x"),
        (Path("x"), str | int, "x"),
        (None, int | None, None),
        ("7", int | None, 7),
        ("a", Literal["a", 2], "a"),
        ((1, "2"), tuple[int, int], (1, 2)),
        (iter("ab"), tuple[str, ...], ("a", "b")),
        ([1, 2], tuple, (1, 2)),
        ((1, "a"), list, [1, "a"]),
        ("ab", list[str], ["ab"]),
        ({"a": 1, "b": "c"}, tuple[str, ...], ("a=1", "b=c")),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        ({"a"}, set[str], {"a"}),  # no mapping: as it is
        (PAST - 1, int, PAST - 1),
        (-PAST + 1, int, -PAST + 1),
        (float(1 << 62), int, 1 << 62),
        (2.0, int, 2),
        (2, float, 2.0),
        ("1k", int, 1000),
        ("1e-3", float, 0.001),
        (True, bool, True),
        (1.5, float, 1.5),
        (b"x", bytes, b"x"),
        (7, bytes, 7),  # no kind of a setting: whoever made it knows better
        (Inner(3), Inner, Inner(3)),
        ({"width": "5"}, Inner, Inner(5)),
    ],
)  # fmt: skip
def test_a_value_becomes_one_of_its_fields_type(value: Any, kind: Any, expected: Any) -> None:
    found = settings_module._convert(value, kind, "x")
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (PAST, int, "a number below 2^63"),
        (-PAST, int, "a number below 2^63"),
        (PAST, float, "a number below 2^63"),
        (PAST, str, "text"),
        (float(PAST), int, "a whole number"),
        (2.5, int, "a whole number"),
        (float("inf"), int, "a whole number"),
        ("a", int, "a whole number"),
        ("a", float, "a number"),
        (True, float, "a number"),
        (1, str, "text"),
        ("", Path, "a path"),
        ("a\0b", Path, "a path"),
        (1, bool, "true or false"),
        ([1], str | Path, "text or a path"),
        ([1], dict[str, int] | int, "dict or a whole number"),
        ("c", Literal["a", 2], "a or 2"),
        (1, tuple[int, ...], "a list"),
        ("ab", tuple[int, ...], "a list"),
        (b"ab", tuple[int, ...], "a list"),
        ({"a": 1}, tuple[int, ...], "a list"),
        ((1, 2, 3), tuple[int, int], "2 values"),
        ([1], dict[str, int], "an object of names and values"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_with_what_was_expected(
    value: Any, kind: Any, expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        settings_module._convert(value, kind, "x")
    assert caught.value.message == f"setting x is {value!r}, expected {expected}"


def test_a_long_value_is_shown_in_part() -> None:
    for text, shown in (("a" * 198, "'" + "a" * 198 + "'"), ("a" * 199, "'" + "a" * 199 + "…")):
        with pytest.raises(UsageError) as caught:
            settings_module._convert(text, int, "x")
        assert caught.value.message == f"setting x is {shown}, expected a whole number"


def test_one_near_name_is_proposed_or_all_are_named() -> None:
    message = settings_module.unknown_name_message
    known = ("seed", "seq_len", "rate")
    assert message("sead", known, kind="flag") == "unknown flag 'sead'; did you mean seed?"
    assert message("rat", known, kind="flag") == "unknown flag 'rat'; did you mean rate?"
    assert message("zz", known, kind="key") == "unknown key 'zz'; known are rate, seed, seq_len"
    # Half of the letters are enough: 2 * 2 of 4 + 4.
    assert message("seXX", ("seed",), kind="key").endswith("did you mean seed?")
    assert message("sXXX", ("seed",), kind="key").endswith("known are seed")


def test_a_name_may_be_given_once_by_whichever_of_its_names() -> None:
    with pytest.raises(UsageError) as caught:
        build_settings(Settings, {"input": ["a"], "input_files": ["b"]})
    said = "input and input_files are both given, and are the same setting"
    assert caught.value.message == said
    assert caught.value.next_step == "give one of them"


@dataclasses.dataclass(frozen=True)
class Preset:
    rate: float = 0.0
    name: str = ""
    config_file: str = ""
    presets_dir = Path()


def test_presets_are_read_by_name_below_the_config_file_and_keywords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Preset, "presets_dir", tmp_path)
    (tmp_path / "slow.json").write_text('{"rate": 0.5, "name": "slow one", "description": "d"}')
    (tmp_path / "fast.json").write_text('{"rate": 2}')
    assert build_settings(Preset, {"preset": "slow"}) == Preset(0.5, "slow one")
    assert build_settings(Preset, {"preset": "slow", "rate": 3}) == Preset(3.0, "slow one")
    assert build_settings(Preset, {"config_file": "kept"}) == Preset(config_file="kept")
    with pytest.raises(UsageError) as caught:
        build_settings(Preset, {"preset": "slwo"})
    assert caught.value.message == "unknown preset 'slwo'; did you mean slow?"
    assert caught.value.next_step == "--preset slow"
    with pytest.raises(UsageError, match="unknown setting 'preset'"):
        build_settings(Inner, {"preset": "slow"})


def test_settings_as_json_are_plain_all_the_way_down() -> None:
    settings = Settings((Path("a"),), names={"b": Path("c")}, inner=Inner(2))
    found = settings_as_json(settings)
    assert (found["input_files"], found["names"], found["inner"]) == (
        ["a"],
        {"b": "c"},
        {"width": 2},
    )
    assert found["pair"] == [1, "a"] and found["out_dir"] is None
    json.dumps(found)


def test_numbers_of_numpy_are_numbers() -> None:
    """Those of a sweep: `for rate in np.logspace(…)`."""
    given = build_settings(
        Settings,
        {"input_files": ["a"], "count": np.int64(3), "rate": np.float32(0.5), "memory": np.uint8(7),
         "shuffle": np.bool_(False)},
    )  # fmt: skip
    assert (given.count, given.rate, given.memory, given.shuffle) == (3, 0.5, 7, False)
    json.dumps(settings_as_json(given))
    for wrong in (np.array([3]), np.float64(1.5), np.bool_(True)):
        with pytest.raises(UsageError, match=r"setting count is .*, expected a whole number"):
            build_settings(Settings, {"input_files": ["a"], "count": wrong})


def test_a_budget_may_be_a_number_of_bytes() -> None:
    options = {"input_files": "a.txt", "out_dir": "out"}
    made = build_settings(PrepareSettings, {**options, "memory": 1 << 30})
    assert made.memory == str(1 << 30)
    with pytest.raises(UsageError, match="memory is True, expected text"):
        build_settings(PrepareSettings, {**options, "memory": True})
    with pytest.raises(UsageError, match="text_field is 5, expected text"):
        build_settings(PrepareSettings, {**options, "text_field": 5})
