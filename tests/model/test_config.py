"""Shapes: checks, defaults, and transformers' way of writing them."""

import json

import numpy as np
import pytest

from lowtide.errors import DataError, UsageError
from lowtide.files import write_json
from lowtide.model.config import GPTConfig, find_weights_dir, load_config, padded_vocab_size
from lowtide.model.rope import RopeScaling


def test_defaults_follow_the_layout():
    qwen = GPTConfig(vocab_size=100, width=384, num_heads=6)
    assert (qwen.head_dim, qwen.num_kv_heads, qwen.mlp_width) == (64, 6, 1024)
    assert GPTConfig(vocab_size=100, width=384, num_heads=6, layout="gpt2").mlp_width == 1536


def test_best_weights_that_are_not_there_are_named(tmp_path):
    """They were taken for a tokenizer, or a file, that is missing."""
    assert find_weights_dir(tmp_path, best=False) == tmp_path
    with pytest.raises(DataError, match="this model has no best weights") as caught:
        find_weights_dir(tmp_path, best=True)
    assert caught.value.next_step == "leave --best out: the newest weights are used"
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "config.json").write_text("{}")
    assert find_weights_dir(tmp_path, best=True) == tmp_path / "best"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 100, "num_heads": 6}, "width is 100, expected a multiple of 6 heads"),
        ({"num_kv_heads": 4}, "num_kv_heads is 4, expected a divisor of num_heads"),
        ({"layout": "mamba"}, "layout is 'mamba', expected llama or mistral"),
        ({"layout": "mistral", "attention_bias": True}, "false in the mistral layout"),
        ({"layout": "qwen2", "mlp_bias": True}, "false in the qwen2 layout"),
        ({"layout": "llama", "sliding_window": 4}, "expected 0 in the llama layout"),
        ({"layout": "mistral", "window_layers": (6,)}, "window_layers is"),
        ({"num_layers": 0}, "num_layers is 0, expected at least 1"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"layout": "gpt2", "num_kv_heads": 3}, "expected num_heads in the gpt2 layout"),
        ({"layout": "gpt2", "tie_weights": False}, "expected true in the gpt2 layout"),
        ({"head_dim": 15}, "head_dim is 15, expected even"),
        ({"sliding_window": 4}, "window_layers is .., expected the layers with a sliding window"),
        ({"window_layers": (1,)}, "sliding_window is 0, expected at least 1, for its window_layer"),
        ({"sliding_window": 4, "window_layers": 1}, "window_layers is 1, expected numbers from 0"),
        ({"sliding_window": 4, "window_layers": (0.5,)}, "window_layers is .0.5,., expected num"),
        ({"rope_scaling": 2.0}, "rope_scaling is 2.0, expected a RopeScaling, or a dict of its"),
        ({"rope_scaling": {"rope_type": "linear"}}, "missing setting: factor"),
        ({"rope_scaling": {"rope_type": "linear", "factr": 2}}, "factr.* did you mean factor"),
        ({"tie_weights": "no"}, "tie_weights is 'no', expected True or False"),
        ({"layout": "llama", "mlp_bias": None}, "mlp_bias is None, expected True or False"),
    ],
)
def test_shapes_that_cannot_be_are_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        GPTConfig(vocab_size=100, **fields)


def test_parts_are_taken_as_config_json_has_them():
    scaling = {"rope_type": "linear", "factor": 2}
    config = GPTConfig(100, rope_scaling=scaling, tie_weights=np.bool_(False), layout="llama")
    assert config.rope_scaling == RopeScaling("linear", 2.0) and config.tie_weights is False
    assert GPTConfig(100, num_layers=3, layout="mistral", sliding_window=4).window_of(2) == 4
    config = GPTConfig(100, sliding_window=4, window_layers=np.array([3, 1, 3]))
    assert config.window_layers == (1, 3) and hash(config) == hash(config.replace())
    assert config.one_layer().window_layers == (0,) and config.one_layer().num_layers == 1
    assert GPTConfig(100).one_layer().window_layers == ()


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
    with pytest.raises(DataError, match="lowtide runs llama, mistral, qwen2, qwen3, olmo2 and gpt"):
        GPTConfig.from_huggingface({"model_type": "mamba"})
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(DataError, match="does not hold an object"):
        load_config(tmp_path)
    fields = GPTConfig(vocab_size=100).to_huggingface()
    del fields["model_type"]
    write_json(tmp_path / "config.json", fields)
    with pytest.raises(DataError, match="model_type is None; lowtide runs llama"):
        load_config(tmp_path)


