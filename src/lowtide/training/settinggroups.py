"""The settings of `lowtide train` in groups; no torch here, so that help is quick.

Flags, config files and keywords know no groups, only names (flatsettings.py). A comment above a
field heads the flags from there on in the help; a group without one continues the last.

To add a setting: a field with a docstring in its group, and its name in `resuming.py`, which says
what a change of it means for a run that goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from lowtide.memory import parse_size
from lowtide.model.families import Layout
from lowtide.quickclasses import dataclass
from lowtide.settings import import_when_used, require
from lowtide.training.settingchecks import (
    at_least_one,
    below_one,
    more_than_zero,
    require_folder_name,
    switched_off,
    zero_or_more,
)

if TYPE_CHECKING:
    import tyro
else:
    tyro = import_when_used("tyro")

__all__ = [
    "SHAPE_FIELDS",
    "BatchSettings",
    "ComputeSettings",
    "DataSettings",
    "EvaluationSettings",
    "LengthSettings",
    "MachineSettings",
    "ModelSettings",
    "OutputSettings",
    "ReplaySettings",
    "RunSettings",
    "SavingSettings",
]

SHAPE_FIELDS = ("num_layers", "width", "num_heads", "num_kv_heads", "mlp_width")


@dataclass(frozen=True)
class DataSettings:
    """What to read, and how rows are cut and ordered."""

    # Data: one of these.
    dataset_dir: Path | None = None
    """Prepared dataset (lowtide prepare), or a folder of train.bin and val.bin; also at s3://,
    gs:// or az://, read through a local cache."""
    cache_dir: Path | None = None
    """Local cache of data from an object store; ~/.cache/lowtide if not given."""
    cache_size: str = "16GiB"
    """Size limit of --cache-dir on disk."""
    input_file: Path | None = None
    """Text file; a .npy file of the same name beside it is used if there is one, else the text is
    tokenized into the run's folder."""
    train_data_path: Path | None = None
    """Pre-tokenized .npy or .bin to train on."""
    val_data_path: Path | None = None
    """Pre-tokenized .npy or .bin to validate on; if not given, the end of the training file."""
    dataset_id: str | None = None
    """Hugging Face dataset, or text files (a path, folder or glob), tokenized on the fly."""
    text_field: str = "text"
    """Column, or jsonl field, of --dataset-id that holds the text."""
    split: str = "train"
    """Split of --dataset-id."""
    use_streaming: bool = True
    """Stream --dataset-id; without streaming, all of it is tokenized to disk and shuffled there."""
    shuffle_buffer_size: int = 10000
    """Windows in the shuffle buffer of a stream."""
    max_examples: int | None = None
    """Texts to take from --dataset-id; all of them if not given."""
    vocab_size: int | None = None
    """Vocabulary size of the tokenizer to learn from the text; chosen to suit the model if not
    given."""
    tokenization: str | None = None
    """Tokenizer for text and .npy: gpt2, char, or a path; learned from text if not given."""
    dtype: str | None = None
    """Type of the ids in files without a header (uint16, uint32, int32)."""
    val_fraction: float = 0.1
    """Share kept for validation: the end of a single file; of a stream, documents chosen by a hash
    of their content."""
    stride: int | None = None
    """Tokens between the starts of two windows; --seq-len if not given."""
    order: Literal["shuffle", "shifted", "blocks", "random", "sequential"] = "shuffle"
    """shuffle: every window once an epoch; shifted: the same, with other window borders in every
    later epoch; blocks: blocks of 4M tokens in random order, windows shuffled within 8 of them;
    random: windows drawn with replacement; sequential: in stored order."""
    check_data: bool = True
    """Verify the checksums of the data files while training, and stop at a damaged file."""

    def __post_init__(self) -> None:
        at_least_one(self, "shuffle_buffer_size")
        more_than_zero(self, "stride", "max_examples", "vocab_size")
        below_one(self, "val_fraction")
        parse_size(self.cache_size)
        learned = self.vocab_size is not None and self.tokenization is not None
        require(not learned, "vocab_size", self.vocab_size, "no --tokenization beside it")


@dataclass(frozen=True)
class RunSettings:
    """Which run, and from which weights it begins."""

    # The run.
    model_name: str = "model"
    """Name of the run; its folder is --checkpoints-dir/NAME."""
    checkpoints_dir: Path = Path("checkpoints")
    """Where runs are kept."""
    init_from_model: str | None = None
    """Start from the weights of a run (its name or folder) or of a published model's folder."""
    add_tokens: Path | None = None
    """File of new tokens, one a line, to add to the model of --init-from-model; each embedding
    starts as the mean of the token's pieces."""
    resume: bool = True
    """Resume the run where it stopped; without it an existing run is an error."""
    overwrite: bool = False
    """First remove an earlier run of this name, with its checkpoints and metrics."""

    def __post_init__(self) -> None:
        require_folder_name(self, "model_name", "a name for a folder in --checkpoints-dir")
        has_base = self.init_from_model is not None or self.add_tokens is None
        require(has_base, "add_tokens", self.add_tokens, "--init-from-model beside it")

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.checkpoints_dir / self.model_name


