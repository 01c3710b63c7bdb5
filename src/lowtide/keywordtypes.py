"""Keywords of functions that take settings beside other things, for type checkers."""

# Made by `make signatures` from the settings; not to be edited.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ['GenerateKeywords', 'TrainKeywords']


class TrainKeywords(TypedDict, total=False):
    """Any of the settings of TrainSettings."""

    dataset_dir: str | Path | None
    """Prepared dataset (lowtide prepare), or a folder of train.bin and val.bin; also s3://, gs:// or az://, read through a cache."""

    cache_dir: str | Path | None
    """Where fetched parts of an object store are kept; ~/.cache/lowtide if not given."""

    cache_size: str
    """The most that --cache-dir may take."""

    input_file: str | Path | None
    """Text file; the .npy beside it is used if there is one, else it is tokenized into the run."""

    train_data_path: str | Path | None
    """Pre-tokenized .npy or .bin to train on."""

    val_data_path: str | Path | None
    """Pre-tokenized .npy or .bin to validate on; without it the end of the training file is."""

    dataset_id: str | None
    """Hugging Face dataset, or text files (a path, folder or glob): tokenized on the fly."""

    text_field: str
    """Column, or jsonl field, of --dataset-id that holds the text."""

    split: str
    """Split of --dataset-id."""

    use_streaming: bool
    """Read --dataset-id piece by piece; without it, tokenize all of it to disk and shuffle that."""

    shuffle_buffer_size: int
    """Windows that are mixed with each other when streaming."""

    max_examples: int | None
    """Texts to take from --dataset-id; all of them if not given."""

    vocab_size: int | None
    """Size of the tokenizer to learn from the text; what suits the model if not given."""

    tokenization: str | Path | None
    """Tokenizer for text and .npy: gpt2, char, or a path; learned from text if not given."""

    dtype: str | None
    """Type of ids in files that do not say it (uint16, uint32, int32)."""

    val_fraction: float
    """Share kept for validation: the end of a single file, and of a stream documents by content."""

    stride: int | None
    """Tokens between the starts of two windows; --seq-len if not given."""

    order: Literal['shuffle', 'shifted', 'blocks', 'random', 'sequential']
    """shuffle: every window once an epoch; shifted: and cut elsewhere in every later epoch; blocks: shuffled blocks of 4M tokens, shuffled within 8 of them; random: with replacement; sequential: as stored."""

    check_data: bool
    """Compare the files of ids with their checksums beside the run, and stop at a damaged one."""

    model_name: str | Path
    """Name of the run; its folder is --checkpoints-dir/NAME."""

    checkpoints_dir: str | Path
    """Where runs are kept."""

    init_from_model: str | Path | None
    """Start from the weights of a run (its name or folder) or of a published model's folder."""

    add_tokens: str | Path | None
    """File with a token on each line that the model to start from gets: the mean of its pieces."""

    resume: bool
    """Go on where the run stopped; without it an existing run is an error."""

    overwrite: bool
    """Remove an earlier run of this name first, its checkpoints and metrics included."""

    target_params: int | None
    """Number of parameters; a shape within 5 % of it is chosen."""

    layout: Literal['qwen3', 'gpt2', 'tide']
    """qwen3 (RMSNorm, RoPE, SwiGLU), gpt2, or tide: lower losses, in a form of lowtide's own."""

    num_layers: int | None
    """Blocks (6)."""

    width: int | None
    """Numbers per token (384)."""

    num_heads: int | None
    """Attention heads (6)."""

    num_kv_heads: int | None
    """Key and value heads; as many as --num-heads if not given."""

    mlp_width: int | None
    """Inner width of the MLP; 8/3 of the width, or 4 times it (gpt2), if not given."""

    tie_weights: bool
    """Use the embedding as the output matrix too."""

    dropout: float
    """Share of what blocks add that is dropped in training; helps when data is seen many times."""

    seq_len: int
    """Tokens in a row, and the context of the model."""

    max_iters: int | None
    """Steps to train."""

    epochs: float | None
    """Times to go over the data."""

    max_hours: float | None
    """Hours to train at most; the learning rate decays in time for it."""

    tokens_per_param: float
    """Tokens per parameter to train on when neither steps nor epochs are given."""

    batch_size: int
    """Rows per micro-batch: what is in memory at once."""

    gradient_accumulation_steps: int
    """Micro-batches per step: a step sees batch-size times this many rows, on any devices."""

    optimizer: Literal['auto', 'muon', 'adamw'] | Optimizer
    """muon: matrices by Muon, the rest by AdamW; auto: muon where its arithmetic costs little."""

    use_8bit_optimizer: bool
    """Keep AdamW's moments in 8 bits (bitsandbytes): 2 bytes a parameter instead of 8."""

    learning_rate: float | None
    """Peak learning rate; chosen by the number of parameters if not given."""

    schedule: Literal['cosine', 'linear-decay', 'constant']
    """Shape of the learning rate after warm-up; linear-decay: constant, then down to the end."""

    warmup: float
    """Warm-up: steps, or below 1 a share of the run."""

    final_learning_rate: float
    """Learning rate at the end, as a share of the peak."""

    decay_fraction: float
    """Share of the run over which linear-decay goes down."""

    weight_decay: float
    """Decay of matrices; gains and biases have none."""

    cautious_decay: bool
    """Muon: decay only weights that the step makes smaller anyway."""

    embedding_rate: float | None
    """Learning rate of embeddings and of the output matrix, as a multiple of the others'; 1 if not given, 3 with --target-params up to 30M, Muon and a vocabulary of more tokens than the width."""

    embedding_decay: float | None
    """Decay of embeddings and of the output matrix; --weight-decay if not given."""

    embedding_decay_to: Literal['zero', 'first']
    """Where decay draws the embedding: to zero, or to the rows that it began with, such as counts (--first-embedding) or those of the model that is adapted."""

    decay_schedule: Literal['rate', 'root']
    """The decay of a step falls with the learning rate, or with its root, so that it stays stronger towards the end."""

    spelling_rate: float
    """Let tokens that are spelled alike learn together: the learning rate of what they share, as a multiple of the embedding's; 1 suits the tide layout, 0.5 others; 0 switches it off."""

    beta1: float
    """Decay of AdamW's first moment."""

    beta2: float | None
    """Decay of AdamW's second moment; 0.95 if not given, 0.99 with --target-params up to 30M, Muon and a vocabulary of more tokens than the width."""

    ahead_weight: float
    """Learn the tokens after the next one too, at this weight and half of it, falling to nothing by two thirds of the run; losses that are shown are the next token's."""

    average_over: float
    """Save, evaluate and sample from a running average of the weights over this share of the run; 0.1 helps where text is seen several times."""

    momentum: float
    """Momentum of Muon."""

    momentum_warmup: int
    """Steps in which Muon's momentum rises to --momentum from 0.1 below it."""

    zero_init: bool
    """Begin with blocks that add nothing: their output matrices are zero."""

    first_embedding: Literal['auto', 'random', 'cooccurrence']
    """Where the embedding begins: at random, or at counts of which tokens stand together; auto: counts with --target-params up to 30M and a vocabulary of more tokens than the width."""

    grad_clip: float
    """Largest norm of the gradient; 0 switches clipping off."""

    max_bad_steps: int
    """Steps in a row with a loss or gradient that is not finite, after which training stops."""

    seed: int
    """Decides the first weights, the order of the data and dropout."""

    use_mixed_precision: bool
    """Compute in bfloat16 (or --precision); weights stay in float32."""

    precision: Literal['bf16', 'fp16'] | None
    """Which half precision --use-mixed-precision is (bf16); fp16 is scaled against vanishing gradients."""

    activation_checkpointing: bool
    """Compute activations again in the backward pass instead of keeping them."""

    compile: bool
    """Compile the network's blocks with torch.compile, one for all."""

    compile_whole: bool
    """Compile all blocks as one graph: a little faster, but half a minute until the first step."""

    attention: Literal['auto', 'cudnn', 'flash']
    """Kernel of attention on NVIDIA GPUs, if it can be had; auto leaves the choice to torch."""

    float8_head: bool
    """Multiply by the output matrix in 8-bit floats in training, where a GPU can (Hopper)."""

    float8_blocks: bool
    """Multiply in 8-bit floats after the norms of blocks too; their gradients stay in bfloat16."""

    backend: Literal['torch', 'jax']
    """What computes: torch, or jax (to the same losses; a run may be continued with the other)."""

    loss_chunk_tokens: int | None
    """Tokens whose logits exist at once; chosen by vocabulary and device if not given."""

    device: str
    """cpu, cuda, cuda:1, mps, or auto; with --backend jax cpu, gpu, gpu:1, tpu, or auto."""

    parallel: Literal['ddp', 'fsdp']
    """On several devices (of torchrun, or of JAX): copies of the model, or all of it divided."""

    num_workers: int
    """Batches prepared ahead."""

    memory: str | None
    """Budget of resident memory, such as 8GiB; half of what is available if not given."""

    vram: str | None
    """The most of a GPU's memory to take, such as 8GiB; all that is free if not given."""

    offload: Literal['none', 'auto', 'packed', 'gradients', 'optimizer', 'layers', 'disk', 'disk-all']
    """Train in 6 or 7 bytes a parameter (packed), and keep on the host, each with what is before it: gradients, the optimizer's states, all layers; disk: states in a file; disk-all: layers and gradients too. auto: the first of none and these that fits."""

    offload_dir: str | Path | None
    """Where --offload disk and disk-all keep their scratch files; the run's folder if not given."""

    eval_dataset_dir: str | Path | Sequence[str | Path] | Mapping[str, str | Path]
    """More datasets to evaluate on: NAME=DIR, or DIR for the name "general". Repeatable."""

    eval_interval: int
    """Steps between evaluations."""

    eval_iters: int
    """Batches of 32 rows of an evaluation, whatever --batch-size is: always the same windows."""

    forgetting_tolerance: float
    """Rise of another dataset's loss (in nats) that counts as forgetting."""

    stop_on_forgetting: bool
    """Stop when forgetting is seen at two evaluations in a row; the best weights are in best/."""

    replay_dataset_dir: str | Path | None
    """Dataset mixed in against forgetting."""

    replay_fraction: float
    """Share of rows taken from --replay-dataset-dir."""

    save_interval: int
    """Steps between checkpoints."""

    keep_checkpoints: int
    """Checkpoints kept besides the best."""

    save_in_background: bool | None
    """Write checkpoints from a copy while training goes on; on a GPU only if not given."""

    log_interval: int
    """Steps between rows of metrics.jsonl."""

    sample_tokens: int
    """Tokens of text generated at each evaluation; 0 for none."""

    sample_prompt: str
    """What the sample begins with."""

    tensorboard: bool
    """Write TensorBoard files into the run."""

    wandb: bool
    """Report to Weights & Biases."""

    slurm: bool
    """Write train.slurm into the run, which requeues and resumes by itself, and do not train."""

    debug: bool
    """Show where each of the first steps is, and all stacks when nothing moves for a while."""

    config_file: str | Path | None
    """File with any of these settings (JSON, TOML or YAML); keywords beat it."""

    preset: str | None
    """Settings that belong together, by name; file and keywords beat them."""


class GenerateKeywords(TypedDict, total=False):
    """Any of the settings of GenerateSettings."""

    max_new_tokens: int
    """Tokens to generate; more than the context is fine, it slides."""

    preset: Literal['default', 'chat', 'creative', 'factual', 'code', 'deterministic']
    """Values for the four below; each can still be given."""

    temperature: float | None
    """0 takes the likeliest token; 1 samples as the model says (0.8)."""

    top_k: int | None
    """Choose among the k likeliest tokens; 0 for all (50)."""

    top_p: float | None
    """Choose among the likeliest tokens that together have this probability (0.95)."""

    repetition_penalty: float | None
    """Make tokens that are already there less likely; 1 for no penalty (1.1)."""

    stop: str | Sequence[str]
    """Texts at which to stop; the end-of-text token always does."""

    batch_size: int
    """Texts written at once, fewer where the budget asks for it; each is what it is alone."""

    seed: int | None
    """The same seed gives the same text; random if not given. Samples count up from it."""
