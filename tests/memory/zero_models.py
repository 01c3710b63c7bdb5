"""Models whose weights are zeros: as large as others, and made in no time."""

from __future__ import annotations

from pathlib import Path

import torch

from lowtide.files import write_json
from lowtide.model.arrayfiles import save_weights
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.weights import portable_tensors
from lowtide.tokenizer import Tokenizer


def write_model(folder: Path, config: GPTConfig) -> None:
    """A folder of a model with GPT-2's tokenizer."""
    folder.mkdir()
    Tokenizer.load("gpt2").save(folder)
    write_json(folder / "config.json", config.to_huggingface())
    with torch.device("meta"):
        model = GPT(config)
    state = model.to_empty(device="cpu").state_dict()
    tensors = portable_tensors({name: t.zero_() for name, t in state.items()}, config)
    save_weights(folder / "model.safetensors", tensors)
