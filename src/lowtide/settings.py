"""Build frozen settings dataclasses from keyword options and config files, naming unknown keys.

Order of strength: a flag or keyword beats the config file, which beats the default.
Values are brought to the type their field declares, so a path may be given as a string and a
tuple as a list, from Python and from JSON alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import sys
import types
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from lowtide.aliases import other_way, own_name
from lowtide.configfiles import find_config_file, load_config_file
from lowtide.counts import LARGEST_INT, plain_number, read_int
from lowtide.errors import UsageError
from lowtide.flags import read_path
from lowtide.flatsettings import (
    from_flat,
    note_left_out,
    setting_fields,
    setting_types,
    setting_values,
)

__all__ = [
    "SIZES",
    "build_settings",
    "convert_options",
    "give_way",
    "import_when_used",
    "is_built_in",
    "nearest_name",
    "read_config_file",
    "read_preset",
    "require",
    "require_counts",
    "settings_as_json",
    "unknown_name_message",
]

SettingsT = TypeVar("SettingsT")

# Keys a config file may carry for its reader's sake, whatever the settings are.
_REMARK_KEYS = ("name", "description")
SIZES = {"memory", "cache_size"}
"""Settings that are sizes: text, or a number of bytes from Python."""


def import_when_used(name: str) -> types.ModuleType:
    """Return a module that is imported only once something in it is asked for.

    For modules that only annotations name: tyro takes 0.07 s to import, and most commands never
    need it.
    """
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return importlib.import_module(name)  # says what is missing
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def build_settings(cls: type[SettingsT], options: Mapping[str, Any]) -> SettingsT:
    """Make `cls` from `options`; an unknown or missing option is an error that names it.

    `config_file=` reads a config file first, unless `cls` has a field of that name; `preset=` reads
    one of the files that come with `cls`, where there are any, before that.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Settings:
    ...     vocab_size: int = 256
    >>> build_settings(Settings, {"vocab_size": 300})
    Settings(vocab_size=300)
    """
    fields = setting_fields(cls)
    options = _by_own_names(options, fields)
    supplied: set[str] = set()
    if "config_file" in options and "config_file" not in fields:
        path = options.pop("config_file")
        config = read_config_file(path, for_settings=cls)
        supplied = {*config} - {*options} if is_built_in(path, cls) else set()
        config = give_way(cls, config, _not_none(options))
        supplied &= {*config}
        options = {**config, **options}
    if "preset" in options and hasattr(cls, "presets_dir"):
        preset = read_preset(options.pop("preset"), for_settings=cls)
        preset = give_way(cls, preset, _not_none(options))
        supplied |= {*preset} - {*options}
        options = {**preset, **options}
    values = convert_options(cls, options)
    missing = [
        name
        for name, field in fields.items()
        if name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UsageError(f"missing setting: {', '.join(missing)}")
    return note_left_out(from_flat(cls, values), values, supplied=supplied)


def give_way(cls: type[Any], options: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Options of a preset or a file, without those that a setting given above them rules out.

    >>> class Settings:
    ...     rules_out = {"target_params": ("width", "num_layers")}
    >>> give_way(Settings, {"width": 768, "seed": 1}, ["target_params"])
    {'seed': 1}
    """
    rules: Mapping[str, Collection[str]] = getattr(cls, "rules_out", {})
    out = {name for above in given for name in rules.get(above, ())}
    return {name: value for name, value in options.items() if name not in out}


def _not_none(options: Mapping[str, Any]) -> set[str]:
    return {name for name, value in options.items() if value is not None}


def require(
    condition: bool, name: str, value: Any, expected: str, *, next_step: str | None = None
) -> None:
    """Refuse a setting's value, saying what was expected.

    >>> require(-1 >= 0, "top_k", -1, "0 or more")
    Traceback (most recent call last):
    lowtide.errors.UsageError: top_k is -1, expected 0 or more
    """
    if not condition:
        shown = str(value) if isinstance(value, Path) else value
        raise UsageError(f"{name} is {shown!r}, expected {expected}", next_step=next_step)


