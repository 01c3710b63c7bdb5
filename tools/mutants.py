"""Draw random changes to the source, run the tests of the changed stage, list what they missed.

In:      src/lowtide (by its syntax tree) and, with --native, native/**/*.[ch]pp (by operators)
Out:     one line per change: caught, survived or out of time; the survivors once more at the end.
         With --results a line of JSON each, with the test that noticed it. A native change that
         does not compile shows nothing: another is drawn in its place
Memory:  a copy of the repository per worker, beside the tests' own

    python tools/mutants.py --count 60 --seed 1 [--stage corpus] [--native] [--workers 16]
    python tools/mutants.py --place corpus/grouping.py:100     every change of one line
    python tools/mutants.py --place corpus/grouping.py --own   by the module's own tests alone
    python tools/mutants.py --again survivors.txt              what an earlier run printed
    python tools/mutants.py --count 300 --workers 14 --minutes 9 --results found.jsonl
        --leave-out failing.txt      as many as end in time, without the tests that fail unchanged

Each change is made in a copy of the repository, so the working tree stays as it is. The copy's
Python is imported in place of the installed one; a native change is built there first. Lines come
as the runs end, so that a sample that is cut off has shown what it found.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from nativebuilds import NativeBuilds

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path("src/lowtide")
# Tests of a stage beside those in its own folder.
MORE_TESTS = {
    "corpus": ["tests/dataset"],
    "tokenizer": ["tests/resume/test_train_tokenizer.py"],
    "dataset": ["tests/resume/test_prepare.py"],
    "model": ["tests/training"],
    "engine": ["tests/stores/test_work.py", "tests/dataset/test_staged.py"],
    "ladder": ["tests/training/test_rungs.py"],
    "classifier": ["tests/corpus/test_classifiers.py"],
    "loader": ["tests/stores/test_datasets.py", "tests/stores/test_inputs.py"],
}
# Of the core by the beginning of a path, the longest that fits; first what looks at it closest.
_TOKENIZER = ["tests/tokenizer/test_fuzz.py", "tests/tokenizer"]
NATIVE_TESTS = {
    "bindings": ["tests/native", "tests/corpus", "tests/tokenizer", "tests/dataset"],
    "bindings/classifier": ["tests/classifier", "tests/native"],
    "bindings/decoder": ["tests/model/test_rowcaches.py", "tests/generation", "tests/native"],
    "bindings/loader": ["tests/loader", "tests/native"],
    "bindings/model": ["tests/model", "tests/ladder", "tests/native"],
    "bindings/near": ["tests/dataset/test_near.py", "tests/native"],
    "corpus": ["tests/corpus", "tests/dataset/test_preparation.py"],
    "dataset": ["tests/dataset/test_encoding.py", "tests/dataset"],
    "loader": ["tests/loader"],
    "model": ["tests/model", "tests/ladder"],
    "model/decoder": ["tests/model/test_rowcaches.py", "tests/generation", "tests/model"],
    "model/packed": ["tests/ladder", "tests/training/test_adamw.py"],
    "model/row": ["tests/model/test_rowkernels.py", "tests/model", "tests/training"],
    "model/thread": ["tests/model/test_pool.py", "tests/model/test_rowkernels.py", "tests/model"],
    "quality": ["tests/corpus/test_quality.py", "tests/corpus"],
    "quality/classifier": ["tests/classifier", "tests/corpus/test_classifiers.py"],
    "quality/eval": ["tests/corpus/test_evaluations.py", "tests/dataset/test_contamination.py"],
    "quality/fasttext": ["tests/corpus/test_classifiers.py", "tests/corpus", "tests/classifier"],
    "quality/known": ["tests/corpus/test_classifiers.py", "tests/corpus", "tests/classifier"],
    "quality/masks": ["tests/corpus/test_masks.py", "tests/corpus"],
    "quality/near": ["tests/dataset/test_near.py", "tests/native", "tests/dataset"],
    "quality/place": ["tests/dataset/test_near.py", "tests/native", "tests/dataset"],
    "system": ["tests/tokenizer/test_counting.py", "tests/tokenizer", "tests/native"],
    "text": ["tests/corpus/test_cleaning.py", "tests/corpus", "tests/tokenizer"],
    "tokenizer": _TOKENIZER,
    "tokenizer/learning": ["tests/tokenizer/test_merging.py", "tests/tokenizer/test_counting.py",
                           *_TOKENIZER],
    "tokenizer/encoding": ["tests/tokenizer/test_tokenizer.py", *_TOKENIZER],
    "tokenizer/splitting": ["tests/tokenizer/test_patterns.py", *_TOKENIZER],
}  # fmt: skip

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
# Blanks on both sides: brackets of templates are no comparisons.
_NATIVE_SWAPS = [
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "),
    (r" != ", " == "), (r" \+ ", " - "), (r" - ", " + "), (r" && ", " || "), (r" \|\| ", " && "),
    (r" \+= ", " -= "), (r" -= ", " += "), (r" << ", " >> "), (r" >> ", " << "),
    (r"\+ 1\b", "+ 2"), (r"\btrue\b", "false"), (r"\bfalse\b", "true"),
    (r"std::min\b", "std::max"), (r"std::max\b", "std::min"),
]  # fmt: skip
# Tables that hold numbers of many modules, and take seconds.
_FORMULAS, _BORDERS = "tests/planning/test_formulas.py", "tests/test_borders.py"
# Of all that write, and of all that commands say.
_DURABLE, _OUTPUTS = "tests/test_durability.py", "tests/test_outputs.py"
_NOT_BUILT, _NOT_JUDGED = "not built: drawn again", "not judged: --minutes"


Result = TypeVar("Result")


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the bytes from `begin` to `end` become `after`."""

    path: Path
    line: int
    begin: int
    end: int
    before: str
    after: str

    @property
    def is_native(self) -> bool:
        """True for a change of the C++ core."""
        return self.path.suffix != ".py"

    @property
    def stage(self) -> str:
        """The folder of src/lowtide that it is in; none for modules at the top and for C++."""
        parts = () if self.is_native else self.path.relative_to(SOURCE).parts
        return parts[0] if len(parts) > 1 else ""

    def apply(self, text: bytes) -> bytes:
        """The file's content with the change."""
        return text[: self.begin] + self.after.encode() + text[self.end :]

    def diff(self) -> str:
        """The change as patches show it."""
        text = (ROOT / self.path).read_bytes()
        both = [part.decode().splitlines(True) for part in (text, self.apply(text))]
        name = self.path.as_posix()
        return "".join(difflib.unified_diff(*both, f"a/{name}", f"b/{name}", n=2))

    def __str__(self) -> str:
        before, after = (" ".join(part.split())[:100] for part in (self.before, self.after))
        return f"{self.path}:{self.line}: {before}  ->  {after}"


