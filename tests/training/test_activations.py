"""Activations of JAX's step by formula, beside what its compiler says."""

from __future__ import annotations

import pytest

from lowtide.model.config import GPTConfig
from lowtide.model.program import Program
from lowtide.model.sizing import jax_activation_bytes
from lowtide.training.activations import cpu_activations
from lowtide.training.footprint import planned_bytes
from lowtide.training.settings import train_settings

MIB = 1 << 20
VOCABULARY = 8192
# MiB, printed by benchmarks/jax_memory.py (jax 0.10.2, 16 November 2026).
COMPILED = {
    ("qwen3", 8, 8, 256, False): 361,
    ("qwen3", 8, 8, 256, True): 217,
    ("qwen3", 8, 1, 2048, False): 777,
    ("qwen3", 8, 1, 2048, True): 636,
    ("qwen3", 16, 8, 256, False): 523,
    ("gpt2", 8, 8, 256, False): 363,
    ("gpt2", 8, 8, 256, True): 219,
}


def shape(layout: str, layers: int, tokens: int) -> GPTConfig:
    heads = 3 if layout == "qwen3" else 9
    return GPTConfig(VOCABULARY, tokens, layers, 288, 9, num_kv_heads=heads, layout=layout)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_the_plan_is_what_the_compiler_counts(case: tuple[str, int, int, int, bool]) -> None:
    layout, layers, rows, tokens, again = case
    config = shape(layout, layers, tokens)
    settings = train_settings(
        backend="jax",
        seq_len=tokens,
        batch_size=rows,
        activation_checkpointing=again,
        optimizer="adamw",
    )
    plan = planned_bytes(config, settings, program=Program(0, 0))
    assert (plan.activations + plan.loss) / MIB == pytest.approx(COMPILED[case], rel=0.04)


def test_half_precision_takes_as_much_and_accumulation_another_gradient() -> None:
    config = shape("qwen3", 8, 256)
    options = {"backend": "jax", "seq_len": 256, "batch_size": 8, "optimizer": "adamw"}
    plain, half, more = (
        planned_bytes(config, train_settings(**options, **others), program=Program(0, 0))
        for others in ({}, {"use_mixed_precision": True}, {"gradient_accumulation_steps": 2})
    )
    assert (half.activations, half.loss) == (plain.activations, plain.loss)
    assert more.activations - plain.activations == plain.gradients


def test_muons_step_is_on_top() -> None:
    config = shape("qwen3", 8, 256)
    settings = train_settings(backend="jax", seq_len=256, batch_size=8)
    alone = jax_activation_bytes(config, rows=8, tokens=256, checkpointing=False)
    assert cpu_activations(config, settings, 8, 1000) == alone + 1000
