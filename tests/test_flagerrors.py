"""Wrong flags are explained like all other errors: value, expectation, next step."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.arguments import parse_settings
from lowtide.completion import CompletionSettings
from lowtide.dataset.settings import ConvertSettings, PrepareSettings, VerifySettings
from lowtide.errors import UsageError
from lowtide.flagerrors import explain_flags
from lowtide.generation.settings import GenerateSettings
from lowtide.training.settings import TrainSettings
from lowtide.verbs import VERBS

NEEDED = ["--input-files", "a.txt", "--out-dir", "out"]
COUNT = "such as 10000, 10k or 1.5M"


def refused(cls: type[Any], words: list[str]) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse_settings(cls, words, program="lowtide x", summary="x")
    return caught.value


@pytest.mark.parametrize(
    ("cls", "words", "message", "step"),
    [
        (TrainSettings, ["--nonsense", "3"], "there is no flag --nonsense",
         "lowtide x --help-all lists all flags"),
        (VerifySettings, ["a", "--nonsense"], "there is no flag --nonsense",
         "lowtide x --help lists all flags"),
        (TrainSettings, ["--max-iter", "3"], "there is no flag --max-iter",
         "did you mean --max-iters?"),
        (TrainSettings, ["-x"], "there is no flag -x", "lowtide x --help-all lists all flags"),
        (TrainSettings, ["--no-batch-size"], "there is no flag --no-batch-size",
         "leave --batch-size out"),
        (TrainSettings, ["--batch-size"], "--batch-size has no value, expected a whole number",
         "--batch-size 32 (the default)"),
        (TrainSettings, ["--dataset-dir"], "--dataset-dir has no value, expected a path",
         "--dataset-dir PATH"),
        (TrainSettings, ["--eval-dataset-dir"], "--eval-dataset-dir has no value, expected text",
         "--eval-dataset-dir TEXT …"),
        (GenerateSettings, ["--prompt", "-a b"], "--prompt has no value, expected text",
         "--prompt='-a b'"),
        (TrainSettings, ["--batch-size", "3", "4"],
         "--batch-size takes one value, and 2 are given: 3 4",
         "give one of them, in quotes if it has spaces"),
        (TrainSettings, ["--batch_size=x"], "--batch-size is 'x', expected a whole number", COUNT),
        (TrainSettings, ["--seed", "1e19"], "--seed is '1e19', expected a number below "
         "9,223,372,036,854,775,808", None),
        (TrainSettings, ["--learning-rate", "x"], "--learning-rate is 'x', expected a number",
         "such as 0.001 or 1e-3"),
        (TrainSettings, ["--dataset-dir", ""], "--dataset-dir is '', expected a path",
         "is a variable of the shell empty?"),
        (TrainSettings, ["--schedule", "linear"],
         "--schedule is 'linear', expected cosine, linear-decay or constant",
         "did you mean linear-decay?"),
        (TrainSettings, ["--schedule", "x"],
         "--schedule is 'x', expected cosine, linear-decay or constant", None),
        (TrainSettings, ["--use-streaming", "yes"],
         "--use-streaming takes no value, and 'yes' is given",
         "--use-streaming switches it on, --no-use-streaming off"),
        (TrainSettings, ["--no-resume=no"], "--no-resume takes no value, and 'no' is given",
         "--resume switches it on, --no-resume off"),
        (TrainSettings, ["--save-in-background", "maybe"],
         "--save-in-background takes no value, and 'maybe' is given",
         "--save-in-background switches it on, --no-save-in-background off"),
        (ConvertSettings, ["a", "b", "--from", "npx"],
         "--from is 'npx', expected lowtide, nanogpt, llmc, megatron, npy or mypt",
         "did you mean npy?"),
        (PrepareSettings, [*NEEDED, "--processes", "x"],
         "--processes is 'x', expected a whole number", COUNT),
        (PrepareSettings, ["--seed", "3"], "--input-files and --out-dir are missing",
         "lowtide x --seed 3 --input-files TEXT … --out-dir PATH (lowtide x --help has examples)"),
        (PrepareSettings, ["--input-files", "a b"], "--out-dir is missing",
         "lowtide x --input-files 'a b' --out-dir PATH (lowtide x --help has examples)"),
        (PrepareSettings, ["--input-files", *"abcdefgh"], "--out-dir is missing",
         "lowtide x … --out-dir PATH (lowtide x --help has examples)"),
        (ConvertSettings, ["a", "--to=npy"], "OUT-PATH is missing",
         "lowtide x a OUT-PATH --to=npy (lowtide x --help has examples)"),
        (PrepareSettings, [*NEEDED, "--no-dedupe"], "there is no flag --no-dedupe",
         "did you mean --no-dedup?"),
        (VerifySettings, [], "DATASET-DIR is missing",
         "lowtide x DATASET-DIR (lowtide x --help has examples)"),
        (CompletionSettings, ["tcsh"], "SHELL is 'tcsh', expected bash, zsh or fish", None),
    ],
)  # fmt: skip
def test_each_fault_has_its_message(
    cls: type[Any], words: list[str], message: str, step: str | None
) -> None:
    error = refused(cls, words)
    assert (error.message, error.next_step) == (message, step)


def test_what_a_preset_or_a_config_file_gives_is_not_missing() -> None:
    assert explain_flags(PrepareSettings, [], {"input_files", "out_dir"}, program="x") is None
    error = explain_flags(PrepareSettings, [], {"out_dir"}, program="x")
    assert error is not None
    assert error.message == "--input-files is missing"


@pytest.mark.parametrize("verb", VERBS)
def test_no_fault_is_found_where_there_is_none(verb: str) -> None:
    cls = VERBS[verb].settings_class()
    for example in VERBS[verb].examples:
        words = shlex.split(example, comments=True)[2:]
        if not {"--preset", "--config-file"} & {*words}:
            assert explain_flags(cls, words, program=f"lowtide {verb}") is None


@given(
    st.lists(
        st.sampled_from(
            [
                *("--seed", "--seed=7", "3", "--no-dedup", "--dedup", "--dedup=no", "a.txt"),
                *("--input-files", "--out-dir", "--out-dir=o", "--no-seed", "-1", "--", "-x", "-"),
                *("--engine", "file", "--engine=threads", "--processes", "--num-workers=x", ""),
            ]
        ),
        max_size=9,
    )
)
def test_any_words_are_read_or_explained(words: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", None)  # nothing is left to another's message
        try:
            parse_settings(PrepareSettings, words, program="lowtide x", summary="x")
        except UsageError as error:
            assert error.message
