"""The tensors that blocks of the tide layout have in addition to the qwen3 layout.

In:      GPTConfig
Out:     names and shapes, for counting, for files, and for the network (tide_blocks); no torch
"""

from __future__ import annotations

from pathlib import Path

from lowtide.files import write_bytes
from lowtide.model.config import GPTConfig
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.quickclasses import dataclass

__all__ = [
    "AddedTensor",
    "added_tensors",
    "has_start_values",
    "num_gate_inputs",
    "write_modelling_file",
]

_MODELLING_FILE = Path(__file__).parent / "modeling_tide.py"
_GATE_INPUTS = 32


@dataclass(frozen=True)
class AddedTensor:
    """One tensor of a block that the qwen3 layout does not have."""

    name: str
    """In our block."""
    portable_name: str
    """In a layer of the files."""
    shape: tuple[int, ...]


def has_start_values(layer: int) -> bool:
    """True for every second block, whose values see the embedding again."""
    return layer % 2 == 1


def num_gate_inputs(config: GPTConfig) -> int:
    """Numbers of a token that its gates look at."""
    return min(_GATE_INPUTS, config.width)


def added_tensors(config: GPTConfig, layer: int) -> list[AddedTensor]:
    """The tensors that a block of this layer has beyond one of the qwen3 layout; mostly none."""
    if not config.family.rereads_embedding:
        return []
    inputs, values = num_gate_inputs(config), config.num_kv_heads * config.head_dim
    rows = [
        ("mix", "mix", (2,)),
        ("attention.head_gate.weight", "self_attn.head_gate.weight", (config.num_heads, inputs)),
        ("attention.head_gate.bias", "self_attn.head_gate.bias", (config.num_heads,)),
    ]
    if has_start_values(layer):
        gate = "attention.value_gate", "self_attn.value_gate"
        rows += [
            (
                "attention.start_values.weight",
                "self_attn.start_v_proj.weight",
                (values, config.width),
            ),
            (f"{gate[0]}.weight", f"{gate[1]}.weight", (config.num_kv_heads, inputs)),
            (f"{gate[0]}.bias", f"{gate[1]}.bias", (config.num_kv_heads,)),
        ]
    return [AddedTensor(*row) for row in rows]


def write_modelling_file(folder: Path, config: GPTConfig | ModuleConfig) -> list[str]:
    """Write the code that transformers needs beside the weights; return the names of its files."""
    if isinstance(config, ModuleConfig) or not config.family.rereads_embedding:
        return []
    write_bytes(folder / _MODELLING_FILE.name, _MODELLING_FILE.read_bytes())
    return [_MODELLING_FILE.name]
