"""The shape of a network.

In:      numbers given by the user, a JSON file, or a config.json of transformers (configjson)
Out:     GPTConfig, checked
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lowtide.counts import plain_number
from lowtide.errors import DataError, UsageError
from lowtide.filenames import CONFIG_NAME
from lowtide.files import read_json
from lowtide.model.families import FAMILIES, Family, FamilyName
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.model.rope import RopeScaling
from lowtide.quickclasses import dataclass
from lowtide.settings import build_settings, require

__all__ = ["GPTConfig", "find_model_dir", "find_weights_dir", "load_config", "padded_vocab_size"]

# Limits above any existing model, but low enough that a wrong number in a file does not allocate
# all memory, or take hours.
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


_NUMBERS = (*_LARGEST, "sliding_window", "dropout", "rope_theta", "norm_eps", "logit_cap")
_OF_TRANSFORMERS = {"architectures", "transformers_version"}  # no config.json of its has none
_FLAGS = ("tie_weights", "attention_bias", "mlp_bias")


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a network: everything that decides its parameters and its results.

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
    layout: FamilyName = "qwen3"
    """qwen3: RMSNorm, RoPE, normed queries and keys, SwiGLU. gpt2: as GPT-2 was. tide: as qwen3,
    with the embedding given to every block again and gated heads. Others: see families."""
    tie_weights: bool = True
    """Use the embedding as the output matrix too."""
    dropout: float = 0.0
    """Share of what blocks add that is dropped in training; gpt2 drops inside attention too."""
    rope_theta: float = 10000.0
    """Base of the rotary frequencies (qwen3, tide)."""
    norm_eps: float = 1e-6
    """Added under the root of every norm."""
    rope_scaling: RopeScaling | None = None
    """RoPE scaling: how rotary positions were extended beyond the first context."""
    attention_bias: bool = False
    """Biases in attention, if the family allows both (llama, qwen3, olmo2)."""
    mlp_bias: bool = False
    """Biases in the MLP, if the family allows both (llama)."""
    sliding_window: int = 0
    """Sliding window of the layers in `window_layers`, the token itself included; 0: all tokens."""
    window_layers: tuple[int, ...] = ()
    """Layers, counted from 0, with a sliding window; none given: all of mistral's."""
    logit_cap: float | None = None
    """Soft cap of logits (tide only); 15 there if not given, 0 for none."""
    without_own_values: bool | None = None
    """Remove from the output of heads the component along the token's own value (tide only); true
    there if not given."""
    others: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    """Fields of a config.json that do not decide the network (ids of special tokens and the like),
    which are written back as they are."""

    def __post_init__(self) -> None:
        self._convert_numbers()
        self._require(self.layout in FAMILIES, "layout", " or ".join(FAMILIES))
        for name in ("vocab_size", "context_length", "num_layers", "width", "num_heads"):
            self._require(getattr(self, name) >= 1, name, "at least 1")
        for name, largest in _LARGEST.items():
            self._require(0 <= getattr(self, name) <= largest, name, f"at most {largest:,}")
        self._convert_parts()
        self._require(0.0 <= self.dropout < 1.0, "dropout", "from 0 to below 1")
        self._require(0.0 < self.rope_theta < math.inf, "rope_theta", "more than 0, and finite")
        self._require(0.0 <= self.norm_eps < 1.0, "norm_eps", "from 0 to below 1")
        if self.logit_cap is None:
            object.__setattr__(self, "logit_cap", self.family.logit_cap)
        rereads = self.family.rereads_embedding
        if self.without_own_values is None:
            object.__setattr__(self, "without_own_values", rereads)
        own = rereads or not self.without_own_values
        self._require(own, "without_own_values", f"false in the {self.layout} layout")
        capped = self.family.logit_cap > 0 or self.logit_cap == 0
        self._require(capped, "logit_cap", f"0 in the {self.layout} layout")
        self._require(0.0 <= self.cap < math.inf, "logit_cap", "0 or more, and finite")
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
            object.__setattr__(self, "mlp_width", _default_mlp_width(self.family, self.width))
        if not self.family.learned_positions:
            self._require(self.head_dim % 2 == 0, "head_dim", "even, for rotary positions")
        if self.family.plain_heads:
            where = f"in the {self.layout} layout"
            same_heads = self.num_kv_heads == self.num_heads
            self._require(same_heads, "num_kv_heads", f"num_heads {where}")
            whole = self.head_dim * self.num_heads == self.width
            self._require(whole, "head_dim", f"width / num_heads {where}")
            self._require(self.tie_weights, "tie_weights", f"true {where}")
        self._check_parts()

    def _convert_numbers(self) -> None:
        """Take numbers of NumPy as Python's, such as `ids.max() + 1`; refuse what is none."""
        for name in _NUMBERS:
            value = plain_number(getattr(self, name))
            whole = name in _LARGEST or name == "sliding_window"
            fits = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
            missing = value is None and name == "logit_cap"
            require(fits or missing, name, value, "a whole number" if whole else "a number")
            object.__setattr__(self, name, value)
        for name in _FLAGS:
            value = plain_number(getattr(self, name))
            require(isinstance(value, bool), name, value, "True or False")
            object.__setattr__(self, name, value)

    def _convert_parts(self) -> None:
        """Take a scaling as config.json has it, and any row of layers; refuse what is neither."""
        scaling: Any = self.rope_scaling
        if isinstance(scaling, Mapping):
            scaling = build_settings(RopeScaling, scaling)
            object.__setattr__(self, "rope_scaling", scaling)
        is_scaling = scaling is None or isinstance(scaling, RopeScaling)
        self._require(is_scaling, "rope_scaling", "a RopeScaling, or a dict of its fields")
        given: Any = self.window_layers
        layers: list[Any] = (
            [plain_number(layer) for layer in given] if isinstance(given, Iterable) else [None]
        )
        known = all(type(layer) is int and 0 <= layer < self.num_layers for layer in layers)
        self._require(known, "window_layers", f"numbers from 0 to {self.num_layers - 1}")
        object.__setattr__(self, "window_layers", tuple(sorted(set(layers))))

    def _settle_windows(self) -> None:
        """A window without layers, or the other way round, would do nothing, or another thing in
        the family's files."""
        if self.family.windows == "all" and self.sliding_window and not self.window_layers:
            object.__setattr__(self, "window_layers", tuple(range(self.num_layers)))
        has_layers = bool(self.window_layers) or not self.sliding_window
        self._require(has_layers, "window_layers", "the layers with a sliding window")
        has_window = bool(self.sliding_window) or not self.window_layers
        self._require(has_window, "sliding_window", "at least 1, for its window_layers")

    def _check_parts(self) -> None:
        """Refuse parts that the family does not have."""
        family, name = self.family, self.layout
        open_attention = family.qkv_bias is None
        self._require(open_attention or not self.attention_bias, "attention_bias",
                      f"false in the {name} layout")  # fmt: skip
        self._require(family.mlp_bias is None or not self.mlp_bias, "mlp_bias",
                      f"false in the {name} layout")  # fmt: skip
        can_slide = family.windows != "none"
        self._require(can_slide or not self.sliding_window, "sliding_window",
                      f"0 in the {name} layout")  # fmt: skip
        self._require(0 <= self.sliding_window <= _LARGEST["context_length"], "sliding_window",
                      f"from 0 to {_LARGEST['context_length']:,}")  # fmt: skip
        self._settle_windows()
        if self.rope_scaling is not None:
            self._require(not family.learned_positions, "rope_scaling", f"none in {name}")
            self._require(self.rope_theta > 1.0, "rope_theta", "more than 1 where it is scaled")

    def _require(self, condition: bool, name: str, expected: str) -> None:
        require(condition, name, getattr(self, name), expected)

    @property
    def cap(self) -> float:
        """The soft cap of logits, 0 for none."""
        return self.logit_cap or 0.0

    def replace(self, **changes: Any) -> GPTConfig:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def one_layer(self) -> GPTConfig:
        """The same with a single layer, which has a window if any of them has one."""
        if not self.window_layers:
            return self.replace(num_layers=1)
        return self.replace(num_layers=1, window_layers=(0,))

    @property
    def family(self) -> Family:
        """The properties shared by all models of this layout."""
        return FAMILIES[self.layout]

    @property
    def has_qkv_bias(self) -> bool:
        """True if queries, keys and values have biases."""
        bias = self.family.qkv_bias
        return self.attention_bias if bias is None else bias

    @property
    def has_output_bias(self) -> bool:
        """True if the matrix that joins heads has a bias."""
        bias = self.family.output_bias
        return self.attention_bias if bias is None else bias

    @property
    def has_mlp_bias(self) -> bool:
        """True if the MLP has biases."""
        return self.mlp_bias if self.family.mlp_bias is None else self.family.mlp_bias

    def window_of(self, layer: int) -> int:
        """Tokens that a layer looks at; 0 for all."""
        return self.sliding_window if layer in self.window_layers else 0

    def to_huggingface(self) -> dict[str, Any]:
        """Return the config.json that transformers reads for this shape."""
        from lowtide.model.configjson import write_fields  # it imports this module

        return write_fields(self)

    @classmethod
    def from_huggingface(cls, fields: Mapping[str, Any], *, path: Path | None = None) -> GPTConfig:
        """Read the config.json of transformers; a kind that cannot be run here is refused."""
        from lowtide.model.configjson import read_fields

        return read_fields(fields, path=path)


