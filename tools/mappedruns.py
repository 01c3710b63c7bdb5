"""Run the tests that a map lists for the lines of a change, in forks if possible.

In:      a change, a map of the tests that run each line (tools/testmap.py)
Out:     a verdict, with the test that noticed it
Memory:  a process with all that the tests import, per copy of the repository

Tests of the module's own file come first, then its stage's, then others, each group by duration. A
test that also fails without the change proves nothing: this is checked when it first notices
something, and it is left out from then on.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from changes import SOURCE, Mutant
from forkedtests import FAILED, NOT_IN_A_FORK, ForkedTests
from testchoice import RETURNS, own_tests, test_files, tests_of
from testmap import TestMap
from testruns import NOT_JUDGED, Limits, Verdict, judge, noted_tests, prepare, run_pytest

NOT_RUN = "NOT RUN BY ANY TEST"


class MappedRuns:
    """Judges changes by a map; keeps a process of collected tests for each copy."""

    def __init__(self, path: Path, most_seconds: float, sample: list[Mutant]) -> None:
        self._map = TestMap(path)
        self._seconds = self._map.seconds
        self._most_seconds = most_seconds
        self._failing: set[str] = set()
        self._newer: list[str] = []
        self._files = self._files_of(sample)
        self._forks: dict[Path, ForkedTests] = {}
        self._passing: set[str] = set()

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that run the changed lines, in the order in which to run them.

        Includes tests of the stage that are newer than the map.
        """
        module, own = mutant.path.as_posix(), own_tests(mutant)
        tests = self._map.tests_of(module, None if self._is_imported(mutant) else mutant.lines)
        if mutant.after == "return None" and tests:
            name = mutant.path.relative_to(SOURCE).as_posix()
            tests.append(f"{RETURNS}::test_functions_return_what_they_say[{name}]")
        folder = Path(own).parent
        new = [test for test in self._newer if Path(_file_of(test)).parent == folder]
        files: dict[str, list[str]] = defaultdict(list)
        for test in sorted([*tests, *new], key=lambda test: (self._seconds.get(test, 0), test)):
            files[_file_of(test)].append(test)
        took = {name: sum(self._seconds.get(t, 0) for t in files[name]) for name in files}
        near = {name: Path(name).parent == folder for name in files}
        order = sorted(files, key=lambda name: (name != own, not near[name], took[name]))
        return [test for name in order for test in files[name] if test not in self._failing]

    def judge(self, mutant: Mutant, folder: Path, limits: Limits) -> Verdict:
        """Make the change in a copy, run the tests until one fails, undo it."""
        self._forks_of(folder)
        tests = self.tests_of(mutant)
        chosen = self._affordable(tests)
        if not tests and self._map.tests_of(mutant.path.as_posix()):
            return Verdict(NOT_RUN)
        target = folder / mutant.path
        original = target.read_bytes()
        changed = mutant.apply(original)
        change = {"path": str(target), "before": original.decode(), "after": changed.decode()}
        _write_anew(target, changed)
        try:
            code, test = NOT_IN_A_FORK, ""
            if tests and not self._is_imported(mutant):
                code, test = self._run_forked(change, chosen, folder, limits)
            if code == NOT_IN_A_FORK:
                code, test = self._run_alone(mutant, change, chosen, folder, limits)
        finally:
            _write_anew(target, original)
        if code is None and limits.left() < limits.seconds:
            return Verdict(NOT_JUDGED)
        rest = f" {len(chosen)} of {len(tests)}" if code == 0 and chosen != tests else ""
        return Verdict(judge(code) + rest, test)

    def close(self) -> None:
        """End the processes."""
        for forks in self._forks.values():
            forks.close()

    def _files_of(self, sample: list[Mutant]) -> list[str]:
        """The files of all tests that may be needed, and those missing from the map."""
        known = {_file_of(test) for test in self._seconds}
        found = {name for name in test_files("tests") if name not in known}
        for mutant in sample:
            found.update(map(_file_of, self.tests_of(mutant)), test_files(own_tests(mutant)))
        return sorted(found)

    def _is_imported(self, mutant: Mutant) -> bool:
        """True if the changed lines run when modules are imported, before any test."""
        return self._map.runs_without_tests(mutant.path.as_posix(), mutant.lines)

    def _affordable(self, tests: list[str]) -> list[str]:
        """As many tests as the time allows, at least one."""
        spent = 0.0
        for number, test in enumerate(tests):
            spent += self._seconds.get(test, 0)
            if spent > self._most_seconds and number:
                return tests[:number]
        return tests

    def _run_forked(
        self, change: dict[str, str], tests: list[str], folder: Path, limits: Limits
    ) -> tuple[int | None, str]:
        while tests := [test for test in tests if test not in self._failing]:
            code = self._ask(change, tests, folder, limits.left())
            noted = next(iter(noted_tests(folder)), "")
            if code != FAILED or self._passes(noted, folder, change):
                return code, noted
            tests = tests[tests.index(noted) + 1 :]
        return 0, ""

    def _passes(self, test: str, folder: Path, change: dict[str, str]) -> bool:
        """True if a test passes without the change, which programs would read from the file."""
        if test not in self._passing | self._failing:
            target = Path(change["path"])
            _write_anew(target, change["before"].encode())
            if test in self._forks_of(folder).collected:
                code = self._ask(None, [test], folder, 600)
            else:  # found by its file's name, not by the map
                code = run_pytest([test], folder, None, 600)
            _write_anew(target, change["after"].encode())
            (self._passing if code == 0 else self._failing).add(test)
        return test in self._passing

    def _ask(
        self, change: dict[str, str] | None, tests: list[str], folder: Path, seconds: float
    ) -> int | None:
        prepare(folder)
        return self._forks_of(folder).run(change, tests, seconds)

    def _forks_of(self, folder: Path) -> ForkedTests:
        if folder not in self._forks:
            environment = prepare(folder) | {"PYTEST_DEBUG_TEMPROOT": str(folder / "tmp")}
            environment["PYTHONPATH"] += f"{os.pathsep}{folder / 'tools'}"
            self._forks[folder] = ForkedTests(self._files, folder, environment)
            found = self._forks[folder].collected
            self._newer = [t for t in found if t not in self._seconds and _file_of(t) != RETURNS]
        return self._forks[folder]

    def _run_alone(
        self,
        mutant: Mutant,
        change: dict[str, str],
        tests: list[str],
        folder: Path,
        limits: Limits,
    ) -> tuple[int | None, str]:
        """Run tests in a new process, which imports the changed module.

        Also for lines that only killed programs run, which are missing from the map.
        """
        by_name = tests_of(mutant)
        first = [name for group in (by_name[:2] if tests else by_name) for name in group]
        names = {_file_of(name) for name in first}
        for group in (first, [test for test in tests if _file_of(test) not in names]):
            code = run_pytest(group, folder, None, limits.left()) if group else 0
            noted = next(iter(noted_tests(folder)), "")
            if code not in (0, 5) and not (noted and not self._passes(noted, folder, change)):
                return code, noted
        return 0, ""


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _write_anew(path: Path, content: bytes) -> None:
    """Write a file with a new time: compiled files are recognized by it."""
    before = path.stat().st_mtime
    path.write_bytes(content)
    os.utime(path, (before + 2, before + 2))
