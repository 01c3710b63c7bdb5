"""Config files: found by path, or by the name of a built-in one.

In:      a path or a name; JSON, TOML or YAML
Out:     names and values, as written

To add a format: a function from bytes to an object, and a row in _FORMATS.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from lowtide.errors import DataError
from lowtide.packages import import_package

__all__ = ["config_names", "find_config_file", "load_config_file"]

# Where the guides' commands look for the files that come with the package.
_USUAL_FOLDERS = (Path(), Path("configs"), Path("configs/pretrain"))


def config_names(folder: Path) -> list[str]:
    """Return the names of the config files in a folder of the package."""
    return sorted(path.stem for path in folder.rglob("*.json"))


def find_config_file(given: str | Path, *, folder: Path | None = None) -> Path:
    """Return the file of this name: an existing path, else one in `folder`.

    150M, 150M.json and configs/150M.json name the same file, from any working directory.
    """
    path = Path(given)
    if path.is_file():  # opening a pipe would block forever
        return path
    if folder is not None and path.parent in _USUAL_FOLDERS:
        name = path.name.removesuffix(".json")
        found = next((file for file in folder.rglob("*.json") if file.stem == name), None)
        if found is not None:
            return found
    raise DataError("config file not found", path=path, next_step=_advise(path, folder))


def _advise(path: Path, folder: Path | None) -> str:
    there = sorted(file.name for end in _FORMATS for file in path.parent.glob(f"*{end}"))
    advice: list[str] = []
    if there:
        advice.append(f"{path.parent} has {', '.join(there)}")
    if folder is not None:
        advice.append(f"built-in are {', '.join(config_names(folder))}")
    if not advice:
        return "check the path for typing errors; it is looked for from this folder"
    return f"check its name; {'; '.join(advice)}"


def load_config_file(path: Path) -> dict[str, Any]:
    """Return the object in a config file; `-` in keys is the same as `_`."""
    read, kind = _FORMATS.get(path.suffix.lower(), _FORMATS[".json"])
    try:
        config = read(path.read_bytes(), path)
    except (ValueError, RecursionError) as error:  # also: no UTF-8, 5,000 digits, 100,000 levels
        raise DataError(
            f"config file is not {kind}: {error}", path=path, next_step="correct the config file"
        ) from None
    if not isinstance(config, dict):
        raise DataError(
            f"config file holds a {type(config).__name__}, expected an object",
            path=path,
            next_step="correct the config file",
        )
    rows = cast("dict[Any, Any]", config)
    named: dict[str, Any] = {}
    for key, value in rows.items():
        name = str(key).replace("-", "_")
        if name in named:
            raise _given_twice(str(key), path)
        named[name] = value
    return named


def _given_twice(key: str, path: Path) -> DataError:
    return DataError(
        f"{key!r} is in the config file twice", path=path, next_step="keep one of them"
    )


def _read_json(data: bytes, path: Path) -> Any:
    def build(rows: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(rows)
        if len(built) < len(rows):  # the last would count, in silence
            names = [key for key, _ in rows]
            raise _given_twice(next(key for key in names if names.count(key) > 1), path)
        return built

    return json.loads(data, object_pairs_hook=build)


def _read_toml(data: bytes, path: Path) -> Any:
    import tomllib

    return tomllib.loads(data.decode())


def _read_yaml(data: bytes, path: Path) -> Any:
    yaml = import_package("yaml", "a config file in YAML", path=path)

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # before `<<` is merged
            seen: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if not isinstance(key.value, str):  # a list or an object, which no setting is
                    continue
                if (key.tag, key.value) in seen:
                    raise _given_twice(key.value, path)
                seen.add((key.tag, key.value))
            return super().construct_mapping(node, deep)

    try:
        return Loader(data).get_single_data()
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


_FORMATS: dict[str, tuple[Callable[[bytes, Path], Any], str]] = {
    ".json": (_read_json, "JSON"),
    ".toml": (_read_toml, "TOML"),
    ".yaml": (_read_yaml, "YAML"),
    ".yml": (_read_yaml, "YAML"),
}
