"""Run tests on changed copies of the repository, and report whether one of them noticed.

In:      a change, and the tests that should notice it
Out:     a verdict, with the test that noticed it
Memory:  a copy of the repository per worker, beside the tests' own

The copy's Python is imported instead of the installed one; a native change is built there first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from changes import ROOT, SOURCE, Mutant
from nativebuilds import NativeBuilds
from testchoice import Choose

NOT_BUILT, NOT_JUDGED = "not built: drawn again", "not judged: --minutes"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Verdict:
    """The result of one change: a word, the test that noticed it, the seconds it took."""

    word: str
    test: str = ""
    seconds: float = 0.0

    @property
    def is_caught(self) -> bool:
        return self.word.startswith("caught")


@dataclass(frozen=True)
class Limits:
    """Time limits: `seconds` for one run of the tests, and `end` for all."""

    seconds: int
    end: float = float("inf")

    def left(self) -> float:
        """The time limit of a run that begins now."""
        return min(self.seconds, self.end - time.monotonic())


class Copies:
    """Copies of the repository, each lent to one run of the tests at a time."""

    def __init__(self, root: Path, count: int, native: bool = False) -> None:
        self.count = count
        self.native = NativeBuilds(make_copy(root / "unchanged"), root) if native else None
        self._free: SimpleQueue[Path] = SimpleQueue()
        for number in range(count):
            self._free.put(make_copy(root / str(number)))

    def lend(self, use: Callable[[Path], Result]) -> Result:
        """The result of `use` on a copy that no other run has meanwhile."""
        folder = self._free.get()
        try:
            return use(folder)
        finally:
            self._free.put(folder)


def tracked_files() -> list[str]:
    """The repository's files: those git tracks, or all in folders that are not hidden or built."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
    if listed.returncode == 0:
        return [name for name in listed.stdout.split("\0") if name]
    top = [path for path in ROOT.iterdir() if path.name not in ("build", "carry", "shared")]
    files = (path for one in top for path in ([one] if one.is_file() else one.rglob("*")))
    names = (path.relative_to(ROOT).as_posix() for path in files)
    return [name for name in names if not name.startswith(".") and "__pycache__" not in name]


def make_copy(folder: Path) -> Path:
    """The files that tests need: no history, no environment, no built files."""
    for name in tracked_files():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "sitecustomize.py").write_text(_SITE)
    (folder / "mutant_notes.py").write_text(_NOTES)
    return folder


def check_tests(mutants: list[Mutant], copies: Copies, choose: Choose) -> None:
    """Run the tests of the whole sample without a change: if they fail, nothing is proven."""
    failing = failing_tests(mutants, copies, choose)
    if failing:
        sys.exit("error: unchanged, these fail (--leave-out FILE):\n" + "\n".join(failing))


def failing_tests(mutants: list[Mutant], copies: Copies, choose: Choose) -> list[str]:
    """The tests that fail without a change, of all that the sample needs; for some, whole files."""
    files = {name: None for mutant in mutants for group in choose(mutant) for name in group}

    def run(name: str) -> list[str]:
        def use(folder: Path) -> list[str]:
            code = run_pytest([name], folder, None, 1800, stop=False)
            if code == 0 or code == 5:  # all passed; none was collected
                return []
            failed = noted_tests(folder)
            return failed if code == 1 and failed else [name]

        return copies.lend(use)

    with ThreadPoolExecutor(copies.count) as pool:
        return [test for tests in pool.map(run, files) for test in tests]


