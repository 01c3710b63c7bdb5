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
    """Prepared dataset (lowtide prepare), or a folder of train.bin and val.bin; also at s3://, gs:// or az://, read through a local cache."""

    cache_dir: str | Path | None
    """Local cache of data from an object store; ~/.cache/lowtide if not given."""

    cache_size: str | int
    """Size limit of --cache-dir on disk."""

    input_file: str | Path | None
    """Text file; a .npy file of the same name beside it is used if there is one, else the text is tokenized into the run's folder."""

    train_data_path: str | Path | None
    """Pre-tokenized .npy or .bin to train on."""

    val_data_path: str | Path | None
    """Pre-tokenized .npy or .bin to validate on; if not given, the end of the training file."""

    dataset_id: str | None
    """Hugging Face dataset, or text files (a path, folder or glob), tokenized on the fly."""

    text_field: str
    """Column, or jsonl field, of --dataset-id that holds the text."""

    split: str
    """Split of --dataset-id."""

    use_streaming: bool
    """Stream --dataset-id; without streaming, all of it is tokenized to disk and shuffled there."""

    shuffle_buffer_size: int
    """Windows in the shuffle buffer of a stream."""

    max_examples: int | None
    """Texts to take from --dataset-id; all of them if not given."""

    vocab_size: int | None
    """Vocabulary size of the tokenizer to learn from the text; chosen to suit the model if not given."""

    tokenization: str | Path | None
    """Tokenizer for text and .npy: gpt2, char, or a path; learned from text if not given."""

    dtype: str | None
    """Type of the ids in files without a header (uint16, uint32, int32)."""

    val_fraction: float
    """Share kept for validation: the end of a single file; of a stream, documents chosen by a hash of their content."""

    stride: int | None
    """Tokens between the starts of two windows; --seq-len if not given."""

    order: Literal['shuffle', 'shifted', 'blocks', 'random', 'sequential']
    """shuffle: every window once an epoch; shifted: the same, with other window borders in every later epoch; blocks: blocks of 4M tokens in random order, windows shuffled within 8 of them; random: windows drawn with replacement; sequential: in stored order."""

    check_data: bool
    """Verify the checksums of the data files while training, and stop at a damaged file."""

    model_name: str | Path
    """Name of the run; its folder is --checkpoints-dir/NAME."""

    checkpoints_dir: str | Path
    """Where runs are kept."""

    init_from_model: str | Path | None
    """Start from the weights of a run (its name or folder) or of a published model's folder."""

    add_tokens: str | Path | None
    """File of new tokens, one a line, to add to the model of --init-from-model; each embedding starts as the mean of the token's pieces."""

    resume: bool
    """Resume the run where it stopped; without it an existing run is an error."""

    overwrite: bool
    """First remove an earlier run of this name, with its checkpoints and metrics."""

    target_params: int | None
    """Number of parameters; a shape within 5 % of it is chosen."""

    layout: Literal['qwen3', 'gpt2', 'tide']
    """qwen3 (RMSNorm, RoPE, SwiGLU), gpt2, or tide: lowtide's own architecture, with lower loss."""

    num_layers: int | None
    """Transformer blocks (6)."""

    width: int | None
    """Width of the network: numbers per token (384)."""

    num_heads: int | None
    """Attention heads (6)."""

    num_kv_heads: int | None
    """Key and value heads; as many as --num-heads if not given."""

    mlp_width: int | None
    """Inner width of the MLP; 8/3 of the width, or 4 times it (gpt2), if not given."""

    tie_weights: bool
    """Use the embedding matrix as the output matrix too."""

    dropout: float
    """Dropout rate; helps when data is seen many times."""

    seq_len: int
    """Sequence length: tokens in a row of a batch, and the context of the model."""

    max_iters: int | None
    """Steps to train."""

    epochs: float | None
    """Epochs: passes over the data."""

    max_hours: float | None
    """Time limit in hours; the learning rate schedule ends at that time."""

    tokens_per_param: float
    """Tokens per parameter to train on when neither steps nor epochs are given."""

    batch_size: int
    """Rows per micro-batch: the rows computed at once, which decides the memory for activations."""

    gradient_accumulation_steps: int
    """Micro-batches per step: a step takes batch-size times this many rows, however many devices share them."""

    optimizer: Literal['auto', 'muon', 'adamw'] | Optimizer
    """muon: Muon for matrices, AdamW for the rest; auto: muon where its extra arithmetic costs little."""

    use_8bit_optimizer: bool
    """Keep AdamW's moments in 8 bits (bitsandbytes): 2 bytes a parameter instead of 8."""

    learning_rate: float | None
    """Peak learning rate; chosen by the number of parameters if not given."""

    schedule: Literal['cosine', 'linear-decay', 'constant']
    """Learning rate schedule after warm-up; linear-decay: constant, then linear decay to the end."""

    warmup: float
    """Warm-up of the learning rate: a number of steps, or below 1 a share of the run."""

    final_learning_rate: float
    """Learning rate at the end, as a share of the peak."""

    decay_fraction: float
    """Share of the run in which linear-decay lowers the learning rate."""

    weight_decay: float
    """Weight decay of matrices; gains and biases have none."""

    cautious_decay: bool
    """Muon: decay only the weights whose update moves them towards zero anyway."""

    embedding_rate: float | None
    """Learning rate of embeddings and output matrix, as a multiple of the learning rate; 1 if not given, 3 with --target-params up to 30M (AdamW: 1M) and a vocabulary of more tokens than the width."""

    embedding_decay: float | None
    """Weight decay of embeddings and output matrix; --weight-decay if not given."""

    embedding_decay_to: Literal['zero', 'first']
    """What weight decay pulls the embedding towards: zero, or its initial rows, such as counts (--first-embedding) or those of the model that is adapted."""

    decay_schedule: Literal['rate', 'root']
    """Weight decay of a step is proportional to the learning rate, or to its square root, so that it stays stronger towards the end."""

    spelling_rate: float
    """Share embedding parameters between tokens with similar spelling; this is their learning rate as a multiple of the embedding's; 1 suits the tide layout, 0.5 others; 0 turns it off."""

    beta1: float
    """AdamW's beta1, the decay rate of the first moment."""

    beta2: float | None
    """AdamW's beta2, the decay rate of the second moment; 0.95 if not given, 0.99 with --target-params up to 30M (AdamW: 1M) and a vocabulary of more tokens than the width."""

    ahead_weight: float
    """Multi-token prediction: learn the second and third next token too, at this weight and half of it, falling to zero by two thirds of the run; losses shown are those of the next token."""

    early_cap: float
    """Cap logits softly to this size in the first tenth of a run, then less and less, and no more after two fifths; the tide layout has a cap of its own."""

    confidence: float
    """Size of the finished network's logits, as a share of those that it is trained with; below 1 if text is seen several times, since networks are then too sure of what comes next."""

    average_over: float
    """Save, evaluate and sample from a running average of the weights over this share of the run; 0.1 helps if text is seen several times."""

    momentum: float | None
    """Momentum of Muon; 0.95 if not given, 0.9 with --target-params up to 30M and a vocabulary of more tokens than the width."""

    momentum_warmup: int
    """Steps over which Muon's momentum rises to --momentum, starting 0.1 below it."""

    zero_init: bool
    """Initialize the output matrices of blocks to zero, so that blocks add nothing at first."""

    first_embedding: Literal['auto', 'random', 'cooccurrence', 'frequency']
    """Initial embedding: random; cooccurrence: from counts of neighbouring tokens; frequency: the same, and how frequent each token is; auto: frequency with --target-params up to 30M and a vocabulary of more tokens than the width, else random."""

    grad_clip: float
    """Gradient clipping: largest norm of the gradient; 0 turns clipping off."""

    max_bad_steps: int
    """Stop after this many steps in a row with a loss or gradient that is not finite."""

    seed: int
    """Random seed of the initial weights, the order of the data and dropout."""

    use_mixed_precision: bool
    """Compute in bfloat16 (or --precision); weights stay in float32."""

    precision: Literal['bf16', 'fp16'] | None
    """Half precision format of --use-mixed-precision (bf16); fp16 uses loss scaling against vanishing gradients."""

    activation_checkpointing: bool
    """Recompute activations in the backward pass instead of keeping them in memory."""

    compile: bool
    """Compile a block with torch.compile, once for all blocks."""

    compile_whole: bool
    """Compile all blocks as one graph: a little faster, but half a minute until the first step."""

    attention: Literal['auto', 'cudnn', 'flash']
    """Attention kernel on NVIDIA GPUs, where available; auto leaves the choice to torch."""

    float8_head: bool
    """Multiply by the output matrix in float8 while training, on GPUs that support it (Hopper)."""

    float8_blocks: bool
    """Use float8 for the matrix products after the norms of blocks too; gradients stay in bfloat16."""

    backend: Literal['torch', 'jax']
    """torch or jax; both give the same losses, and a run may be continued with the other."""

    loss_chunk_tokens: int | None
    """Tokens whose logits are in memory at once; chosen by vocabulary and device if not given."""

    device: str
    """cpu, cuda, cuda:1, mps, or auto; with --backend jax cpu, gpu, gpu:1, tpu, or auto."""

    parallel: Literal['ddp', 'fsdp']
    """On several devices (torchrun or JAX): ddp keeps a copy of the model on each; fsdp shards it over all."""

    num_workers: int
    """Batches to prefetch."""

    memory: str | int | None
    """Budget of resident memory, such as 8GiB; default: half of the available memory."""

    vram: str | None
    """Limit of GPU memory, such as 8GiB; all free memory if not given."""

    offload: Literal['none', 'auto', 'packed', 'gradients', 'optimizer', 'layers', 'disk', 'disk-all']
    """Save device memory, each step with all steps before it. packed: 6 or 7 bytes a parameter; gradients, optimizer, layers: keep gradients, optimizer states, or all layers in host memory; disk: optimizer states in a file; disk-all: layers and gradients too. auto: the first of none and these that fits."""

    offload_dir: str | Path | None
    """Where --offload disk and disk-all keep their scratch files; the run's folder if not given."""

    eval_dataset_dir: str | Path | Sequence[str | Path] | Mapping[str, str | Path]
    """More datasets to evaluate on: NAME=DIR, or DIR for the name "general". Repeatable."""

    eval_interval: int
    """Steps between evaluations."""

    eval_iters: int
    """Batches of 32 rows in an evaluation, whatever --batch-size is; always the same windows."""

    forgetting_tolerance: float
    """Increase of the loss (in nats) on another evaluation dataset that counts as forgetting."""

    stop_on_forgetting: bool
    """Stop after forgetting at two evaluations in a row; the best weights are in best/."""

    replay_dataset_dir: str | Path | None
    """Dataset to mix in against forgetting (replay)."""

    replay_fraction: float
    """Share of rows taken from --replay-dataset-dir."""

    save_interval: int
    """Steps between checkpoints."""

    keep_checkpoints: int
    """Checkpoints to keep, in addition to the best."""

    save_in_background: bool | None
    """Write checkpoints from a copy while training continues; on by default only on a GPU."""

    log_interval: int
    """Steps between rows of metrics.jsonl."""

    sample_tokens: int
    """Tokens of text generated at each evaluation; 0 for none."""

    sample_prompt: str
    """Prompt of the generated sample."""

    tensorboard: bool
    """Write TensorBoard files into the run's folder."""

    wandb: bool
    """Report to Weights & Biases."""

    slurm: bool
    """Write train.slurm, a job script that requeues and resumes by itself, into the run's folder, and do not train."""

    debug: bool
    """Show the progress within each of the first steps, and all stack traces when training hangs."""

    config_file: str | Path | None
    """File with any of these settings (JSON, TOML or YAML); keywords override it."""

    preset: str | None
    """Settings that belong together, by name; file and keywords beat them."""


class GenerateKeywords(TypedDict, total=False):
    """Any of the settings of GenerateSettings."""

    max_new_tokens: int
    """Tokens to generate; beyond the model's context, the context slides along."""

    preset: Literal['default', 'chat', 'creative', 'factual', 'code', 'deterministic']
    """Values for the four flags below; each flag overrides its value."""

    temperature: float | None
    """0 takes the likeliest token; 1 samples from the model's probabilities (0.8)."""

    top_k: int | None
    """Choose among the k likeliest tokens; 0 for all (50)."""

    top_p: float | None
    """Choose among the likeliest tokens that together have this probability (0.95)."""

    repetition_penalty: float | None
    """Make tokens that already occurred less likely; 1 for no penalty (1.1)."""

    stop: str | Sequence[str]
    """Stop at any of these texts; the end-of-text token always stops."""

    batch_size: int
    """Texts generated at once, fewer if the budget requires it; each comes out as it would alone."""

    seed: int | None
    """Random seed: the same seed gives the same text; random if not given. Further samples use seed + 1, seed + 2 and so on."""
