"""Record which tests run which lines of src/lowtide, and look up the tests of a line.

In:      the suite, run once with a tracer (pip install coverage)
Out:     a file of SQLite: lines by file and test, and the seconds that each test took
Memory:  the lines of one file by test, while one is looked up

    python tools/testmap.py build/testmap [-n 2 tests/corpus …]    pytest's arguments after the file
    python tools/mutants.py --map build/testmap …                   uses it

Programs that tests start and processes they fork are traced as well, unless they are killed. Lines
run by a shared fixture count for its whole file of tests, lines run by imports for no test.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest
from tracing import CURRENT, PARTS, site

ROOT = Path(__file__).resolve().parents[1]


class TestMap:
    """Looks up the tests that run a line of a module, also if the line has moved."""

    __test__ = False

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False)
        self.seconds: dict[str, float] = dict(self._database.execute("SELECT * FROM seconds"))
        self._of_file: dict[str, list[str]] = defaultdict(list)
        for test in self.seconds:
            self._of_file[test.partition("::")[0]].append(test)
        self._read_module, self._moved_lines = (
            functools.cache(self._read_module),
            functools.cache(self._moved_lines),
        )

    def tests_of(self, module: str, lines: range | None = None) -> list[str]:
        """The tests that run one of the lines of a module; without lines, any of its functions."""
        found: set[str] = set()
        wanted = -1 if lines is None else self._bits(module, lines)
        if wanted < 0:
            wanted = ~self._imported(module)
        for context, bits in self._read_module(module):
            if context and bits & wanted:
                # A file's name stands for what its tests share.
                found.update([context] if "::" in context else self._of_file[context])
        return sorted(found & self.seconds.keys())

    def runs_without_tests(self, module: str, lines: range) -> bool:
        """True if one of the lines runs while tests are collected: when modules are imported."""
        wanted = self._bits(module, lines)
        return wanted > 0 and bool(wanted & self._imported(module))

    def _imported(self, module: str) -> int:
        """The lines that run while tests are collected, as bits."""
        alone = [bits for context, bits in self._read_module(module) if not context]
        return functools.reduce(operator.or_, alone, 0)

    def _bits(self, module: str, lines: range) -> int:
        """The positions of the lines when the map was made, as bits; all if one is newer."""
        moved = self._moved_lines(module)
        places = [moved.get(line, -1) for line in lines]
        return -1 if -1 in places else sum(1 << place for place in places)

    def _moved_lines(self, module: str) -> dict[int, int]:
        found = self._database.execute("SELECT text FROM source WHERE path = ?", (module,))
        old = "".join(text for (text,) in found).splitlines()
        new = (ROOT / module).read_text(encoding="utf-8").splitlines()
        same = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
        return {b + at + 1: a + at + 1 for a, b, size in same for at in range(size)}

    def _read_module(self, module: str) -> list[tuple[str, int]]:
        """The tests that ran it, and a bit for each line that they ran."""
        rows = self._database.execute(
            "SELECT context, numbits FROM line_bits JOIN file ON file.id = file_id"
            " JOIN context ON context.id = context_id WHERE path = ?",
            (module,),
        )
        return [(context, int.from_bytes(bits, "little")) for context, bits in rows]


class Recorder:
    """A plugin of pytest: records which test is running, and how long each took."""

    def __init__(self) -> None:
        import coverage

        tracer = coverage.Coverage.current()
        assert tracer is not None, "started by tools/testmap.py only"
        self._switch = tracer.switch_context
        self._test = ""
        self._file = Path(os.environ[PARTS]) / f"current-{os.getpid()}"
        os.environ[CURRENT] = str(self._file)
        self._seconds: list[str] = []

    def _name(self, test: str) -> None:
        self._file.write_text(test)
        self._switch(test)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._test = item.nodeid
        self._name(self._test)
        result = yield
        self._name("")
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function" or not self._test:
            return (yield)
        self._name(self._test.partition("::")[0])
        try:
            return (yield)
        finally:
            self._name(self._test)

    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> None:
        self._seconds.append(f"{call.duration} {item.nodeid}\n")  # tests replace files and print

    def pytest_sessionfinish(self) -> None:
        self._file.with_name(f"seconds-{os.getpid()}").write_text("".join(self._seconds))


def pytest_configure(config: pytest.Config) -> None:
    """Record in the processes that run tests."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Recorder(), "testmap-recorder")


def combine(parts: Path, target: Path) -> None:
    """Write the lines and seconds of all processes into one file."""
    import coverage

    whole = coverage.Coverage(data_file=str(target), config_file=False, messages=False)
    whole.combine([str(path) for path in parts.glob("lines.*")])
    whole.save()
    seconds: dict[str, float] = defaultdict(float)
    for path in parts.glob("seconds-*"):
        for line in path.read_text().splitlines():
            duration, _, test = line.partition(" ")
            seconds[test] += float(duration)
    with contextlib.closing(sqlite3.connect(target)) as database, database:
        folder = f"{ROOT}/"
        database.execute("UPDATE file SET path = replace(path, ?, '')", (folder,))
        database.execute("CREATE TABLE seconds (test TEXT PRIMARY KEY, seconds REAL)")
        database.executemany("INSERT INTO seconds VALUES (?, ?)", seconds.items())
        database.execute("CREATE TABLE source (path TEXT PRIMARY KEY, text TEXT)")
        for path in sorted((ROOT / "src/lowtide").rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            database.execute("INSERT INTO source VALUES (?, ?)", (name, path.read_text("utf-8")))


def record(target: Path, words: list[str]) -> int:
    """Run pytest with a tracer and write the map; returns pytest's exit code."""
    with tempfile.TemporaryDirectory(prefix="testmap-") as folder:
        (Path(folder) / "sitecustomize.py").write_text(site(ROOT / "tools"))
        paths = [folder, str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)), PARTS: folder,
        }  # fmt: skip
        command = [sys.executable, "-m", "pytest", "-q", "-p", "testmap", *words]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        combine(Path(folder), target)
    return done.returncode


if __name__ == "__main__":
    sys.exit(record(Path(sys.argv[1]).resolve(), sys.argv[2:]))
