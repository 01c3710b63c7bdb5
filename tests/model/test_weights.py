"""Weights: transformers computes the same logits from what we write, and we from what it writes."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lowtide.errors import DataError
from lowtide.files import write_json
from lowtide.model import weights
from lowtide.model.arrayfiles import save_weights
from lowtide.model.config import GPTConfig
from lowtide.model.families import FAMILIES
from lowtide.model.gpt import GPT
from lowtide.model.inference import in_turns_bytes
from lowtide.model.weights import TensorFile, load_in_turns, load_model, portable_tensors

from .networks import make_model

SHAPES = {
    "qwen3": {"num_kv_heads": 2, "head_dim": 16, "tie_weights": True},
    "qwen3_untied": {"tie_weights": False, "rope_theta": 5000.0},
    "gpt2": {"layout": "gpt2", "norm_eps": 1e-5},
}


def config_of(shape):
    fields = {"vocab_size": 61, "context_length": 24, "num_layers": 2, "width": 32, "num_heads": 4}
    return GPTConfig(**fields, **SHAPES[shape])


def random_model(shape):
    torch.manual_seed(0)
    model = GPT(config_of(shape)).eval()
    with torch.no_grad():  # gains and biases too, so that a mix-up of any two shows
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def write(model, folder):
    write_json(folder / "config.json", model.config.to_huggingface())
    save_weights(folder / "model.safetensors", portable_tensors(model.state_dict(), model.config))


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_come_back_bit_for_bit(shape, tmp_path):
    model = random_model(shape)
    write(model, tmp_path)
    again = load_model(tmp_path)
    assert again.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


@pytest.mark.parametrize("shape", SHAPES)
def test_transformers_gives_the_same_logits(shape, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = random_model(shape)
    write(model, tmp_path)
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.randint(61, (2, 24))
    with torch.inference_mode():
        torch.testing.assert_close(model(ids), peer(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_folder_of_transformers_loads(shape, tmp_path):
    transformers = pytest.importorskip("transformers")
    fields = config_of(shape).to_huggingface()
    peer_config = transformers.AutoConfig.for_model(**fields)
    torch.manual_seed(3)
    peer = transformers.AutoModelForCausalLM.from_config(peer_config).eval()
    peer.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    ids = torch.randint(61, (2, 24))
    with torch.inference_mode():
        torch.testing.assert_close(model(ids), peer(ids).logits, rtol=1e-4, atol=1e-4)


def test_published_gpt2_names_without_prefix_load(tmp_path):
    model = random_model("gpt2")
    write_json(tmp_path / "config.json", model.config.to_huggingface())
    tensors = portable_tensors(model.state_dict(), model.config)
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 24, 24)
    save_weights(tmp_path / "model.safetensors", bare)
    ids = torch.randint(61, (1, 8))
    assert torch.equal(load_model(tmp_path)(ids), model(ids))


def test_errors_name_the_folder_and_the_tensor(tmp_path):
    model = random_model("qwen3")
    write_json(tmp_path / "config.json", model.config.to_huggingface())
    with pytest.raises(DataError, match=r"no model\.safetensors"):
        load_model(tmp_path)
    tensors = portable_tensors(model.state_dict(), model.config)
    del tensors["model.norm.weight"]
    save_weights(tmp_path / "model.safetensors", tensors)
    with pytest.raises(DataError, match=r"lack model\.norm\.weight"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors" * 10_000)
    (tmp_path / "checksums.json").unlink()  # as other programs' folders are
    with pytest.raises(DataError, match="not a readable safetensors file"):
        load_model(tmp_path)
    write_json(tmp_path / "config.json", {"model_type": "mamba"})
    with pytest.raises(DataError, match="lowtide runs llama, mistral"):
        load_model(tmp_path)


def test_a_tensor_of_another_shape_is_refused(tmp_path):
    model = random_model("qwen3")
    write(model, tmp_path)
    write_json(tmp_path / "config.json", model.config.replace(vocab_size=62).to_huggingface())
    with pytest.raises(DataError, match=r"is \(61, 32\), config.json says \(62, 32\)"):
        load_model(tmp_path)


def test_weights_may_be_read_by_whom_other_files_may(tmp_path):
    before = os.umask(0o027)
    try:
        save_weights(tmp_path / "model.safetensors", {"x": torch.zeros(2)})
    finally:
        os.umask(before)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o640


def test_files_are_the_librarys_byte_for_byte(tmp_path):
    """Written out of the tensors' own memory: scalars, and tensors without a number, too."""
    torch.manual_seed(0)
    tensors = {
        "b.whole": torch.randint(255, (3, 5), dtype=torch.uint8),
        "a.wide": torch.randn(7, 4).t(),
        "c.half": torch.randn(9).bfloat16(),
        "d.step": torch.tensor(3.0),
        "e.empty": torch.empty(0, 4),
        "0.long": torch.arange(5),
    }
    save_weights(tmp_path / "ours.safetensors", tensors)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    ours, theirs = ((tmp_path / f"{n}.safetensors").read_bytes() for n in ("ours", "theirs"))
    assert load_file(tmp_path / "ours.safetensors").keys() == tensors.keys()
    assert ours == theirs


