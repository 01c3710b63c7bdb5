"""The tools that change the source and look for a test that notices: which tests they run."""

from __future__ import annotations

import ast
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[1] / "tools"
MODULE = "src/lowtide/counts.py"


@pytest.fixture(scope="module")
def tools() -> Iterator[dict[str, ModuleType]]:
    """The tools' modules, which import each other by their bare names."""
    names = ("changes", "testmap", "forkedtests")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        yield {name: __import__(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


def make_map(path: Path, lines: dict[str, list[int]], source: str) -> None:
    """A map of one module, as tools/testmap.py writes them."""
    database = sqlite3.connect(path)
    database.executescript(
        "CREATE TABLE file (id INT, path TEXT); CREATE TABLE context (id INT, context TEXT);"
        "CREATE TABLE line_bits (file_id INTEGER, context_id INTEGER, numbits BLOB);"
        "CREATE TABLE seconds (test TEXT, seconds REAL); CREATE TABLE source (path TEXT, text TEXT)"
    )
    database.execute("INSERT INTO file VALUES (1, ?)", (MODULE,))
    database.execute("INSERT INTO source VALUES (?, ?)", (MODULE, source))
    for number, (test, ran) in enumerate(lines.items()):
        bits = sum(1 << line for line in ran).to_bytes(9, "little")
        database.execute("INSERT INTO context VALUES (?, ?)", (number, test))
        database.execute("INSERT INTO line_bits VALUES (1, ?, ?)", (number, bits))
        if "::" in test:
            database.execute("INSERT INTO seconds VALUES (?, ?)", (test, number))
    database.commit()
    database.close()


def test_a_map_names_the_tests_of_a_line_where_it_is_now(
    tools: dict[str, ModuleType], tmp_path: Path
) -> None:
    now = (TOOLS.parent / MODULE).read_text(encoding="utf-8").splitlines(True)
    before = "".join([*now[:10], *now[12:]])  # lines 11 and 12 are newer than the map
    ran = {"": [1], "tests/a.py": [20], "tests/a.py::x": [9], "tests/b.py::y": [8, 20]}
    make_map(tmp_path / "map", {**ran, "tests/a.py::z": [9]}, before)
    found = tools["testmap"].TestMap(tmp_path / "map")
    every = ["tests/a.py::x", "tests/a.py::z", "tests/b.py::y"]
    assert found.tests_of(MODULE, range(9, 10)) == every[:2]
    assert found.tests_of(MODULE, range(8, 10)) == every
    assert found.tests_of(MODULE, range(22, 23)) == every  # 20 then; what a whole file shares
    assert found.tests_of(MODULE, range(20, 21)) == []
    assert found.tests_of(MODULE, range(11, 12)) == found.tests_of(MODULE) == every
    assert found.runs_without_tests(MODULE, range(1, 2))
    assert not found.runs_without_tests(MODULE, range(2, 12))


def test_lines_of_a_statement_are_those_that_run_with_it(tools: dict[str, ModuleType]) -> None:
    text = "@one(\n  1)\ndef f(a=2):\n  if (a and\n      3):\n    return g(\n      4)\n"
    lines = tools["changes"].lines_of_statements(ast.parse(text))
    assert [lines[number] for number in range(1, 8)] == [
        range(1, 3), range(1, 3), range(3, 4), range(4, 6), range(4, 6), range(6, 8), range(6, 8),
    ]  # fmt: skip
    jump = ast.parse("for a in b:\n  if a:\n    continue\n  c()\n")
    assert tools["changes"].lines_of_statements(jump)[3] == range(2, 4)


BEFORE = """
LIMIT = 3
def add(a):
    return a + 1
def made(b):
    def inner():
        return b * 2
    return inner
class Kept:
    @property
    def half(self):
        return 10 // 2
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a + 1", "a - 1", (2, 14, 5)),
        ("b * 2", "b * 3", (4, 21, 5)),  # also of what was made before
        ("10 // 2", "10 * 2", (4, 14, 20)),
        ("a + 1", "(a\n        + 2)", (5, 14, 5)),  # what is further down stays what it is
        ("LIMIT = 3", "LIMIT = 4", None),  # imported, not called
        ("def add(a)", "def add(a=1)", None),
        ("return b * 2", "return 2", None),  # no longer needs what it was made with
    ],
)
def test_functions_that_exist_get_new_code(
    tools: dict[str, ModuleType], old: str, new: str, expected: tuple[int, ...] | None
) -> None:
    space: dict[str, Any] = {}
    exec(compile(BEFORE, "lowtide/module.py", "exec"), space)
    inner = space["made"](7)
    server = tools["forkedtests"].Server()
    server.collect_functions()
    done = server.replace("lowtide/module.py", BEFORE, BEFORE.replace(old, new))
    assert done == (expected is not None)
    if expected is not None:
        assert (space["add"](3), inner(), space["Kept"]().half) == expected


SMALL = """
__all__ = ["run"]
def run(path, size):
    total = size * 3
    for name in path:
        try:
            call(name, mode="rb", encoding="utf-8")
        except OSError:
            total += 1
    if total > 2:
        raise ValueError("no words of errors", total)
    return name[size:]
"""


def test_kinds_of_changes(
    tools: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is what a slip of the hand could leave; words for people are left alone."""
    (tmp_path / "small.py").write_text(SMALL)
    monkeypatch.setattr(tools["changes"], "ROOT", tmp_path)
    found = [(one.line, one.before, one.after)
             for one in tools["changes"].python_mutants(Path("small.py"))]  # fmt: skip
    call = 'call(name, mode="rb", encoding="utf-8")'
    assert found == [
        (4, "size * 3", "(size // 3)"),
        (4, "size * 3", "None"),
        (4, "3", "(2)"),
        (4, "3", "(4)"),
        (5, "path", "()"),
        (7, call, "(call(name, encoding='utf-8'))"),
        (7, call, "pass"),
        (7, '"rb"', "'rbx'"),
        (7, '"utf-8"', "'utf-8x'"),
        (9, "total += 1", "raise"),
        (9, "1", "(0)"),
        (9, "1", "(2)"),
        (10, "total > 2", "(not (total > 2))"),
        (10, "total > 2", "(total >= 2)"),
        (10, "2", "(1)"),
        (10, "2", "(3)"),
        (12, "return name[size:]", "return None"),
        (12, "size", "((size) + 1)"),
    ]
