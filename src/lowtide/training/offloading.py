"""Bytes that a run with --offload has on its device, on the host and in its file; without torch.

In:      GPTConfig and TrainSettings
Out:     OffloadBytes, by part
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
from lowtide.quickclasses import dataclass
from lowtide.training.choosing import choose_optimizer
from lowtide.training.muonnumbers import STACK_BYTES
from lowtide.training.settings import TrainSettings

__all__ = [
    "CHUNK",
    "GPU_CHUNK_TOKENS",
    "RUNGS",
    "STACK_NUMBERS",
    "OffloadBytes",
    "Traffic",
    "offload_bytes",
    "step_traffic",
]

RUNGS = ("none", "packed", "gradients", "optimizer", "layers", "disk", "disk-all")
"""The values of --offload, from the fastest to the one with the least memory."""
CHUNK = 1 << 23
"""Numbers whose states are updated at once: 24 MiB, and 16 MiB of gradients."""
GPU_CHUNK_TOKENS = 2048
"""Tokens whose logits exist at once: 200 MB with GPT-2's vocabulary, large enough to be fast."""
STACK_NUMBERS = STACK_BYTES // 4
"""Numbers of equally shaped matrices that Muon orthogonalizes at once."""
_SCALE = 4 / 128  # bytes a number: a float32 for every 128
_IN_FILE = ("disk", "disk-all")
_WEIGHTS_LEAVE = ("layers", *_IN_FILE)
_STATES_LEAVE = ("optimizer", *_WEIGHTS_LEAVE)


