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
# MiB, printed by benchmarks/jax_memory.py (jax 0.10.2, 16 November 2026): layout, vocabulary,
# layers, width, rows, tokens, activations again, bfloat16.
COMPILED = {
    ("qwen3", 8192, 8, 288, 8, 256, False, False): 361,
    ("qwen3", 8192, 8, 288, 8, 256, True, False): 217,
    ("qwen3", 8192, 8, 288, 1, 2048, False, False): 777,
    ("qwen3", 8192, 8, 288, 1, 2048, True, False): 636,
    ("qwen3", 8192, 16, 288, 8, 256, False, False): 523,
    ("gpt2", 8192, 8, 288, 8, 256, False, False): 363,
    ("gpt2", 8192, 8, 288, 8, 256, True, False): 219,
    ("gpt2", 1024, 2, 3072, 1, 64, False, False): 460,
    ("gpt2", 1024, 2, 3072, 1, 64, False, True): 463,
    ("gpt2", 1024, 2, 1536, 1, 64, False, False): 122,
    ("qwen3", 1024, 2, 1536, 1, 64, False, False): 106,
    ("gpt2", 1024, 4, 1536, 1, 64, True, False): 119,
    ("gpt2", 1024, 4, 1536, 1, 64, True, True): 153,
    ("qwen3", 1024, 4, 1536, 1, 64, True, True): 107,
    ("gpt2", 1024, 24, 768, 1, 64, False, False): 71,
    ("gpt2", 1024, 24, 768, 1, 64, False, True): 72,
    ("gpt2", 1024, 24, 768, 1, 64, True, True): 44,
}
# Where logits and a block's gradients, or half of it all in bfloat16, are not there at once.
LESS = {
    ("qwen3", 8192, 8, 288, 8, 256, False, True): 306,
    ("qwen3", 8192, 8, 288, 8, 256, True, True): 162,
    ("gpt2", 8192, 8, 768, 1, 256, False, False): 98,
    ("gpt2", 8192, 8, 768, 4, 256, False, False): 327,
    ("qwen3", 8192, 4, 1536, 2, 256, False, False): 253,
    ("qwen3", 8192, 4, 1536, 2, 256, True, True): 194,
}

Case = tuple[str, int, int, int, int, int, bool, bool]


def shape(
    layout: str, layers: int, tokens: int, *, width: int = 288, vocabulary: int = 8192
) -> GPTConfig:
    count = 9 if width == 288 else 12
    heads = 3 if layout == "qwen3" else count
    return GPTConfig(vocabulary, tokens, layers, width, count, num_kv_heads=heads, layout=layout)  # pyright: ignore[reportArgumentType]


def planned_mib(case: Case) -> float:
    layout, vocabulary, layers, width, rows, tokens, again, half = case
    config = shape(layout, layers, tokens, width=width, vocabulary=vocabulary)
    settings = train_settings(
        backend="jax",
        seq_len=tokens,
        batch_size=rows,
        activation_checkpointing=again,
        use_mixed_precision=half,
        optimizer="adamw",
    )
    plan = planned_bytes(config, settings, program=Program(0, 0))
    return (plan.activations + plan.loss) / MIB


@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_the_plan_is_what_the_compiler_counts(case: Case) -> None:
    assert planned_mib(case) == pytest.approx(COMPILED[case], rel=0.04)


@pytest.mark.parametrize("case", LESS, ids=str)
def test_the_plan_is_hardly_less_and_not_half_as_much_again(case: Case) -> None:
    assert 0.94 <= planned_mib(case) / LESS[case] <= 1.36


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
    alone = jax_activation_bytes(
        config, rows=8, tokens=256, half=False, checkpointing=False, loss=5
    )
    assert cpu_activations(config, settings, 8, update=1000, loss=5) == alone + 1000