@dataclass(frozen=True)
class ModelSettings:
    """The shape of the network."""

    # Shape: from a config file, a parameter count, or field by field.
    target_params: int | None = None
    """Number of parameters; a shape within 5 % of it is chosen."""
    layout: Layout = "qwen3"
    """qwen3 (RMSNorm, RoPE, SwiGLU), gpt2, or tide: lowtide's own architecture, with lower loss."""
    num_layers: int | None = None
    """Transformer blocks (6)."""
    width: int | None = None
    """Width of the network: numbers per token (384)."""
    num_heads: int | None = None
    """Attention heads (6)."""
    num_kv_heads: int | None = None
    """Key and value heads; as many as --num-heads if not given."""
    mlp_width: int | None = None
    """Inner width of the MLP; 8/3 of the width, or 4 times it (gpt2), if not given."""
    tie_weights: bool = True
    """Use the embedding matrix as the output matrix too."""
    dropout: float = 0.0
    """Dropout rate; helps when data is seen many times."""
    seq_len: int = 256
    """Sequence length: tokens in a row of a batch, and the context of the model."""

    def __post_init__(self) -> None:
        at_least_one(self, "seq_len", *SHAPE_FIELDS)
        more_than_zero(self, "target_params")
        below_one(self, "dropout")


@dataclass(frozen=True)
class LengthSettings:
    """How long to train."""

    # How long.
    max_iters: int | None = None
    """Steps to train."""
    epochs: float | None = None
    """Epochs: passes over the data."""
    max_hours: float | None = None
    """Time limit in hours; the learning rate schedule ends at that time."""
    tokens_per_param: float = 20.0
    """Tokens per parameter to train on when neither steps nor epochs are given."""

    def __post_init__(self) -> None:
        more_than_zero(self, "max_iters", "epochs", "max_hours", "tokens_per_param")
        both = self.max_iters is not None and self.epochs is not None
        require(not both, "max_iters", self.max_iters, "no --epochs beside it")


@dataclass(frozen=True)
class BatchSettings:
    """The rows of a step."""

    # How it learns.
    batch_size: int = 32
    """Rows per micro-batch: the rows computed at once, which decides the memory for activations."""
    gradient_accumulation_steps: int = 1
    """Micro-batches per step: a step takes batch-size times this many rows, however many devices
    share them."""

    def __post_init__(self) -> None:
        at_least_one(self, "batch_size", "gradient_accumulation_steps")

    @property
    def rows_per_step(self) -> int:
        """Rows of one step, whatever the number of processes."""
        return self.batch_size * self.gradient_accumulation_steps


@dataclass(frozen=True)
class ComputeSettings:
    """What computes, in which precision, and what it keeps."""

    # Precision, memory and speed.
    use_mixed_precision: bool = False
    """Compute in bfloat16 (or --precision); weights stay in float32."""
    precision: Literal["bf16", "fp16"] | None = None
    """Half precision format of --use-mixed-precision (bf16); fp16 uses loss scaling against
    vanishing gradients."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass instead of keeping them in memory."""
    compile: bool = False
    """Compile a block with torch.compile, once for all blocks."""
    compile_whole: bool = False
    """Compile all blocks as one graph: a little faster, but half a minute until the first step."""
    attention: Literal["auto", "cudnn", "flash"] = "auto"
    """Attention kernel on NVIDIA GPUs, where available; auto leaves the choice to torch."""
    float8_head: bool = False
    """Multiply by the output matrix in float8 while training, on GPUs that support it (Hopper)."""
    float8_blocks: bool = False
    """Use float8 for the matrix products after the norms of blocks too; gradients stay in
    bfloat16."""
    backend: Literal["torch", "jax"] = "torch"
    """torch or jax; both give the same losses, and a run may be continued with the other."""
    loss_chunk_tokens: int | None = None
    """Tokens whose logits are in memory at once; chosen by vocabulary and device if not given."""

    def __post_init__(self) -> None:
        more_than_zero(self, "loss_chunk_tokens")
        half = self.use_mixed_precision and self.precision != "fp16"
        wanted = [name for name in ("float8_head", "float8_blocks") if getattr(self, name)]
        for name in wanted:  # a preset may have given them
            step = f"give {switched_off(wanted)} too, or compute in bf16"
            require(half, name, True, "--use-mixed-precision in bf16", next_step=step)
        used = self.precision is None or self.use_mixed_precision
        require(used, "precision", self.precision, "--use-mixed-precision beside it")
        whole = self.compile or not self.compile_whole
        require(whole, "compile_whole", True, "--compile beside it",
                next_step=f"give {switched_off(['compile_whole'])}, or --compile")  # fmt: skip


