"""Families: networks of transformers give the same logits and the same greedy text here."""

import json

import pytest
import torch
from safetensors.torch import load_file

from lowtide.generation.settings import SamplingSettings
from lowtide.model.config import GPTConfig, load_config
from lowtide.model.families import FAMILIES
from lowtide.model.gpt import GPT
from lowtide.model.sizing import count_parameters
from lowtide.model.tensors import portable_shapes
from lowtide.model.weights import load_model, portable_tensors

from ..generation.tokens import iter_tokens

transformers = pytest.importorskip("transformers")

GREEDY = SamplingSettings(temperature=0, repetition_penalty=1)
SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
MODELS = {
    "llama": ("llama", {}),
    "llama_tied": ("llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    "llama3": ("llama", {"rope_parameters": LLAMA3, "num_key_value_heads": 1}),
    "llama_linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0}}),
    "llama_biases": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    "mistral": ("mistral", {"sliding_window": 7}),
    "mistral_whole": ("mistral", {"sliding_window": None}),
    # As Ministral 8B is published: transformers gives only some layers the window.
    "mistral_some": (
        "mistral",
        {
            "sliding_window": 7,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "ministral": (
        "ministral",
        {
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "head_dim": 16,
        },
    ),
    "ministral_window": ("ministral", {"sliding_window": 7, "head_dim": 8}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2_window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen2_yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen2_mscale": ("qwen2", {"rope_parameters": {**YARN, "mscale": 0.7}}),
    "qwen2_mscales": (
        "qwen2",
        {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3}},
    ),
    "qwen2_attention_factor": (
        "qwen2",
        {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 3, "attention_factor": 1.2}},
    ),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3_window": (
        "qwen3",
        {
            "head_dim": 8,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "olmo2": ("olmo2", {}),
    "olmo2_biases": ("olmo2", {"attention_bias": True, "tie_word_embeddings": True}),
    "gpt2": ("gpt2", {}),
}
GPT2_SHAPE = {"vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}


def make_peer(name, folder, **saving):
    kind, fields = MODELS[name]
    shape = GPT2_SHAPE if kind == "gpt2" else SHAPE
    config = transformers.AutoConfig.for_model(kind, **{**shape, **fields}, eos_token_id=3)
    torch.manual_seed(11)
    peer = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # gains and biases too, so that a mix-up of any two shows
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    peer.save_pretrained(folder, **saving)
    if kind == "mistral" and "layer_types" in fields:  # the class that loading chooses
        return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    return peer


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_text_are_those_of_transformers(name, tmp_path):
    peer = make_peer(name, tmp_path)
    model = load_model(tmp_path)
    ids = torch.randint(61, (2, 60), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(model(ids), peer(ids).logits, rtol=1e-4, atol=1e-4)
    prompt = ids[:1, :12]
    wanted = peer.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=40,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens = iter_tokens(model, prompt[0].tolist(), max_new_tokens=40, sampling=GREEDY)
    assert [int(step) for step in tokens] == wanted[0, 12:].tolist()


@pytest.mark.parametrize("name", ["llama3", "qwen2_yarn"])
def test_a_context_outside_of_the_scaling_counts_as_in_transformers(name, tmp_path):
    make_peer(name, tmp_path)
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "original_max_position_embeddings": 32}))
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.arange(60)[None]
    with torch.inference_mode():
        torch.testing.assert_close(
            load_model(tmp_path)(ids), peer(ids).logits, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_is_what_was_read(name, tmp_path):
    make_peer(name, tmp_path)
    config = load_config(tmp_path)
    assert config.others.get("eos_token_id") == 3
    again = GPTConfig.from_huggingface(config.to_huggingface())
    assert again == config and again.others == config.others
    assert sum(t.numel() for t in GPT(config).parameters()) == count_parameters(config)
    stored = load_file(tmp_path / "model.safetensors")
    assert {name: tuple(t.shape) for name, t in stored.items()} == portable_shapes(config)
    for name, tensor in portable_tensors(load_model(tmp_path).state_dict(), config).items():
        assert torch.equal(tensor, stored[name]), name


@pytest.mark.parametrize(
    "name", ["llama3", "mistral", "mistral_some", "ministral", "qwen2_window", "olmo2"]
)
def test_transformers_reads_what_we_write(name, tmp_path):
    peer = make_peer(name, tmp_path)
    config = load_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config.to_huggingface()))
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.arange(50)[None]
    with torch.inference_mode():
        torch.testing.assert_close(again(ids).logits, peer(ids).logits)


@pytest.mark.parametrize("layout", FAMILIES)
def test_every_family_learns_and_decodes_as_it_computes_whole_rows(layout):
    layers = {"none": (), "some": (1,), "all": (0, 1)}[FAMILIES[layout].windows]
    config = GPTConfig(
        61, 32, 2, 32, 4, layout=layout, sliding_window=5 if layers else 0, window_layers=layers
    )
    torch.manual_seed(0)
    model = GPT(config)
    ids = torch.randint(61, (2, 21))
    loss = model(ids[:, :-1], ids[:, 1:])
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    before = loss.item()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    assert model(ids[:, :-1], ids[:, 1:]).item() < before


def test_configs_of_version_4_mean_the_same(tmp_path):
    make_peer("llama3", tmp_path)
    new = json.loads((tmp_path / "config.json").read_text())
    rope = new.pop("rope_parameters")
    old = {**new, "rope_theta": rope.pop("rope_theta"), "torch_dtype": "float32"}
    old["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    old.pop("dtype", None)
    assert GPTConfig.from_huggingface(old) == load_config(tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in_several_files_is_read(dtype, tmp_path):
    kind, fields = MODELS["llama"]
    config = transformers.AutoConfig.for_model(kind, **{**SHAPE, **fields})
    peer = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    peer.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    model = load_model(tmp_path)
    ids = torch.arange(40)[None]
    with torch.inference_mode():
        torch.testing.assert_close(model(ids), peer.float()(ids).logits, rtol=1e-4, atol=1e-4)