@dataclass(frozen=True)
class Verdict:
    """What came of one change: the word for it, the test that noticed it, the seconds it took."""

    word: str
    test: str = ""
    seconds: float = 0.0

    @property
    def is_caught(self) -> bool:
        return self.word.startswith("caught")


@dataclass(frozen=True)
class Limits:
    """When to give up: one run of the tests after `seconds`, all of them at `end`."""

    seconds: int
    end: float = float("inf")

    def left(self) -> float:
        """How long a run that begins now may take."""
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
        """What `use` makes of a copy that nobody else has meanwhile."""
        folder = self._free.get()
        try:
            return use(folder)
        finally:
            self._free.put(folder)


Choose = Callable[[Mutant], list[list[str]]]
"""Names the files of tests that have to notice a change, in groups that are run one by one."""


def changed_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every small change of one node of a syntax tree, as a new node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = _COMPARISONS.get(type(node.ops[0]))
        if other is not None:
            yield ast.Compare(node.left, [other()], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        if not isinstance(node.left, ast.JoinedStr) and not isinstance(node.right, ast.JoinedStr):
            yield ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.If | ast.While):
        yield type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("min", "max"):
            other = "max" if node.func.id == "min" else "min"
            yield ast.Call(ast.Name(other, ast.Load()), node.args, node.keywords)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield ast.Pass()
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.expr):
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Assign | ast.AugAssign) and any(
        isinstance(target, ast.Attribute)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ):
        yield ast.Pass()
    elif isinstance(node, ast.Break):
        yield ast.Continue()
    elif isinstance(node, ast.Continue):
        yield ast.Break()


