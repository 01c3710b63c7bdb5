"""Micro-batches are halved until one row is left; then the way out is told."""

import pytest

from lowtide.errors import BudgetError
from lowtide.training.microbatches import halve_micro_batch
from lowtide.training.settings import train_settings
from lowtide.training.state import RunState


def test_halves_are_rounded_up_and_told():
    state, notes = RunState(micro_batch=7), []
    settings = train_settings(batch_size=7, gradient_accumulation_steps=2, seq_len=16)
    for _ in range(3):
        halve_micro_batch(state, settings, rows=14, can_halve=True, note=notes.append)
    assert state.micro_batch == 1
    assert notes == [
        "out of memory: micro-batches of 4 rows now, 4 per step; a step still sees 14 rows",
        "out of memory: micro-batches of 2 rows now, 7 per step; a step still sees 14 rows",
        "out of memory: micro-batches of 1 row now, 14 per step; a step still sees 14 rows",
    ]


def test_what_cannot_be_halved_is_refused_with_the_ways_out():
    state = RunState(micro_batch=1)
    with pytest.raises(BudgetError, match="out of memory with 1 row of 16 tokens") as caught:
        halve_micro_batch(
            state, train_settings(seq_len=16), rows=1, can_halve=False, note=lambda _: None
        )
    assert "--activation-checkpointing" in str(caught.value.next_step)
    assert state.micro_batch == 1
