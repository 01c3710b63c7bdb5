"""Settings in groups: nested frozen dataclasses internally, one flat list of names for users.

In:      a settings dataclass; if all its fields are dataclasses, these are groups of settings
Out:     its settings by their own names: fields, types, values; instances from such values

Flags, keywords, config files and settings.json use plain names without groups; functions get the
group that they use. A class without groups is its own only group.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_type_hints

__all__ = [
    "fill_left_out",
    "from_flat",
    "group_classes",
    "groups_of",
    "limit",
    "limit_names",
    "named_settings",
    "note_left_out",
    "replace_settings",
    "setting_fields",
    "setting_types",
    "setting_values",
]

SettingsT = TypeVar("SettingsT")

_LIMIT = "limit"
_LEFT_OUT = "left_out"
_SUPPLIED = "supplied"


def limit(default: Any) -> Any:
    """A field for Python callers only: it has no flag and no help.

    It limits how much is read or held at a time; results do not depend on it.
    """
    return dataclasses.field(default=default, metadata={_LIMIT: True})


def limit_names(cls: type[Any]) -> list[str]:
    """The fields that are limits."""
    return [field.name for field in dataclasses.fields(cls) if _LIMIT in field.metadata]


def groups_of(cls: type[Any]) -> dict[str, type[Any]]:
    """The classes of groups by their fields; empty if not every field of `cls` is a group."""
    made = {field.name: field.default_factory for field in dataclasses.fields(cls) if field.init}
    groups = {
        name: factory
        for name, factory in made.items()
        if isinstance(factory, type) and dataclasses.is_dataclass(factory)
    }
    return groups if len(groups) == len(made) else {}


def group_classes(cls: type[Any]) -> list[type[Any]]:
    """The classes that have the settings: the groups in their order, or `cls` itself."""
    return list(groups_of(cls).values()) or [cls]


@functools.cache
def setting_fields(cls: type[Any]) -> Mapping[str, dataclasses.Field[Any]]:
    """The fields of all settings by name, in order; limits are left out, and fields that callers
    cannot set."""
    return {
        field.name: field
        for group in group_classes(cls)
        for field in dataclasses.fields(group)
        if field.init and _LIMIT not in field.metadata
    }


@functools.cache
def setting_types(cls: type[Any], *, marked: bool = False) -> Mapping[str, Any]:
    """The types of all settings; `marked` keeps what `Annotated` adds to them."""
    found: dict[str, Any] = {}
    for group in group_classes(cls):
        found |= get_type_hints(group, include_extras=marked)
    return found


def setting_values(settings: Any) -> dict[str, Any]:
    """The values of all settings by name, in order."""
    parts = [getattr(settings, name) for name in groups_of(type(settings))] or [settings]
    return {
        field.name: getattr(part, field.name)
        for part in parts
        for field in dataclasses.fields(part)
        if _LIMIT not in field.metadata
    }


def from_flat(cls: type[SettingsT], values: Mapping[str, Any]) -> SettingsT:
    """Create settings from values by name; the others have their defaults."""
    given: dict[str, Any] = dict(values)
    groups: dict[str, Any] = {}
    for name, group in groups_of(cls).items():
        own = [field.name for field in dataclasses.fields(group) if field.name in given]
        groups[name] = group(**{setting: given.pop(setting) for setting in own})
    return note_left_out(cls(**groups, **given), values)


def replace_settings(settings: SettingsT, **changes: Any) -> SettingsT:
    """A copy with some settings changed.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Batch:
    ...     rows: int = 32
    >>> @dataclasses.dataclass(frozen=True)
    ... class Settings:
    ...     batch: Batch = dataclasses.field(default_factory=Batch)
    >>> replace_settings(Settings(), rows=4)
    Settings(batch=Batch(rows=4))
    """
    changed = from_flat(type(settings), {**setting_values(settings), **changes})
    supplied = getattr(settings, _SUPPLIED, frozenset()) - {*changes}
    return note_left_out(changed, {*named_settings(settings), *changes}, supplied=supplied)


def note_left_out(
    settings: SettingsT, named: Iterable[str], *, supplied: Iterable[str] = ()
) -> SettingsT:
    """The same settings, with a record that all but the `named` ones were left out.

    Of the named ones, `supplied` are those that only a preset or a config file of the package has.
    This needs the fields `left_out` and `supplied` of the class, which callers cannot set.
    """
    if hasattr(settings, _LEFT_OUT):
        names = frozenset(setting_fields(type(settings)).keys() - {*named})
        object.__setattr__(settings, _LEFT_OUT, names)
        object.__setattr__(settings, _SUPPLIED, frozenset(supplied))
    return settings


def fill_left_out(settings: SettingsT, values: Mapping[str, Any]) -> SettingsT:
    """A copy with some settings changed, which still counts the same ones as given."""
    changed = from_flat(type(settings), {**setting_values(settings), **values})
    supplied = getattr(settings, _SUPPLIED, frozenset[str]())
    return note_left_out(changed, named_settings(settings), supplied=supplied)


def named_settings(settings: Any) -> set[str]:
    """The names of the settings that were given; all of them if that is not known."""
    return {*setting_fields(type(settings))} - getattr(settings, _LEFT_OUT, frozenset())
