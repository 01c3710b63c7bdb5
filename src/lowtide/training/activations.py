"""Bytes of activations of a training step, by device and backend.

In:      a shape, settings, rows of a micro-batch
Out:     bytes; no torch, no JAX
"""

from __future__ import annotations

from lowtide.model.attentionrooms import further_rooms_bytes
from lowtide.model.config import GPTConfig
from lowtide.model.sizing import (
    activation_bytes,
    count_parameters,
    device_activation_bytes,
    loss_chunk_tokens,
)
from lowtide.training.settinggroups import ComputeSettings
from lowtide.training.settings import TrainSettings

__all__ = [
    "cpu_activations",
    "gpu_activations",
    "jax_activations",
    "jax_pass_bytes",
]

_MOST_COMPILING_BYTES = 160 << 20


def cpu_activations(
    config: GPTConfig, settings: TrainSettings, rows: int, *, cpu_threads: int | None = None
) -> int:
    """Return the bytes of activations on a CPU."""
    computing = settings.computing
    size = activation_bytes(
        config,
        tokens=rows * settings.model.seq_len,
        half=computing.use_mixed_precision,
        checkpointing=computing.activation_checkpointing,
        accumulating=rows < settings.batch.rows_per_step,
        dropped_row=settings.model.seq_len,
    )
    size += further_rooms_bytes(
        config,
        rows=rows,
        tokens=settings.model.seq_len,
        trains=True,
        logits_bytes=_logits_bytes(config, computing, rows * settings.model.seq_len),
        half=computing.use_mixed_precision,
        cpu_threads=cpu_threads,
    )
    # Mixed precision keeps a half-precision copy of each matrix for the backward pass.
    return size + (2 * count_parameters(config) if computing.use_mixed_precision else 0)


def _logits_bytes(config: GPTConfig, computing: ComputeSettings, tokens: int) -> int:
    chunk_tokens = computing.loss_chunk_tokens
    chunk_tokens = chunk_tokens or loss_chunk_tokens(config.vocab_size, on_gpu=False)
    return 4 * config.vocab_size * min(tokens, chunk_tokens)


def gpu_activations(config: GPTConfig, computing: ComputeSettings, tokens: int, loss: int) -> int:
    """Return the bytes of activations, and of half-precision copies of the blocks' matrices."""
    half, again = computing.use_mixed_precision, computing.activation_checkpointing
    kept, later = device_activation_bytes(
        config,
        tokens=tokens,
        half=half,
        wide_residual=not half or computing.precision == "fp16",
        checkpointing=again,
        compiled=computing.compile,
    )
    copies = 2 * count_parameters(config, embeddings=False) if half else 0
    if again:  # a compiled block makes all copies again; an eager one half of them (measured)
        copies = 0 if computing.compile else copies // 2
    return kept + max(copies, later - loss)


