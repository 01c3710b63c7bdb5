"""The same runs with torch, in the process of the tests."""

import json

import numpy as np
import pytest
import torch

from lowtide.files import write_json
from lowtide.model import loss
from lowtide.model.arrayfiles import save_weights
from lowtide.model.config import GPTConfig
from lowtide.model.firstweights import iter_first_weights
from lowtide.model.gpt import GPT
from lowtide.model.weights import portable_tensors
from lowtide.tokenizer import Tokenizer
from lowtide.training import muon
from lowtide.training.state import RunState
from lowtide.training.torchbackend import BACKEND as TORCH
from lowtide.training.trainer import Trainer

from .cases import FAMILY_SHAPES, RATES, ROWS, SHAPES, losses_of, train_settings, trainer_options

SEED = 1337  # that of JaxGPT, if none is given


def new_model(layout):
    torch.manual_seed(SEED)
    return GPT(SHAPES[layout])


def make_engine(layout="qwen3", *, exact_start=False, dtype=torch.float32, **options):
    """An engine; with `exact_start` from JAX's very weights, a rounding away from torch's own."""
    options = {"optimizer": "adamw", "learning_rate": RATES["adamw"], **options}
    model = new_model(layout).to(dtype)
    if exact_start:
        weights = iter_first_weights(SHAPES[layout], SEED)
        model.load_state_dict({name: torch.from_numpy(value) for name, value in weights})
    with TORCH.open_group("cpu") as group:
        return TORCH.make_engine(
            model,
            train_settings(**options),
            RunState(micro_batch=ROWS),
            group,
            rows=ROWS,
            given=None,
            note=print,
        )


def run(steps, layout="qwen3", **options):
    return losses_of(make_engine(layout, **options), torch.from_numpy, steps)


class _Float64:
    """Stands for torch in modules that compute parts in float32 whatever they are given."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def run_exact(steps, layout="qwen3", **options):
    """The same run in float64, all of it."""
    to_float = torch.Tensor.float
    with pytest.MonkeyPatch.context() as patch:
        for module in (loss, muon):
            patch.setattr(module, "torch", _Float64())
        patch.setattr(
            torch.Tensor, "float", lambda t: t if t.dtype == torch.float64 else to_float(t)
        )
        engine = make_engine(layout, dtype=torch.float64, **options)
        for optimizer in engine.optimizers.optimizers:
            if isinstance(optimizer, torch.optim.AdamW):  # its kernel clips in float32 only
                optimizer._step_supports_amp_scaling = False
        losses = losses_of(engine, torch.from_numpy, steps)
        assert engine.model.embedding.weight.dtype == torch.float64
        return losses


def make_trainer(folder, name, *, layout="qwen3", **options):
    return Trainer(new_model(layout), **trainer_options(folder, name, device="cpu", **options))


def shake(model):
    """Move gains and biases away from where they begin."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)


def save(model, folder):
    """Write a folder as published models are."""
    folder.mkdir()
    write_json(folder / "config.json", model.config.to_huggingface())
    weights = portable_tensors(model.state_dict(), model.config)
    save_weights(folder / "model.safetensors", weights)


def make_families(folder):
    """A model of each family."""
    for name, config in FAMILY_SHAPES.items():
        torch.manual_seed(0)
        model = GPT(config)
        shake(model)
        save(model, folder / f"family-{name}")


def make_speaker(folder):
    """A network with a vocabulary, and text and questions for it."""
    tokenizer = Tokenizer.from_characters("abcdefghij \u00e4\u00f6\n")
    torch.manual_seed(0)
    model = GPT(GPTConfig(tokenizer.vocab_size, 40, 2, 32, 2, num_kv_heads=1))
    shake(model)
    speaker = folder / "speaker"
    save(model, speaker)
    tokenizer.save(speaker)
    text = "a bad cab hid a fig\n" * 60
    np.save(speaker / "ids.npy", np.array(tokenizer.encode(text), np.uint16))
    (speaker / "prompts.txt").write_text("a bad cab\nhid\n" + "ab" * 30)
    rows = [
        {"context": "a bad", "choices": ["cab", "fig hid a", "j"], "answer": 0},
        {"context": "abc " * 12, "choices": ["de", "a bad cab hid"], "answer": 1},
    ]
    (speaker / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (speaker / "last.jsonl").write_text(json.dumps({"text": "a bad cab hid a fig"}) + "\n")


def begin_runs(folder):
    """Begin what JAX goes on with, and run what it is compared with."""
    make_speaker(folder)
    make_families(folder)
    make_trainer(folder, "alone", max_iters=12).fit()
    make_trainer(folder, "torch", max_iters=6).fit()
    eight = {"optimizer": "auto", "use_8bit_optimizer": True}
    make_trainer(folder, "alone8", max_iters=12, **eight).fit()
    make_trainer(folder, "torch8", max_iters=6, **eight).fit()
