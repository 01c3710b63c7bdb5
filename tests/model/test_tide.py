"""What a block of the tide layout has beyond others: by number, and as the network has it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lowtide.errors import LowtideError, UsageError
from lowtide.model import tide
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.tide import added_tensors, num_gate_inputs

CONFIG = GPTConfig(
    vocab_size=11, context_length=8, num_layers=3, width=48, num_heads=6, num_kv_heads=3,
    layout="tide",
)  # fmt: skip
PLAIN = {"layout": "qwen3", "logit_cap": 0.0, "without_own_values": False}
IN_ALL = {
    "mix": (2,),
    "attention.head_gate.weight": (6, 32),
    "attention.head_gate.bias": (6,),
}
IN_SECOND = {
    "attention.start_values.weight": (24, 48),
    "attention.value_gate.weight": (3, 32),
    "attention.value_gate.bias": (3,),
}


def test_every_second_block_sees_the_embedding_again() -> None:
    found = [{one.name: one.shape for one in added_tensors(CONFIG, layer)} for layer in range(4)]
    assert found == [IN_ALL, IN_ALL | IN_SECOND] * 2
    assert num_gate_inputs(CONFIG.replace(width=24)) == 24
    plain = CONFIG.replace(**PLAIN)
    assert [added_tensors(plain, layer) for layer in range(2)] == [[], []]


def test_the_network_has_what_is_counted() -> None:
    weights = {name: tuple(value.shape) for name, value in GPT(CONFIG).named_parameters()}
    plain = GPT(CONFIG.replace(**PLAIN))
    others = {name for name, _ in plain.named_parameters()}
    added = {
        f"blocks.{layer}.{one.name}": one.shape
        for layer in range(3) for one in added_tensors(CONFIG, layer)
    }  # fmt: skip
    assert {name: shape for name, shape in weights.items() if name not in others} == added


def test_names_in_files_are_those_of_the_modelling_file() -> None:
    names = [one.portable_name for one in added_tensors(CONFIG, 1)]
    assert names == [
        "mix", "self_attn.head_gate.weight", "self_attn.head_gate.bias",
        "self_attn.start_v_proj.weight", "self_attn.value_gate.weight", "self_attn.value_gate.bias",
    ]  # fmt: skip


def test_a_config_without_fields_has_the_defaults_of_the_modelling_file() -> None:
    """By its syntax: transformers alone imports it."""
    tree = ast.parse((Path(tide.__file__).parent / "modeling_tide.py").read_text())
    config = next(node for node in tree.body if getattr(node, "name", "") == "TideConfig")
    made = next(node for node in ast.walk(config) if getattr(node, "name", "") == "__init__")
    assert isinstance(made, ast.FunctionDef)
    names = [one.arg for one in made.args.args[1:]]
    values = [ast.literal_eval(one) for one in made.args.defaults]
    assert dict(zip(names, values, strict=True)) == {
        "vocab_size": 50304, "max_position_embeddings": 1024, "num_hidden_layers": 12,
        "hidden_size": 768, "num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 128,
        "intermediate_size": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "final_logit_softcapping": 0.0, "without_own_values": False,
    }  # fmt: skip


def test_a_folder_says_whether_own_values_count_and_in_one_from_before_they_do() -> None:
    assert CONFIG.without_own_values is True
    fields = CONFIG.to_huggingface()
    assert fields["without_own_values"] is True
    assert GPTConfig.from_huggingface(fields) == CONFIG
    del fields["without_own_values"]
    assert GPTConfig.from_huggingface(fields) == CONFIG.replace(without_own_values=False)
    with pytest.raises(LowtideError, match="without_own_values is 1, expected true or false"):
        GPTConfig.from_huggingface({**fields, "without_own_values": 1})
    plain = CONFIG.replace(**PLAIN)
    assert "without_own_values" not in plain.to_huggingface()
    with pytest.raises(UsageError, match="without_own_values is True, expected false in the qwen3"):
        plain.replace(without_own_values=True)
