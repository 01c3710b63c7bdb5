"""Settings of plans and comparisons: defaults, limits, counts as people write them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from lowtide.errors import UsageError
from lowtide.planning.comparison import CompareSettings
from lowtide.planning.settings import PlanSettings, parse_count

PLAN = {
    "input_files": (),
    "text_field": "text",
    "use_mixed_precision": False,
    "use_8bit_optimizer": False,
    "activation_checkpointing": False,
    "tpu": False,
    "name": "mine",
    "measure": True,
    "near_dedup": 0.0,
    "decontaminate": (),
}
COMPARE = {
    "input": (),
    "vocab_size": 1000,
    "special_tokens": ("<|endoftext|>",),
    "pattern": "gpt2",
    "ordinary": "auto",
    "what": (),
    "tokens": "10M",
    "size": "20M",
}


@pytest.mark.parametrize(
    ("settings", "expected"), [(PlanSettings, PLAN), (CompareSettings, COMPARE)]
)
def test_defaults_are_those_of_the_help(settings: Any, expected: dict[str, Any]) -> None:
    fields = dataclasses.fields(settings)
    given = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    assert {name: value for name, value in given.items() if value is not None} == expected


FOLDER, FILES = {"dataset_dir": Path("d")}, {"input_files": ("a",)}
SHAPE, CONFIG = {"num_layers": 2, "width": 64}, {"config_file": Path("c.json")}


@pytest.mark.parametrize(
    ("options", "fine"),
    [
        (FOLDER, True),
        ({**FOLDER, **FILES}, False),
        ({**FILES, "tokens": "5M"}, False),
        ({**FOLDER, "tokens": 5}, False),
        ({"dataset_id": "x", "tokens": "5M"}, True),  # a stream does not know how long it is
        ({"dataset_id": "x", **FILES}, False),
        ({"size": "5M"}, True),
        ({"size": "5M", "target_params": 5}, False),
        ({**CONFIG, "size": "5M"}, False),
        ({**CONFIG, **SHAPE}, True),
        ({**SHAPE, "size": "5M"}, False),
        ({"width": 64, "target_params": 5}, False),
        ({"num_layers": 4, "target_params": 5}, False),
        ({"ram": "32MiB"}, True),
        ({"vram": (32 << 20) - 1}, False),
        ({"memory": 8}, False),
        ({"ram": 16}, False),
        ({"cores": 1}, True),
        ({"cores": 0}, False),
        ({"vocab_size": 257}, True),
        ({"vocab_size": 256}, False),
        ({"vocab_size": 300, "tokenization": "gpt2"}, False),
        ({"tokenization": "gpt2"}, True),
        ({"tokens": "nothing"}, False),
        ({"size": "big"}, False),
        ({"name": "novels/first"}, True),
        ({"name": "../novels"}, False),
        ({"name": "no\0vels"}, False),
        ({"name": "/novels"}, False),
        ({"name": ""}, False),
    ],
)
def test_limits_and_what_goes_together(options: dict[str, Any], fine: bool) -> None:
    if fine:
        PlanSettings(**options)
        return
    with pytest.raises(UsageError):
        PlanSettings(**options)


def test_a_machine_and_a_model_are_named_or_not() -> None:
    assert not PlanSettings().names_a_machine and not PlanSettings().names_a_model
    for field, value in (("ram", "8GiB"), ("vram", "8GiB"), ("cores", 2), ("tpu", True)):
        assert PlanSettings(**{field: value}).names_a_machine, field
    for field, value in (
        ("config_file", Path("c")), ("size", "5M"), ("target_params", 5), ("num_layers", 2),
        ("width", 64),
    ):  # fmt: skip
        assert PlanSettings(**{field: value}).names_a_model, field
    assert PlanSettings(tokens="5M").num_tokens == 5_000_000
    assert PlanSettings().num_tokens is None
    assert PlanSettings(name="a").replace(cores=3) == PlanSettings(name="a", cores=3)


def test_flags_go_over_the_config_file_and_nothing_by_default(tmp_path: Path) -> None:
    assert PlanSettings().training_options() == {}
    config = tmp_path / "c.json"
    config.write_text(json.dumps({"n_layer": 3, "batch_size": 5}))
    given = PlanSettings(config_file=config, batch_size=7, use_mixed_precision=True)
    options = {"num_layers": 3, "batch_size": 7, "use_mixed_precision": True}
    assert given.training_options() == options
    assert PlanSettings(size="5M").training_options() == {"target_params": 5_000_000}
    everything = {
        "target_params": 5,
        "layout": "gpt2",
        "seq_len": 8,
        "batch_size": 2,
        "gradient_accumulation_steps": 3,
        "optimizer": "adamw",
        "use_mixed_precision": True,
        "use_8bit_optimizer": True,
        "activation_checkpointing": True,
        "tokens_per_param": 4.0,
    }
    assert PlanSettings(**everything).training_options() == everything  # pyright: ignore
    shape = {"num_layers": 2, "width": 64, "num_heads": 2}
    assert PlanSettings(**shape).training_options() == shape
    with pytest.raises(UsageError, match="batch_size is 0"):
        PlanSettings(batch_size=0).training_options()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1), (1, 1), ("2k", 2000), ("2K", 2000), ("3m", 3 * 10**6),
        ("3M", 3 * 10**6), ("1.5B", 1_500_000_000), ("2g", 2 * 10**9), ("1T", 10**12),
        ("1_000", 1000), ("1,000", 1000), (" 7 ", 7), ("1e6", 10**6),
    ],
)  # fmt: skip
def test_counts_as_people_write_them(text: str | int, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "0", "-5", "0.4", "0.6", "M", "many", "1e999", "nan"])
def test_what_is_no_count_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"^size is '"):
        parse_count(text, "size")


def test_what_is_compared_by_default() -> None:
    assert CompareSettings(input=("a",)).pairs == ("tokenizer",)
    assert CompareSettings(what=("loading",)).pairs == ("loading",)
    assert {"loading", "checkpointing"} <= set(CompareSettings().pairs)
    with pytest.raises(UsageError, match="no input files"):
        CompareSettings(what=("tokenizer",))
    for options in ({"tokens": "x"}, {"size": "x"}):
        with pytest.raises(UsageError, match=f"^{next(iter(options))} is 'x'"):
            CompareSettings(**options)


@pytest.mark.parametrize("value", ["0GiB", "lots", "-8GiB"])
@pytest.mark.parametrize("field", ["vram", "disk", "link_speed"])
def test_a_size_that_is_none_is_named_by_its_flag(field: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"--{field.replace('_', '-')}: "):
        PlanSettings(**{field: value})  # type: ignore[arg-type]
