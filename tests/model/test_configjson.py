"""What config.json says of every family, and what is read where it says less or something else.

The table beside this file holds both. Where a field is meant to change,
`python tests/model/test_configjson.py` writes it anew; its diff shows what changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lowtide.errors import LowtideError
from lowtide.model.config import GPTConfig
from lowtide.model.families import FAMILIES
from lowtide.model.rope import RopeScaling
from lowtide.settings import settings_as_json

TABLE = Path(__file__).with_name("configs.json")
SCALINGS = {
    "plain": None,
    "linear": RopeScaling("linear", 2.0),
    "llama3": RopeScaling("llama3", 8.0, 64, 1.5, 3.5),
    "yarn": RopeScaling("yarn", 4.0, 64, beta_fast=30.0, beta_slow=2.0),
    "yarn, factor": RopeScaling("yarn", 4.0, 64, attention_factor=1.25, truncate=False),
}
# What other programs write, and what nobody should.
OTHERS: list[dict[str, Any]] = [
    {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 3.0}},
    {"rope_parameters": None, "rope_scaling": {"rope_type": "yarn", "factor": 3.0}},
    {"rope_parameters": {"rope_type": "llama3", "factor": 8.0},
     "original_max_position_embeddings": 99},
    {"rope_parameters": {"rope_type": "yarn", "factor": "8"}},
    {"rope_parameters": {"rope_type": "yarn", "factor": 8.0, "mscale": 1.0}},
    {"rope_parameters": {"rope_type": "dynamic", "factor": 8.0}},
    {"rope_parameters": {"rope_theta": 777.0}},
    {"rope_parameters": {"full": {"rope_theta": 1.0}}},
    {"rope_parameters": [1]},
    {"partial_rotary_factor": 0.5},
    {"partial_rotary_factor": 1.0},
    {"sliding_window": 7, "use_sliding_window": True, "layer_types": None, "max_window_layers": 1},
    {"sliding_window": 7, "use_sliding_window": True, "layer_types": None, "max_window_layers": 9},
    {"sliding_window": 7, "use_sliding_window": True, "layer_types": ["full_attention"] * 3},
    {"sliding_window": 7, "use_sliding_window": True, "layer_types": ["full_attention"] * 2},
    {"sliding_window": 7, "use_sliding_window": True,
     "layer_types": ["full_attention", "odd", "sliding_attention"]},
    {"sliding_window": 7, "use_sliding_window": False},
    {"sliding_window": None, "use_sliding_window": True},
    {"num_hidden_layers": "3"},
    {"num_hidden_layers": 1 << 20, "sliding_window": 7},
    {"hidden_act": "relu"}, {"activation_function": "relu"}, {"tie_word_embeddings": None},
    {"scale_attn_by_inverse_layer_idx": True}, {"add_cross_attention": True},
    {"scale_attn_weights": False}, {"scale_attn_weights": True}, {"n_inner": None},
    {"quantization_config": {"bits": 4}}, {"model_type": "mamba"}, {"hidden_act": "swish"},
    {"use_sliding_window": "yes"}, {"head_dim": True}, {"vocab_size": "100"},
    {"num_key_value_heads": None}, {"head_dim": None}, {"mlp_bias": True}, {"attention_bias": True},
    # As model cards tell to add it to a file of version 5, with and without the base outside.
    {"rope_theta": 777.0, "rope_parameters": {"rope_type": "default", "rope_theta": 777.0},
     "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 48}},
    {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 777.0},
     "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 48}},
]  # fmt: skip


def make_config(layout: str, scaling: str = "plain") -> GPTConfig:
    """A model of a family with all that it may have."""
    family = FAMILIES[layout]
    windows = {} if family.windows == "none" else {"sliding_window": 5, "window_layers": (1, 2)}
    if family.windows == "all":
        windows["window_layers"] = (0, 1, 2)
    return GPTConfig(
        100, 48, 3, 32, 4, layout=layout, dropout=0.1, rope_scaling=SCALINGS[scaling],
        norm_eps=family.default_eps, num_kv_heads=4 if family.plain_heads else 2,
        tie_weights=family.plain_heads, attention_bias=family.qkv_bias is None,
        mlp_bias=family.mlp_bias is None, **windows,
    )  # fmt: skip


def read(fields: dict[str, Any], usual: dict[str, Any]) -> Any:
    """What is read, as far as it is not as usual; or what is said."""
    try:
        found = settings_as_json(GPTConfig.from_huggingface(fields))
    except LowtideError as error:
        return error.message
    except KeyError as error:  # which whoever reads a file tells with its name
        return f"no {error}"
    return {name: value for name, value in found.items() if usual[name] != value}


def rows() -> Iterator[tuple[str, Any]]:
    for layout in FAMILIES:
        config = make_config(layout)
        fields, usual = config.to_huggingface(), settings_as_json(config)
        yield f"{layout}: fields", fields
        for name in fields:
            without = {key: value for key, value in fields.items() if key != name}
            yield f"{layout} without {name}", read(without, usual)
        for number, other in enumerate(OTHERS):
            yield f"{layout} with other fields, {number}", read({**fields, **other}, usual)
    config = make_config("gpt2")
    bare = {k: v for k, v in config.to_huggingface().items() if k not in ("n_positions", "n_ctx")}
    yield "gpt2 without a context", read(bare, settings_as_json(config))
    for name in SCALINGS:
        yield f"rotary positions, {name}", make_config("llama", name).to_huggingface()
    no_windows = {"sliding_window": 0, "window_layers": ()}
    for layout in ("mistral", "qwen2"):
        yield (
            f"{layout} without windows",
            make_config(layout).replace(**no_windows).to_huggingface(),
        )


def compute() -> dict[str, Any]:
    return json.loads(json.dumps(dict(rows())))


@pytest.mark.parametrize("layout", FAMILIES)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_what_is_written_is_read(layout: str, scaling: str) -> None:
    if FAMILIES[layout].plain_heads and scaling != "plain":
        return  # it has no rotary positions
    config = make_config(layout, scaling)
    assert GPTConfig.from_huggingface(config.to_huggingface()) == config


def test_every_field_says_what_it_said() -> None:
    found, known = compute(), json.loads(TABLE.read_text())
    assert list(found) == list(known)
    for name, row in known.items():
        assert found[name] == row, f"{name} ({__doc__})"


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in compute().items())
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
