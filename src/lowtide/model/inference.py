"""Memory of running a network without training it, computed before torch is imported.

In:      a GPTConfig, rows and tokens at once, a budget
Out:     bytes by part; BudgetError with the smallest budget that works
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lowtide.errors import BudgetError, DataError
from lowtide.memory import default_budget_bytes, format_size, parse_size
from lowtide.model.attentionrooms import further_rooms_bytes
from lowtide.model.companions import companions_dir
from lowtide.model.config import GPTConfig, find_model_dir, load_config
from lowtide.model.decoder import step_bytes
from lowtide.model.decoderweights import turns_bytes
from lowtide.model.program import Program, find_program
from lowtide.model.sizing import activation_bytes, count_parameters, loss_chunk_tokens
from lowtide.quickclasses import dataclass
from lowtide.tokenizer.needs import vocabulary_bytes

__all__ = [
    "LONGEST_USUAL",
    "PROMPT_PART",
    "TOKEN_BYTES",
    "InferenceNeed",
    "budget_of",
    "filled_tokens",
    "fit_context",
    "fit_rows",
    "in_turns_bytes",
    "planned_bytes",
    "refuse_hopeless",
    "usual_tokens",
]

_MARGIN = 1.1
LONGEST_USUAL = 4096
"""Tokens of a row by default, if the context is longer."""
PROMPT_PART = 1024
"""Tokens of a prompt that are read at once."""
_MEASURED_ANEW = 1 << 20  # variation between processes of native generation
_DRAWN_BYTES = 48  # for each token of the vocabulary, to sample one in native generation
_CONVERTED_BYTES = 16 * PROMPT_PART * PROMPT_PART  # to convert a tensor while it is read
_ENCODER_BYTES = 19 << 20  # the caches that encode a prompt, and tables of its characters
TOKEN_BYTES = 360
"""Of a vocabulary: 18 MiB for GPT-2's, half of them while it is read or written."""


@dataclass(frozen=True)
class InferenceNeed:
    """Bytes of running a network, by part."""

    weights: int
    working: int
    """Activations of one block, logits; or a temporary copy of a tensor while weights are read."""
    cache: int
    """Keys and values of the context, for generation."""
    program: int
    tokenizer: int = 0
    """The vocabulary while it is loaded."""
    text: int = 0
    """Texts that are encoded as a whole, or data fetched ahead from an object store."""

    @property
    def total_bytes(self) -> int:
        """Memory to compute on a CPU."""
        parts = (self.weights, self.working, self.cache, self.program, self.tokenizer, self.text)
        return sum(parts)

    @property
    def budget_bytes(self) -> int:
        """The budget to advise: a tenth more, except for the weights, whose size is exact."""
        return self.weights + int((self.total_bytes - self.weights) * _MARGIN)

    @property
    def running_budget_bytes(self) -> int:
        """The same if the program was measured in the process that computes."""
        exact = self.weights + self.program
        return exact + int((self.total_bytes - exact) * _MARGIN)


def planned_bytes(
    config: GPTConfig,
    *,
    rows: int,
    tokens: int,
    program: Program,
    generates: bool = False,
    backend: str = "torch",
    tokenizer_bytes: int = 0,
    weight_bytes: int = 0,
) -> InferenceNeed:
    """The memory it takes to run `rows` rows of `tokens` tokens at once.

    `tokenizer_bytes` is the tokenizer's memory as estimated from its files, if known;
    `weight_bytes` that of weights in their stored types, or one block at a time.
    """
    if backend == "native":
        working = step_bytes(config, rows=rows, tokens=tokens) + _DRAWN_BYTES * config.vocab_size
        return InferenceNeed(
            weights=weight_bytes,
            working=max(working, _CONVERTED_BYTES),
            cache=_cache_bytes(config, rows, tokens),
            program=program.trained_bytes,
            tokenizer=max(config.vocab_size * TOKEN_BYTES, tokenizer_bytes) + _ENCODER_BYTES,
        )
    if backend == "jax" and not generates:
        tokens = filled_tokens(tokens, config.context_length)
    # Prompts are read one by one; later all rows have one token at a time.
    at_once = max(rows, min(tokens, PROMPT_PART)) if generates else rows * tokens
    block = activation_bytes(
        config.one_layer(),
        tokens=at_once,
        half=False,
        checkpointing=False,
    )
    if backend == "jax":  # the whole attention matrix exists, and its softmax
        queries = min(tokens, PROMPT_PART) if generates else rows * tokens
        block += 3 * 4 * config.num_heads * queries * tokens
    chunk = rows if generates else loss_chunk_tokens(config.vocab_size, on_gpu=False)
    # The logits, their logarithms, and memory of the previous chunk that the C library keeps.
    logits = 3 * 4 * config.vocab_size * min(rows * tokens, chunk)
    if backend == "torch":
        block += further_rooms_bytes(
            config,
            rows=1 if generates else rows,
            tokens=tokens,
            trains=False,
            logits_bytes=logits,
        )
    return InferenceNeed(
        weights=weight_bytes or 4 * count_parameters(config),
        working=max(block + logits, 4 * config.vocab_size * config.width),
        cache=_cache_bytes(config, rows, tokens) if generates else 0,
        program=program.trained_bytes,
        tokenizer=max(config.vocab_size * TOKEN_BYTES, tokenizer_bytes),
    )