ROPE = {"rope_theta": 10000.0, "factor": 4.0}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_parameters": {"rope_type": "longrope", **ROPE}}, "rope_type is 'longrope'"),
        ({"rope_scaling": {"type": "dynamic", **ROPE}, "rope_parameters": None}, "'dynamic'"),
        (
            {"rope_parameters": {"rope_type": "yarn", **ROPE, "mscale": -9, "mscale_all_dim": 1}},
            "mscale of rope_parameters is -9, expected more than 0",
        ),
        ({"rope_parameters": {"rope_type": "yarn", **ROPE, "mscale": "1"}}, "expected a number"),
        (
            {"rope_parameters": {"rope_type": "yarn", **ROPE, "attention_factor": 0.0}},
            "attention_factor of rope_parameters is 0.0, expected more than 0",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "from layer to layer"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected silu"),
        ({"quantization_config": {"bits": 4}}, "fewer bits than lowtide reads"),
        ({"layer_types": ["linear"], "use_sliding_window": True}, "layer_types"),
    ],
)
def test_networks_that_would_be_computed_wrongly_are_refused(fields, message, tmp_path):
    known = GPTConfig(vocab_size=100, layout="qwen2").to_huggingface()
    write_json(tmp_path / "config.json", {**known, **fields})
    with pytest.raises(DataError, match=message) as caught:
        load_config(tmp_path)
    assert caught.value.path == tmp_path / "config.json" and caught.value.next_step


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_parameters": {"rope_type": "llama3", "factor": 0.0}},
        {"rope_parameters": {"rope_type": "llama3", "factor": "8"}},
        {"rope_parameters": {"rope_type": "llama3"}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": [1]}},
        {"rope_parameters": {"rope_type": "llama3", "factor": 2, "high_freq_factor": 1}},
        {"tie_word_embeddings": "false"},
        {"attention_bias": 1},
        {"num_hidden_layers": 1 << 40},
    ],
)
def test_values_that_mean_nothing_name_the_file(fields, tmp_path):
    known = GPTConfig(vocab_size=100, layout="llama").to_huggingface()
    write_json(tmp_path / "config.json", {**known, **fields})
    with pytest.raises(DataError, match="does not describe a network") as caught:
        load_config(tmp_path)
    assert caught.value.path == tmp_path / "config.json"


def test_only_large_vocabularies_are_padded():
    assert [padded_vocab_size(n) for n in (65, 1023, 1024, 50257)] == [65, 1023, 1024, 50304]


@pytest.mark.parametrize("cap", [0.0, 0.5, 30.0])
def test_a_cap_of_logits_is_any_size(cap):
    assert GPTConfig(vocab_size=100, layout="tide", logit_cap=cap).cap == cap


@pytest.mark.parametrize("cap", [-0.5, float("inf"), float("nan")])
def test_a_cap_that_is_none_is_refused(cap):
    with pytest.raises(UsageError, match="logit_cap is"):
        GPTConfig(vocab_size=100, layout="tide", logit_cap=cap)


def test_numbers_of_numpy_are_taken_as_numbers():
    """`ids.max() + 1` of uint16 ids overflowed in the first product, and config.json had none."""
    config = GPTConfig(
        vocab_size=np.uint16(100), context_length=np.int64(16), num_layers=np.int8(1),
        width=np.int32(32), num_heads=np.array(2), dropout=np.float32(0.5),
    )  # fmt: skip
    plain = GPTConfig(100, 16, 1, 32, 2, dropout=0.5)
    assert config == plain and config.replace(width=np.int64(32)) == plain
    assert json.dumps(config.to_huggingface()) == json.dumps(plain.to_huggingface())


@pytest.mark.parametrize(
    ("name", "value"),
    [("vocab_size", "100"), ("vocab_size", 100.0), ("num_layers", True), ("width", None),
     ("dropout", "0.1"), ("norm_eps", None), ("width", np.array([32])), ("width", np.float32(32))],
)  # fmt: skip
def test_what_is_no_number_is_named(name, value):
    with pytest.raises(UsageError, match=f"{name} is .*, expected a"):
        GPTConfig(**{"vocab_size": 100, name: value})
