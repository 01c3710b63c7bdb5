"""Settings of generation: defaults, presets, limits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from lowtide.errors import UsageError
from lowtide.generation.settings import PRESETS, GenerateSettings, SamplingSettings

GENERATE = {
    "prompt": "",
    "each_line": False,
    "checkpoints_dir": Path("checkpoints"),
    "best": False,
    "max_new_tokens": 100,
    "preset": "default",
    "stop": (),
    "num_samples": 1,
    "batch_size": 8,
    "backend": "auto",
    "device": "auto",
}


def test_defaults_are_those_of_the_help() -> None:
    fields = dataclasses.fields(GenerateSettings)
    given = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    assert {name: value for name, value in given.items() if value is not None} == GENERATE


def test_presets_are_what_the_help_says() -> None:
    assert {name: dataclasses.astuple(preset) for name, preset in PRESETS.items()} == {
        "default": (0.8, 50, 0.95, 1.1),
        "chat": (0.7, 50, 0.9, 1.1),
        "creative": (1.0, 0, 0.95, 1.05),
        "factual": (0.3, 20, 0.8, 1.1),
        "code": (0.2, 40, 0.9, 1.0),
        "deterministic": (0.0, 0, 1.0, 1.0),
    }


@pytest.mark.parametrize(
    ("options", "fine"),
    [
        ({"temperature": 0.0}, True),
        ({"temperature": -0.01}, False),
        ({"top_k": 0}, True),
        ({"top_k": -1}, False),
        ({"top_p": 0.0}, True),
        ({"top_p": 1.0}, True),
        ({"top_p": -0.01}, False),
        ({"top_p": 1.01}, False),
        ({"repetition_penalty": 0.01}, True),
        ({"repetition_penalty": 0.0}, False),
        ({"max_new_tokens": 1}, True),
        ({"max_new_tokens": 0}, False),
        ({"num_samples": 1}, True),
        ({"num_samples": 0}, False),
        ({"seed": 0}, True),
        ({"seed": -1}, False),
        ({"prompt": "a"}, True),
        ({"prompt_file": Path("p")}, True),
        ({"prompt": "a", "prompt_file": Path("p")}, False),
        ({"each_line": True}, False),
        ({"each_line": True, "prompt_file": Path("p")}, True),
    ],
)
def test_limits_are_where_they_are_said_to_be(options: dict[str, Any], fine: bool) -> None:
    if fine:
        GenerateSettings("m", **options)
        return
    with pytest.raises(UsageError, match=f"^{list(options)[-1]} is "):
        GenerateSettings("m", **options)


def test_what_is_given_goes_over_the_preset() -> None:
    settings = GenerateSettings("m", preset="chat", temperature=0.0, top_p=0.5)
    assert settings.sampling() == SamplingSettings(0.0, 50, 0.5, 1.1)
    settings = GenerateSettings("m", preset="code", top_k=3, repetition_penalty=1.5)
    assert settings.sampling() == SamplingSettings(0.2, 3, 0.9, 1.5)


def test_an_empty_text_stops_nothing_and_is_refused() -> None:
    with pytest.raises(UsageError, match="stop is '', expected a text that is not empty"):
        GenerateSettings(model_name="m", stop=("end", ""))
