"""The network of a run as Python loads it: where it is put."""

import pytest
import torch

from lowtide import GPT, GPTConfig, load_model
from lowtide.errors import UsageError
from lowtide.files import write_json
from lowtide.model.arrayfiles import save_weights
from lowtide.model.weights import portable_tensors


def test_a_model_is_loaded_onto_a_device_that_is_there(tmp_path):
    config = GPTConfig(vocab_size=30, context_length=8, num_layers=1, width=16, num_heads=1)
    model = GPT(config)
    write_json(tmp_path / "config.json", config.to_huggingface())
    weights = tmp_path / "model.safetensors"
    save_weights(weights, portable_tensors(model.state_dict(), config))
    ids = torch.arange(8)[None]
    for device in ("cpu", torch.device("cpu")):
        assert torch.equal(load_model(tmp_path, device=device)(ids), model(ids))
    for device in ("nonsense", "cuda:99", "tpu"):
        with pytest.raises(UsageError, match=f"device is '{device}'"):
            load_model(tmp_path, device=device)
