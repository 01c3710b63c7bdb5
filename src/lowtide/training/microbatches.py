"""Halve the micro-batch when memory runs out, with one message for both backends.

In:      the run's state and settings
Out:     the state with half the rows at once; BudgetError if it cannot be halved
"""

from __future__ import annotations

from collections.abc import Callable

from lowtide.counts import counted
from lowtide.errors import BudgetError
from lowtide.training.settings import TrainSettings
from lowtide.training.state import RunState

__all__ = ["halve_micro_batch"]


def halve_micro_batch(
    state: RunState,
    settings: TrainSettings,
    *,
    rows: int,
    can_halve: bool,
    note: Callable[[str], None],
) -> None:
    """Compute half as many of a step's `rows` at once from now on; the step itself is unchanged."""
    if not can_halve:
        raise BudgetError(
            f"out of memory with {counted(state.micro_batch, 'row')} of "
            f"{settings.model.seq_len} tokens",
            next_step="add --activation-checkpointing, --use-mixed-precision or "
            "--use-8bit-optimizer, or --offload auto; or lower --batch-size, --seq-len or the "
            "model's size",
        )
    state.micro_batch = -(-state.micro_batch // 2)
    parts = -(-rows // state.micro_batch)
    note(
        f"out of memory: micro-batches of {counted(state.micro_batch, 'row')} now, {parts} per "
        f"step; a step still sees {settings.batch.rows_per_step} rows"
    )
