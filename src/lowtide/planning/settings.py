"""The settings of `lowtide plan`: data, model, machine; each field's docstring is its help."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from lowtide.counts import read_int
from lowtide.errors import UsageError
from lowtide.flags import flag_name
from lowtide.memory import format_size, parse_size
from lowtide.model.families import Layout
from lowtide.quickclasses import dataclass
from lowtide.settings import build_settings, read_config_file, require
from lowtide.stores.urls import is_store_url, show_path
from lowtide.training.learningsettings import OptimizerName
from lowtide.training.settingchecks import require_folder_name
from lowtide.training.settings import TrainSettings

__all__ = ["PlanSettings", "parse_count"]

_SMALLEST_VOCABULARY = 257
_SMALLEST_MACHINE = 32 << 20  # a smaller value is a number that lacks its unit
_SMALLEST_SPEED = 1 << 20
# What `lowtide train` takes under the same name.
_TRAINING_FIELDS = (
    "init_from_model",
    "target_params",
    "layout",
    "num_layers",
    "width",
    "num_heads",
    "seq_len",
    "dropout",
    "batch_size",
    "gradient_accumulation_steps",
    "optimizer",
    "use_mixed_precision",
    "use_8bit_optimizer",
    "activation_checkpointing",
    "offload",
    "tokens_per_param",
    "backend",
)


@dataclass(frozen=True)
class PlanSettings:
    """What to plan for; everything may be left out."""

    # Data: one of these.
    dataset_dir: Path | None = None
    """Prepared dataset, .npy or .bin."""
    input_files: tuple[str, ...] = ()
    """Text, jsonl or parquet files, folders or globs."""
    text_field: str = "text"
    """Field of --input-files that holds the text (jsonl and parquet)."""
    tokens: str | int | None = None
    """Number of training tokens, such as 500M or 1.5B, if there is no text yet."""
    dataset_id: str | None = None
    """Hugging Face dataset, or text files, to stream: tokenized on the fly, without prepare."""
    tokenization: str | None = None
    """Tokenizer for text: gpt2, char, or a folder; if not given, one is learned from the text."""
    vocab_size: int | None = None
    """Vocabulary size of the tokenizer to learn; chosen by memory and text if not given."""

    near_dedup: float = 0.0
    """Plan for --near-dedup of lowtide prepare: more temporary disk space, the same memory."""
    decontaminate: tuple[str, ...] = ()
    """Plan for --decontaminate of lowtide prepare with these files: their n-grams need memory."""

    # Model: one to start from, a config file, a size, a parameter count or a shape; if not given,
    # chosen to suit the machine.
    init_from_model: str | None = None
    """Run, or folder of a published model, to start from; decides shape and tokenizer."""
    config_file: Path | None = None
    """Config file of lowtide train, or the name of a built-in one, such as 150M."""
    size: str | int | None = None
    """Number of parameters, such as 10M or 1.5B."""
    target_params: int | None = None
    """Number of parameters, as lowtide train takes it."""
    layout: Layout | None = None
    """qwen3 (RMSNorm, RoPE, SwiGLU), gpt2, or tide: lowtide's own architecture, with lower loss."""
    num_layers: int | None = None
    """Transformer blocks."""
    width: int | None = None
    """Width of the network: numbers per token."""
    num_heads: int | None = None
    """Attention heads."""
    seq_len: int | None = None
    """Sequence length: tokens in a row of a batch, and the context of the model."""
    dropout: float | None = None
    """Dropout; its masks need memory."""

    # Training: flags of lowtide train; chosen if not given.
    batch_size: int | None = None
    """Rows per micro-batch."""
    gradient_accumulation_steps: int | None = None
    """Micro-batches per step."""
    optimizer: OptimizerName | None = None
    """muon, adamw, or auto."""
    use_mixed_precision: bool = False
    """Compute in bfloat16."""
    use_8bit_optimizer: bool = False
    """AdamW's moments in 8 bits."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass."""
    offload: (
        Literal["none", "auto", "packed", "gradients", "optimizer", "layers", "disk", "disk-all"]
        | None
    ) = None
    """Offloading, as in lowtide train; the cheapest that fits if not given."""
    tokens_per_param: float | None = None
    """Tokens per parameter to train on; 20 if not given."""
    backend: Literal["torch", "jax"] | None = None
    """torch or jax; torch if not given, jax for a TPU."""

    # Machine: this machine if not given.
    ram: str | int | None = None
    """Memory of the machine, such as 8GiB."""
    vram: str | int | None = None
    """Memory of its GPU, such as 16GiB."""
    disk: str | int | None = None
    """Free disk space, such as 200GB."""
    gpu_flops: str | float | None = None
    """Speed of the GPU in training, in FLOP/s, such as 100T; used to estimate times."""
    link_speed: str | int | None = None
    """Bytes per second between host and GPU, each way, such as 20GB; used to estimate times."""
    disk_speed: str | int | None = None
    """Bytes per second that the disk reads or writes, such as 2GB; used to estimate times."""
    tpu: bool = False
    """Plan for a TPU core: 16 GiB unless --vram is given; a batch is computed as a whole."""
    cores: int | None = None
    """CPU cores of the machine."""
    memory: str | int | None = None
    """Memory budget of each command; three quarters of the machine's memory if not given."""

    # Output.
    name: str = "mine"
    """Name of the tokenizer, the dataset and the run in the printed commands."""
    measure: bool = True
    """Time a few training steps if the plan is for this machine; takes half a minute."""

    def __post_init__(self) -> None:
        given = [
            flag
            for flag, value in (
                ("--dataset-dir", self.dataset_dir),
                ("--input-files", self.input_files),
                ("--dataset-id", self.dataset_id),
                ("--tokens", None if self.dataset_id else self.tokens),  # a stream does not know
            )
            if value
        ]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} are given, expected one of them")
        sizes = [
            flag
            for flag, value in (
                ("--init-from-model", self.init_from_model),
                ("--config-file", self.config_file),
                ("--size", self.size),
                ("--target-params", self.target_params),
                ("--num-layers and --width", self.num_layers or self.width),
            )
            if value
        ]
        if len(sizes) > 1 and sizes != ["--config-file", "--num-layers and --width"]:
            raise UsageError(f"{' and '.join(sizes)} are given, expected one of them")
        for field in ("ram", "vram", "memory", "disk", "link_speed", "disk_speed"):
            value = getattr(self, field)
            if value is not None:
                is_speed = field.endswith("_speed")
                _require_size(value, field, _SMALLEST_SPEED if is_speed else _SMALLEST_MACHINE)
        near = self.near_dedup == 0 or 0.5 <= self.near_dedup <= 1
        require(near, "near_dedup", self.near_dedup, "0, or from 0.5 to 1")
        require(self.cores is None or self.cores >= 1, "cores", self.cores, "at least 1")
        too_small = self.vocab_size is not None and self.vocab_size < _SMALLEST_VOCABULARY
        expected = f"at least {_SMALLEST_VOCABULARY}: the bytes and the end of a text"
        require(not too_small, "vocab_size", self.vocab_size, expected)
        require_folder_name(self, "name", "a name for folders in tok, data and checkpoints")
        known = self.tokenization is None or self.vocab_size is None
        require(known, "vocab_size", self.vocab_size, "no --tokenization beside it")
        for field in ("tokens", "size", "gpu_flops"):
            value = getattr(self, field)
            if value is not None:
                parse_count(value, field)

    @property
    def num_tokens(self) -> int | None:
        """The tokens given as a number."""
        return None if self.tokens is None else parse_count(self.tokens, "tokens")

    @property
    def names_a_machine(self) -> bool:
        """Whether the plan is for a machine that was described, not for this one."""
        described = (self.ram, self.vram, self.cores, self.disk)
        return self.tpu or any(value is not None for value in described)

    @property
    def names_a_model(self) -> bool:
        """Whether the size of the model is given."""
        shape = (self.size, self.target_params, self.num_layers, self.width)
        return any((self.init_from_model, self.config_file, *shape))

    def training_options(self) -> dict[str, Any]:
        """The given options of training: flags override the config file; defaults are left out."""
        options: dict[str, Any] = {}
        if self.config_file is not None:
            options = read_config_file(self.config_file, for_settings=TrainSettings)
        for name in _TRAINING_FIELDS:
            value = getattr(self, name)
            if value is not None and value is not False:
                options[name] = value
        if is_store_url(self.dataset_dir):  # its reader takes memory, and blocks save requests
            options["dataset_dir"] = show_path(self.dataset_dir or "")
            options.setdefault("order", "blocks")
        if options.get("offload") == "auto":
            del options["offload"]  # which is what plans do
        if self.size is not None:
            options["target_params"] = parse_count(self.size, "size")
        build_settings(TrainSettings, options)  # its checks, now
        return options

    def replace(self, **changes: Any) -> PlanSettings:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)


def _require_size(value: str, field: str, smallest: int) -> None:
    """Reject a malformed size, and one that lacks its unit; the error names the flag."""
    try:
        size = parse_size(value)
    except UsageError as error:
        raise UsageError(
            f"{flag_name(field)}: {error.message}", next_step=error.next_step
        ) from None
    if size < smallest:
        raise UsageError(
            f"{field} is {value} ({format_size(size)}), expected at least {format_size(smallest)}",
            next_step=f"name the unit, such as {flag_name(field)} 8GiB",
        )


def parse_count(text: str | float, name: str = "count") -> int:
    """Return a number as people write it: 500M, 1.5B, 1e9.

    >>> parse_count("1.5B"), parse_count("500M"), parse_count("1e6")
    (1500000000, 500000000, 1000000)
    """
    try:
        count = read_int(str(text).strip().replace(",", ""))
    except ValueError:
        count = 0
    if count < 1:
        raise UsageError(f"{name} is {text!r}, expected a number such as 500M, 1.5B or 1000000")
    return count
