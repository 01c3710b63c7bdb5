"""The settings of `lowtide train` and `evaluate`; no torch here, so that help is quick."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from lowtide.errors import UsageError
from lowtide.model.config import GPTConfig, Layout
from lowtide.model.sizing import count_parameters, shape_for_parameters, suitable_vocabulary
from lowtide.settings import import_when_used, require
from lowtide.training.schedule import Schedule
from lowtide.training.torchoptions import refuse_torch_options

if TYPE_CHECKING:
    import tyro
else:
    tyro = import_when_used("tyro")

__all__ = [
    "AGAINST_LEARNING_BY_HEART",
    "EVAL_BATCH_ROWS",
    "SHAPE_FIELDS",
    "EvaluateSettings",
    "TrainSettings",
    "choose_optimizer",
    "learned_vocabulary",
    "model_config",
]

# Evaluations are counted in batches of so many rows, not in micro-batches: what is computed at once
# must not decide which windows are looked at.
EVAL_BATCH_ROWS = 32
AGAINST_LEARNING_BY_HEART = "--dropout 0.1 --weight-decay 1 --order shifted"
"""What helps where text is seen more than twice; the preset small-data goes a little further."""
SHAPE_FIELDS = ("num_layers", "width", "num_heads", "num_kv_heads", "mlp_width")


@dataclass(frozen=True)
class TrainSettings:
    """What to train, on what, for how long, and how."""

    presets_dir: ClassVar[Path] = Path(__file__).parent / "presets"
    configs_dir: ClassVar[Path] = Path(__file__).parent / "configs"
    common_flags: ClassVar[tuple[str, ...]] = (
        "dataset_dir", "input_file", "tokenization", "model_name", "init_from_model",
        "target_params", "seq_len", "max_iters", "epochs", "batch_size",
        "gradient_accumulation_steps", "learning_rate", "use_mixed_precision", "memory",
        "eval_interval",
    )  # fmt: skip

    # Data: one of these.
    dataset_dir: Path | None = None
    """Prepared dataset (lowtide prepare), or a folder of train.bin and val.bin."""
    input_file: Path | None = None
    """Text file; the .npy beside it is used if there is one, else it is tokenized into the run."""
    train_data_path: Path | None = None
    """Pre-tokenized .npy or .bin to train on."""
    val_data_path: Path | None = None
    """Pre-tokenized .npy or .bin to validate on; without it the end of the training file is."""
    dataset_id: str | None = None
    """Hugging Face dataset, or text files (a path, folder or glob): tokenized on the fly."""
    text_column: str = "text"
    """Column, or jsonl field, of --dataset-id that holds the text."""
    split: str = "train"
    """Split of --dataset-id."""
    use_streaming: bool = True
    """Read --dataset-id piece by piece; without it, tokenize all of it to disk and shuffle that."""
    shuffle_buffer_size: int = 10000
    """Windows that are mixed with each other when streaming."""
    max_examples: int | None = None
    """Texts to take from --dataset-id; all of them if not given."""
    vocab_size: int | None = None
    """Size of the tokenizer to learn from the text; what suits the model if not given."""
    tokenization: str | None = None
    """Tokenizer for text and .npy: gpt2, char, or a path; learned from text if not given."""
    dtype: str | None = None
    """Type of ids in files that do not say it (uint16, uint32, int32)."""
    val_fraction: float = 0.1
    """Share kept for validation: the end of a single file, and of a stream documents by content."""
    stride: int | None = None
    """Tokens between the starts of two windows; --seq-len if not given."""
    order: Literal["shuffle", "shifted", "random", "sequential"] = "shuffle"
    """shuffle: every window once an epoch; shifted: and cut elsewhere in every later epoch; random:
    with replacement; sequential: as stored."""

    # The run.
    model_name: str = "model"
    """Name of the run; its folder is --checkpoints-dir/NAME."""
    checkpoints_dir: Path = Path("checkpoints")
    """Where runs are kept."""
    init_from_model: str | None = None
    """Start from the weights of a run (its name or folder) or of a published model's folder."""
    resume: bool = True
    """Go on where the run stopped; without it an existing run is an error."""
    overwrite: bool = False
    """Remove an earlier run of this name first, its checkpoints and metrics included."""

    # Shape: from a config file, a parameter count, or field by field.
    target_params: int | None = None
    """Number of parameters; a shape within 5 % of it is chosen."""
    layout: Layout = "qwen3"
    """qwen3 (RMSNorm, RoPE, SwiGLU), gpt2, or tide: lower losses, in a form of lowtide's own."""
    num_layers: int | None = None
    """Blocks (6)."""
    width: int | None = None
    """Numbers per token (384)."""
    num_heads: int | None = None
    """Attention heads (6)."""
    num_kv_heads: int | None = None
    """Key and value heads; as many as --num-heads if not given."""
    mlp_width: int | None = None
    """Inner width of the MLP; 8/3 of the width, or 4 times it (gpt2), if not given."""
    tie_weights: bool = True
    """Use the embedding as the output matrix too."""
    dropout: float = 0.0
    """Share of what blocks add that is dropped in training; helps when data is seen many times."""
    seq_len: int = 256
    """Tokens in a row, and the context of the model."""

    # How long.
    max_iters: int | None = None
    """Steps to train."""
    epochs: float | None = None
    """Times to go over the data."""
    max_hours: float | None = None
    """Hours to train at most; the learning rate decays in time for it."""
    tokens_per_param: float = 20.0
    """Tokens per parameter to train on when neither steps nor epochs are given."""

    # How it learns.
    batch_size: int = 32
    """Rows per micro-batch: what is in memory at once."""
    gradient_accumulation_steps: int = 1
    """Micro-batches per step: a step sees batch-size times this many rows, on any devices."""
    optimizer: Literal["auto", "muon", "adamw"] = "auto"
    """muon: matrices by Muon, the rest by AdamW; auto: muon where its arithmetic costs little."""
    use_8bit_optimizer: bool = False
    """Keep AdamW's moments in 8 bits (bitsandbytes): 2 bytes a parameter instead of 8."""
    learning_rate: float | None = None
    """Peak learning rate; chosen by the number of parameters if not given."""
    schedule: Schedule = "cosine"
    """Shape of the learning rate after warm-up; linear-decay: constant, then down to the end."""
    warmup: float = 0.05
    """Warm-up: steps, or below 1 a share of the run."""
    final_learning_rate: float = 0.1
    """Learning rate at the end, as a share of the peak."""
    decay_fraction: float = 0.4
    """Share of the run over which linear-decay goes down."""
    weight_decay: float = 0.1
    """Decay of matrices; gains and biases have none."""
    cautious_decay: bool = False
    """Muon: decay only weights that the step makes smaller anyway."""
    embedding_rate: float = 1.0
    """Learning rate of embeddings and of the output matrix, as a multiple of the others'."""
    embedding_decay: float | None = None
    """Decay of embeddings and of the output matrix; --weight-decay if not given."""
    beta1: float = 0.9
    """Decay of AdamW's first moment."""
    beta2: float = 0.95
    """Decay of AdamW's second moment."""
    ahead_weight: float = 0.0
    """Learn the tokens after the next one too, at this weight and half of it, falling to nothing by
    two thirds of the run; losses that are shown are the next token's."""
    momentum: float = 0.95
    """Momentum of Muon."""
    momentum_warmup: int = 0
    """Steps in which Muon's momentum rises to --momentum from 0.1 below it."""
    zero_init: bool = False
    """Begin with blocks that add nothing: their output matrices are zero."""
    grad_clip: float = 1.0
    """Largest norm of the gradient; 0 switches clipping off."""
    max_bad_steps: int = 20
    """Steps in a row with a loss or gradient that is not finite, after which training stops."""
    seed: int = 1337
    """Decides the first weights, the order of the data and dropout."""

    # Precision, memory and speed.
    use_mixed_precision: bool = False
    """Compute in bfloat16 (or --precision); weights stay in float32."""
    precision: Literal["bf16", "fp16"] = "bf16"
    """Which half precision; fp16 is scaled against vanishing gradients."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    compile: bool = False
    """Compile the network's blocks with torch.compile, one for all."""
    compile_whole: bool = False
    """Compile all blocks as one graph: a little faster, but half a minute until the first step."""
    attention: Literal["auto", "cudnn", "flash"] = "auto"
    """Kernel of attention on NVIDIA GPUs, if it can be had; auto leaves the choice to torch."""
    float8_head: bool = False
    """Multiply by the output matrix in 8-bit floats in training, where a GPU can (Hopper)."""
    float8_blocks: bool = False
    """Multiply in 8-bit floats after the norms of blocks too; their gradients stay in bfloat16."""
    backend: Literal["torch", "jax"] = "torch"
    """What computes: torch, or jax (to the same losses; a run may be continued with the other)."""
    loss_chunk_tokens: int | None = None
    """Tokens whose logits exist at once; chosen by vocabulary and device if not given."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps, or auto; with --backend jax cpu, gpu, gpu:1, tpu, or auto."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """On several devices (of torchrun, or of JAX): copies of the model, or all of it divided."""
    num_workers: int = 4
    """Batches prepared ahead."""
    memory: str | None = None
    """Budget of resident memory, such as 8GiB; half of what is available if not given."""

    # Evaluation, checkpoints, output.
    eval_dataset_dir: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """More datasets to evaluate on: NAME=DIR, or DIR for the name "general". Repeatable."""
    eval_interval: int = 500
    """Steps between evaluations."""
    eval_iters: int = 50
    """Batches of 32 rows of an evaluation, whatever --batch-size is: always the same windows."""
    forgetting_tolerance: float = 0.1
    """Rise of another dataset's loss (in nats) that counts as forgetting."""
    stop_on_forgetting: bool = False
    """Stop when forgetting is seen at two evaluations in a row; the best weights are in best/."""
    replay_dataset_dir: Path | None = None
    """Dataset mixed in against forgetting."""
    replay_fraction: float = 0.1
    """Share of rows taken from --replay-dataset-dir."""
    save_interval: int = 500
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Checkpoints kept besides the best."""
    save_in_background: bool | None = None
    """Write checkpoints from a copy while training goes on; on a GPU only if not given."""
    log_interval: int = 10
    """Steps between rows of metrics.jsonl."""
    sample_tokens: int = 64
    """Tokens of text generated at each evaluation; 0 for none."""
    sample_prompt: str = "\n"
    """What the sample begins with."""
    tensorboard: bool = False
    """Write TensorBoard files into the run."""
    wandb: bool = False
    """Report to Weights & Biases."""
    slurm: bool = False
    """Write train.slurm into the run, which requeues and resumes by itself, and do not train."""
    debug: bool = False
    """Show where each of the first steps is, and all stacks when nothing moves for a while."""

    def __post_init__(self) -> None:
        parts = PurePath(self.model_name).parts
        inside = bool(parts) and ".." not in parts and parts[0] != "/"
        require(inside, "model_name", self.model_name, "a name for a folder in --checkpoints-dir")
        for name in ("batch_size", "gradient_accumulation_steps", "seq_len", "eval_iters"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("eval_interval", "save_interval", "log_interval", "keep_checkpoints",
                     "shuffle_buffer_size", "max_bad_steps"):  # fmt: skip
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("num_layers", "width", "num_heads", "num_kv_heads", "mlp_width"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least 1")
        for name in ("max_iters", "epochs", "max_hours", "target_params", "learning_rate", "stride",
                     "max_examples", "vocab_size", "tokens_per_param", "embedding_rate",
                     "loss_chunk_tokens"):  # fmt: skip
            value = getattr(self, name)
            finite = value is None or 0 < value < math.inf
            require(finite, name, value, "more than 0, and finite")
        for name in ("dropout", "val_fraction", "replay_fraction", "beta1", "beta2"):
            value = getattr(self, name)
            require(0 <= value < 1, name, value, "from 0 to below 1")
        for name in ("warmup", "momentum_warmup", "weight_decay", "grad_clip", "num_workers",
                     "sample_tokens", "forgetting_tolerance"):  # fmt: skip
            value = getattr(self, name)
            require(0 <= value < math.inf, name, value, "0 or more, and finite")
        weight = self.ahead_weight
        require(0 <= weight <= 0.5, "ahead_weight", weight, "from 0 to 0.5")
        decay = self.embedding_decay
        proper = decay is None or 0 <= decay < math.inf
        require(proper, "embedding_decay", decay, "0 or more, and finite")
        final = self.final_learning_rate
        require(0 <= final <= 1, "final_learning_rate", final, "from 0 to 1: a share of the peak")
        require(0.1 <= self.momentum < 1, "momentum", self.momentum, "from 0.1 to below 1")
        share = self.decay_fraction
        require(0 < share <= 1, "decay_fraction", share, "more than 0, at most 1")
        half = self.use_mixed_precision and self.precision == "bf16"
        for name in ("float8_head", "float8_blocks"):
            wanted = getattr(self, name)
            require(half or not wanted, name, wanted, "--use-mixed-precision in bf16")
        both = self.max_iters is not None and self.epochs is not None
        require(not both, "max_iters", self.max_iters, "no --epochs beside it")
        scaled = self.precision == "bf16" or self.use_mixed_precision
        require(scaled, "precision", self.precision, "--use-mixed-precision beside it")
        whole = self.compile or not self.compile_whole
        require(whole, "compile_whole", True, "--compile beside it")
        queued = self.slurm and self.overwrite
        require(
            not queued, "overwrite", True, "no --slurm beside it: each restart would begin anew"
        )
        refuse_torch_options(self)
        learned = self.vocab_size is not None and self.tokenization is not None
        require(not learned, "vocab_size", self.vocab_size, "no --tokenization beside it")

    @property
    def run_dir(self) -> Path:
        """The folder of the run."""
        return self.checkpoints_dir / self.model_name

    @property
    def rows_per_step(self) -> int:
        """Rows of one step, whatever the number of processes."""
        return self.batch_size * self.gradient_accumulation_steps

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one step."""
        return self.rows_per_step * self.seq_len

    def eval_datasets(self) -> dict[str, Path]:
        """Return the named evaluation datasets; a bare folder is "general"."""
        named: dict[str, Path] = {}
        for entry in self.eval_dataset_dir:
            name, equals, folder = entry.partition("=")
            name, folder = (name, folder) if equals else ("general", entry)
            require(bool(name and folder), "eval_dataset_dir", entry, "NAME=DIR or DIR")
            require(name not in named, "eval_dataset_dir", entry, "one folder per name")
            named[name] = Path(folder)
        return named