def require_counts(*, least: int | None = 1, **counts: Any) -> None:
    """Refuse counts that are not whole numbers of at least `least`, if given; None is left out.

    >>> require_counts(seq_len=8, stride=None, batch_size=2.5)
    Traceback (most recent call last):
    lowtide.errors.UsageError: batch_size is 2.5, expected a whole number
    """
    for name, given in counts.items():
        if given is None:
            continue
        count = plain_number(given)
        is_whole = isinstance(count, int) and not isinstance(count, bool)
        require(is_whole, name, given, "a whole number")
        require(least is None or count >= least, name, given, f"at least {least}")


def convert_options(cls: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` by the names of the fields of `cls`, every value in the type its field declares."""
    fields, kinds = setting_fields(cls), setting_types(cls)
    for name in options:
        if own_name(name, fields) in fields:
            continue
        instead = other_way(name, fields)
        if instead is not None:
            raise UsageError(f"unknown setting {name!r}; instead of it: {instead}")
        switch = name.removeprefix("no_")
        if switch != name and bool in (kinds.get(switch), *get_args(kinds.get(switch))):  # a flag
            raise UsageError(f"unknown setting {name!r}; did you mean {switch} = false?")
        raise UsageError(unknown_name_message(name, fields, kind="setting"))
    named = _by_own_names(options, fields)
    return {name: _convert(value, kinds[name], name) for name, value in named.items()}


def _by_own_names(options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    before: dict[str, str] = {}
    for given, value in options.items():
        name = own_name(given, known)
        if name in values:
            raise UsageError(
                f"{before[name]} and {given} are both given, and are the same setting",
                next_step="give one of them",
            )
        values[name], before[name] = value, given
    return values


def _convert(value: Any, kind: Any, name: str) -> Any:
    """Bring `value` to type `kind`; refuse what would change its meaning (1.5 for an int)."""
    origin = get_origin(kind)
    if kind is Any or (origin is None and not isinstance(kind, type)):
        return value
    if origin is Union or origin is types.UnionType:
        return _convert_union(value, get_args(kind), name)
    if origin is Literal:
        if value in get_args(kind):
            return value
        raise _wrong_type(value, _type_name(kind), name)
    if origin in (tuple, list) or kind in (tuple, list):
        return _convert_sequence(value, kind, name)
    if origin is not None:
        return _convert_mapping(value, kind, name)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return build_settings(kind, value)
    return _convert_scalar(value, kind, name)


def _convert_union(value: Any, choices: tuple[Any, ...], name: str) -> Any:
    if value is None and type(None) in choices:
        return None
    choices = tuple(choice for choice in choices if choice is not type(None))
    value = plain_number(value)
    # A type the value already has comes first: "str | Path" must not turn a string into a path.
    exact = [choice for choice in choices if isinstance(choice, type) and type(value) is choice]
    for choice in (*exact, *choices):
        try:
            return _convert(value, choice, name)
        except UsageError:
            continue
    raise _wrong_type(value, " or ".join(_type_name(choice) for choice in choices), name)


def _convert_sequence(value: Any, kind: Any, name: str) -> Any:
    container = get_origin(kind) or kind
    inner = get_args(kind)
    if isinstance(value, Mapping) and inner[:1] == (str,):
        value = [f"{key}={item}" for key, item in value.items()]  # as flags write NAME=VALUE
    if isinstance(value, str | Path) and set(inner) & {str, Path}:
        value = [value]  # one file where several may be given
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _wrong_type(value, "a list", name)
    items: list[Any] = list(value)
    if container is tuple and inner and Ellipsis not in inner:
        if len(items) != len(inner):
            raise _wrong_type(value, f"{len(inner)} values", name)
        return tuple(_convert(item, one, name) for item, one in zip(items, inner, strict=True))
    one = inner[0] if inner else Any
    return container(_convert(item, one, name) for item in items)


def _convert_mapping(value: Any, kind: Any, name: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if not (isinstance(origin, type) and issubclass(origin, Mapping)):
        return value
    if not isinstance(value, Mapping):
        raise _wrong_type(value, "an object of names and values", name)
    return {
        _convert(key, inner[0], name): _convert(item, inner[1], name) for key, item in value.items()
    }


def _convert_scalar(value: Any, kind: type[Any], name: str) -> Any:
    value = plain_number(value)
    if kind in (int, float) and isinstance(value, int) and abs(value) >= LARGEST_INT:
        raise _wrong_type(value, "a number below 2^63", name)
    if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
        return value
    if kind is Path and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return read_path(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)  # JSON writers like 1e6 for a count
    if kind in (int, float) and isinstance(value, str):  # as a flag: 1M; YAML has 1e-3 as text
        with contextlib.suppress(ValueError):
            return read_int(value) if kind is int else float(value)
    if kind is str and isinstance(value, Path):
        return str(value)
    if kind is str and name in SIZES and isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # bytes
    if kind in (bool, int, float, str, Path):
        raise _wrong_type(value, _type_name(kind), name)
    return value


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return names.get(kind) or ("a path" if kind is Path else getattr(kind, "__name__", str(kind)))


def _wrong_type(value: Any, expected: str, name: str) -> UsageError:
    shown = repr(value)
    shown = shown if len(shown) <= 200 else f"{shown[:200]}…"
    return UsageError(f"setting {name} is {shown}, expected {expected}")


def unknown_name_message(name: str, known: Iterable[str], *, kind: str) -> str:
    """A message that `name` is unknown, with the known name it resembles most."""
    known = sorted(known)
    nearest = nearest_name(name, known)
    hint = f"; did you mean {nearest}?" if nearest else f"; known are {', '.join(known)}"
    return f"unknown {kind} {name!r}{hint}"


def nearest_name(name: str, known: Iterable[str], *, likeness: float = 0.5) -> str | None:
    """The known name that `name` resembles most, if it does at least that much (0 to 1)."""
    import difflib  # 0.6 ms that commands without a mistake do not need

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=likeness)), None)


def read_config_file(path: str | Path, *, for_settings: type[Any] | None = None) -> dict[str, Any]:
    """Return the settings in a config file; `-` in keys is the same as `_`.

    With `for_settings` the file may be one that comes with the package, by its name; the keys and
    the types are checked too, and errors name the file.
    """
    path = find_config_file(path, folder=getattr(for_settings, "configs_dir", None))
    options = load_config_file(path)
    if for_settings is None:
        return options
    known = setting_fields(for_settings)
    options = {
        key: value for key, value in options.items() if key in known or key not in _REMARK_KEYS
    }
    try:
        return convert_options(for_settings, options)
    except UsageError as error:
        raise UsageError(error.message, path=path, next_step="correct the config file") from None


def is_built_in(path: str | Path, cls: type[Any]) -> bool:
    """True if a config file, by its path or name, is one that comes with the package."""
    folder: Path | None = getattr(cls, "configs_dir", None)
    return folder is not None and find_config_file(path, folder=folder).is_relative_to(folder)


def read_preset(name: str, *, for_settings: type[Any]) -> dict[str, Any]:
    """Read the settings that come with the package under a name."""
    folder: Path = for_settings.presets_dir
    known = sorted(path.stem for path in folder.glob("*.json"))
    if name not in known:
        nearest = nearest_name(name, known) or known[0]
        raise UsageError(
            unknown_name_message(name, known, kind="preset"), next_step=f"--preset {nearest}"
        )
    return read_config_file(folder / f"{name}.json", for_settings=for_settings)


def settings_as_json(settings: Any) -> dict[str, Any]:
    """Return settings as plain JSON values, paths as strings."""

    def plain(value: Any) -> Any:
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, tuple | list):
            return [plain(item) for item in value]
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return plain(dataclasses.asdict(value))
        return value

    return plain(setting_values(settings))
