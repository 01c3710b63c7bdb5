"""What training a shape needs, by part, before it starts; no torch here, so that planning is quick.

In:      GPTConfig and TrainSettings
Out:     Footprint: bytes on the device and on the host; the largest micro-batch a budget allows
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.errors import BudgetError
from lowtide.loader.batches import planned_bytes as loader_bytes
from lowtide.memory import format_size
from lowtide.model.config import GPTConfig
from lowtide.model.sizing import activation_bytes, count_parameters
from lowtide.training.settings import TrainSettings, choose_optimizer

__all__ = ["Footprint", "fit_micro_batch", "planned_bytes"]

# Interpreter, torch and the threads' arenas, resident before anything is made.
PROGRAM_BYTES = 420 << 20
_CUDA_PROGRAM_BYTES = 2 << 30  # CUDA's libraries and context, on the host
_LOSS_CHUNK_BYTES = 64 << 20


@dataclass(frozen=True)
class Footprint:
    """Bytes of a training run, by part."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    loss: int
    """One chunk of logits and its gradient, and the output matrix's gradient beside the others."""
    batches: int
    """Prepared batches, on the host."""
    program: int = PROGRAM_BYTES

    @property
    def device_bytes(self) -> int:
        """What a GPU must hold."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.loss

    @property
    def host_bytes(self) -> int:
        """What the host must hold when a GPU trains: its program, a checkpoint under way."""
        return self.batches + self.program + _CUDA_PROGRAM_BYTES + self.checkpoint_bytes

    @property
    def checkpoint_bytes(self) -> int:
        """What one checkpoint takes."""
        return self.weights + self.optimizer

    @property
    def total_bytes(self) -> int:
        """What a machine that trains on its CPU must hold."""
        return self.device_bytes + self.batches + self.program


def planned_bytes(
    config: GPTConfig, settings: TrainSettings, *, micro_batch: int | None = None
) -> Footprint:
    """Say what training needs with `micro_batch` rows at once (default: batch_size)."""
    rows = micro_batch or settings.batch_size
    tokens = rows * settings.seq_len
    count = count_parameters(config)
    half = settings.use_mixed_precision
    activations = activation_bytes(
        config,
        tokens=tokens,
        bytes_per_number=2 if half else 4,
        checkpointing=settings.activation_checkpointing,
    )
    # Mixed precision keeps a half-precision copy of each matrix for the backward pass.
    copies = 2 * count if half else 0
    matrix = config.vocab_size * config.width
    chunk_tokens = min(tokens, max(128, _LOSS_CHUNK_BYTES // (4 * config.vocab_size)))
    chunk = chunk_tokens * config.vocab_size * (4 + (6 if half else 0))
    return Footprint(
        weights=4 * count,
        gradients=4 * count,
        optimizer=_optimizer_bytes(config, settings, count),
        activations=activations + copies,
        loss=chunk + 4 * matrix * (2 if config.tie_weights else 1),
        batches=loader_bytes(
            batch_size=settings.rows_per_step,
            sequence_length=settings.seq_len,
            prefetch_batches=settings.num_workers,
        ),
    )


def _optimizer_bytes(config: GPTConfig, settings: TrainSettings, count: int) -> int:
    per_parameter = 2 if settings.use_8bit_optimizer else 8
    if choose_optimizer(settings, config) == "adamw":
        return per_parameter * count
    matrices = count_parameters(config, embeddings=False)
    largest = 3 * config.width * config.mlp_width * 4
    # One stack of equal matrices at a time is made orthogonal: the update, and two temporaries.
    stacks = min(256 << 20, max(largest, 4 * matrices // 2)) * 2
    return 4 * matrices + per_parameter * (count - matrices) + stacks


def fit_micro_batch(config: GPTConfig, settings: TrainSettings, budget_bytes: int) -> int:
    """Give the largest micro-batch, halved from batch_size, that fits; refuse if none does."""
    rows = settings.batch_size
    while True:
        plan = planned_bytes(config, settings, micro_batch=rows)
        if plan.total_bytes <= budget_bytes:
            return rows
        if rows == 1:
            raise BudgetError(
                f"training this model needs {format_size(plan.total_bytes)} even one row at a time "
                f"(weights {format_size(plan.weights)}, gradients {format_size(plan.gradients)}, "
                f"optimizer {format_size(plan.optimizer)}, activations "
                f"{format_size(plan.activations)}, loss {format_size(plan.loss)}, program "
                f"{format_size(plan.program)}), the budget is {format_size(budget_bytes)}",
                next_step=f"give at least --memory {-(-plan.total_bytes // (1 << 20))}MiB, or a "
                "smaller model, --seq-len, --use-8bit-optimizer or --activation-checkpointing",
            )
        rows = -(-rows // 2)
