"""Signatures and docstrings of the public functions, generated from their settings.

In:      a public function, and the settings dataclass whose fields are its keywords
Out:     `__signature__` and `__doc__`, as help() and notebooks show them; Options for the stub that
         type checkers and editors read (tools/write_signatures.py writes it)

A setting is declared once, in its dataclass: name, type, default and docstring come from there.
Types are those that callers may pass: a path also as text, a list of files also as one file.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from lowtide.flags import positional_names
from lowtide.flatsettings import setting_fields, setting_types
from lowtide.helptext import field_texts
from lowtide.quickclasses import dataclass
from lowtide.settings import SIZES

__all__ = [
    "SETTINGS_OF",
    "Option",
    "describe",
    "option_rows",
    "options_of",
    "passed_options",
    "public_doc",
]

SETTINGS_OF = {
    "TrainKeywords": "lowtide.training.settings:TrainSettings",
    "GenerateKeywords": "lowtide.generation.settings:GenerateSettings",
}
"""The settings behind `**options: Unpack[NAME]` of functions with other arguments too."""
_USED = {"GenerateKeywords": "lowtide.generation.settings:WRITING_NAMES"}
"""The names of the settings used, for functions that use only some."""

# Texts that name files or folders, and so may be given as paths.
_PATHS = {
    "dataset_dir", "decontaminate", "eval_dataset_dir", "good", "init_from_model", "input",
    "input_files", "language_model", "model_name", "other", "sample", "score", "target",
    "tasks", "tokenization", "tokenizer",
}  # fmt: skip
# Lists of NAME=VALUE, which may be given as names and values.
_PAIRS = {
    "eval_dataset_dir": "str | Path",
    "rule_limit": "float",
    "tasks": "str | Path",
    "dataset_dir": "str | Path",
}
_WIDTH = 92


class _Written(str):
    """An annotation that is shown verbatim, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Option:
    """One keyword of a public function."""

    name: str
    kind: str
    """Its type, as Python source."""
    doc: str
    default: str | None = None
    """Its default, as Python source; None if there is none and the keyword is required."""
    positional: bool = False


def options_of(cls: type[Any]) -> list[Option]:
    """Every keyword of a function that takes the settings `cls`, those by position first."""
    texts, kinds, places = field_texts(cls), setting_types(cls), positional_names(cls)
    options: list[Option] = []
    for name, field in setting_fields(cls).items():
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        kind = _written(kinds[name], is_path=name in _PATHS)
        if name in SIZES and int not in (kinds[name], *get_args(kinds[name])):
            kind = kind.replace("str", "str | int")
        if name in _PAIRS and get_origin(kinds[name]) is tuple:
            kind += f" | Mapping[str, {_PAIRS[name]}]"
        options.append(
            Option(
                name=name,
                kind=kind,
                doc=texts.get(name, ""),
                default=None if required else _written_default(field),
                positional=name in places,
            )
        )
    options.sort(key=lambda option: not option.positional)
    return [*options, *_common(cls)]


def _common(cls: type[Any]) -> list[Option]:
    """The keywords of every public function besides its settings."""
    options: list[Option] = []
    if "config_file" not in setting_fields(cls):
        doc = "File with any of these settings (JSON, TOML or YAML); keywords override it."
        options.append(Option("config_file", "str | Path | None", doc, "None"))
    if hasattr(cls, "presets_dir"):
        doc = "Settings that belong together, by name; file and keywords beat them."
        options.append(Option("preset", "str | None", doc, "None"))
    doc = "False leaves out progress and notices."
    return [*options, Option("progress", "bool", doc, "True")]


def _written(kind: Any, *, is_path: bool) -> str:
    """The type that callers may pass for a setting of type `kind`."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is type(None):
        return "None"
    if kind is Path or (kind is str and is_path):
        return "str | Path"
    if origin in (Union, types.UnionType):
        return " | ".join(_written(one, is_path=is_path) for one in inner)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, inner))}]"
    if origin is tuple:
        one = _written(inner[0], is_path=is_path)
        several = f"Sequence[{one}]"
        return f"{one} | {several}" if inner[0] in (str, Path) else several
    return kind.__name__


def _written_default(field: dataclasses.Field[Any]) -> str:
    default: Any = field.default
    if default is dataclasses.MISSING:
        return "..."
    return repr(str(default) if isinstance(default, Path) else default)


def public_doc(function: Callable[..., Any]) -> str:
    """The function's own docstring, without its doctest examples."""
    doc = inspect.cleandoc(function.__doc__ or "")
    return doc.partition("\nArgs:")[0].rstrip()


def option_rows(options: list[Option]) -> list[str]:
    """The lines of a docstring about options."""
    rows = ["Args:"]
    for option in options:
        needed = "Required. " if option.default is None else ""
        text = f"{option.name}: {needed}{option.doc}"
        rows += textwrap.wrap(
            text,
            _WIDTH,
            initial_indent="    ",
            subsequent_indent="        ",
            break_on_hyphens=False,
            break_long_words=False,
        )
    return rows


def passed_options(name: str) -> list[Option]:
    """The options of a row of SETTINGS_OF."""
    options = options_of(_named(SETTINGS_OF[name]))
    usual = [option.name for option in options if option.name != "progress"]
    used = _named(_USED[name]) if name in _USED else usual
    return [option for option in options if option.name in used]


def _named(place: str) -> Any:
    """The object at `place`, given as module:name."""
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


def describe(value: Any) -> None:
    """Set the signature and docstring of a public function, or of the methods of a public class."""
    if inspect.isclass(value):
        for method in vars(value).values():
            if inspect.isfunction(method):
                _describe_passed(method)
        return
    cls = getattr(value, "settings_class", None)
    if cls is None:
        _describe_passed(value)
        return
    options = options_of(cls)
    value.__doc__ = "\n".join([public_doc(value), "", *option_rows(options)])
    parameters = [_parameter(option) for option in options]
    if not options[0].positional:
        settings = inspect.Parameter(
            "settings",
            inspect.Parameter.POSITIONAL_ONLY,
            default=None,
            annotation=_Written(f"{cls.__name__} | None"),
        )
        parameters.insert(0, settings)
    value.__signature__ = inspect.Signature(
        parameters,
        return_annotation=_Written(value.__annotations__["return"]),
    )


def _describe_passed(function: Any) -> None:
    """The same for functions with `**options: Unpack[...]` among other arguments."""
    kind = str(getattr(function, "__annotations__", {}).get("options", ""))
    name = kind.removeprefix("Unpack[").removesuffix("]")
    if name not in SETTINGS_OF or hasattr(function, "__signature__"):
        return
    whole = inspect.signature(function)
    own = [
        parameter.replace(annotation=_Written(parameter.annotation))
        if isinstance(parameter.annotation, str)
        else parameter
        for parameter in whole.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    options = passed_options(name)
    function.__doc__ = "\n".join([public_doc(function), "", *option_rows(options)]).lstrip()
    function.__signature__ = whole.replace(parameters=[*own, *map(_parameter, options)])


def _parameter(option: Option) -> inspect.Parameter:
    usual = inspect.Parameter.POSITIONAL_OR_KEYWORD
    kind = usual if option.positional else inspect.Parameter.KEYWORD_ONLY
    default: Any = inspect.Parameter.empty
    if option.default is not None:
        default = _Written(option.default)
    return inspect.Parameter(option.name, kind, default=default, annotation=_Written(option.kind))
