"""Second names of settings: one table, and every verb takes them."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.aliases import (
    OTHER_WAYS,
    SAME_SETTINGS,
    other_way,
    own_name,
    takes_second_names,
)
from lowtide.arguments import parse_settings
from lowtide.classifier.settings import ClassifierSettings
from lowtide.dataset.settings import (
    AppendSettings,
    ConvertSettings,
    PrepareSettings,
    PretokenizeSettings,
    VerifySettings,
)
from lowtide.errors import UsageError
from lowtide.flatsettings import setting_fields, setting_values
from lowtide.helptext import flags_of
from lowtide.planning.settings import PlanSettings
from lowtide.reporting.settings import ReportSettings
from lowtide.settings import build_settings
from lowtide.tokenizer.settings import TokenizerTrainingSettings
from lowtide.training.settings import TrainSettings

from .sources import nodes_of

SOURCE = Path(lowtide.__file__).parent
SETTINGS: list[type[Any]] = [
    PrepareSettings, ConvertSettings, PlanSettings, TokenizerTrainingSettings, TrainSettings
]  # fmt: skip


def test_a_name_stands_in_one_row() -> None:
    names = list(itertools.chain(*SAME_SETTINGS))
    assert len(names) == len(set(names))


@pytest.mark.parametrize("cls", SETTINGS)
def test_settings_have_at_most_one_name_of_each_row(cls: type[Any]) -> None:
    fields = set(setting_fields(cls))
    assert [row for row in SAME_SETTINGS if len(fields & set(row)) > 1] == []


def test_there_is_no_other_table_of_second_names() -> None:
    found = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"\b\w*aliases\b *[:=]", path.read_text())
    ]
    assert found == []


# Second names of what has one word inside, which is left to flags, config files and keywords.
_EDGE_WORDS = {
    "processes", "num_threads", "sequence_length", "max_length", "max_seq_length", "context_length",
    "block_size", "text_column",
}  # fmt: skip
_STILL_INSIDE = {
    ("model/config.py", "context_length"),  # a key of the config.json of every run
    ("model/moduleconfig.py", "context_length"),  # the same key
    ("model/sizing.py", "context_length"),
    ("lmeval.py", "max_length"),  # what the suite calls it
}


def _defined_names(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_inside_nothing_is_called_by_a_second_name() -> None:
    """Calls may use other libraries' words; what is defined here has the word of its row."""
    assert set(itertools.chain(*SAME_SETTINGS)) >= _EDGE_WORDS
    found = {
        (path.relative_to(SOURCE).as_posix(), name)
        for path in SOURCE.rglob("*.py")
        if path.name not in ("aliases.py", "keywordtypes.py")  # which repeats settings
        for name in _EDGE_WORDS.intersection(_defined_names(path))
    }
    assert found <= _STILL_INSIDE


def test_settings_are_called_settings() -> None:
    found = [
        node.name
        for path in SOURCE.rglob("*.py")
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Options")
    ]
    assert found == []


def test_a_flag_is_shown_with_the_guides_word_and_read_by_any() -> None:
    needed = ["--input-files", "a.txt", "--out-dir", "o"]
    for word in ("--processes", "--num-workers", "--cores", "--num_threads"):
        words = [*needed, word, "3"]
        settings = parse_settings(PrepareSettings, words, program="lowtide", summary="")
        assert settings.num_workers == 3
    for cls in (PrepareSettings, AppendSettings, TokenizerTrainingSettings):
        shown = [flag.usage for flag in flags_of(cls)]
        assert "--processes INT" in shown and "--num-workers INT" not in shown
    assert "--num-workers INT" in [flag.usage for flag in flags_of(TrainSettings)]


def test_a_mistake_is_answered_with_the_guides_word() -> None:
    words = ["--input-files", "a.txt", "--out-dir", "o", "--processes", "many"]
    with pytest.raises(UsageError, match=r"^--processes is 'many', expected a whole number"):
        parse_settings(PrepareSettings, words, program="lowtide", summary="")


def test_keywords_of_the_library_by_other_names() -> None:
    @takes_second_names
    def show(first: int = 0, *, seq_len: int = 1, num_workers: int = 2) -> tuple[int, ...]:
        return first, seq_len, num_workers

    called: Any = show
    assert called(5, max_length=6, num_threads=7) == (5, 6, 7)
    assert called(seq_len=3) == (0, 3, 2)
    numbers = called(np.uint8(5), seq_len=np.int16(3), num_workers=np.array(2))
    assert numbers == (5, 3, 2)
    assert [type(number) for number in numbers] == [int, int, int]
    with pytest.raises(TypeError, match="max_length"):
        called(seq_len=3, max_length=4)
    with pytest.raises(TypeError, match="nonsense"):
        called(nonsense=3)


