"""The order of the house: how long files are, and that one name means one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from lowtide import filenames
from lowtide.model.families import FAMILIES
from lowtide.training.settings import TrainSettings

from .sources import nodes_of, parsed

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "lowtide"

MOST_LINES = 420  # 400 are meant; a line or two more are no reason to take a module apart

# A folder gives a module's name its context; these stand in several folders because they are the
# same job there (CONTRIBUTING). Another basename is used once.
SAME_JOB = {
    "settings", "footprint", "resources", "inspection", "summary", "comparison",  # of a stage
    "backend", "devices", "engine", "evaluation", "feeding", "loss", "muon", "network",
    "optimizers", "kernels",  # of a way to train: torch, JAX, offloaded
    "encoding", "job", "plan", "running",  # of a way to prepare
    "heldout", "learning", "needs", "training", "trial",  # of what the folder is about
}  # fmt: skip

# The same role in two stages or backends, or a protocol and what has it.
SAME_ROLE = {
    "Chunk", "Counters", "Feed", "GPT", "Group", "Inputs", "LossSums", "Model", "Rows", "Shares",
    "Stage", "Steps", "TideAttention",
}  # fmt: skip


# Made by a program for type checkers; run as programs; copied beside weights for transformers.
NOT_IMPORTED = {
    "lowtide.__main__",
    "lowtide.keywordtypes",
    "lowtide.corpus.stepprocess",
    "lowtide.model.modeling_tide",
}
GROUPS = tuple(TrainSettings.__dataclass_fields__)
PROTOCOL = ("make_engine",)  # of Backend, where it has no body


def source_files() -> list[Path]:
    return [path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]


def test_no_file_is_long() -> None:
    files = [*source_files(), *ROOT.glob("native/**/*.[ch]pp")]
    assert len(files) > 400
    lines = {path.relative_to(ROOT).as_posix(): path.read_text().count("\n") for path in files}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_a_module_is_named_once() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in source_files():
        places[path.stem].append(path.relative_to(SOURCE).as_posix())
    repeated = {stem for stem, found in places.items() if len(found) > 1}
    assert {stem: places[stem] for stem in repeated - SAME_JOB} == {}
    assert repeated >= SAME_JOB  # take out what is not repeated any more


def test_a_class_is_named_once() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in source_files():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(SOURCE).as_posix())
    repeated = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in repeated.items() if name not in SAME_ROLE} == {}


def test_names_of_files_stand_in_one_place() -> None:
    names = {value for key, value in vars(filenames).items() if key.endswith("_NAME")}
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}: {node.value}"
        for path in source_files()
        if path.name != "filenames.py"
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert found == []


def test_dataclasses_are_those_that_are_quick_to_define() -> None:
    """A command defines some sixty; those of the standard library took a quarter of its start."""
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in source_files()
        if path.name != "quickclasses.py"
        for node in nodes_of(path)
        if (isinstance(node, ast.ImportFrom) and node.module == "dataclasses"
            and any(alias.name == "dataclass" for alias in node.names))
        or (isinstance(node, ast.Attribute) and ast.unparse(node) == "dataclasses.dataclass")
    ]  # fmt: skip
    assert found == []


def _groups_used(function: ast.FunctionDef, name: str) -> set[str]:
    """The groups of an argument that a function uses; all of them where it hands it on."""
    reads = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    ]
    uses = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name]
    return {node.attr for node in reads} if len(uses) == len(reads) else set(GROUPS)


def test_functions_get_the_group_of_settings_that_they_use() -> None:
    """Who uses one group of the settings of a training, or a single number, gets just that."""
    found = [
        f"{path.relative_to(SOURCE)}: {function.name}"
        for path in source_files()
        for function in nodes_of(path)
        if isinstance(function, ast.FunctionDef)
        for argument in (*function.args.args, *function.args.kwonlyargs)
        if argument.annotation is not None
        and ast.unparse(argument.annotation) == "TrainSettings"
        and function.name not in PROTOCOL
        and len(_groups_used(function, argument.arg)) < 2
    ]
    assert found == []


def _imported(path: Path) -> Iterator[str]:
    """Modules that a file names: in imports anywhere, or in texts by their whole name."""
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"lowtide(?:\.\w+)+", node.value)


def test_every_module_is_tested_itself_or_through_its_callers() -> None:
    """CONTRIBUTING's claim: a file of tests, an import in one, or a tested module that calls it."""
    modules = {
        "lowtide." + path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", "."): path
        for path in source_files()
    }
    by_tests = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        if path.name != "test_numbers.py"  # where every module with a number is named
        for name in _imported(path)
    }
    by_tests |= set(_imported(SOURCE / "__init__.py"))  # what public names lead to: test_api
    own = {
        name
        for name, path in modules.items()
        if (ROOT / "tests" / path.relative_to(SOURCE).parts[0] / f"test_{path.stem}.py").exists()
        or (ROOT / "tests" / f"test_{path.stem}.py").exists()
    }
    reached = own | (by_tests & modules.keys())
    assert len(own) > 150
    waiting = list(reached)
    while waiting:
        called = (set(_imported(modules[waiting.pop()])) & modules.keys()) - reached
        reached |= called
        waiting += called
    assert modules.keys() - reached - NOT_IMPORTED == set()


def test_the_way_of_a_command_is_as_the_page_says() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.split("## One command from end to end")[1].split("\n## ")[0]
    rows = [line.split("|")[2:4] for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for files, functions in rows:
        code = "".join((SOURCE / name).read_text() for name in re.findall(r"`(.+?)`", files))
        missing = [n for n in re.findall(r"`(.+?)`", functions) if f"def {n}(" not in code]
        assert missing == [], files


def test_every_module_is_on_the_map() -> None:
    """The page lists folders and the modules beside them; a folder's docstring lists its own."""
    page = (ROOT / "docs" / "architecture.md").read_text().split("## One command")[0]
    named = set(re.findall(r"`([\w/]+(?:\.pyi?|/))`", page))
    folders = {path.parent for path in SOURCE.glob("*/__init__.py")}
    stages = {"corpus", "tokenizer", "dataset", "loader", "model", "training", "generation"}
    beside = {path.name for path in SOURCE.glob("*.py")}
    assert beside | {f"{path.name}/" for path in folders if path.name not in stages} == {
        name for name in named if "/" not in name.rstrip("/") and not name.endswith(".pyi")
    }
    missing = {
        path.relative_to(SOURCE).as_posix()
        for init in SOURCE.rglob("*/__init__.py")
        for words in [set(re.findall(r"\w+", ast.get_docstring(parsed(init)) or ""))]
        for path in [*init.parent.glob("*.py"), *init.parent.glob("*/__init__.py")]
        if path != init
        and (path.parent.name if path.name == "__init__.py" else path.stem) not in words
    }
    assert missing == set()


def test_families_are_asked_for_by_what_they_are() -> None:
    """Else a further family is more than a row of families.py."""
    names = "|".join(FAMILIES)
    by_name = re.compile(rf"layout (==|!=|in|not in) [(\[{{]?\"({names})\"")
    found = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in source_files()
        for line in path.read_text().splitlines()
        if by_name.search(line)
    ]
    assert found == []


def test_the_package_calls_what_the_native_module_has() -> None:
    """What only tests call is in its submodule `testing`."""
    code = "\n".join(path.read_text() for path in source_files())
    stub = ast.parse((SOURCE / "_native.pyi").read_text())
    functions = [node.name for node in stub.body if isinstance(node, ast.FunctionDef)]
    assert len(functions) > 30
    assert [name for name in functions if not re.search(rf"\b{name}\b", code)] == []