def run_tests(
    mutant: Mutant, copies: Copies, folder: Path, limits: Limits, choose: Choose
) -> Verdict:
    """Make the change in a copy, run the tests until one fails, undo it."""
    target = folder / mutant.path
    original = target.read_bytes()
    target.write_bytes(mutant.apply(original))
    # Compiled files are recognized by size and second, which may be equal for two changes.
    shutil.rmtree(target.parent / "__pycache__", ignore_errors=True)
    try:
        native = None
        if mutant.is_native:
            assert copies.native is not None
            native = copies.native.build(folder, mutant.path)
            if native is None:
                return Verdict(NOT_BUILT)
        for group in choose(mutant):
            code = run_pytest(group, folder, native, limits.left())
            if code is None and limits.left() < limits.seconds:
                return Verdict(NOT_JUDGED)
            if code not in (0, 5):  # 5: every test of the group is left out or skipped here
                return Verdict(judge(code), next(iter(noted_tests(folder)), ""))
        return Verdict(judge(0))
    finally:
        target.write_bytes(original)


# Remove the editable install's import hook, in the tests and in every program they start.
_SITE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "Redirecting" not in type(f).__name__]
"""
# A plugin of pytest: records failures, and skips tests that fail without a change.
_NOTES = """
import os, pathlib
noted = pathlib.Path(os.environ["MUTANT_NOTES"])
left_out = set(os.environ["MUTANT_LEFT_OUT"].splitlines())

def pytest_runtest_logreport(report):
    if report.failed:
        with noted.open("a") as file:
            print(report.nodeid, file=file)

pytest_collectreport = pytest_runtest_logreport

def pytest_ignore_collect(collection_path, config):
    return collection_path.relative_to(config.rootpath).as_posix() in left_out or None

def pytest_collection_modifyitems(config, items):
    kept = [item for item in items if item.nodeid not in left_out]
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = kept
"""
_left_out: list[str] = []


def noted_tests(folder: Path) -> list[str]:
    """The tests that failed in the last run in a copy."""
    notes = folder / "failed.txt"
    return list(dict.fromkeys(notes.read_text().splitlines())) if notes.exists() else []


def run_pytest(
    tests: list[str], folder: Path, native: Path | None, seconds: float, stop: bool = True
) -> int | None:
    """The exit code of the tests, up to the first that fails; None if they took too long."""
    environment = prepare(folder, native)
    options = ["-x"] * stop + ["-q", "-p", "no:cacheprovider", "-p", "mutant_notes"]
    # A test that hangs fails after the suite's own limit, not sooner: a busy machine is no proof.
    # Native code that never returns handles no signal, so it is ended from outside of Python.
    options += ["-o", "faulthandler_timeout=330", "-o", "faulthandler_exit_on_timeout=true"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        return process.wait(max(seconds, 0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return None


def prepare(folder: Path, native: Path | None = None) -> dict[str, str]:
    """Clear a copy of the remains of the last run; return the environment of the next one."""
    module = native or next(installed_package().glob("_native*.so"))
    there = folder / SOURCE / module.name
    if not there.exists() or there.stat().st_mtime_ns != module.stat().st_mtime_ns:
        # A new inode: processes that are still running keep the old file.
        partial = there.with_suffix(".new")
        shutil.copy2(module, partial)
        partial.replace(there)
    temporary, notes = folder / "tmp", folder / "failed.txt"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(exist_ok=True)
    notes.unlink(missing_ok=True)
    paths = [str(folder), str(folder / "src"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1",
        "TMPDIR": str(temporary), "MUTANT_NOTES": str(notes),
        "MUTANT_LEFT_OUT": "\n".join(_left_out),
    }  # fmt: skip


def installed_package() -> Path:
    """The path of the installed native module."""
    import lowtide._native as native

    return Path(native.__file__).parent


def judge(code: int | None) -> str:
    if code is None:
        return "OUT OF TIME"  # proves nothing: give more --seconds
    return {0: "SURVIVED", 1: "caught"}.get(code, f"caught (pytest ended with {code})")


def read_left_out(path: Path, find: Callable[[], list[str]]) -> None:
    """Leave out the tests listed in a file; if there is none, find and write them."""
    if not path.exists():
        path.write_text("".join(f"{name}\n" for name in find()), encoding="utf-8")
    _left_out.extend(path.read_text(encoding="utf-8").split("\n"))
    print(f"{sum(map(bool, _left_out))} tests or files fail unchanged: {path}", flush=True)
