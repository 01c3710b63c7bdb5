"""The shape of a network, and how transformers' config.json writes the same shape.

In:      numbers given by the user, a JSON file, or a config.json of transformers
Out:     GPTConfig, checked
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from lowtide.errors import DataError, UsageError
from lowtide.files import read_json
from lowtide.settings import build_settings, require

__all__ = ["GPTConfig", "find_model_dir", "load_config", "padded_vocab_size"]

Layout = Literal["qwen3", "gpt2", "tide"]

# Beyond all models there are, and small enough to build tables of: a wrong number in a file must
# not take all memory, or hours.
_LARGEST = {
    "vocab_size": 1 << 22,
    "context_length": 1 << 20,
    "num_layers": 1 << 10,
    "width": 1 << 17,
    "num_heads": 1 << 10,
    "num_kv_heads": 1 << 10,
    "head_dim": 1 << 12,
    "mlp_width": 1 << 19,
}


# Where the tide layout's config.json differs from Qwen3's: transformers loads the modelling file
# that lies beside the weights, if the user trusts it.
_TIDE_FIELDS = {
    "architectures": ["TideForCausalLM"],
    "model_type": "lowtide_tide",
    "auto_map": {
        "AutoConfig": "modeling_tide.TideConfig",
        "AutoModelForCausalLM": "modeling_tide.TideForCausalLM",
    },
}


@dataclass(frozen=True)
class GPTConfig:
    """Everything that decides the network's parameters and what it computes.

    >>> GPTConfig(vocab_size=256, num_layers=2, width=64, num_heads=2).head_dim
    32
    """

    vocab_size: int
    """Rows of the embedding; at least as many as the tokenizer has ids."""
    context_length: int = 256
    """The most tokens the network looks at."""
    num_layers: int = 6
    """Blocks of attention and MLP."""
    width: int = 384
    """Numbers per token between the blocks."""
    num_heads: int = 6
    """Query heads."""
    num_kv_heads: int = 0
    """Key and value heads, each shared by num_heads / num_kv_heads queries; 0 means num_heads."""
    head_dim: int = 0
    """Numbers per head; 0 means width / num_heads."""
    mlp_width: int = 0
    """Inner width of the MLP; 0 means 8/3 of the width, or 4 times it (gpt2)."""
    layout: Layout = "qwen3"
    """qwen3: RMSNorm, RoPE, normed queries and keys, SwiGLU. gpt2: as GPT-2 was. tide: as qwen3,
    with the embedding given to every block again and gated heads."""
    tie_weights: bool = True
    """Use the embedding as the output matrix too."""
    dropout: float = 0.0
    """Share of what blocks add that is dropped in training; gpt2 drops inside attention too."""
    rope_theta: float = 10000.0
    """Base of the rotary frequencies (qwen3, tide)."""
    norm_eps: float = 1e-6
    """Added under the root of every norm."""

    def __post_init__(self) -> None:
        self._require(self.layout in get_args(Layout), "layout", "qwen3, gpt2 or tide")
        for name in ("vocab_size", "context_length", "num_layers", "width", "num_heads"):
            self._require(getattr(self, name) >= 1, name, "at least 1")
        for name, largest in _LARGEST.items():
            self._require(0 <= getattr(self, name) <= largest, name, f"at most {largest:,}")
        self._require(0.0 <= self.dropout < 1.0, "dropout", "from 0 to below 1")
        self._require(0.0 < self.rope_theta < math.inf, "rope_theta", "more than 0, and finite")
        self._require(0.0 <= self.norm_eps < 1.0, "norm_eps", "from 0 to below 1")
        if self.num_kv_heads == 0:
            object.__setattr__(self, "num_kv_heads", self.num_heads)
        self._require(
            self.num_kv_heads >= 1 and self.num_heads % self.num_kv_heads == 0,
            "num_kv_heads",
            f"a divisor of num_heads ({self.num_heads})",
        )
        if self.head_dim == 0:
            self._require(
                self.width % self.num_heads == 0, "width", f"a multiple of {self.num_heads} heads"
            )
            object.__setattr__(self, "head_dim", self.width // self.num_heads)
        if self.mlp_width == 0:
            object.__setattr__(self, "mlp_width", _default_mlp_width(self.layout, self.width))
        if self.layout != "gpt2":
            self._require(self.head_dim % 2 == 0, "head_dim", "even, for rotary positions")
        else:
            same_heads = self.num_kv_heads == self.num_heads
            self._require(same_heads, "num_kv_heads", "num_heads in the gpt2 layout")
            whole = self.head_dim * self.num_heads == self.width
            self._require(whole, "head_dim", "width / num_heads in the gpt2 layout")
            self._require(self.tie_weights, "tie_weights", "true in the gpt2 layout")

    def _require(self, condition: bool, name: str, expected: str) -> None:
        require(condition, name, getattr(self, name), expected)

    def replace(self, **changes: Any) -> GPTConfig:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_huggingface(self) -> dict[str, Any]:
        """Return the config.json that transformers reads for this shape."""
        if self.layout == "gpt2":
            return _to_gpt2(self)
        return {**_to_qwen3(self), **(_TIDE_FIELDS if self.layout == "tide" else {})}

    @classmethod
    def from_huggingface(cls, fields: Mapping[str, Any], *, path: Path | None = None) -> GPTConfig:
        """Read the config.json of transformers; a kind that cannot be run here is refused."""
        kind = fields.get("model_type")
        if kind == "qwen3":
            return _from_qwen3(fields)
        if kind == "gpt2":
            return _from_gpt2(fields, path)
        if kind == _TIDE_FIELDS["model_type"]:
            return _from_qwen3(fields).replace(layout="tide")
        raise DataError(
            f"model_type is {kind!r}; lowtide runs qwen3 and gpt2, and its own",
            path=path,
            next_step="give the folder of a lowtide run, or of a Qwen3 or GPT-2 model",
        )


def _default_mlp_width(layout: Layout, width: int) -> int:
    if layout == "gpt2":
        return 4 * width
    multiple = 64 if width >= 256 else 16
    return -(-8 * width // (3 * multiple)) * multiple


def padded_vocab_size(vocab_size: int) -> int:
    """Round a vocabulary up to a multiple of 64, which matrix units like; small ones stay.

    >>> padded_vocab_size(50257), padded_vocab_size(65)
    (50304, 65)
    """
    return vocab_size if vocab_size < 1024 else -(-vocab_size // 64) * 64


def load_config(path: str | Path) -> GPTConfig:
    """Load the config.json of a run or of a transformers folder."""
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    fields = read_json(path)
    if not isinstance(fields, dict):
        raise DataError("config.json does not hold an object", path=path)
    try:
        if "model_type" not in fields:
            return build_settings(GPTConfig, fields)
        return GPTConfig.from_huggingface(fields, path=path)
    except KeyError as error:
        raise _bad_config(path, f"{error.args[0]} is missing") from None
    except UsageError as error:
        raise _bad_config(path, error.message) from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _bad_config(path, str(error)) from None


def _bad_config(path: Path, what: str) -> DataError:
    return DataError(
        f"{path.name} does not describe a network: {what}",
        path=path,
        next_step="bring back the config.json that belongs to this model",
    )


def _to_qwen3(config: GPTConfig) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.width,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.mlp_width,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tie_weights,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "use_sliding_window": False,
        "dropout": config.dropout,
        "dtype": "float32",
    }


def _to_gpt2(config: GPTConfig) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.context_length,
        "n_ctx": config.context_length,
        "n_layer": config.num_layers,
        "n_embd": config.width,
        "n_head": config.num_heads,
        "n_inner": config.mlp_width,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": True,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "dtype": "float32",
    }


def _build(**fields: Any) -> GPTConfig:
    for name, value in fields.items():  # text is fine for a setting, but no other program's files
        require(name == "layout" or not isinstance(value, str), name, value, "a number")
    return build_settings(GPTConfig, fields)  # which looks at types, as files may hold anything


def _from_qwen3(fields: Mapping[str, Any]) -> GPTConfig:
    if fields.get("attention_bias"):
        raise DataError("attention_bias is true; lowtide's qwen3 layout has no biases")
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default":
        raise DataError(f"rope_type is {rope['rope_type']!r}, expected default")
    return _build(
        vocab_size=fields["vocab_size"],
        context_length=fields["max_position_embeddings"],
        num_layers=fields["num_hidden_layers"],
        width=fields["hidden_size"],
        num_heads=fields["num_attention_heads"],
        num_kv_heads=fields.get("num_key_value_heads") or 0,
        head_dim=fields.get("head_dim") or 0,
        mlp_width=fields["intermediate_size"],
        tie_weights=bool(fields.get("tie_word_embeddings", False)),
        dropout=fields.get("dropout", 0.0),
        rope_theta=float(rope.get("rope_theta", fields.get("rope_theta", 10000.0))),
        norm_eps=fields.get("rms_norm_eps", 1e-6),
    )


def _from_gpt2(fields: Mapping[str, Any], path: Path | None) -> GPTConfig:
    activation = fields.get("activation_function", "gelu_new")
    if activation not in ("gelu_new", "gelu_pytorch_tanh"):
        raise DataError(f"activation_function is {activation!r}, expected gelu_new", path=path)
    return _build(
        vocab_size=fields["vocab_size"],
        context_length=fields.get("n_positions", fields.get("n_ctx", 1024)),
        num_layers=fields["n_layer"],
        width=fields["n_embd"],
        num_heads=fields["n_head"],
        mlp_width=fields.get("n_inner") or 0,
        layout="gpt2",
        dropout=fields.get("resid_pdrop", 0.0),
        norm_eps=fields.get("layer_norm_epsilon", 1e-5),
    )


def find_model_dir(name: str | Path, checkpoints_dir: str | Path = "checkpoints") -> Path:
    """Return the folder a model's name or path means, with an error that lists the runs there are.

    `base`, `checkpoints/base` and any folder with a config.json are understood.
    """
    tried = [Path(checkpoints_dir) / name, Path(name)]
    for folder in tried:
        if (folder / "config.json").is_file():
            return folder
    runs = sorted(path.parent.name for path in Path(checkpoints_dir).glob("*/config.json"))
    known = f"runs in {checkpoints_dir}: {', '.join(runs)}" if runs else "there are no runs yet"
    raise DataError(
        f"no model {str(name)!r}: {known}",
        # A path is meant as it stands; only a bare name is looked for among the runs.
        path=tried[1] if tried[1].is_dir() or len(tried[1].parts) > 1 else tried[0],
        next_step="lowtide train --model-name NAME …, or give the folder of a model",
    )
