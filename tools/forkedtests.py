"""Run tests in forks of a process that has collected them, with the code of functions replaced.

In:      a changed module, as text before and after, and names of tests
Out:     the exit code of the fork that ran them: 0, FAILED, or NOT_IN_A_FORK
Memory:  one process with all that the tests import; forks share it until they write

pytest takes seconds to import and collect tests that run in milliseconds. Here that is done once,
and every change is made in a fork: existing functions get their new code. Code that runs when a
module is imported (constants, defaults, decorators) cannot be changed this way: NOT_IN_A_FORK.
Programs that a test starts, and modules that it imports, read the change from the file itself.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

FAILED, NOT_IN_A_FORK = 1, 77
_QUESTIONS, _ANSWERS = "FORKEDTESTS_QUESTIONS", "FORKEDTESTS_ANSWERS"
_HANGING_SECONDS = 60  # callers repeat failing tests without a change
_OPTIMIZED = 1  # flag of function code, unlike a module's or a class's


class ForkedTests:
    """A process of pytest that has collected tests and runs them in forks."""

    def __init__(self, files: list[str], folder: Path, environment: dict[str, str]) -> None:
        asked, told = os.pipe(), os.pipe()
        inherited = {_QUESTIONS: str(asked[0]), _ANSWERS: str(told[1])}
        options = ["-q", "-p", "no:cacheprovider", "-p", "mutant_notes", "-p", "forkedtests"]
        options += ["-o", f"timeout={_HANGING_SECONDS}"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *files],
            cwd=folder, env=environment | inherited, pass_fds=(asked[0], told[1]),
            start_new_session=True, stdout=(folder / "forks.log").open("w"),
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        os.close(asked[0])
        os.close(told[1])
        self._questions = os.fdopen(asked[1], "w")
        self._answers = os.fdopen(told[0])
        collected = self._answers.readline()
        if not collected:
            raise RuntimeError((folder / "forks.log").read_text()[-3000:])
        self.collected: list[str] = json.loads(collected)

    def run(self, change: dict[str, str] | None, tests: list[str], seconds: float) -> int | None:
        """The exit code of the tests with a change of one module; None if they took too long."""
        print(json.dumps([change, tests]), file=self._questions, flush=True)
        child = int(self._answers.readline())
        ready, _, _ = select.select([self._answers], [], [], max(seconds, 0))
        answer = self._answers.readline() if ready else ""
        with contextlib.suppress(ProcessLookupError):  # processes started by tests may be left
            os.killpg(child, signal.SIGKILL)
        code = int(answer or self._answers.readline())
        return code if ready else None

    def close(self) -> None:
        """End the process."""
        self._questions.close()
        self._process.wait()
        self._answers.close()


class Server:
    """The plugin of pytest in that process: answers requests instead of running all tests."""

    def __init__(self) -> None:
        self._items: dict[str, Any] = {}
        self._functions: dict[CodeType, list[FunctionType]] = defaultdict(list)

    def collect(self, session: Any) -> None:
        """Store the tests, and the functions of all imported modules."""
        self._items = {item.nodeid: item for item in session.items}
        self.collect_functions()

    def collect_functions(self) -> None:
        """Find the functions of the package by their code."""
        for function in gc.get_objects():
            if type(function) is FunctionType and "lowtide" in function.__code__.co_filename:
                self._functions[function.__code__].append(function)

    def answer(self) -> None:
        """Answer requests until there are no more."""
        answers = os.fdopen(int(os.environ[_ANSWERS]), "w")
        print(json.dumps(list(self._items)), file=answers, flush=True)
        with os.fdopen(int(os.environ[_QUESTIONS])) as questions:
            for line in questions:
                child = os.fork()
                if not child:
                    os._exit(self._run_fork(*json.loads(line)))
                print(child, file=answers, flush=True)
                _, status = os.waitpid(child, 0)
                print(os.waitstatus_to_exitcode(status), file=answers, flush=True)

    def _run_fork(self, change: dict[str, str] | None, tests: list[str]) -> int:
        os.setsid()
        if change is not None and not self.replace(**change):
            return NOT_IN_A_FORK
        notes = Path(os.environ["MUTANT_NOTES"])
        items = [self._items[test] for test in tests if test in self._items]
        for item, following in zip(items, [*items[1:], None], strict=True):
            try:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            except BaseException:
                notes.write_text(item.nodeid)
            if notes.exists():
                item.session._setupstate.teardown_exact(None)  # tests may share mounted folders
                return FAILED
        return 0

    def replace(self, path: str, before: str, after: str) -> bool:
        """Give functions their new code; False if more than functions has changed."""
        old, new = (compile(text, path, "exec") for text in (before, after))
        for one, other in code_pairs(old, new):
            if not one.co_flags & _OPTIMIZED:
                if parts_of(one) != parts_of(other):
                    return False
            elif one != other:
                try:
                    for function in self._functions.get(one, []):
                        function.__code__ = other
                except ValueError:  # it uses other variables of its enclosing function
                    return False
        return True


def code_pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """All code in two versions of a module, in pairs as far as the names are the same."""
    yield old, new
    both = [[part for part in code.co_consts if isinstance(part, CodeType)] for code in (old, new)]
    if [part.co_name for part in both[0]] == [part.co_name for part in both[1]]:
        for one, other in zip(*both, strict=True):
            yield from code_pairs(one, other)


def parts_of(code: CodeType) -> tuple[object, ...]:
    """The content of code, without nested functions and line numbers."""
    constants = [part.co_name if isinstance(part, CodeType) else part for part in code.co_consts]
    return code.co_code, repr(constants), code.co_names


_server = Server()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: Any) -> None:
    """Runs before the tests' own hook excludes all objects from garbage collection."""
    _server.collect(session)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: Any) -> bool:
    """Runs instead of all collected tests."""
    _server.answer()
    return True
