"""Choose the tests that should notice a change, by the names of their files."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

from changes import ROOT, Mutant

# Tests of a stage in other folders.
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
# Tests of the core by the longest matching prefix of the path; the most specific first.
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
# Tables with numbers of many modules, which take seconds.
_FORMULAS, _BORDERS = "tests/planning/test_formulas.py", "tests/test_borders.py"
# About all writers, and about all output of commands.
_DURABLE, _OUTPUTS = "tests/test_durability.py", "tests/test_outputs.py"
RETURNS = "tests/test_returns.py"  # about all functions, one test for each module

Choose = Callable[[Mutant], list[list[str]]]
"""Returns the test files that should notice a change, in groups that are run one by one."""


def own_tests(mutant: Mutant) -> str:
    """The file of tests that mirrors the changed module."""
    return (Path("tests") / mutant.stage / f"test_{mutant.path.stem}.py").as_posix()


@functools.cache
def test_files(name: str) -> list[str]:
    """The files of tests in a folder, or the given file."""
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
    """The tests that should notice a change: the nearest first, then its stage's."""
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
    # The limits of all settings are in one table.
    (first if "setting" in mutant.path.stem else rest).append(_BORDERS)
    return each_once([first, near, [*rest, *naming, _DURABLE, _OUTPUTS, RETURNS]])


def near_tests(mutant: Mutant) -> list[list[str]]:
    """The part of `tests_of` that tests the changed module itself."""
    return tests_of(mutant)[:-1] or tests_of(mutant)


def each_once(groups: list[list[str]]) -> list[list[str]]:
    """Groups of files and folders as files, each in the first group that contains it."""
    seen: set[str] = set()
    files = [[file for name in group for file in test_files(name)] for group in groups]
    # `add` returns None, so a file counts as new once.
    new = [[one for one in group if not (one in seen or seen.add(one))] for group in files]
    return [group for group in new if group]
