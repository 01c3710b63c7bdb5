"""A small network of any family, with random numbers in every part."""

from typing import Any

import torch

from lowtide.model.config import GPTConfig
from lowtide.model.families import FAMILIES
from lowtide.model.gpt import GPT

__all__ = ["make_model"]


def make_model(layout: str, **changes: Any) -> GPT:
    """A network with windows, biases and grouped heads wherever its family has them."""
    family = FAMILIES[layout]
    window = 5 if family.windows != "none" else 0
    layers = {"none": (), "some": (1,), "all": tuple(range(changes.get("num_layers", 3)))}
    options = {
        "num_kv_heads": 0 if layout == "gpt2" else 2,
        "head_dim": 0 if layout == "gpt2" else 6,
        "tie_weights": layout == "gpt2",
        "attention_bias": family.qkv_bias is None,
        "mlp_bias": family.mlp_bias is None,
        "sliding_window": window,
        "window_layers": layers[family.windows],
    }
    torch.manual_seed(0)
    model = GPT(GPTConfig(61, 32, 3, 36, 4, layout=layout, **{**options, **changes})).eval()
    with torch.no_grad():  # gains, biases and gates too, so that a mix-up of any two shows
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model