def skipped_parts(tree: ast.Module) -> set[int]:
    """Ids of nodes whose change says nothing: annotations, __all__, kernels' and messages' text."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            every = (*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg)
            parts = [node.returns, *(one.annotation for one in every if one is not None)]
        elif isinstance(node, ast.ClassDef):
            parts = list(node.decorator_list)  # frozen, slots: promises to programmers
        elif isinstance(node, ast.JoinedStr | ast.Assert):
            parts = [node]  # words, and what only programmers see
        elif isinstance(node, ast.keyword) and node.arg == "strict":
            parts = [node]  # of zip: an assertion as well
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            parts = [node]
        for part in parts:
            skipped.update(map(id, ast.walk(part)) if part is not None else ())
    return skipped


def python_mutants(path: Path) -> list[Mutant]:
    """All changes of one module, in the order of its lines."""
    data = (ROOT / path).read_bytes()
    starts = [0, *(match.end() for match in re.finditer(b"\n", data))]
    tree = ast.parse(data)
    skipped = skipped_parts(tree)
    found: list[Mutant] = []
    for node in ast.walk(tree):
        if id(node) in skipped or not hasattr(node, "lineno"):
            continue
        for changed in changed_nodes(node):
            place: Any = node.test if isinstance(node, ast.If | ast.While) else node
            begin = starts[place.lineno - 1] + place.col_offset
            end = starts[place.end_lineno - 1] + place.end_col_offset
            before = data[begin:end].decode()
            after = f"not ({before})" if place is not node else ast.unparse(changed)
            after = f"({after})" if isinstance(place, ast.expr) else after
            found.append(Mutant(path, place.lineno, begin, end, before, after))
    return sorted(found, key=lambda mutant: (mutant.begin, mutant.end, mutant.after))


def native_mutants(path: Path) -> list[Mutant]:
    """All changes of operators in one C++ file; comments and strings apart.

    The whole line is named, so that it is found again where others have moved.
    """
    found: list[Mutant] = []
    start = 0
    for number, line in enumerate((ROOT / path).read_text(encoding="ascii").splitlines(True), 1):
        code = re.sub(r'"[^"]*"', lambda text: "_" * len(text[0]), line).split("//")[0]
        if not code.lstrip().startswith(("#", "template", "static_assert")):
            for pattern, other in _NATIVE_SWAPS:
                for match in re.finditer(pattern, code):
                    after = line[: match.start()] + other + line[match.end() :]
                    found.append(Mutant(path, number, start, start + len(line), line, after))
        start += len(line)
    return found


def parses(mutant: Mutant) -> bool:
    """False for a change that is no Python: not one that anybody could make."""
    if mutant.is_native:
        return True
    try:
        ast.parse(mutant.apply((ROOT / mutant.path).read_bytes()))
    except SyntaxError:
        return False
    return True


def own_tests(mutant: Mutant) -> str:
    """The file of tests that mirrors the changed module."""
    return (Path("tests") / mutant.stage / f"test_{mutant.path.stem}.py").as_posix()


@functools.cache
def test_files(name: str) -> list[str]:
    """The files of tests in a folder, or the one that is named."""
    if not (ROOT / name).is_dir():
        return [name] if (ROOT / name.partition("::")[0]).exists() else []
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / name).rglob("test_*.py"))


@functools.cache
def naming_tests(stage: str, module: str) -> list[str]:
    """The files of tests that import a module by its name, those of its stage first."""
    package = f"lowtide.{stage}" if stage else "lowtide"
    imported = rf"from {re.escape(package)} import (\([^)]*|.*)\b{module}\b"
    pattern = re.compile(rf"{imported}|\b{re.escape(package)}\.{module}\b")
    files = [name for name in test_files("tests") if pattern.search((ROOT / name).read_text())]
    return sorted(files, key=lambda name: not name.startswith(f"tests/{stage}/"))


def tests_of(mutant: Mutant) -> list[list[str]]:
    """The tests that have to notice a change: first those nearest to it, then its stage's."""
    if mutant.is_native:
        place = mutant.path.relative_to("native").as_posix()
        return each_once([NATIVE_TESTS[max(filter(place.startswith, NATIVE_TESTS), key=len)]])
    folder = f"tests/{mutant.stage}" if mutant.stage else "tests"
    naming = naming_tests(mutant.stage, mutant.path.stem)
    near = [name for name in naming if str(Path(name).parent) == folder or name == _FORMULAS]
    if mutant.stage:
        rest = [folder, *MORE_TESTS.get(mutant.stage, [])]
    else:
        rest = [name for name in test_files("tests") if str(Path(name).parent) == folder]
    first = [own_tests(mutant), f"{folder}/test_numbers.py"]
    # What settings take is one table for all of them.
    (first if "setting" in mutant.path.stem else rest).append(_BORDERS)
    return each_once([first, near, [*rest, *naming, _DURABLE, _OUTPUTS]])


