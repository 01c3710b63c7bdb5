"""Settings from keywords and JSON: types, unknown names, order of strength."""

from __future__ import annotations

import builtins
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

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
        ({"count": 1.5}, "setting count is 1.5, expected a whole number"),
        ({"count": True}, "setting count is True, expected a whole number"),
        ({"count": "seven"}, "expected a whole number"),
        ({"shuffle": 1}, "expected true or false"),
        ({"rate": "fast"}, "expected a number"),
        ({"kind": "c"}, "expected a or b"),
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
    with pytest.raises(UsageError, match="n_layer is another name of num_layers"):
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
