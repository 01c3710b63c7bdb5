"""The same runs with torch, in the process of the tests."""

import json

import numpy as np
import torch

from lowtide.files import write_json
from lowtide.model.config import GPTConfig
from lowtide.model.firstweights import iter_first_weights
from lowtide.model.gpt import GPT
from lowtide.model.weights import portable_tensors, save_weights
from lowtide.tokenizer import Tokenizer
from lowtide.training.state import RunState
from lowtide.training.torchbackend import BACKEND as TORCH
from lowtide.training.trainer import Trainer

from .cases import RATES, ROWS, SHAPES, losses_of, train_settings, trainer_options

SEED = 1337  # that of JaxGPT, if none is given


def new_model(layout):
    torch.manual_seed(SEED)
    return GPT(SHAPES[layout])


def make_engine(layout="qwen3", *, exact_start=False, **options):
    """An engine; with `exact_start` from JAX's very weights, a rounding away from torch's own."""
    options = {"optimizer": "adamw", "learning_rate": RATES["adamw"], **options}
    model = new_model(layout)
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


def make_trainer(folder, name, *, layout="qwen3", **options):
    return Trainer(new_model(layout), **trainer_options(folder, name, device="cpu", **options))


def make_speaker(folder):
    """A network with a vocabulary, and text and questions for it."""
    tokenizer = Tokenizer.from_characters("abcdefghij \u00e4\u00f6\n")
    torch.manual_seed(0)
    model = GPT(GPTConfig(tokenizer.vocab_size, 40, 2, 32, 2, num_kv_heads=1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    speaker = folder / "speaker"
    speaker.mkdir()
    write_json(speaker / "config.json", model.config.to_huggingface())
    weights = portable_tensors(model.state_dict(), model.config)
    save_weights(speaker / "model.safetensors", weights)
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
    make_trainer(folder, "alone", max_iters=12).fit()
    make_trainer(folder, "torch", max_iters=6).fit()
    eight = {"optimizer": "auto", "use_8bit_optimizer": True}
    make_trainer(folder, "alone8", max_iters=12, **eight).fit()
    make_trainer(folder, "torch8", max_iters=6, **eight).fit()