def near_tests(mutant: Mutant) -> list[list[str]]:
    """The part of `tests_of` that looks at the changed module itself."""
    return tests_of(mutant)[:-1] or tests_of(mutant)


def each_once(groups: list[list[str]]) -> list[list[str]]:
    """Groups of files and folders as files, each where it is named first."""
    seen: set[str] = set()
    files = [[file for name in group for file in test_files(name)] for group in groups]
    # What `add` returns is None: a file counts as new once.
    new = [[one for one in group if not (one in seen or seen.add(one))] for group in files]
    return [group for group in new if group]


def draw(arguments: argparse.Namespace) -> list[Mutant]:
    """The sample, with what may take the place of changes in it, or all changes of one line."""
    if arguments.place:
        name, _, line = arguments.place.partition(":")
        path = Path(name) if (ROOT / name).exists() else SOURCE / name
        make = python_mutants if path.suffix == ".py" else native_mutants
        return [mutant for mutant in make(path) if not line or mutant.line == int(line)]
    if arguments.again:
        return drawn_before(Path(arguments.again).read_text(encoding="utf-8"))
    if arguments.native:
        paths = sorted(path.relative_to(ROOT) for path in (ROOT / "native").rglob("*.[ch]pp"))
        mutants = [mutant for path in paths for mutant in native_mutants(path)]
    else:
        paths = sorted(path.relative_to(ROOT) for path in (ROOT / SOURCE).rglob("*.py"))
        mutants = [mutant for path in paths for mutant in python_mutants(path)]
        if arguments.stage:
            mutants = [mutant for mutant in mutants if mutant.stage == arguments.stage]
    random.Random(arguments.seed).shuffle(mutants)
    if arguments.native:
        return mutants
    return list(itertools.islice(filter(parses, mutants), arguments.count))


def drawn_before(text: str) -> list[Mutant]:
    """The changes that lines of an earlier run name, wherever their lines are by now."""
    found: dict[Mutant, None] = {}
    for line in text.splitlines():
        match = re.search(r"((?:src|native)/\S+):(\d+): (.*)", line)
        if match is None or line.startswith("caught"):
            continue
        path, number, change = Path(match[1]), int(match[2]), match[3]
        make = python_mutants if path.suffix == ".py" else native_mutants
        every = make(path) if (ROOT / path).exists() else []
        same = [mutant for mutant in every if str(mutant).partition(": ")[2] == change]
        if not same:
            print(f"not there any more       {line}", flush=True)
            continue
        found[min(same, key=lambda mutant: abs(mutant.line - number))] = None
    return list(found)