@dataclass(frozen=True)
class OffloadBytes:
    """Bytes of a run, by part; on a CPU, device and host are the same memory."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    loss: int
    update: int
    """The matrices that Muon orthogonalizes, and intermediate results."""
    host: int
    """Host memory, if a GPU trains."""
    file: int
    checkpoint: int
    """Weights in float32, moments packed."""


def offload_bytes(
    config: GPTConfig,
    settings: TrainSettings,
    *,
    rows: int,
    on_gpu: bool,
    cpu_threads: int | None = None,
) -> OffloadBytes:
    """Count the bytes with `rows` rows at once."""
    rung, half = settings.machine.offload, settings.computing.use_mixed_precision
    tables = count_parameters(config) - count_parameters(config, embeddings=False)
    block = count_parameters(config, embeddings=False) // config.num_layers
    whole = tables + config.num_layers * block
    blocks = whole - tables
    weight = 2 if half else 3  # computing in float32 takes all 24 bits of the weights
    rest = 3 - weight
    muon = choose_optimizer(settings.learning, config, settings.tokens_per_step) == "muon"
    states = _state_bytes(config, settings, tables, blocks)
    # A slot holds the largest record: AdamW's states of a chunk, if there are any.
    slots = int(3 * (rest + 2 * (1 + _SCALE)) * min(CHUNK, max(tables, block)))
    step_inputs = _step_inputs(config, settings.tokens_per_step, half=half)
    host = file = 0
    weights, gradients, optimizer = weight * whole, 2 * whole, states
    if on_gpu and rung != "packed":
        gradients, host = 2 * tables + 4 * block, 2 * blocks + step_inputs
    if on_gpu and rung in _STATES_LEAVE:
        optimizer = slots
        host += slots if rung in _IN_FILE else states
        file += states if rung in _IN_FILE else 0
    if on_gpu and rung in _WEIGHTS_LEAVE:
        weights = weight * (tables + 2 * block)
        host += weight * blocks
    if on_gpu and rung == "disk-all":  # weights and gradients of two blocks each are in transit
        file += (weight + 2) * blocks
        host += (weight + 2) * (2 * block - blocks)
    if not on_gpu and rung in _IN_FILE:
        file = (weight + 2) * blocks + states
        weights = weight * (tables + 2 * block)
        gradients = 2 * (tables + 2 * block)
        optimizer = slots
    on_device = 0 if on_gpu and rung != "packed" else step_inputs
    computing, loss = _computing(
        config, settings, rows, block, tables, on_gpu=on_gpu, cpu_threads=cpu_threads
    )
    return OffloadBytes(
        weights=weights,
        gradients=gradients,
        optimizer=int(optimizer),
        activations=on_device + computing,
        loss=loss,
        update=_update_bytes(config, on_gpu=on_gpu) if muon else 0,
        host=host,
        file=file,
        checkpoint=4 * whole + states - rest * whole,
    )


@dataclass(frozen=True)
class Traffic:
    """Bytes of one step that cross between GPU and host, and between host and disk."""

    weights_in: int
    """During computation: once forward, once backward."""
    gradients_out: int
    inputs: int
    """Inputs of blocks: out in the forward pass, and in again in the backward pass."""
    update_in: int
    """In the update: gradients, states, weights."""
    update_out: int
    disk_weights: int
    """Read during computation: once forward, once backward."""
    disk_gradients: int
    """Written during computation."""
    disk_read: int
    """In the update."""
    disk_written: int


def step_traffic(config: GPTConfig, settings: TrainSettings, *, on_gpu: bool = True) -> Traffic:
    """Count what a step copies on its rung; on a CPU only what goes to the disk and back."""
    rung, half = settings.machine.offload, settings.computing.use_mixed_precision
    tables = count_parameters(config) - count_parameters(config, embeddings=False)
    blocks = count_parameters(config, embeddings=False)
    weight = 2 if half else 3
    states = _state_bytes(config, settings, tables, blocks)
    gradients = 2 * blocks if rung not in ("none", "packed") else 0
    moved = states if rung in _STATES_LEAVE else 0
    weights = weight * blocks if rung in _WEIGHTS_LEAVE else 0
    inputs = _step_inputs(config, settings.tokens_per_step, half=half) if gradients else 0
    on_disk = states if rung in _IN_FILE else 0
    all_there = rung == "disk-all" or (rung == "disk" and not on_gpu)
    return Traffic(
        weights_in=2 * weights,
        gradients_out=gradients,
        inputs=inputs,
        update_in=gradients + moved + weights,
        update_out=moved + weights,
        disk_weights=2 * weights if all_there else 0,
        disk_gradients=gradients if all_there else 0,
        disk_read=on_disk + (gradients + weights if all_there else 0),
        disk_written=on_disk + (weights if all_there else 0),
    )


def _state_bytes(config: GPTConfig, settings: TrainSettings, tables: int, blocks: int) -> int:
    """Moments and their scales, and the low bits if they are stored with them."""
    rest = 1 if settings.computing.use_mixed_precision else 0
    adamw, muon = 2 * (1 + _SCALE), 1 + _SCALE
    is_muon = choose_optimizer(settings.learning, config, settings.tokens_per_step) == "muon"
    return int((rest + (muon if is_muon else adamw)) * blocks + (rest + adamw) * tables)


def _update_bytes(config: GPTConfig, *, on_gpu: bool) -> int:
    """A stack of matrices during orthogonalization: two copies, and their squares."""
    width, mlp = config.width, config.mlp_width
    largest = max(min(STACK_NUMBERS, 2 * width * mlp), width * mlp)
    return int((3 * largest + 3 * min(width, mlp) ** 2) * (2 if on_gpu else 4))


def _step_inputs(config: GPTConfig, tokens_per_step: int, *, half: bool) -> int:
    """The inputs of all blocks, for all tokens of a step."""
    number = 2 if half else 4
    return config.num_layers * tokens_per_step * config.width * number


def _computing(
    config: GPTConfig,
    settings: TrainSettings,
    rows: int,
    block: int,
    tables: int,
    *,
    on_gpu: bool,
    cpu_threads: int | None,
) -> tuple[int, int]:
    """One block forward and backward for some rows, and tensors between blocks; the loss."""
    half = settings.computing.use_mixed_precision
    number = 2 if half else 4
    tokens = rows * settings.model.seq_len
    one = config.one_layer()
    if on_gpu:
        compiled = settings.computing.compile
        kept, later = device_activation_bytes(
            one, tokens=tokens, half=half, wide_residual=not half, checkpointing=True,
            compiled=compiled,
        )  # fmt: skip
        computed = kept + later
    else:
        computed = activation_bytes(
            one,
            tokens=tokens,
            half=half,
            checkpointing=False,
            dropped_row=settings.model.seq_len,
        )
    running = 2 * settings.tokens_per_step * config.width * number
    # A block's weights in the precision it computes in, its gradients, and their sum.
    beside = (0 if half else 4 * block) + number * block + 4 * block
    chunk_tokens = settings.computing.loss_chunk_tokens or (
        GPU_CHUNK_TOKENS if on_gpu else loss_chunk_tokens(config.vocab_size, on_gpu=False)
    )
    per_logit = (2 if on_gpu else 10) if half else 4
    logits = min(tokens, chunk_tokens) * config.vocab_size * per_logit
    if not on_gpu:
        computed += further_rooms_bytes(
            config,
            rows=rows,
            tokens=settings.model.seq_len,
            trains=True,
            logits_bytes=logits,
            half=half,
            cpu_threads=cpu_threads,
        )
    # The table's gradient sum, and in float32 the table itself. A tied table keeps its sum until
    # the end of the backward pass.
    table = 4 * tables + (0 if half else 4 * tables)
    waiting = 4 * tables if config.tie_weights else 0
    return computed + running, max(beside + waiting, logits + table)