@pytest.mark.parametrize(
    ("cls", "words", "name", "value"),
    [
        (PrepareSettings, ["--input", "a.txt", "--out-dir", "o"], "input_files", ("a.txt",)),
        (
            PrepareSettings,
            ["--input_file=a.txt", "--out-dir", "o", "--tokenizer", "tok/x"],
            "tokenization",
            "tok/x",
        ),
        (
            TokenizerTrainingSettings,
            ["--input-files", "a", "--output-prefix", "o"],
            "out_dir",
            Path("o"),
        ),
        (TrainSettings, ["--model-name", "m", "--text-field", "body"], "text_field", "body"),
        (TrainSettings, ["--model-name", "m", "--text-column", "body"], "text_field", "body"),
        (TrainSettings, ["--model-name", "m", "--block_size", "64"], "seq_len", 64),
        (PlanSettings, ["--processes", "3", "--tokens", "1M"], "cores", 3),
    ],
)
def test_flags_by_other_names(cls: type[Any], words: list[str], name: str, value: object) -> None:
    settings = parse_settings(cls, words, program="lowtide", summary="")
    assert setting_values(settings)[name] == value


def test_an_unknown_name_stays_what_it_is() -> None:
    assert own_name("seqlen", {"seq_len"}) == "seqlen"
    assert own_name("block_size", {"width"}) == "block_size"


def test_the_page_of_words_has_the_same_rows() -> None:
    page = Path(__file__).parent.parent / "docs/terminology.md"
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", page.read_text(), re.MULTILINE)
    assert [(first, *re.findall(r"`(\w+)`", rest)) for first, rest in rows] == list(SAME_SETTINGS)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--lr", "1e-3"], "learning_rate", 1e-3),
        (["--block-size", "64", "--n-layer", "2"], "num_layers", 2),
        (["--no-gradient-checkpointing"], "activation_checkpointing", False),
        (["--max_steps=1k"], "max_iters", 1000),
    ],
)
def test_flags_of_other_training_programs(words: list[str], name: str, value: object) -> None:
    settings = parse_settings(TrainSettings, words, program="", summary="")
    assert setting_values(settings)[name] == value


def test_what_is_done_in_another_way_is_answered_with_it() -> None:
    with pytest.raises(UsageError, match="no flag --min-lr") as caught:
        parse_settings(TrainSettings, ["--min-lr", "1e-5"], program="", summary="")
    assert "--final-learning-rate" in str(caught.value.next_step)
    with pytest.raises(UsageError, match="instead of it: --use-mixed-precision"):
        build_settings(TrainSettings, {"bf16": True})
    known = set(setting_fields(TrainSettings))
    for name, way in OTHER_WAYS.items():
        assert own_name(name, known) == name
        for flag in re.findall(r"--([a-z0-9-]+)", way):
            assert flag.replace("-", "_") in known | {"nproc_per_node"}, way


@pytest.mark.parametrize("words", [["--engine", "files"], ["--work_dir=w"]])
def test_a_classifier_is_trained_on_one_machine(words: list[str]) -> None:
    given = ["--good", "a", "--other", "b", "--out-dir", "c", *words]
    with pytest.raises(UsageError, match=r"there is no flag --(engine|work_dir)") as caught:
        parse_settings(ClassifierSettings, given, program="", summary="")
    assert "a part of the text with --other is enough" in str(caught.value.next_step)
    with pytest.raises(UsageError, match="unknown setting 'engine'; instead of it: a part of"):
        build_settings(ClassifierSettings, {"good": "a", "engine": "files"})


@pytest.mark.parametrize(
    ("cls", "words", "expected"),
    [
        (AppendSettings, ["--dataset-dir", "d", "--input-files", "a"], {"dataset_dir": Path("d")}),
        (AppendSettings, ["--input-files", "a", "--dataset_dir=d"], {"dataset_dir": Path("d")}),
        (VerifySettings, ["--dataset-dir", "d"], {"dataset_dir": Path("d")}),
        (ReportSettings, ["--dataset-dir", "d"], {"target": ("d",)}),
        (PretokenizeSettings, ["--input-files", "a", "b"], {"file": (Path("a"), Path("b"))}),
        (
            ConvertSettings,
            ["--dataset-dir", "d", "--out-dir", "o", "--to", "nanogpt"],
            {"in_path": Path("d"), "out_path": Path("o")},
        ),
        (
            ConvertSettings,
            ["d", "--out-dir", "o", "--to", "nanogpt"],
            {"in_path": Path("d"), "out_path": Path("o")},
        ),
        (
            ConvertSettings,
            ["o", "--dataset-dir", "d", "--to", "nanogpt"],
            {"in_path": Path("d"), "out_path": Path("o")},
        ),
    ],
)
def test_what_is_wanted_by_position_can_be_given_by_flag(
    cls: type[Any], words: list[str], expected: dict[str, object]
) -> None:
    settings = parse_settings(cls, words, program="lowtide", summary="")
    assert {name: getattr(settings, name) for name in expected} == expected


def test_another_way_is_told_of_what_a_verb_has_not_and_training_has() -> None:
    name = next(iter(OTHER_WAYS))
    assert other_way(name, {"max_iters"}) == OTHER_WAYS[name]
    assert other_way(name, {"max_iters", name}) is None
    assert other_way(name, {"out_dir"}) is None
    assert other_way("no_such_name", {"max_iters"}) is None
    assert other_way("engine", {"good"}) is not None
    assert other_way("engine", {"good", "engine"}) is None
    assert other_way("engine", {"input_files"}) is None