def tracked_files() -> list[str]:
    """The repository's files: as git sees them, or all in folders that are not hidden or built."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
    if listed.returncode == 0:
        return [name for name in listed.stdout.split("\0") if name]
    top = [path for path in ROOT.iterdir() if path.name not in ("build", "carry", "shared")]
    files = (path for one in top for path in ([one] if one.is_file() else one.rglob("*")))
    names = (path.relative_to(ROOT).as_posix() for path in files)
    return [name for name in names if not name.startswith(".") and "__pycache__" not in name]


def make_copy(folder: Path) -> Path:
    """What tests need of the repository: no history, no environment, no built files."""
    for name in tracked_files():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "sitecustomize.py").write_text(_SITE)
    (folder / "mutant_notes.py").write_text(_NOTES)
    return folder


def check_tests(mutants: list[Mutant], copies: Copies, choose: Choose) -> None:
    """Run the tests of everything drawn without a change: where they fail, nothing is proven."""
    failing = failing_tests(mutants, copies, choose)
    if failing:
        sys.exit("error: unchanged, these fail (--leave-out FILE):\n" + "\n".join(failing))


def failing_tests(mutants: list[Mutant], copies: Copies, choose: Choose) -> list[str]:
    """The tests that fail without a change, of all that the sample needs; whole files of some."""
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
    # Compiled files are known by size and second, which a change may share with another.
    shutil.rmtree(target.parent / "__pycache__", ignore_errors=True)
    try:
        native = None
        if mutant.is_native:
            assert copies.native is not None
            native = copies.native.build(folder, mutant.path)
            if native is None:
                return Verdict(_NOT_BUILT)
        for group in choose(mutant):
            code = run_pytest(group, folder, native, limits.left())
            if code is None and limits.left() < limits.seconds:
                return Verdict(_NOT_JUDGED)
            if code not in (0, 5):  # 5: every test of the group is left out or skipped here
                return Verdict(judge(code), next(iter(noted_tests(folder)), ""))
        return Verdict(judge(0))
    finally:
        target.write_bytes(original)


# The editable install must step aside, in the tests and in every program that they start.
_SITE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "Redirecting" not in type(f).__name__]
"""
# A plugin of pytest: notes what failed, and leaves out what fails without a change.
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
    module = native or next(installed_package().glob("_native*.so"))
    shutil.copy2(module, folder / SOURCE / module.name)
    options = ["-x"] * stop + ["-q", "-p", "no:cacheprovider", "-p", "mutant_notes"]
    # A test that hangs fails after the suite's own limit, not sooner: a busy machine is no proof.
    # What never comes back from native code hears no signal: it is ended from outside of Python.
    options += ["-o", "faulthandler_timeout=330", "-o", "faulthandler_exit_on_timeout=true"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    temporary, notes = folder / "tmp", folder / "failed.txt"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    notes.unlink(missing_ok=True)
    paths = [str(folder), str(folder / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1",
        "TMPDIR": str(temporary), "MUTANT_NOTES": str(notes),
        "MUTANT_LEFT_OUT": "\n".join(_left_out),
    }  # fmt: skip
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


def installed_package() -> Path:
    """Where the installed native module is."""
    import lowtide._native as native

    return Path(native.__file__).parent


def try_all(
    mutants: list[Mutant], spare: list[Mutant], copies: Copies, limits: Limits, choose: Choose,
    keep: Callable[[Mutant, Verdict], None],
) -> dict[Mutant, Verdict]:  # fmt: skip
    """Print what came of each change as soon as it is known, hand it to `keep`, and return it.

    Where one does not compile, the next of `spare` that the same tests judge takes its place.
    """
    verdicts: dict[Mutant, Verdict] = {}

    def try_one(mutant: Mutant) -> tuple[Mutant, Verdict]:
        def use(folder: Path) -> tuple[Mutant, Verdict]:
            begin = time.monotonic()
            if begin >= limits.end:
                return mutant, Verdict(_NOT_JUDGED)
            verdict = run_tests(mutant, copies, folder, limits, choose)
            return mutant, replace(verdict, seconds=time.monotonic() - begin)

        return copies.lend(use)

    with ThreadPoolExecutor(copies.count) as pool:
        waiting = {pool.submit(try_one, mutant) for mutant in mutants}
        while waiting:
            ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for mutant, verdict in (done.result() for done in ended):
                if verdict.seconds:
                    print(f"{verdict.word:24} {verdict.seconds:4.0f} s  {mutant}", flush=True)
                    keep(mutant, verdict)
                if verdict.word != _NOT_BUILT:
                    verdicts[mutant] = verdict
                    continue
                other = next((one for one in spare if choose(one) == choose(mutant)), None)
                if other is not None:
                    spare.remove(other)
                    waiting.add(pool.submit(try_one, other))
    return verdicts


def judge(code: int | None) -> str:
    if code is None:
        return "OUT OF TIME"  # shows nothing: give more --seconds
    return {0: "SURVIVED", 1: "caught"}.get(code, f"caught (pytest ended with {code})")


def write_result(path: str, seed: int, mutant: Mutant, verdict: Verdict) -> None:
    """Add one line of JSON to the file of results, if there is to be one."""
    row = {
        "seed": seed, "file": mutant.path.as_posix(), "line": mutant.line, "diff": mutant.diff(),
        "verdict": verdict.word, "test": verdict.test, "seconds": round(verdict.seconds, 1),
    }  # fmt: skip
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            print(json.dumps(row), file=file, flush=True)


def read_left_out(path: Path, find: Callable[[], list[str]]) -> None:
    """Leave out the tests that a file names; where it is not there yet, find and write them."""
    if not path.exists():
        path.write_text("".join(f"{name}\n" for name in find()), encoding="utf-8")
    _left_out.extend(path.read_text(encoding="utf-8").split("\n"))
    print(f"{sum(map(bool, _left_out))} tests or files fail unchanged: {path}", flush=True)


def main() -> None:
    """Run the sample and print the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=60, help="how many changes to draw")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--stage", default="", help="only this folder of src/lowtide")
    parser.add_argument("--place", default="", help="FILE[:LINE]: every change there instead")
    parser.add_argument("--again", default="", help="a file of lines printed before: these instead")
    parser.add_argument("--native", action="store_true", help="the C++ core instead of Python")
    parser.add_argument("--workers", type=int, default=1, help="changes tried at a time")
    parser.add_argument("--seconds", type=int, default=1200, help="limit of one run of the tests")
    parser.add_argument("--minutes", type=float, help="begin nothing more, and end, after these")
    parser.add_argument("--results", default="", help="a file to add a line of JSON each to")
    parser.add_argument("--leave-out", help="a file of tests that fail unchanged; made if absent")
    parser.add_argument("--list", action="store_true", help="only print the changes")
    parser.add_argument("--trust", action="store_true", help="the tests pass without a change")
    parser.add_argument("--own", action="store_true", help="only the changed module's own tests")
    parser.add_argument("--near", action="store_true", help="its own and the files that import it")
    parser.add_argument("--tests", nargs="+", help="only these files of tests")
    arguments = parser.parse_args()
    mutants = draw(arguments)
    whole = bool(arguments.place or arguments.again)
    count = len(mutants) if whole else arguments.count
    sample, spare = mutants[:count], mutants[count:]
    if arguments.list:
        print(*sample, sep="\n")
        return
    choose: Choose = (lambda mutant: [[own_tests(mutant)]]) if arguments.own else tests_of
    if arguments.near:
        choose = near_tests
    if arguments.tests:
        choose = lambda mutant: [arguments.tests]  # noqa: E731
    end = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")
    choose = functools.cache(choose)
    for mutant in sample:
        choose(mutant)  # by the tests as they are now: the working tree may change meanwhile
    with tempfile.TemporaryDirectory(prefix="mutants-") as root:
        # What JAX compiles is known by what it does, and is the same under most changes.
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{root}/compiled")
        copies = Copies(Path(root), arguments.workers, any(one.is_native for one in sample))
        if arguments.leave_out:
            find = functools.partial(failing_tests, sample, copies, choose)
            read_left_out(Path(arguments.leave_out), find)
        elif not arguments.trust:
            check_tests(sample, copies, choose)
        keep = functools.partial(write_result, arguments.results, arguments.seed)
        verdicts = try_all(sample, spare, copies, Limits(arguments.seconds, end), choose, keep)
    sys.exit(bool(print_summary(verdicts)))


def print_summary(verdicts: dict[Mutant, Verdict]) -> list[Mutant]:
    """Print and return the changes that survived, behind the figure."""
    judged = {one: verdict for one, verdict in verdicts.items() if verdict.word != _NOT_JUDGED}
    survivors = [mutant for mutant, verdict in judged.items() if not verdict.is_caught]
    caught, left = len(judged) - len(survivors), len(verdicts) - len(judged)
    print(f"\n{caught} of {len(judged)} caught ({caught / max(len(judged), 1):.0%})", end="")
    print(f", {left} not judged in time" if left else "", "survivors:", sep="; ")
    print(*survivors, sep="\n")
    return survivors


if __name__ == "__main__":
    main()
