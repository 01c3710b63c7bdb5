"""The numbers a stage is made with: constants of its modules, defaults of functions and fields.

`python tests/numbers_of.py STAGE` writes tests/STAGE/test_numbers.py anew, for a change that is
meant; the difference shows what else follows from it.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pprint
import re
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src" / "lowtide"
LONGEST = 64  # what has more parts is a table of data, with tests of its own
NAME = re.compile(r"_?[A-Z][A-Z0-9_]*")
HEAD = '''"""Sizes, limits and defaults by number.

Budgets, files on the disk and what users are told depend on them: a change is made on purpose, here
too (`python tests/numbers_of.py '{stage}'` writes this anew).
"""

from __future__ import annotations

from typing import Any

from {dots}numbers_of import find_changes

NUMBERS: dict[str, dict[str, Any]] = {table}


def test_numbers_are_what_they_were() -> None:
    assert find_changes("{stage}", NUMBERS) == {{}}
'''


def _has_number(value: Any) -> bool:
    """True for numbers, and for short tables and lists of plain values with a number among them."""
    if isinstance(value, dict | tuple | list):
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        short = len(parts) <= LONGEST
        return short and all(map(_is_plain, parts)) and any(map(_has_number, parts))
    return type(value) in (int, float, bool)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or type(value) in (int, float, bool, str, bytes)


def _constants(module: Any, tree: ast.Module) -> dict[str, Any]:
    names = [
        node.id
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    found = {name: getattr(module, name, None) for name in names if NAME.fullmatch(name)}
    # What is true or false is found out about the machine: whether a package is there, say.
    return {
        name: value
        for name, value in found.items()
        if _has_number(value) and not isinstance(value, bool)
    }


def _defaults(module: Any) -> dict[str, Any]:
    """Numbers that parameters and fields default to, as `function(parameter)` and `Class.field`."""
    found: dict[str, Any] = {}
    for name, owner in vars(module).items():
        if getattr(owner, "__module__", None) != module.__name__:
            continue
        methods = {"": owner}
        if inspect.isclass(owner):
            is_made = dataclasses.is_dataclass(owner)
            for part in dataclasses.fields(owner) if is_made else ():
                if part.name in vars(owner).get("__annotations__", ()) and _has_number(
                    part.default
                ):
                    found[f"{name}.{part.name}"] = part.default
            methods = {
                f".{key}": value
                for key, value in vars(owner).items()
                if inspect.isfunction(value) and not (is_made and key == "__init__")
            }
        for part, function in methods.items():
            function = inspect.unwrap(function) if callable(function) else function
            if not inspect.isfunction(function):
                continue
            for parameter in inspect.signature(function).parameters.values():
                if parameter.default is not parameter.empty and _has_number(parameter.default):
                    found[f"{name}{part}({parameter.name})"] = parameter.default
    return found


def find_numbers(stage: str) -> dict[str, dict[str, Any]]:
    """Constants and defaults of every module of a stage ("" for those at the top)."""
    numbers: dict[str, dict[str, Any]] = {}
    folder = SOURCE / stage
    for path in sorted(folder.rglob("*.py") if stage else folder.glob("*.py")):
        if path.stem.startswith(("__", "modeling_")):  # the latter is for transformers, and slow
            continue
        dotted = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        module = importlib.import_module(f"lowtide.{dotted}")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = {**_constants(module, tree), **_defaults(module)}
        if found:
            numbers[dotted] = found
    return numbers


def find_changes(stage: str, known: dict[str, dict[str, Any]]) -> dict[str, tuple[Any, Any]]:
    """What has another value than it had: (now, before) by name; new and moved names are fine."""
    now = find_numbers(stage)
    both = {
        f"{module}.{name}": (now[module][name], value)
        for module, numbers in known.items()
        for name, value in numbers.items()
        if name in now.get(module, {})
    }
    assert 2 * len(both) > sum(map(len, known.values())), "most are gone: write the table anew"
    return {name: pair for name, pair in both.items() if repr(pair[0]) != repr(pair[1])}


if __name__ == "__main__":
    for stage in sys.argv[1:]:
        table = pprint.pformat(find_numbers(stage), sort_dicts=False, underscore_numbers=True)
        table = re.sub(r"\b(inf|nan)\b", r'float("\1")', table)
        path = Path(__file__).parent / stage / "test_numbers.py"
        head = HEAD.format(stage=stage, table=table, dots=".." if stage else ".")
        path.write_text(head, encoding="utf-8")
