"""Parameters, arithmetic and memory of a shape; the shape that has a number of parameters.

In:      GPTConfig, or a target number of parameters
Out:     counts; a GPTConfig within 5 % of the target
"""

from __future__ import annotations

import bisect
import math

from lowtide.errors import UsageError
from lowtide.model.config import GPTConfig
from lowtide.model.families import FamilyName, Layout
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.model.tide import added_tensors

__all__ = [
    "activation_bytes",
    "count_parameters",
    "device_activation_bytes",
    "flops_per_token",
    "loss_chunk_tokens",
    "shape_for_parameters",
    "suitable_vocabulary",
]

_TOLERANCE = 0.05
_LEAST_NETWORK = 0.1  # share of the parameters outside the tables of the vocabulary
_VOCABULARY_AT_A_MILLION = 2000
_SMALLEST_VOCABULARY, _LARGEST_VOCABULARY = 300, 32000
_RETURNED_BYTES = 32 << 20
_LOSS_CHUNK_BYTES = 64 << 20
# Matrix products on a big GPU need more rows to be efficient than a CPU has caches for.
_GPU_LOSS_CHUNK_BYTES = 3200 << 20


def count_parameters(config: GPTConfig | ModuleConfig, *, embeddings: bool = True) -> int:
    """Count the parameters of a shape; without embeddings, those that do arithmetic per layer.

    >>> count_parameters(GPTConfig(50257, 1024, 12, 768, 12, layout="gpt2"))
    124439808
    """
    if isinstance(config, ModuleConfig):
        return config.num_parameters if embeddings else config.multiplying
    width, query = config.width, config.num_heads * config.head_dim
    key = config.num_kv_heads * config.head_dim
    family = config.family
    attention = width * (query + 2 * key) + query * width
    attention += {"none": 0, "head": 2 * config.head_dim, "whole": query + key}[
        family.query_key_norm
    ]
    attention += (query + 2 * key) * config.has_qkv_bias + width * config.has_output_bias
    wide = 2 if family.gated_mlp else 1  # matrices from the width to the MLP's
    mlp = (wide + 1) * width * config.mlp_width
    mlp += (wide * config.mlp_width + width) * config.has_mlp_bias
    norm = 2 * width if family.norm == "layer" else width
    block = attention + mlp + 2 * norm
    tables = config.vocab_size * width * (1 if config.tie_weights else 2)
    tables += config.context_length * width * family.learned_positions
    added = sum(
        math.prod(tensor.shape)
        for layer in range(config.num_layers)
        for tensor in added_tensors(config, layer)
    )
    return config.num_layers * block + added + norm + (tables if embeddings else 0)


def flops_per_token(config: GPTConfig | ModuleConfig, seq_len: int) -> float:
    """Return the FLOPs of training on one token, by the convention of model FLOP utilisation.

    6 per parameter that multiplies (the output matrix included, the embedding look-up not), and
    12 * layers * heads * head_dim * sequence length for attention, not halved for causality: the
    convention of PaLM's appendix B and of nanoGPT, so that figures are comparable. Arithmetic of a
    torch module outside of its matrices is not known, and not counted.
    """
    if isinstance(config, ModuleConfig):
        return 6 * config.multiplying
    multiplying = count_parameters(config, embeddings=False) + config.vocab_size * config.width
    attention = 12 * config.num_layers * config.num_heads * config.head_dim * seq_len
    return 6 * multiplying + attention


