"""Weights for native code: held as they are stored, of every family, and as exact as ever."""

import json

import numpy as np
import pytest
import torch

from lowtide.errors import DataError, UsageError
from lowtide.files import write_json
from lowtide.model.arrayfiles import save_weights
from lowtide.model.config import GPTConfig
from lowtide.model.decoder import (
    LONG_PROMPT,
    PROMPT_ROWS,
    DecoderNetwork,
    DecoderSteps,
    turn_tables,
)
from lowtide.model.decoderweights import (
    NETWORKS,
    held_bytes,
    load_decoder,
    load_decoder_in_turns,
    turns_bytes,
)
from lowtide.model.families import FAMILIES
from lowtide.model.gpt import GPT, rotary_tables
from lowtide.model.rope import RopeScaling
from lowtide.model.rowcaches import open_steps
from lowtide.model.weights import load_model, portable_tensors

from .networks import make_model

DTYPES = {
    "float32": (torch.float32, 4),
    "bfloat16": (torch.bfloat16, 2),
    "float16": (torch.half, 2),
}


def save(folder, model, dtype, changed=()):
    folder.mkdir()
    write_json(folder / "config.json", model.config.to_huggingface())
    tensors = portable_tensors(model.state_dict(), model.config, dtype)
    tensors |= {name: tensors[name].float() for name in changed}
    save_weights(folder / "model.safetensors", tensors)
    return folder


def of_tensors(model, *, num_workers=None):
    arrays = {name: value.detach().numpy() for name, value in model.named_parameters()}
    return DecoderNetwork(model.config, arrays, num_workers=num_workers)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", FAMILIES)
def test_stored_numbers_give_the_logits_of_the_same_numbers_in_float32(layout, dtype, tmp_path):
    """To the bit: what is stored in two bytes is widened exactly, and sums are the same."""
    kind, item = DTYPES[dtype]
    folder = save(tmp_path / "model", make_model(layout), kind)
    network = load_decoder(folder)
    matrices = [w for name, w in network._weights.items() if name.endswith("output.weight")]
    assert {w.itemsize for w in matrices} == {item}
    held = sum(w.nbytes for w in network._weights.values())
    assert held_bytes(folder, network.config) == held
    ids = np.random.default_rng(0).integers(0, 61, LONG_PROMPT + 4).tolist()
    found, wide = DecoderSteps(network, 2), open_steps(load_model(folder), 2)
    for steps in (found, wide):
        steps.cache.reserve(32)
    assert np.array_equal(found.read({1: ids})[1], wide.read({1: ids})[1])
    assert np.array_equal(found.step([1], [5]), wide.step([1], [5]))
    whole = load_model(folder)(torch.tensor([[*ids, 5]]))[0, -1]
    torch.testing.assert_close(
        torch.from_numpy(
            found.network.step(found.cache, [1], [LONG_PROMPT + 4], [5], num_logits=1)[0]
        ),
        whole,
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", FAMILIES)
def test_layers_that_share_a_place_compute_the_same(layout, dtype, tmp_path):
    folder = save(tmp_path / "model", make_model(layout), DTYPES[dtype][0])
    whole, turns = load_decoder(folder), load_decoder_in_turns(folder)
    places = {w.ctypes.data: w.nbytes for w in turns._weights.values()}
    assert turns_bytes(folder, turns.config) == sum(places.values())
    assert sum(places.values()) < held_bytes(folder, whole.config)
    ids = np.random.default_rng(0).integers(0, 61, 20).tolist()
    both = DecoderSteps(whole, 2, prompt_rows=7), DecoderSteps(turns, 2, prompt_rows=7)
    for steps in both:
        steps.cache.reserve(32)
    first, second = (steps.read({1: ids, 0: ids[:3]}) for steps in both)
    assert all(np.array_equal(first[slot], second[slot]) for slot in (0, 1))
    first, second = (steps.step([1, 0], [5, 6]) for steps in both)
    assert np.array_equal(first, second)


def test_a_file_that_is_cut_while_layers_are_read_is_an_error(tmp_path):
    folder = save(tmp_path / "model", make_model("qwen3"), torch.float32)
    steps = DecoderSteps(load_decoder_in_turns(folder), 1)
    steps.read({0: [1, 2]})
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="cut short"):
        steps.step([0], [3])
    file.write_bytes(data)
    steps.step([0], [3])


def test_layers_are_those_of_the_file_that_was_there_at_first(tmp_path):
    """As when a run saves another checkpoint while a text is written."""
    folder = save(tmp_path / "model", make_model("qwen3"), torch.float32)
    known = DecoderSteps(load_decoder(folder), 1).read({0: [1, 2]})[0]
    steps = DecoderSteps(load_decoder_in_turns(folder), 1)
    other = make_model("qwen3")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    save(tmp_path / "other", other, torch.float32)
    (tmp_path / "other" / "model.safetensors").replace(folder / "model.safetensors")
    assert np.array_equal(steps.read({0: [1, 2]})[0], known)
    (folder / "model.safetensors").unlink()
    assert np.array_equal(steps.read({0: [1, 2]})[0], known)


