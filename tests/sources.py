"""Files of Python as syntax trees, each read and walked once for all tests of a process."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file, from the outside in."""
    return tuple(ast.walk(parsed(path)))
