"""Bytes of activations of a training step, by device and by what computes.

In:      a shape, settings, rows of a micro-batch
Out:     bytes; no torch, no JAX
"""

from __future__ import annotations

from lowtide.model.config import GPTConfig
from lowtide.model.sizing import (
    activation_bytes,
    count_parameters,
    device_activation_bytes,
    jax_activation_bytes,
)
from lowtide.training.settinggroups import ComputeSettings
from lowtide.training.settings import TrainSettings

__all__ = ["cpu_activations", "gpu_activations"]


def cpu_activations(
    config: GPTConfig, settings: TrainSettings, rows: int, *, update: int, loss: int
) -> int:
    """Return the bytes of activations on a CPU.

    `update` are those of an optimizer's step, `loss` those of logits and what is beside them.
    """
    computing, tokens = settings.computing, settings.model.seq_len
    accumulating = rows < settings.batch.rows_per_step
    if computing.backend == "jax":
        size = jax_activation_bytes(
            config,
            rows=rows,
            tokens=tokens,
            half=computing.use_mixed_precision,
            checkpointing=computing.activation_checkpointing,
            loss=loss,
            accumulating=accumulating,
        )
        # Muon's step does not fit into the holes that a compiled pass leaves (measured).
        return size + update
    size = activation_bytes(
        config,
        tokens=rows * tokens,
        half=computing.use_mixed_precision,
        checkpointing=computing.activation_checkpointing,
        accumulating=accumulating,
    )
    # Mixed precision keeps a half-precision copy of each matrix for the backward pass.
    return size + (2 * count_parameters(config) if computing.use_mixed_precision else 0)


def gpu_activations(config: GPTConfig, computing: ComputeSettings, tokens: int, loss: int) -> int:
    """Return the bytes of activations, and of half-precision copies of the blocks' matrices."""
    half, again = (
        computing.use_mixed_precision,
        computing.activation_checkpointing,
    )
    kept, later = device_activation_bytes(
        config,
        tokens=tokens,
        half=half,
        wide_residual=not half or computing.precision == "fp16",
        checkpointing=again,
        compiled=computing.compile,
    )
    copies = 2 * count_parameters(config, embeddings=False) if half else 0
    if again:  # compiled, a block makes its copies anew; else half of them were there (measured)
        copies = 0 if computing.compile else copies // 2
    return kept + max(copies, later - loss)