def test_special_numbers_of_float16_are_widened_exactly(tmp_path):
    """The smallest, the largest, infinities and zeros of both signs."""
    model = make_model("llama")
    bits = np.array([0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x8000, 0x3555], "<u2")
    with torch.no_grad():
        model.embedding.weight[1, :9] = torch.from_numpy(bits.view("<f2").astype("<f4"))
    folder = save(tmp_path / "model", model, torch.half)
    network = load_decoder(folder)
    stored = network._weights["embedding.weight"]
    assert stored.dtype == np.float16 and np.array_equal(stored[1, :9].view("<u2"), bits)
    steps, wide = DecoderSteps(network, 1), open_steps(load_model(folder), 1)
    for each in (steps, wide):
        each.cache.reserve(8)
    with np.errstate(all="ignore"):
        assert np.array_equal(steps.read({0: [1]})[0], wide.read({0: [1]})[0], equal_nan=True)


def test_a_parameter_of_several_types_is_held_in_float32(tmp_path):
    model = make_model("llama")
    name = "model.layers.1.self_attn.k_proj.weight"
    folder = save(tmp_path / "model", model, torch.bfloat16, changed=[name])
    weights = load_decoder(folder)._weights
    assert weights["blocks.1.attention.query_key_value.weight"].dtype == np.float32
    assert weights["blocks.0.attention.query_key_value.weight"].dtype == np.uint16
    assert weights["blocks.0.attention_norm.weight"].dtype == np.float32


@pytest.mark.parametrize("size", [LONG_PROMPT - 1, 30])
@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("layout", FAMILIES)
def test_parts_of_a_prompt_change_no_bit(layout, num_workers, size):
    network = of_tensors(make_model(layout), num_workers=num_workers)
    ids = np.random.default_rng(0).integers(0, 61, size).tolist()
    found = []
    for rows in (PROMPT_ROWS, 13, 5, 1):
        steps = DecoderSteps(network, 1, prompt_rows=rows)
        found.append(steps.read({0: ids})[0])
        assert steps.cache.lengths == [size]
    assert all(np.array_equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("layout", FAMILIES)
def test_long_prompts_are_what_torch_computes(layout):
    model = make_model(layout)
    ids = np.random.default_rng(1).integers(0, 61, 31).tolist()
    for size in (LONG_PROMPT, 31):
        steps = DecoderSteps(of_tensors(model), 1)
        found = [steps.read({0: ids[:size]})[0], steps.step([0], [7])[0]]
        with torch.no_grad():
            wanted = model(torch.tensor([[*ids[:size], 7]]))[0, -2:]
        torch.testing.assert_close(torch.from_numpy(np.stack(found)), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [0, 40])
def test_late_tokens_of_a_prompt_take_no_more_memory(window):
    # A thread would need more than 4 MiB from token 1,900 on.
    options = {"sliding_window": window, "window_layers": [0]} if window else {}
    config = GPTConfig(61, 2048, 1, 16, 1, head_dim=256, layout="mistral", **options)
    model = GPT(config).eval()
    ids = np.random.default_rng(2).integers(0, 61, 2000).tolist()
    network = of_tensors(model)
    found = [DecoderSteps(network, 1, prompt_rows=rows).read({0: ids})[0] for rows in (256, 77)]
    assert np.array_equal(*found)
    with torch.no_grad():
        wanted = model(torch.tensor([ids]))[0, -1]
    torch.testing.assert_close(torch.from_numpy(found[0]), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scaling", [None, RopeScaling("linear", 2.0), RopeScaling("yarn", 4.0, 8)])
@pytest.mark.parametrize("layout", ["qwen3", "olmo2"])
def test_angles_are_torch_s(layout, scaling):
    config = make_model(layout, rope_scaling=scaling).config
    for ours, theirs in zip(turn_tables(config, 32), rotary_tables(config, 32), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=2e-6)


def test_only_the_cpu_computes(tmp_path):
    assert NETWORKS.open("auto") == NETWORKS.open("cpu")
    with pytest.raises(UsageError, match="computes on the CPU"):
        NETWORKS.open("cuda")


def test_weights_that_are_not_the_configs_are_refused_before_they_are_read(tmp_path):
    folder = save(tmp_path / "model", make_model("llama"), torch.bfloat16)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 7}))
    with pytest.raises(DataError, match=r"config\.json says"):
        load_decoder(folder)


@pytest.mark.parametrize("rows", [PROMPT_ROWS, 7, 3])
def test_prompts_read_at_once_are_what_they_are_alone(rows, tmp_path):
    network = load_decoder(save(tmp_path / "model", make_model("mistral"), torch.bfloat16))
    dice = np.random.default_rng(0)
    sizes = {2: 5, 0: 1, 1: 9, 4: LONG_PROMPT, 3: 30}
    prompts = {slot: dice.integers(0, 61, size).tolist() for slot, size in sizes.items()}
    together = DecoderSteps(network, 5, prompt_rows=rows)
    found = together.read(prompts)
    assert together.cache.lengths == [1, 9, 5, 30, LONG_PROMPT]
    for slot, ids in prompts.items():
        alone = DecoderSteps(network, 1, prompt_rows=rows)
        assert np.array_equal(alone.read({0: ids})[0], found[slot])
        assert np.array_equal(alone.step([0], [4]), together.step([slot], [4]))
