"""Tensors go from file to file in pieces: the same bytes as the library writes, in any type."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lowtide.errors import DataError
from lowtide.model import tensorfiles
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.tensorfiles import copy_tensors
from lowtide.model.tensors import portable_shapes
from lowtide.model.weights import portable_tensors

SHAPE = {"vocab_size": 96, "context_length": 16, "num_layers": 2, "width": 32, "num_heads": 4}
CONFIGS = {
    "qwen3": GPTConfig(**SHAPE, num_kv_heads=2),
    "untied": GPTConfig(**SHAPE, tie_weights=False),
    "gpt2": GPTConfig(**SHAPE, layout="gpt2"),
}
KINDS = ["float32", "float16", "bfloat16"]


@pytest.mark.parametrize("name", CONFIGS)
def test_shapes_are_those_of_the_network(name):
    tensors = portable_tensors(GPT(CONFIGS[name]).state_dict(), CONFIGS[name])
    assert portable_shapes(CONFIGS[name]) == {k: tuple(v.shape) for k, v in tensors.items()}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("stored", [*KINDS, "float64"])
@pytest.mark.parametrize("wanted", KINDS)
def test_the_file_is_the_librarys_byte_for_byte(name, stored, wanted, tmp_path):
    torch.manual_seed(0)
    config = CONFIGS[name]
    state = GPT(config).state_dict()
    nasty = torch.tensor([0.0, -0.0, 1e30, -1e30, 65520.0, 1e-8, 1.00390625, 1.01171875])
    next(iter(state.values()))[0, : len(nasty)] = nasty
    tensors = portable_tensors(state, config, getattr(torch, stored))
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    save_file(tensors, tmp_path / "from" / "model.safetensors", metadata={"format": "pt"})
    counted = []
    out = tmp_path / "to" / "model.safetensors"
    copy_tensors(
        tmp_path / "from",
        out,
        config=config,
        dtype=wanted,
        on_bytes=counted.append,
        piece_numbers=100,  # many pieces a tensor
    )
    through = {k: v.float().to(getattr(torch, wanted)) for k, v in tensors.items()}
    save_file(through, tmp_path / "expected", metadata={"format": "pt"})
    assert out.read_bytes() == (tmp_path / "expected").read_bytes()
    assert sum(counted) == sum(v.numel() * v.element_size() for v in through.values())


def test_what_is_not_a_number_stays_so():
    numbers = np.array([np.nan, -np.nan, np.inf, -np.inf], "<f4").tobytes()
    wide = np.frombuffer(tensorfiles._convert(numbers, "F32", "BF16"), "<u2").astype("<u4") << 16
    assert np.isnan(wide.view("<f4")[:2]).all() and np.isinf(wide.view("<f4")[2:]).all()


def test_damage_is_told(tmp_path):
    config = CONFIGS["qwen3"]
    path = tmp_path / "model.safetensors"
    tensors = portable_tensors(GPT(config).state_dict(), config)
    save_file(tensors, path)
    whole = path.read_bytes()
    cases = {
        "beyond the file": whole[:-100],
        "the weights have 20 bytes": whole[:20],
        "not a readable": whole[:8] + b"?" + whole[9:],
        "lack model.norm.weight": whole.replace(b"model.norm.weight", b"model.nrom.weight"),
        "of type I32": whole.replace(b'"F32"', b'"I32"', 1),
        "a header of": b"\xff" * 8 + whole[8:],
    }
    for message, data in cases.items():
        path.write_bytes(data)
        with pytest.raises(DataError, match=message):
            copy_tensors(tmp_path, tmp_path / "out", config=config, dtype="float32")
    path.write_bytes(whole)
    with pytest.raises(DataError, match=r"is \(96, 32\), config.json says \(97, 32\)"):
        other = config.replace(vocab_size=97)
        copy_tensors(tmp_path, tmp_path / "out", config=other, dtype="float32")
    assert not (tmp_path / "out").exists()


def test_tensors_in_several_files_are_found(tmp_path):
    config = CONFIGS["gpt2"]
    tensors = portable_tensors(GPT(config).state_dict(), config)
    names = sorted(tensors)
    files = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(names)}
    for file in set(files.values()):
        save_file({n: tensors[n] for n in names if files[n] == file}, tmp_path / file)
    index = {"weight_map": files}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    copy_tensors(tmp_path, tmp_path / "out", config=config, dtype="float32")
    save_file(tensors, tmp_path / "expected", metadata={"format": "pt"})
    assert (tmp_path / "out").read_bytes() == (tmp_path / "expected").read_bytes()


def test_gits_pointer_to_the_weights_is_named(tmp_path):
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 999\n"
    (tmp_path / "model.safetensors").write_text(pointer)
    with pytest.raises(DataError, match="Git's pointer") as caught:
        copy_tensors(tmp_path, tmp_path / "out", config=CONFIGS["qwen3"], dtype=None)
    assert "git lfs pull" in (caught.value.next_step or "")