def _jax_update_bytes(config: GPTConfig, *, muon: bool, use_8bit: bool) -> tuple[int, int]:
    """Return the bytes of an optimizer's compiled step, in addition to a pass and instead of one.

    AdamW updates its moments in place. Muon orthogonalizes one layer's matrices at a time, by a
    step that takes memory to compile (152 MiB less at 10 million parameters, 184 at 40, if it was
    in the compilation cache). Moments of 8 bits are decoded for a layer, or for a whole embedding.
    """
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    inner = config.mlp_width * (2 if config.family.gated_mlp else 1)
    layer = 4 * config.width * max(inner, query + 2 * key)
    table = 4 * config.width * config.vocab_size
    compiling = min(4 * count_parameters(config, embeddings=False), _MOST_COMPILING_BYTES)
    eight = max(5 * table, 17 * layer // 2) if use_8bit else 0
    return (compiling + 5 * layer if muon else 0), eight


def jax_activations(
    config: GPTConfig, settings: TrainSettings, rows: int, *, muon: bool
) -> tuple[int, int, int]:
    """Return the bytes of activations, logits and an update of JAX's compiled step on a CPU.

    The memory of Muon's step does not fit into the gaps that a compiled pass leaves (measured), so
    it is part of the first number.
    """
    computing = settings.computing
    size, loss = jax_pass_bytes(
        config,
        rows=rows,
        tokens=settings.model.seq_len,
        half=computing.use_mixed_precision,
        checkpointing=computing.activation_checkpointing,
        chunk_tokens=computing.loss_chunk_tokens,
    )
    if rows < settings.batch.rows_per_step:
        # The gradients of one micro-batch beside the sum of those before it.
        size += 4 * count_parameters(config)
    use_8bit = settings.learning.use_8bit_optimizer
    held, update = _jax_update_bytes(config, muon=muon, use_8bit=use_8bit)
    return size + held, loss, update


def jax_pass_bytes(
    config: GPTConfig,
    *,
    rows: int,
    tokens: int,
    half: bool,
    checkpointing: bool,
    chunk_tokens: int | None = None,
) -> tuple[int, int]:
    """Return the bytes of JAX's compiled pass besides weights and gradients: blocks, and the loss.

    `tokens` are those of a row. Products with weights are kept, in float32 whatever the precision.
    The rest is the larger of two peaks, so that the sum of both results is right: the loss, and
    the backward pass of a block, where the attention scores exist several times. The factors come
    from the compiler's own memory analysis (benchmarks/jax_memory.py).
    """
    number = 4 * rows * tokens
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    gated = config.family.gated_mlp
    stream, heads = number * config.width, number * (query + 2 * key)
    mlp = number * config.mlp_width
    inner = mlp * (2 if gated else 1)
    scores = 4 * rows * config.num_heads * tokens**2
    weights = 4 * count_parameters(config, embeddings=False) // config.num_layers
    kept = config.num_layers * (stream if checkpointing else heads + 2 * stream + inner)
    # Gradients of a layer's weights, or in their place the recomputed activations.
    one = max(weights, inner + (2 * stream if gated else 0))
    block = one + 2 * mlp + heads + stream + 4 * scores
    if half:
        block += scores / 3 + 1.5 * stream + 0.05 * weights
    if checkpointing:
        products = 3.25 * inner + 3.5 * heads + 3.5 * stream
        if not half:
            products = 4 * inner + 4 * heads + 2.5 * stream
        elif not gated:
            products += 4 * config.width * config.mlp_width  # one of its matrices once more
        block = max(block + (1.4 if half else 1) * inner, one + products + 3 * scores)
    if config.dropout:  # masks of both results; of the scores, and the random bits they come from
        block += 2 * stream + (5 * scores if config.family.attention_dropout else 0)
    loss = _jax_loss_bytes(config, rows, tokens, half=half, chunk_tokens=chunk_tokens)
    return int(kept + max(block - loss, 0)), int(loss)


def _jax_loss_bytes(
    config: GPTConfig, rows: int, tokens: int, *, half: bool, chunk_tokens: int | None
) -> float:
    """The bytes held besides kept products while a chunk of logits exists.

    The gradient of the output matrix is counted with the gradients, except its copies if there are
    several chunks; in half precision there are copies of the matrix, too.
    """
    wanted = chunk_tokens or loss_chunk_tokens(config.vocab_size, on_gpu=False)
    chunk = min(rows * tokens, wanted)
    logits = 4 * config.vocab_size * chunk
    stream = 4 * rows * tokens * config.width
    matrix = 4 * config.vocab_size * config.width
    if rows * tokens > chunk:  # one after another
        copies = max(3 * matrix, logits + 2 * matrix)
        if not half:
            copies = max(matrix, logits) + 0.5 * logits
        return 1.5 * logits + copies + 4.5 * stream
    if half:
        return (2 if rows > 1 else 1.5) * logits + matrix + 3 * stream
    # Once more for the product with the states of several rows.
    return (3 if rows > 1 else 2) * logits + 3 * stream
