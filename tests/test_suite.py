"""Tests that could not fail: without an assertion, or with a patch of a name that nothing reads."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide import memory, progress
from lowtide.model import program
from lowtide.training import textneeds

from .sources import nodes_of, parsed

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "lowtide"
# What fails by itself where something is wrong: the modules are run, or another judges.
_JUDGES = {"raises", "warns", "fail", "exec", "check_call", "check_output"}
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")
# Limits are passed as parameters. What is replaced all the same, and why:
_REPLACED = {
    "lowtide.cli.VERBS": "a verb of the test's own",
    "lowtide.demo.running._PROGRAM": "a program of the test's own instead of lowtide",
    "lowtide.progress.USUAL_INTERVALS": "of every command that a test runs, not of one Progress",
    # What is on the disk, and the order of a seed, follow from these; no call has another one.
    "lowtide.stores.extentfiles.EXTENT_BYTES": "files of a cache, which all its users share",
    "lowtide.loader.storeahead.EXTENT_BYTES": "the same",
    "lowtide.loader.storeahead.FETCH_THREADS": "what the advice of a refusal counts with",
    "lowtide.loader.shuffledblocks.BLOCK_TOKENS": "the order `blocks` itself",
    "lowtide.loader.shuffledblocks.GROUP_BLOCKS": "the same",
    "lowtide.model.float8._E4M3": "Triton's interpreter rounds this type wrongly",
}


@functools.cache
def files_of_tests() -> list[Path]:
    return sorted(path for path in HERE.rglob("*.py") if path.name != Path(__file__).name)


@pytest.fixture(scope="module", autouse=True)
def forgotten_trees() -> Iterator[None]:
    """The last of the files that read trees: nobody's memory is measured beside them."""
    yield
    parsed.cache_clear()
    nodes_of.cache_clear()


def called_name(call: ast.Call) -> str:
    function = call.func
    return getattr(function, "attr", getattr(function, "id", ""))


def calls_of(function: ast.AST) -> set[str] | None:
    """Names of what it calls; None if it fails by itself: it asserts, raises, or checks a run."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assert | ast.Raise):
            return None
        if isinstance(node, ast.Call):
            name = called_name(node)
            if "assert" in name or any(word.arg == "check" for word in node.keywords):
                return None
            names.add(name)
    return names


def test_every_test_can_fail() -> None:
    calls = {
        (path, node.lineno, node.name): calls_of(node)
        for path in files_of_tests()
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef)
    }
    judges = set(_JUDGES)
    for _ in range(5):  # also by what it calls, and what that calls
        judges |= {name for (_, _, name), called in calls.items()
                   if called is None or called & judges}  # fmt: skip
    idle = [
        f"{path.relative_to(HERE)}:{line} {name}"
        for (path, line, name), called in calls.items()
        if name.startswith("test_") and called is not None and not called & judges
    ]
    assert len(calls) > 1000
    assert idle == []


def imported_modules(tree: ast.Module) -> dict[str, str]:
    """The modules of lowtide that a file of tests imports, by the names it has for them."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for name in node.names:
                found[name.asname or name.name] = f"{node.module}.{name.name}"
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.asname:
                    found[name.asname] = name.name
    return {name: module for name, module in found.items() if module.startswith("lowtide.")}


def iter_patches(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of each name of one of our modules that a file of tests replaces."""
    modules = imported_modules(parsed(path))
    for node in nodes_of(path):
        if not (isinstance(node, ast.Call) and called_name(node) == "setattr" and node.args):
            continue
        first, *rest = node.args
        if isinstance(first, ast.Constant) and str(first.value).startswith("lowtide."):
            module, _, name = str(first.value).rpartition(".")
            yield node.lineno, module, name
        elif rest and isinstance(rest[0], ast.Constant) and ast.unparse(first) in modules:
            yield node.lineno, modules[ast.unparse(first)], str(rest[0].value)


def iter_scripts(path: Path) -> Iterator[ast.Module]:
    """Programs that a file of tests has as text, to be run in other processes."""
    for node in nodes_of(path):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and "lowtide" in text and "import " in text:
            with contextlib.suppress(SyntaxError):
                yield ast.parse(textwrap.dedent(text))


def iter_script_patches(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line of the program, module, name) of each name of ours that such a program assigns."""
    for script in iter_scripts(path):
        modules = imported_modules(script)
        for node in ast.walk(script):
            for target in node.targets if isinstance(node, ast.Assign) else []:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) in modules:
                    yield node.lineno, modules[ast.unparse(target.value)], target.attr