def _default_mlp_width(family: Family, width: int) -> int:
    if not family.gated_mlp:
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
        path = path / CONFIG_NAME
    fields = read_json(path)
    if not isinstance(fields, dict):
        raise DataError("config.json does not hold an object", path=path)
    if (module := ModuleConfig.read(fields, path)) is not None:
        raise DataError(
            f"this run is of the torch module {module.module}, which only its own script can make",
            path=path,
            next_step="Trainer(module, model_name=…, resume=True) in that script, or "
            "module.load_state_dict(safetensors.torch.load_file(…))",
        )
    try:
        if "model_type" not in fields and not _OF_TRANSFORMERS & fields.keys():
            return build_settings(GPTConfig, fields)
        return GPTConfig.from_huggingface(fields, path=path)
    except KeyError as error:
        raise _bad_config(path, f"{error.args[0]} is missing") from None
    except UsageError as error:
        raise _bad_config(path, error.message) from None
    except DataError as error:  # a network of another kind
        if error.path is not None:
            raise
        raise DataError(
            f"{path.name} describes a network that lowtide cannot run: {error.message}",
            path=path,
            next_step=error.next_step or "take a model without it",
        ) from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _bad_config(path, str(error)) from None


def _bad_config(path: Path, what: str) -> DataError:
    return DataError(
        f"{path.name} does not describe a network: {what}",
        path=path,
        next_step="bring back the config.json that belongs to this model",
    )


