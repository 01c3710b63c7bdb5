"""Build frozen settings dataclasses from keyword options and JSON files, naming unknown keys.

Order of strength: a flag or keyword beats the config file, which beats the default.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from lowtide.errors import DataError, UsageError

__all__ = ["build_settings", "read_config_file", "settings_as_json"]

SettingsT = TypeVar("SettingsT")


def build_settings(cls: type[SettingsT], options: Mapping[str, Any]) -> SettingsT:
    """Make `cls` from `options`; an unknown or missing option is an error that names it.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Settings:
    ...     vocab_size: int = 256
    >>> build_settings(Settings, {"vocab_size": 300})
    Settings(vocab_size=300)
    """
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # pyright: ignore[reportArgumentType]
    for name in options:
        if name not in fields:
            raise UsageError(unknown_name_message(name, fields, kind="setting"))
    missing = [
        name
        for name, field in fields.items()
        if name not in options
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UsageError(f"missing setting: {', '.join(missing)}")
    return cls(**options)


def unknown_name_message(name: str, known: Mapping[str, Any], *, kind: str) -> str:
    """Say that `name` is unknown, and which known name it resembles most."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]}?" if nearest else f"; known are {', '.join(sorted(known))}"
    return f"unknown {kind} {name!r}{hint}"


def read_config_file(path: str | Path) -> dict[str, Any]:
    """Read a JSON object of settings; `-` in keys is the same as `_`."""
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("config file not found", path=path) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"config file is not JSON: {error}", path=path) from None
    if not isinstance(config, dict):
        raise DataError(
            f"config file holds a {type(config).__name__}, expected an object", path=path
        )
    return {str(key).replace("-", "_"): value for key, value in config.items()}


def settings_as_json(settings: Any) -> dict[str, Any]:
    """Give settings as plain JSON values, paths as strings."""

    def plain(value: Any) -> Any:
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, tuple | list):
            return [plain(item) for item in value]
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        return value

    return plain(dataclasses.asdict(settings))
