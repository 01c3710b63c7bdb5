"""Which values every setting takes, and which go together: as it was, value by value.

Numbers are tried around every number that the modules of a verb's settings name, so that a border
that moves by one is seen; of each two settings one value each is tried together. Where settings are
meant to change, `python tests/test_borders.py` writes the table anew; its diff shows what changed.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from lowtide.corpus.textblocks import ReadingSettings
from lowtide.errors import LowtideError
from lowtide.flatsettings import group_classes, setting_fields, setting_types
from lowtide.model.config import GPTConfig
from lowtide.model.rope import RopeScaling
from lowtide.reporting.settings import ReportSettings
from lowtide.settings import build_settings
from lowtide.training.settings import EvaluateSettings
from lowtide.verbs import VERBS

TABLE = Path(__file__).with_name("borders.json")
FLOATS = [-1.0, -0.5, 0.0, 1e-9, 0.05, 0.1, 0.5, 0.999, 1.0, 1.001, 2.0, 1e9, math.inf, math.nan]
WORDS = ["", "0", "1", "-1", "99KiB", "1GiB", "2GB", "1e6", "5M", "x", "x=y", "a/b.txt", "auto"]

# Without these the other settings are not taken.
_BESIDE: dict[type[Any], dict[str, Any]] = {
    EvaluateSettings: {"dataset_dir": "x"},  # or tasks: one of the two
    ReportSettings: {"watch": True},
}


def numbers_named(cls: type[Any]) -> list[float]:
    """The numbers in the modules of a class of settings, its bases and its groups."""
    modules = {base.__module__ for part in (cls, *group_classes(cls)) for base in part.__mro__}
    trees = [
        ast.parse(Path(typing.cast(str, sys.modules[name].__file__)).read_text(encoding="utf-8"))
        for name in sorted(modules)
        if name.startswith("lowtide")
    ]
    found = {value for tree in trees for node in ast.walk(tree) for value in [number_of(node)]}
    return sorted(value for value in found if value is not None)


def number_of(node: ast.AST) -> float | None:
    """The number that a constant or a shift of two constants is."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
        left, right = number_of(node.left), number_of(node.right)
        both = isinstance(left, int) and isinstance(right, int) and right < 64
        return typing.cast(int, left) << typing.cast(int, right) if both else None
    is_number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
    return typing.cast(Any, node).value if is_number else None


def values_of(kind: Any, numbers: list[float]) -> Iterator[Any]:
    """Values to try for a setting of a type; paths and lists get a word."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        yield from values_of(arguments[0], numbers)
    elif origin in (typing.Union, types.UnionType):
        for each in arguments:
            yield from values_of(each, numbers)
    elif origin is Literal:
        yield from arguments
    elif origin in (tuple, list):
        yield ()
        for value in values_of(arguments[0], numbers):
            yield (value,)
    elif kind is bool:
        yield from (False, True)
    elif kind is int:
        whole = [int(number) for number in numbers if number == int(number)]
        yield from sorted({number + by for number in [*whole, 0] for by in (-1, 0, 1)})
    elif kind is float:
        yield from FLOATS
        yield from (n + by for n in numbers for by in (-0.01, 0.0, 0.01) if n + by not in FLOATS)
    elif kind is str:
        yield from WORDS
    elif kind is Path:
        yield from (Path("x"), Path("a/b.txt"))


def answer_to(cls: type[Any], options: dict[str, Any]) -> str | None:
    """What building says against options; None where it takes them."""
    try:
        build_settings(cls, options)
    except LowtideError as error:
        return error.message
    return None


def least_options(cls: type[Any]) -> dict[str, Any]:
    """Words for the settings that have no default."""
    fields = setting_fields(cls).values()
    needed = [field.name for field in fields if field.default is field.default_factory]
    kinds = setting_types(cls)
    some = {name: next(iter(values_of(kinds[name], [1])), "x") for name in needed}
    more = _BESIDE.get(cls, {})
    return more | {name: ("x",) if value == () else value or "x" for name, value in some.items()}


def taken_ranges(values: list[float], taken: list[bool]) -> str:
    """The ranges of numbers that are taken, as `from..to`; open where nothing beyond was tried."""
    runs = itertools.groupby(zip(values, taken, strict=True), key=lambda row: row[1])
    ranges = [[value for value, _ in run] for is_taken, run in runs if is_taken]
    ends = [("" if run[-1] == values[-1] else f"{run[-1]}") for run in ranges]
    starts = [("" if run[0] == values[0] else f"{run[0]}") for run in ranges]
    return ", ".join(f"{start}..{end}" for start, end in zip(starts, ends, strict=True))


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and not math.isnan(value)


def describe(cls: type[Any], least: dict[str, Any]) -> dict[str, Any]:
    """Of every setting what is taken and refused, of every two what does not go together."""
    numbers, kinds = numbers_named(cls), setting_types(cls)
    found: dict[str, str] = {}
    chosen: dict[str, list[Any]] = {}
    for name, field in setting_fields(cls).items():
        values = list(dict.fromkeys(values_of(kinds[name], numbers)))
        taken = [answer_to(cls, {**least, name: value}) is None for value in values]
        rows = list(zip(values, taken, strict=True))
        refused = [str(value) for value, is_taken in rows if not is_taken and not is_number(value)]
        tried = sorted(row for row in rows if is_number(row[0]))
        ranges = taken_ranges(*map(list, zip(*tried, strict=True))) if tried else ""
        if refused or ranges not in ("", ".."):
            found[name] = " ".join([*([f"takes {ranges}"] if ranges else []), "not", *refused])
        fit = [value for value, is_taken in rows if is_taken and value not in ((), field.default)]
        chosen[name] = sorted(fit, key=lambda value: is_number(value) and value <= 0)[:1]
    apart: list[str] = []
    for one, other in itertools.combinations(chosen, 2):
        for a, b in itertools.product(chosen[one], chosen[other]):
            if answer_to(cls, {**least, one: a, other: b}) is not None:
                apart.append(f"{one} {a!s}, {other} {b!s}")
    return {"alone": found, "apart": apart}


def list_cases() -> dict[str, tuple[type[Any], dict[str, Any]]]:
    """The settings of all verbs, and shapes of models, with the least that they need."""
    classes = {name: verb.settings_class() for name, verb in VERBS.items()}
    cases = {name: (cls, least_options(cls)) for name, cls in classes.items()}
    shape = {"vocab_size": 10, "context_length": 8, "num_layers": 2, "width": 8, "num_heads": 2}
    for layout in ("qwen3", "gpt2", "tide", "mistral"):
        cases[f"shape of {layout}"] = GPTConfig, {**shape, "layout": layout}
    for kind in ("linear", "llama3", "yarn"):
        stretched = {"factor": 2.0, "original_max_position_embeddings": 64}
        cases[f"positions of {kind}"] = RopeScaling, {**stretched, "rope_type": kind}
    cases["reading"] = ReadingSettings, {}
    return cases


CASES = list_cases()


@pytest.mark.parametrize("case", CASES)
def test_every_setting_takes_what_it_took(case: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)  # where no file has a name that is tried
    assert answer_to(*CASES[case]) is None
    known = json.loads(TABLE.read_text(encoding="utf-8"))[case]
    found = json.loads(json.dumps(describe(*CASES[case])))
    assert found["alone"] == known["alone"], __doc__
    assert found["apart"] == known["apart"], __doc__


if __name__ == "__main__":
    table = {name: describe(*case) for name, case in CASES.items()}
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