def find_model_dir(name: str | Path, checkpoints_dir: str | Path = "checkpoints") -> Path:
    """Return the folder of a model's name or path; if there is none, the error lists all runs.

    `base`, `checkpoints/base` and any folder with a config.json are accepted.
    """
    given: Any = name
    is_named = isinstance(given, str | Path) and str(given) != ""
    require(is_named, "model", name, "the name or the folder of a model")
    tried = [Path(checkpoints_dir) / name, Path(name)]
    for folder in tried:
        if (folder / CONFIG_NAME).is_file():
            return folder
    runs = sorted(path.parent.name for path in Path(checkpoints_dir).glob("*/config.json"))
    known = f"runs in {checkpoints_dir}: {', '.join(runs)}" if runs else "there are no runs yet"
    raise DataError(
        f"no model {str(name)!r}: {known}",
        # A path is used unchanged; only a bare name is looked up among the runs.
        path=tried[1] if tried[1].is_dir() or len(tried[1].parts) > 1 else tried[0],
        next_step="lowtide train --model-name NAME …, or give the folder of a model",
    )


def find_weights_dir(model_dir: Path, *, best: bool) -> Path:
    """The folder of a model's weights: its own, or that of the best ones of a run."""
    folder = model_dir / "best"
    if not best:
        return model_dir
    if not (folder / CONFIG_NAME).is_file():
        raise DataError(
            "this model has no best weights: only runs with validation data have them",
            path=folder,
            next_step="leave --best out: the newest weights are used",
        )
    return folder