@functools.cache
def all_patches() -> list[tuple[Path, int, str, str]]:
    """(file of tests, line, module, name) of everything that tests replace."""
    return [
        (path, line, module, name)
        for path in files_of_tests()
        for line, module, name in (*iter_patches(path), *iter_script_patches(path))
    ]


@functools.cache
def is_read(module: str, name: str) -> bool:
    """Whether a function of the module, or code that names the module, looks the name up late.

    A default of a parameter, and a name that another module has imported, are what they were.
    """
    for node in nodes_of(path_of(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            body: list[Any] = node.body if isinstance(node.body, list) else [node.body]
            for inner in (inner for part in body for inner in ast.walk(part)):
                if isinstance(inner, ast.Name) and inner.id == name:
                    return True
    late = rf"^ +from {re.escape(module)} import .*\b{name}\b"  # inside of a function
    named = f"{module.rpartition('.')[2]}.{name}"
    return named in all_code() or re.search(late, all_code(), re.MULTILINE) is not None


@functools.cache
def all_code() -> str:
    return "\n".join(place.read_text(encoding="utf-8") for place in SOURCE.rglob("*.py"))


def path_of(module: str) -> Path:
    """Where a module would be."""
    path = SOURCE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def test_a_name_that_is_replaced_is_read() -> None:
    """Else the test shows what happens without the replacement, whatever it says."""
    idle: list[str] = []
    count = 0
    for path, line, module, name in all_patches():
        if not path_of(module).exists():  # a class: its attributes are read by whoever has it
            continue
        count += 1
        if not is_read(module, name):
            idle.append(f"{path.relative_to(HERE)}:{line} {module}.{name}")
    assert count > 100
    assert idle == []


def test_limits_are_passed_and_not_replaced() -> None:
    """A constant that a test replaces is one that its callers cannot choose: it is a parameter."""
    found = {
        f"{module}.{name}": f"{path.relative_to(HERE)}:{line} {module}.{name}"
        for path, line, module, name in all_patches()
        if _CONSTANT.fullmatch(name)
    }
    assert {where for name, where in found.items() if name not in _REPLACED} == set()
    assert _REPLACED.keys() <= found.keys()  # take out what is not replaced any more


def test_the_judge_can_say_no() -> None:
    assert is_read("lowtide.corpus.jsonrows", "_LONG_ROW")
    assert not is_read("lowtide.corpus.textblocks", "DEFAULT_SEPARATOR")  # a default of a field
    names = {name for _, _, name in iter_script_patches(HERE / "memory/test_convert.py")}
    assert {"_read_shard", "read_shard_tokens"} <= names
    assert calls_of(ast.parse("def test(): x = 1 == 1")) == set()
    assert calls_of(ast.parse("def test(): judge(1)")) == {"judge"}
    assert calls_of(ast.parse("def test(): assert 1")) is None


def test_every_measure_finds_a_process_of_ordinary_size(request: pytest.FixtureRequest) -> None:
    """Else a test of a budget passes or fails by what others left in its process."""
    left = np.ones(96 << 20, np.uint8)  # as by another test: what is measured begins after it
    request.config.hook.pytest_runtest_setup(item=request.node)
    measures = (memory, progress, program, textneeds)
    for module in measures:
        assert module.tree_resident_bytes() < 80 << 20, module.__name__
    own = np.ones(32 << 20, np.uint8)  # and this test's own is not lost
    for module in measures:
        assert 88 << 20 < module.tree_resident_bytes() < 112 << 20, module.__name__
    del left, own