@dataclass(frozen=True)
class EvaluateSettings:
    """Which model to evaluate on what."""

    model_name: str
    """Run to evaluate (its name or folder), or the folder of a published model."""
    dataset_dir: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Prepared dataset, .npy or .bin, as DIR or NAME=DIR. Repeatable."""
    tasks: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Questions with choices, or texts to complete: FILE.jsonl or NAME=FILE.jsonl. Repeatable."""
    checkpoints_dir: Path = Path("checkpoints")
    """Where runs are kept."""
    split: Literal["val", "train", "all"] = "val"
    """Which part to evaluate on."""
    best: bool = False
    """Take the run's best weights instead of the last."""
    batch_size: int = 16
    """Rows at once."""
    eval_iters: int | None = None
    """Batches of 32 rows to evaluate, evenly spaced, as in training; all if not given."""
    seq_len: int | None = None
    """Tokens in a row; the model's context if not given, at most 4,096."""
    dtype: str | None = None
    """Type of ids in files that do not say it (uint16, uint32, int32)."""
    tokenization: str | None = None
    """Tokenizer of the data, for bits per byte; the run's own if not given."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    memory: str | None = None
    """Budget of resident memory, such as 2GiB; half of what is available if not given."""

    def __post_init__(self) -> None:
        given = bool(self.dataset_dir or self.tasks)
        require(given, "dataset_dir", "", "at least one dataset or task")
        names = list(self.task_files())
        require(len(names) == len(self.tasks), "tasks", ", ".join(self.tasks), "one name each")
        named = {e.partition("=")[0] if "=" in e else Path(e).name for e in self.dataset_dir}
        twice = ", ".join(named & set(names))
        require(not twice, "tasks", twice, "other names than the datasets")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1")
        for name in ("eval_iters", "seq_len"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least 1")

    def task_files(self) -> dict[str, Path]:
        """Return the files of questions by name."""
        named: dict[str, Path] = {}
        for entry in self.tasks:
            name, equals, path = entry.partition("=")
            name, path = (name, path) if equals else (Path(entry).stem, entry)
            require(bool(name and path), "tasks", entry, "NAME=FILE or FILE")
            named[name] = Path(path)
        return named


def choose_optimizer(settings: TrainSettings, config: GPTConfig) -> Literal["muon", "adamw"]:
    """Return the optimizer that `auto` means for a shape and a batch.

    Making an update orthogonal costs about 5 * width / tokens of a step beside training itself.
    Measured at 0.8 of it (width 128, 768 tokens), Muon still reached a lower loss than AdamW in the
    same time: 1.64 against 1.71. Beyond once the cost, AdamW. 8-bit moments are AdamW's.
    """
    if settings.optimizer != "auto":
        return settings.optimizer
    if settings.use_8bit_optimizer:
        return "adamw"
    return "muon" if 5 * config.width <= settings.tokens_per_step else "adamw"


def model_config(settings: TrainSettings, vocab_size: int) -> GPTConfig:
    """Return the shape the settings ask for, for a vocabulary."""
    shape = {name: getattr(settings, name) for name in SHAPE_FIELDS}
    given = {name: value for name, value in shape.items() if value is not None}
    if settings.target_params is not None:
        if given:
            raise UsageError(
                f"target_params and {', '.join(given)} are both given",
                next_step="give a number of parameters or a shape, not both",
            )
        config = shape_for_parameters(
            settings.target_params,
            vocab_size=vocab_size,
            context_length=settings.seq_len,
            layout=settings.layout,
            tie_weights=settings.tie_weights,
        )
        return config.replace(dropout=settings.dropout)
    return GPTConfig(
        vocab_size=vocab_size,
        context_length=settings.seq_len,
        layout=settings.layout,
        tie_weights=settings.tie_weights,
        dropout=settings.dropout,
        norm_eps=1e-5 if settings.layout == "gpt2" else 1e-6,
        **given,
    )


def learned_vocabulary(settings: TrainSettings, text_bytes: int | None) -> int:
    """The size of the tokenizer to learn: as asked for, or what suits the model and the text."""
    if settings.vocab_size is not None:
        return settings.vocab_size
    count = settings.target_params or count_parameters(model_config(settings, 256))
    return suitable_vocabulary(count, text_bytes)