@dataclass(frozen=True)
class MachineSettings:
    """The devices and the memory of this machine that a run may have."""

    device: str = "auto"
    """cpu, cuda, cuda:1, mps, or auto; with --backend jax cpu, gpu, gpu:1, tpu, or auto."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """On several devices (torchrun or JAX): ddp keeps a copy of the model on each; fsdp shards it
    over all."""
    num_workers: int = 4
    """Batches to prefetch."""
    memory: str | None = None
    """Budget of resident memory, such as 8GiB; default: half of the available memory."""
    vram: str | None = None
    """Limit of GPU memory, such as 8GiB; all free memory if not given."""
    offload: Literal[
        "none", "auto", "packed", "gradients", "optimizer", "layers", "disk", "disk-all"
    ] = "none"
    """Save device memory, each step with all steps before it. packed: 6 or 7 bytes a parameter;
    gradients, optimizer, layers: keep gradients, optimizer states, or all layers in host memory;
    disk: optimizer states in a file; disk-all: layers and gradients too. auto: the first of none
    and these that fits."""
    offload_dir: Path | None = None
    """Where --offload disk and disk-all keep their scratch files; the run's folder if not given."""

    def __post_init__(self) -> None:
        zero_or_more(self, "num_workers")
        apart = self.offload_dir is None or self.offload in ("disk", "disk-all", "auto")
        require(apart, "offload_dir", str(self.offload_dir), "--offload disk or disk-all beside it")
        if self.vram is not None:
            parse_size(self.vram)


@dataclass(frozen=True)
class EvaluationSettings:
    """What is measured while training."""

    # Evaluation, checkpoints, output.
    eval_dataset_dir: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """More datasets to evaluate on: NAME=DIR, or DIR for the name "general". Repeatable."""
    eval_interval: int = 500
    """Steps between evaluations."""
    eval_iters: int = 50
    """Batches of 32 rows in an evaluation, whatever --batch-size is; always the same windows."""
    forgetting_tolerance: float = 0.1
    """Increase of the loss (in nats) on another evaluation dataset that counts as forgetting."""
    stop_on_forgetting: bool = False
    """Stop after forgetting at two evaluations in a row; the best weights are in best/."""

    def __post_init__(self) -> None:
        at_least_one(self, "eval_interval", "eval_iters")
        zero_or_more(self, "forgetting_tolerance")

    def datasets(self) -> dict[str, Path]:
        """Return the named evaluation datasets; a bare folder is "general"."""
        named: dict[str, Path] = {}
        for entry in self.eval_dataset_dir:
            name, equals, folder = entry.partition("=")
            name, folder = (name, folder) if equals else ("general", entry)
            require(bool(name and folder), "eval_dataset_dir", entry, "NAME=DIR or DIR")
            require(name not in named, "eval_dataset_dir", entry, "one folder per name",
                    next_step="give NAME=DIR: a folder without a name is `general`")  # fmt: skip
            named[name] = Path(folder)
        return named


@dataclass(frozen=True)
class ReplaySettings:
    """What is mixed in against forgetting."""

    replay_dataset_dir: Path | None = None
    """Dataset to mix in against forgetting (replay)."""
    replay_fraction: float = 0.1
    """Share of rows taken from --replay-dataset-dir."""

    def __post_init__(self) -> None:
        below_one(self, "replay_fraction")


@dataclass(frozen=True)
class SavingSettings:
    """When checkpoints are written, and how many are kept."""

    save_interval: int = 500
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Checkpoints to keep, in addition to the best."""
    save_in_background: bool | None = None
    """Write checkpoints from a copy while training continues; on by default only on a GPU."""

    def __post_init__(self) -> None:
        at_least_one(self, "save_interval", "keep_checkpoints")


@dataclass(frozen=True)
class OutputSettings:
    """What a run shows and reports."""

    log_interval: int = 10
    """Steps between rows of metrics.jsonl."""
    sample_tokens: int = 64
    """Tokens of text generated at each evaluation; 0 for none."""
    sample_prompt: str = "\n"
    """Prompt of the generated sample."""
    tensorboard: bool = False
    """Write TensorBoard files into the run's folder."""
    wandb: bool = False
    """Report to Weights & Biases."""
    slurm: bool = False
    """Write train.slurm, a job script that requeues and resumes by itself, into the run's folder,
    and do not train."""
    debug: bool = False
    """Show the progress within each of the first steps, and all stack traces when training
    hangs."""

    def __post_init__(self) -> None:
        at_least_one(self, "log_interval")
        zero_or_more(self, "sample_tokens")
