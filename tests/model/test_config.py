"""Shapes: checks, defaults, and transformers' way of writing them."""

import pytest

from lowtide.errors import DataError, UsageError
from lowtide.model.config import GPTConfig, load_config, padded_vocab_size


def test_defaults_follow_the_layout():
    qwen = GPTConfig(vocab_size=100, width=384, num_heads=6)
    assert (qwen.head_dim, qwen.num_kv_heads, qwen.mlp_width) == (64, 6, 1024)
    assert GPTConfig(vocab_size=100, width=384, num_heads=6, layout="gpt2").mlp_width == 1536


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 100, "num_heads": 6}, "width is 100, expected a multiple of 6 heads"),
        ({"num_kv_heads": 4}, "num_kv_heads is 4, expected a divisor of num_heads"),
        ({"layout": "llama"}, "layout is 'llama', expected qwen3, gpt2 or tide"),
        ({"num_layers": 0}, "num_layers is 0, expected at least 1"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"layout": "gpt2", "num_kv_heads": 3}, "expected num_heads in the gpt2 layout"),
        ({"layout": "gpt2", "tie_weights": False}, "expected true in the gpt2 layout"),
        ({"head_dim": 15}, "head_dim is 15, expected even"),
    ],
)
def test_shapes_that_cannot_be_are_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        GPTConfig(vocab_size=100, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_kv_heads": 2, "head_dim": 32, "dropout": 0.1, "rope_theta": 1e6},
        {"tie_weights": False, "mlp_width": 100},
        {"layout": "gpt2", "dropout": 0.2, "norm_eps": 1e-5},
    ],
)
def test_config_json_gives_the_same_shape_back(fields):
    config = GPTConfig(vocab_size=100, **fields)
    assert GPTConfig.from_huggingface(config.to_huggingface()) == config


def test_configs_of_other_kinds_are_refused(tmp_path):
    with pytest.raises(DataError, match="lowtide runs qwen3 and gpt2"):
        GPTConfig.from_huggingface({"model_type": "mamba"})
    qwen = GPTConfig(vocab_size=100).to_huggingface()
    with pytest.raises(DataError, match="attention_bias"):
        GPTConfig.from_huggingface({**qwen, "attention_bias": True})
    with pytest.raises(DataError, match="rope_type is 'yarn'"):
        GPTConfig.from_huggingface({**qwen, "rope_parameters": {"rope_type": "yarn"}})
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(DataError, match="does not hold an object"):
        load_config(tmp_path)


def test_only_large_vocabularies_are_padded():
    assert [padded_vocab_size(n) for n in (65, 1023, 1024, 50257)] == [65, 1023, 1024, 50304]