def test_a_folder_that_was_found_whole_is_not_compared_again(tmp_path, monkeypatch):
    model = GPT(GPTConfig(vocab_size=64, context_length=8, num_layers=1, width=16, num_heads=1))
    write_json(tmp_path / "config.json", model.config.to_huggingface())
    tensors = portable_tensors(model.state_dict(), model.config)
    save_weights(tmp_path / "model.safetensors", tensors)
    monkeypatch.setattr(weights, "verify_folder", lambda folder: pytest.fail("read twice"))
    load_model(tmp_path)


def test_a_name_that_is_no_text_is_opened_by_its_descriptor(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.safetensors"))
    save_file({"a": torch.arange(3.0), "b": torch.zeros(2)}, tmp_path / "plain.safetensors")
    (tmp_path / "plain.safetensors").rename(path)
    file = TensorFile(path)
    assert sorted(file) == ["a", "b"] and len(file) == 2
    assert file["a"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("layout", FAMILIES)
def test_a_network_whose_blocks_are_read_in_turns_computes_the_same(layout, tmp_path):
    model = make_model(layout)
    write(model, tmp_path)
    whole, turns = load_model(tmp_path), load_in_turns(tmp_path)
    ids = torch.randint(61, (2, 20), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        for rows in (ids, ids.flip(1), ids[:1, :7]):
            assert torch.equal(turns(rows), whole(rows))
            assert torch.equal(turns(rows, rows), whole(rows, rows))
    places = {p.data_ptr(): 4 * p.numel() for p in turns.parameters()}
    held, all_of_it = sum(places.values()), sum(4 * p.numel() for p in whole.parameters())
    assert held <= in_turns_bytes(model.config) < all_of_it
    if layout != "tide":
        assert held == pytest.approx(in_turns_bytes(model.config), rel=0.01)


def test_blocks_are_those_of_the_file_that_was_there_at_first(tmp_path):
    """As when a run saves another checkpoint while a model is evaluated."""
    model = make_model("qwen3")
    write(model, tmp_path)
    turns, ids = load_in_turns(tmp_path), torch.arange(9)[None]
    with torch.no_grad():
        known = turns(ids)
        for parameter in model.parameters():
            parameter.add_(1.0)
    other = tmp_path / "other.safetensors"
    save_weights(other, portable_tensors(model.state_dict(), model.config))
    other.replace(tmp_path / "model.safetensors")
    with torch.no_grad():
        assert torch.equal(turns(ids), known)


def test_damaged_weights_are_not_read_in_turns(tmp_path):
    write(make_model("qwen3"), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"none")
    with pytest.raises(DataError):
        load_in_turns(tmp_path)