def loss_chunk_tokens(vocab_size: int, *, on_gpu: bool) -> int:
    """Return the tokens whose logits exist at once.

    >>> loss_chunk_tokens(50304, on_gpu=False), loss_chunk_tokens(50304, on_gpu=True)
    (333, 16384)
    """
    tokens = (_GPU_LOSS_CHUNK_BYTES if on_gpu else _LOSS_CHUNK_BYTES) // (4 * vocab_size)
    return max(128, min(tokens, 65536) // 1024 * 1024 if on_gpu else tokens)


def activation_bytes(
    config: GPTConfig,
    *,
    tokens: int,
    half: bool,
    checkpointing: bool,
    accumulating: bool = False,
    dropped_row: int = 0,
) -> int:
    """Return the bytes of activations of `tokens` tokens at the start of a CPU's backward pass.

    `dropped_row` is the length of a row in a pass with the config's dropout, 0 without it.
    Counted tensor by tensor (saved_tensors_hooks); the allocator's overhead is measured.
    """
    tensors = _block_tensors(config, half=half, on_gpu=False, compiled=False)
    if dropped_row and config.dropout:
        tensors += _dropout_tensors(config, dropped_row, half=half)
    block = tokens * sum(tensors)
    kept = config.num_layers * block
    if checkpointing:
        kept = config.num_layers * tokens * config.width * 4 + block
    ends = 6 * tokens * config.width * 4  # embedding, last norm, and their gradients
    # The C library returns blocks of 32 MiB and more to the system when they are freed. Smaller
    # ones leave gaps: most of a block's worth, and in proportion to the depth if gradients stay
    # between them (accumulation) or activations of blocks are freed and recomputed (checkpointing).
    # Fitted to peaks less live memory of 32 settings.
    small = tokens * sum(size for size in tensors if size * tokens < _RETURNED_BYTES)
    holes = 0.85
    if accumulating or checkpointing:
        holes = max(holes, (0.62 if accumulating else 0.52) * config.num_layers)
    return int(kept + ends + holes * small + 0.3 * (block - small))


def device_activation_bytes(
    config: GPTConfig,
    *,
    tokens: int,
    half: bool,
    wide_residual: bool,
    checkpointing: bool,
    compiled: bool,
) -> tuple[int, int]:
    """Return the bytes of activations on a GPU during the loss, and of a block's recomputation.

    The second is needed after the logits are freed: with checkpointing a block's activations are
    recomputed after the loss. Shares of a block are fitted to the peaks of 22 settings (an H200).
    """
    block = tokens * sum(_block_tensors(config, half=half, on_gpu=True, compiled=compiled))
    ends = 6 * tokens * config.width * (2 if half else 4)
    if not checkpointing:
        return int(config.num_layers * block + ends + (0.75 * block if compiled else 0)), 0
    kept = config.num_layers * tokens * config.width * (4 if wide_residual else 2)
    return int(kept + ends), int((1.4 if compiled else 1.05) * block)


def _dropout_tensors(config: GPTConfig, row_tokens: int, *, half: bool) -> list[float]:
    """Return what a block keeps more with dropout on a CPU, as _block_tensors does.

    A mask for each of its two results; where attention has dropout, torch computes all scores of a
    row, in float32, and keeps them, their mask and their product.
    """
    tensors = [(2.0 if half else 4.0) * config.width] * 2
    if config.family.attention_dropout:
        tensors += [4.0 * config.num_heads * row_tokens] * 3
    return tensors


def _block_tensors(config: GPTConfig, *, half: bool, on_gpu: bool, compiled: bool) -> list[float]:
    """Return the bytes per token of each tensor that a block keeps for its backward pass."""
    width, query = config.width, config.num_heads * config.head_dim
    key = config.num_kv_heads * config.head_dim
    number = 2 if half else 4
    if not config.family.gated_mlp:
        # Two norms with their inputs and results, queries, keys and values, attention's output.
        narrow = [width] * (7 if on_gpu and not compiled else 5) + [3 * width]
        wide = [config.mlp_width] * 2
        between = 2.5 if half and not on_gpu else number
    elif on_gpu and compiled:
        # The compiler recomputes norms and the gate instead of keeping them; queries and keys
        # are kept before and after their norm and rotation.
        narrow = [width] * 4 + [query + 2 * key, query + key]
        wide = [config.mlp_width] * 3
        between = number
    elif not on_gpu and not half:
        # Norms, rotations and the gate are computed in one pass each (rowkernels.py), and keep
        # their inputs only.
        narrow = [width] * 4 + [query + 2 * key] * 2 + [query]
        wide = [2 * config.mlp_width, config.mlp_width]
        between = number
    else:
        # Half precision on a CPU has no fused norms: their scaled input is kept too, in float32.
        narrow = [width] * (4 if on_gpu else 6) + [query + 2 * key]
        narrow += [query] * (3 if on_gpu else 4) + [key] * (1 if on_gpu else 2)
        wide = [2 * config.mlp_width, config.mlp_width, config.mlp_width]
        between = 3.4 if half and not on_gpu else number
    if config.family.query_key_norm == "whole":
        narrow += [query + key]  # contiguous inputs of the norms over all heads
    if config.window_layers:
        narrow += [query]  # attention's output, by parts of the row and concatenated
    if config.family.rereads_embedding:
        # The stream before the embedding is mixed in, heads before their gates, and in every second
        # block the tensor added to the values.
        narrow += [width, query, key / 2]
    if config.without_own_values:
        narrow += [query, query]  # the heads' output, and the directions removed from it
    return [between * size for size in narrow] + [number * float(size) for size in wide]


def suitable_vocabulary(num_parameters: int, text_bytes: int | None = None) -> int:
    """The vocabulary size that suits a model and the text it is learned from.

    2,000 at a million parameters, growing with the square root as the width does, so that the
    embedding takes about a fifth of the model at every size; never more than twice the square root
    of the text's bytes, since rarer merges are learned from too few examples. From 300 to 32,000.

    >>> [suitable_vocabulary(count) for count in (10**5, 10**6, 10**7, 10**9)]
    [600, 2000, 6300, 32000]
    """
    size = _VOCABULARY_AT_A_MILLION * math.sqrt(num_parameters / 1e6)
    if text_bytes is not None:
        size = min(size, 2 * math.sqrt(text_bytes))
    return min(_LARGEST_VOCABULARY, max(_SMALLEST_VOCABULARY, int(size) // 100 * 100))


def shape_for_parameters(
    target_params: int,
    *,
    vocab_size: int,
    context_length: int = 256,
    layout: Layout = "qwen3",
    tie_weights: bool = True,
) -> GPTConfig:
    """Return a well-proportioned shape with `target_params` parameters, to 5 %.

    Widths of about 64 times the depth, narrower where the vocabulary takes most of the parameters.

    >>> count_parameters(shape_for_parameters(1_000_000, vocab_size=2048)) // 10_000
    99
    """
    best, below, above = _best_shape(
        target_params,
        vocab_size=vocab_size,
        context_length=context_length,
        layout=layout,
        tie_weights=tie_weights,
    )
    if best is None and vocab_size > 10 * suitable_vocabulary(target_params):
        best = GPTConfig(vocab_size, context_length, 1, 8, 1, layout=layout)
        raise _no_network(target_params, best.replace(tie_weights=tie_weights))
    if best is None:
        raise _no_shape(target_params, vocab_size, below, above)
    if not _is_network(best):
        raise _no_network(target_params, best)
    return best


def _is_network(config: GPTConfig) -> bool:
    """True if the vocabulary's tables leave some parameters for the layers."""
    whole = count_parameters(config)
    return count_parameters(config, embeddings=False) >= _LEAST_NETWORK * whole


def _best_shape(
    target_params: int,
    *,
    vocab_size: int,
    context_length: int,
    layout: FamilyName,
    tie_weights: bool,
) -> tuple[GPTConfig | None, int, float]:
    """The best shape, and the nearest sizes out of tolerance; 0 and infinity for none."""
    best: GPTConfig | None = None
    best_score = math.inf
    below, above = 0, math.inf
    widths = _widths()
    for num_layers in (*range(1, 17), *range(18, 49, 2)):

        def shape(width: int, num_layers: int = num_layers) -> GPTConfig:
            return GPTConfig(
                vocab_size=vocab_size,
                context_length=context_length,
                num_layers=num_layers,
                width=width,
                num_heads=_num_heads(width),
                layout=layout,
                tie_weights=tie_weights,
            )

        # Wider is larger, so of those that are too small only the largest is considered.
        smallest = (1 - _TOLERANCE) * target_params
        first = bisect.bisect_left(
            widths, smallest, key=lambda width: count_parameters(shape(width))
        )
        for width in widths[max(0, first - 1) :]:
            config = shape(width)
            count = count_parameters(config)
            off = abs(count / target_params - 1)
            if off <= _TOLERANCE:
                wanted = 12.0 + 3.2 * num_layers if num_layers <= 12 else 64.0
                proportion = abs(math.log(width / num_layers / wanted))
                score = proportion + 2 * off
                if score < best_score:
                    best, best_score = config, score
            elif count > target_params:
                above = min(above, count)
                break
            else:
                below = max(below, count)
    return best, below, above


def _widths() -> list[int]:
    return [
        *range(8, 64, 4),
        *range(64, 256, 8),
        *range(256, 512, 16),
        *range(512, 1024, 32),
        *range(1024, 4097, 64),
        *range(4224, 6657, 128),
    ]


def _num_heads(width: int) -> int:
    """Heads of 64 where the width allows, of 32 in small networks, of 128 beyond ten billion."""
    wanted = max(1, round(width / (128 if width > 4096 else 64 if width >= 384 else 32)))
    fits = [heads for heads in range(1, 65) if width % heads == 0 and (width // heads) % 2 == 0]
    return min(fits, key=lambda heads: abs(heads - wanted))


def _no_network(target: int, config: GPTConfig) -> UsageError:
    """An error: the vocabulary takes all parameters; its next step names the size to change."""
    suited, enough = suitable_vocabulary(target), target
    larger: GPTConfig | None = config
    while larger is None or not _is_network(larger):
        enough = math.ceil(enough * 1.25 / 10**5) * 10**5
        larger, _, _ = _best_shape(
            enough,
            vocab_size=config.vocab_size,
            context_length=config.context_length,
            layout=config.layout,
            tie_weights=config.tie_weights,
        )
    return UsageError(
        f"a vocabulary of {config.vocab_size:,} takes nearly all of {target:,} parameters: one "
        f"layer of width {config.width} would be left",
        next_step=f"give --target-params {enough}, or a vocabulary of about {suited:,} tokens: of "
        f"text with --vocab-size {suited} and without --tokenization, of a dataset by preparing it "
        f"with a tokenizer of lowtide train-tokenizer --vocab-size {suited}",
    )


def _no_shape(target: int, vocab_size: int, below: int, above: float) -> UsageError:
    """An error that names the nearest size that exists; 0 and infinity stand for none."""
    if below:
        instead, advice = f"the largest has {below:,}", "give --num-layers and --width, or lower"
    else:
        instead = f"the smallest has {above:,}"
        advice = "use a smaller vocabulary (lowtide train-tokenizer), or raise"
    return UsageError(
        f"no shape has {target:,} parameters with a vocabulary of {vocab_size:,}: {instead}",
        next_step=f"{advice} --target-params",
    )
