"""A function that says what it returns returns something: no path of it ends in None by mistake.

The type checker knows this too; here it is a second, on trees that are read anyway.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from .sources import nodes_of

SOURCE = Path(__file__).parents[1] / "src" / "lowtide"
MODULES = sorted(SOURCE.rglob("*.py"))
# What None is one of.
_NONE = {"None", "Any", "object", "Optional"}


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions in it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
        ):
            yield child
            yield from own_nodes(child)


def is_none(node: ast.AST) -> bool:
    """True for what returns None, said or not."""
    if not isinstance(node, ast.Return):
        return False
    return node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None)


def returns_of_none(function: ast.FunctionDef) -> list[int]:
    """The lines that return None from a function that says it returns something else."""
    if function.returns is None:
        return []
    names = {getattr(node, "id", getattr(node, "value", "")) for node in ast.walk(function.returns)}
    if {str(name) for name in names} & _NONE:
        return []
    nodes = list(own_nodes(function))
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes):
        return []
    return [node.lineno for node in nodes if isinstance(node, ast.Return) and is_none(node)]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("def f() -> int:\n    return None", [2]),
        ("def f() -> int:\n    if g:\n        return\n    return 1", [3]),
        ("def f() -> int | None:\n    return None", []),
        ("def f() -> list[Any]:\n    return None", []),
        ("def f() -> Iterator[int]:\n    yield 1\n    return", []),
        ("def f() -> int:\n    def g():\n        return None\n    return 1", []),
    ],
)
def test_the_rule_itself(text: str, lines: list[int]) -> None:
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert returns_of_none(function) == lines


@pytest.mark.parametrize("module", [str(path.relative_to(SOURCE)) for path in MODULES])
def test_functions_return_what_they_say(module: str) -> None:
    nodes = nodes_of(SOURCE / module)
    if not any(map(is_none, nodes)):
        return  # most have no such line at all
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    wrong = {node.name: lines for node in functions if (lines := returns_of_none(node))}
    assert wrong == {}