def in_turns_bytes(config: GPTConfig) -> int:
    """Memory of the weights if all blocks share the memory of one (weights.load_in_turns)."""
    blocks = count_parameters(config, embeddings=False)
    at_once = 2 if config.family.rereads_embedding else 1  # every second block of tide has less
    tables = count_parameters(config) - blocks + 2 * config.width  # and the last norm
    return 4 * (tables + at_once * -(-blocks // config.num_layers))


def _cache_bytes(config: GPTConfig, rows: int, tokens: int) -> int:
    """Keys and values of rows of so many tokens, in float32."""
    return 4 * 2 * config.num_layers * config.num_kv_heads * config.head_dim * tokens * rows


def filled_tokens(tokens: int, context: int) -> int:
    """Tokens that JAX pads a row to, so that few lengths are compiled: four to a doubling.

    >>> [filled_tokens(tokens, 1000) for tokens in (5, 64, 65, 81, 129, 900)]
    [64, 64, 80, 96, 160, 1000]
    """
    step = max(16, (1 << (tokens - 1).bit_length()) // 8)
    return max(tokens, min(context, max(64, -(-tokens // step) * step)))


def usual_tokens(config: GPTConfig) -> int:
    """Tokens of a row by default: the context, unless it is very long."""
    return min(config.context_length, LONGEST_USUAL)


def fit_context(
    config: GPTConfig,
    budget_bytes: int,
    *,
    program: Program,
    backend: str = "torch",
    tokenizer_bytes: int = 0,
    weight_bytes: int = 0,
    wanted: int | None = None,
) -> int:
    """The largest context, halved from the model's, whose cache fits the budget; error if none.

    Published contexts are long, and their whole cache is often larger than the weights; a prompt
    and its continuation are seldom as long. Fewer than PROMPT_PART are chosen only if no more are
    `wanted`.
    """
    context = config.context_length
    least = min(PROMPT_PART, wanted or PROMPT_PART)
    while context > least:
        need = planned_bytes(
            config,
            rows=1,
            tokens=context,
            program=program,
            generates=True,
            backend=backend,
            tokenizer_bytes=tokenizer_bytes,
            weight_bytes=weight_bytes,
        )
        if need.running_budget_bytes <= budget_bytes:
            return context
        context = max(least, context // 2)
    fit_rows(
        config,
        1,
        budget_bytes,
        tokens=context,
        program=program,
        is_running=True,
        generates=True,
        backend=backend,
        tokenizer_bytes=tokenizer_bytes,
        weight_bytes=weight_bytes,
    )
    return context


def budget_of(memory: str | None) -> int:
    """Bytes of a `--memory` setting; half of the available memory if not given."""
    return default_budget_bytes() if memory is None else parse_size(memory)


def refuse_hopeless(
    model_name: str,
    checkpoints_dir: Path,
    memory: str | None,
    *,
    device: str = "auto",
    tokens: int | None = None,
    generates: bool = False,
    text_bytes: int = 0,
    backend: str = "torch",
    tokenization: str | None = None,
) -> None:
    """Refuse a budget too small for one row, before torch or JAX is loaded."""
    if memory is None:
        return
    program = find_program(device, backend=backend)
    if program.device != "cpu":  # the GPU's own memory decides
        return
    try:
        folder = find_model_dir(model_name, checkpoints_dir)
        config = load_config(folder)
        held = turns_bytes(folder, config) if backend == "native" else 0
        if backend == "torch" and not generates:
            held = in_turns_bytes(config)
    except DataError:
        return  # reported when it is loaded
    fit_rows(
        config,
        1,
        budget_of(memory),
        tokens=min(tokens or 0, config.context_length)
        or (min(config.context_length, PROMPT_PART) if generates else usual_tokens(config)),
        program=program,
        generates=generates,
        text_bytes=text_bytes,
        backend=backend,
        tokenizer_bytes=vocabulary_bytes(tokenization or companions_dir(folder)),
        weight_bytes=held,
    )


def fit_rows(
    config: GPTConfig,
    rows: int,
    budget_bytes: int,
    *,
    tokens: int,
    program: Program,
    is_running: bool = False,
    generates: bool = False,
    text_bytes: int = 0,
    backend: str = "torch",
    tokenizer_bytes: int = 0,
    weight_bytes: int = 0,
) -> int:
    """The largest number of rows, halved from `rows`, that fits the budget; error if none does.

    In the process that computes (`is_running`) the program is measured once, before tokenizer and
    weights are loaded, which are counted separately, so a budget that was advised is accepted.
    """
    while True:
        need = planned_bytes(
            config,
            rows=rows,
            tokens=tokens,
            program=program,
            generates=generates,
            backend=backend,
            tokenizer_bytes=tokenizer_bytes,
            weight_bytes=weight_bytes,
        )
        need = replace(need, text=text_bytes)
        if (need.running_budget_bytes if is_running else need.budget_bytes) <= budget_bytes:
            return rows
        if rows == 1:
            least = need.budget_bytes + (_MEASURED_ANEW if backend == "native" else 0)
            raise BudgetError(
                f"running this model needs {format_size(need.budget_bytes)} even one row at a time "
                f"(weights {format_size(need.weights)}, activations {format_size(need.working)}, "
                f"cache {format_size(need.cache)}, program {format_size(need.program)}, "
                f"tokenizer {format_size(need.tokenizer)}"
                + (f", text held at once {format_size(text_bytes)}" if text_bytes else "")
                + f"), the budget is {format_size(budget_bytes)}",
                next_step=f"give at least --memory {-(-least // (1 << 20))}MiB",
            )
        rows = -(-rows // 2)
