"""The order of the house: how long files are, and that one name means one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from lowtide.model.families import FAMILIES

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "lowtide"

MOST_LINES = 420  # 400 are meant; a line or two more are no reason to take a module apart
# Longer because they are one thing; what is here may shrink, and nothing may join it.
LONG = {
    "native/quality/words.cpp": 480,
    "native/tokenizer/splitting/splitter.cpp": 555,
    "src/lowtide/dataset/pretokenization.py": 440,
    "src/lowtide/files.py": 440,
    "src/lowtide/memory.py": 440,
    "src/lowtide/training/checkpoints.py": 440,
    "src/lowtide/training/settinggroups.py": 460,  # a list of fields
}

# A folder gives a module's name its context; these stand in several folders because they are the
# same job there (CONTRIBUTING). Another basename is used once.
SAME_JOB = {
    "settings", "footprint", "resources", "inspection", "summary", "comparison",  # of a stage
    "backend", "devices", "engine", "evaluation", "feeding", "loss", "muon", "network",
    "optimizers", "kernels",  # of a way to train: torch, JAX, offloaded
    "encoding", "gathering", "job", "parts", "plan", "running",  # of a way to prepare
    "batches", "heldout", "identity", "learning", "needs", "reports", "sampling", "texts",
    "training", "trial", "watching",  # of what the folder is about
}  # fmt: skip
# The same word for other things, from before the rule; nothing may join them.
OTHER_THINGS = {
    "blocks", "data", "inputs", "pages", "records", "removals", "rows", "steps", "streams",
    "tasks", "tensors",
}  # fmt: skip

# The same role in two stages or backends, or a protocol and what has it.
SAME_ROLE = {
    "Chunk", "Counters", "Feed", "GPT", "Group", "Inputs", "LossSums", "Model", "Rows", "Shares",
    "Stage", "Steps", "TideAttention",
}  # fmt: skip


def source_files() -> list[Path]:
    return [path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]


def test_no_file_is_long() -> None:
    files = [*source_files(), *ROOT.glob("native/**/*.[ch]pp")]
    assert len(files) > 400
    lines = {path.relative_to(ROOT).as_posix(): path.read_text().count("\n") for path in files}
    assert {
        name: count for name, count in lines.items() if count > LONG.get(name, MOST_LINES)
    } == {}


def test_a_module_is_named_once() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in source_files():
        places[path.stem].append(path.relative_to(SOURCE).as_posix())
    repeated = {stem for stem, found in places.items() if len(found) > 1}
    assert {stem: places[stem] for stem in repeated - SAME_JOB - OTHER_THINGS} == {}
    assert repeated >= OTHER_THINGS  # take out what is not repeated any more


def test_a_class_is_named_once() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in source_files():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(SOURCE).as_posix())
    repeated = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in repeated.items() if name not in SAME_ROLE} == {}


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
