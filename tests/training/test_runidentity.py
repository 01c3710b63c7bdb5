"""Whose run a folder is: fingerprints of weights, optimizers by their moments."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lowtide.errors import UsageError
from lowtide.model.arrayfiles import save_weights
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.weights import portable_tensors
from lowtide.training import runidentity
from lowtide.training.runidentity import optimizer_of, require_same_model, weights_fingerprint


def make_model(seed=0, **changes):
    torch.manual_seed(seed)
    return GPT(GPTConfig(**{"vocab_size": 10, "context_length": 8, "num_layers": 1, "width": 8,
                            "num_heads": 1, **changes}))  # fmt: skip


def test_fingerprints_are_of_every_weight():
    model, same, other = make_model(), make_model(), make_model(1)
    assert weights_fingerprint(model) == weights_fingerprint(same) != weights_fingerprint(other)
    with torch.no_grad():
        same.final_norm.weight[0] += 1
    assert weights_fingerprint(model) != weights_fingerprint(same)


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        ({"optimizers": [{"kind": "AdamW"}, {"kind": "Muon"}]}, "muon"),
        ({"optimizers": [{"kind": "AdamW"}]}, "adamw"),
        ({"optimizers": [{"kind": "AdamW8bit"}]}, "adamw"),
        ({"optimizers": [{"kind": "SGD"}]}, None),
        ({"optimizers": [{"kind": "AdamW"}, {"kind": "SGD"}]}, None),
        ({"optimizers": []}, None),
        ({"optimizers": "odd"}, None),
        ({"optimizers": ["odd"]}, None),
        ({}, None),
    ],
)
def test_the_optimizer_is_known_by_its_moments(numbers, name):
    assert optimizer_of(numbers) == name


def test_a_run_goes_on_with_the_model_it_began_from_or_has_now(tmp_path, monkeypatch):
    model = make_model()
    known, has = [None], [False]
    monkeypatch.setattr(runidentity, "read_identity", lambda root: {"weights": known[0]})
    monkeypatch.setattr(runidentity, "_has_weights", lambda model, run: has[0])
    run = SimpleNamespace(
        root=tmp_path / "mine", load_config=lambda: model.config, load_module_config=lambda: None
    )
    require_same_model(run, model)  # an old run does not say
    known[0] = weights_fingerprint(model)
    require_same_model(run, model)
    require_same_model(run, make_model(dropout=0.5))  # dropout is no part of the shape
    with pytest.raises(UsageError, match="'mine' is the name of a run with a model that began"):
        require_same_model(run, make_model(1))
    has[0] = True
    require_same_model(run, make_model(1))
    with pytest.raises(UsageError, match="a model of another shape"):
        require_same_model(run, make_model(width=16))


def test_weights_are_compared_name_by_name(tmp_path):
    model = make_model()
    tensors = portable_tensors(model.state_dict(), model.config)
    run = SimpleNamespace(newest_dir=lambda: tmp_path)
    for saved, same in (
        (dict(tensors), True),
        ({**tensors, "more": torch.ones(1)}, True),
        ({name: tensor + 1 for name, tensor in tensors.items()}, False),
        (dict(list(tensors.items())[1:]), False),
    ):
        save_weights(tmp_path / "model.safetensors", saved)
        assert runidentity._has_weights(model, run) is same
