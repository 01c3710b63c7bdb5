"""Activations of JAX's step by formula, beside what its compiler says."""

from __future__ import annotations

import itertools

from lowtide.model.config import GPTConfig
from lowtide.model.program import Program
from lowtide.model.sizing import activation_bytes, count_parameters
from lowtide.training.activations import (
    _jax_update_bytes,
    cpu_activations,
    jax_activations,
    jax_pass_bytes,
)
from lowtide.training.footprint import planned_bytes
from lowtide.training.settings import train_settings

MIB = 1 << 20
# MiB, printed by benchmarks/jax_memory.py (jax 0.10.2, 17 November 2026): layout, vocabulary,
# layers, width, rows, tokens, activations again, bfloat16.
COMPILED = {
    ("qwen3", 8192, 8, 288, 8, 256, False, False): 361,
    ("qwen3", 8192, 8, 288, 8, 256, True, False): 217,
    ("qwen3", 8192, 8, 288, 1, 2048, False, False): 777,
    ("qwen3", 8192, 8, 288, 1, 2048, True, False): 636,
    ("qwen3", 8192, 16, 288, 8, 256, False, False): 523,
    ("gpt2", 8192, 8, 288, 8, 256, False, False): 363,
    ("gpt2", 8192, 8, 288, 8, 256, True, False): 219,
    ("qwen3", 8192, 8, 288, 8, 256, False, True): 306,
    ("qwen3", 8192, 8, 288, 8, 256, True, True): 162,
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
    ("gpt2", 8192, 8, 768, 1, 256, False, False): 98,
    ("gpt2", 8192, 8, 768, 4, 256, False, False): 327,
    ("qwen3", 8192, 4, 1536, 2, 256, False, False): 253,
    ("qwen3", 8192, 4, 1536, 2, 256, True, True): 194,
    ("qwen3", 256, 4, 768, 4, 256, False, False): 202,
    ("qwen3", 256, 4, 768, 4, 256, False, True): 210,
    ("qwen3", 256, 4, 768, 4, 256, True, False): 163,
    ("qwen3", 256, 4, 768, 4, 256, True, True): 151,
    ("gpt2", 256, 4, 768, 4, 256, False, False): 219,
    ("gpt2", 256, 4, 768, 4, 256, False, True): 225,
    ("gpt2", 256, 4, 768, 4, 256, True, False): 165,
    ("gpt2", 256, 4, 768, 4, 256, True, True): 167,
    ("qwen3", 256, 4, 768, 1, 1024, False, False): 345,
    ("qwen3", 256, 4, 768, 1, 1024, False, True): 365,
    ("qwen3", 256, 4, 768, 1, 1024, True, False): 272,
    ("qwen3", 256, 4, 768, 1, 1024, True, True): 284,
    ("gpt2", 256, 4, 768, 1, 1024, False, False): 361,
    ("gpt2", 256, 4, 768, 1, 1024, False, True): 357,
    ("gpt2", 256, 4, 768, 1, 1024, True, False): 271,
    ("gpt2", 256, 4, 768, 1, 1024, True, True): 280,
    ("qwen3", 256, 4, 288, 8, 256, False, False): 188,
    ("qwen3", 256, 4, 288, 8, 256, False, True): 193,
    ("qwen3", 256, 4, 288, 8, 256, True, False): 138,
    ("qwen3", 256, 4, 288, 8, 256, True, True): 133,
    ("gpt2", 256, 4, 288, 8, 256, False, False): 189,
    ("gpt2", 256, 4, 288, 8, 256, False, True): 183,
    ("gpt2", 256, 4, 288, 8, 256, True, False): 131,
    ("gpt2", 256, 4, 288, 8, 256, True, True): 135,
    ("qwen3", 256, 3, 1536, 2, 256, False, False): 226,
    ("qwen3", 256, 3, 1536, 2, 256, False, True): 236,
    ("qwen3", 256, 3, 1536, 2, 256, True, False): 203,
    ("qwen3", 256, 3, 1536, 2, 256, True, True): 191,
    ("gpt2", 256, 3, 1536, 2, 256, False, False): 255,
    ("gpt2", 256, 3, 1536, 2, 256, False, True): 266,
    ("gpt2", 256, 3, 1536, 2, 256, True, False): 210,
    ("gpt2", 256, 3, 1536, 2, 256, True, True): 233,
    ("qwen3", 32768, 2, 288, 8, 256, False, False): 242,
    ("qwen3", 32768, 2, 288, 8, 256, False, True): 282,
    ("qwen3", 32768, 2, 288, 8, 256, True, False): 206,
    ("qwen3", 32768, 2, 288, 8, 256, True, True): 246,
    ("gpt2", 32768, 2, 288, 8, 256, False, False): 244,
    ("gpt2", 32768, 2, 288, 8, 256, False, True): 282,
    ("gpt2", 32768, 2, 288, 8, 256, True, False): 208,
    ("gpt2", 32768, 2, 288, 8, 256, True, True): 246,
    ("qwen3", 8192, 4, 768, 4, 256, False, False): 211,
    ("qwen3", 8192, 4, 768, 4, 256, False, True): 216,
    ("qwen3", 8192, 4, 768, 4, 256, True, False): 163,
    ("qwen3", 8192, 4, 768, 4, 256, True, True): 155,
    ("gpt2", 8192, 4, 768, 4, 256, False, False): 219,
    ("gpt2", 8192, 4, 768, 4, 256, False, True): 225,
    ("gpt2", 8192, 4, 768, 4, 256, True, False): 165,
    ("gpt2", 8192, 4, 768, 4, 256, True, True): 167,
    ("qwen3", 16384, 6, 512, 4, 512, False, False): 438,
    ("qwen3", 16384, 6, 512, 4, 512, False, True): 442,
    ("qwen3", 16384, 6, 512, 4, 512, True, False): 263,
    ("qwen3", 16384, 6, 512, 4, 512, True, True): 258,
    ("gpt2", 16384, 6, 512, 4, 512, False, False): 430,
    ("gpt2", 16384, 6, 512, 4, 512, False, True): 424,
    ("gpt2", 16384, 6, 512, 4, 512, True, False): 243,
    ("gpt2", 16384, 6, 512, 4, 512, True, True): 251,
    ("qwen3", 50304, 12, 768, 1, 256, False, False): 180,
    ("qwen3", 50304, 12, 768, 1, 256, False, True): 303,
    ("qwen3", 50304, 12, 768, 1, 256, True, False): 110,
    ("qwen3", 50304, 12, 768, 1, 256, True, True): 232,
    ("gpt2", 50304, 12, 768, 1, 256, False, False): 182,
    ("gpt2", 50304, 12, 768, 1, 256, False, True): 304,
    ("gpt2", 50304, 12, 768, 1, 256, True, False): 110,
    ("gpt2", 50304, 12, 768, 1, 256, True, True): 232,
    ("qwen3", 50304, 12, 768, 4, 1024, False, False): 2231,
    ("qwen3", 50304, 12, 768, 4, 1024, False, True): 2315,
    ("qwen3", 50304, 12, 768, 4, 1024, True, False): 1168,
    ("qwen3", 50304, 12, 768, 4, 1024, True, True): 1298,
    ("gpt2", 50304, 12, 768, 4, 1024, False, False): 2240,
    ("gpt2", 50304, 12, 768, 4, 1024, False, True): 2348,
    ("gpt2", 50304, 12, 768, 4, 1024, True, False): 1169,
    ("gpt2", 50304, 12, 768, 4, 1024, True, True): 1298,
    ("qwen3", 50304, 2, 768, 8, 128, True, False): 294,
    ("qwen3", 50304, 2, 768, 8, 128, True, True): 556,
    ("qwen3", 32768, 2, 512, 2, 512, True, False): 205,
    ("qwen3", 32768, 2, 512, 2, 512, True, True): 301,
    ("qwen3", 50304, 2, 768, 1, 1024, True, False): 297,
    ("qwen3", 50304, 2, 768, 1, 1024, True, True): 559,
    ("qwen3", 32000, 2, 768, 16, 256, True, False): 613,
    ("qwen3", 32000, 2, 768, 16, 256, True, True): 588,
    ("gpt2", 50304, 12, 768, 8, 512, False, False): 1860,
    ("gpt2", 50304, 12, 768, 8, 512, False, True): 1930,
    ("qwen3", 8192, 12, 512, 16, 256, True, True): 479,
    ("qwen3", 32000, 16, 768, 2, 512, True, False): 285,
}

Case = tuple[str, int, int, int, int, int, bool, bool]


def shape(
    layout: str, layers: int, tokens: int, *, width: int = 288, vocabulary: int = 8192
) -> GPTConfig:
    count = {288: 9, 512: 8}.get(width, 12)
    heads = (4 if width == 512 else 3) if layout == "qwen3" else count
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


def test_the_plan_is_what_the_compiler_counts() -> None:
    """Within a tenth everywhere, and hardly ever less."""
    found = {case: planned_mib(case) / size for case, size in COMPILED.items()}
    assert {case: ratio for case, ratio in found.items() if not 0.96 <= ratio <= 1.1} == {}
    assert sum(abs(ratio - 1) for ratio in found.values()) / len(found) < 0.025


def test_accumulation_takes_another_gradient_and_muons_step_is_on_top() -> None:
    config = shape("qwen3", 8, 256)
    options = {"backend": "jax", "seq_len": 256, "batch_size": 8, "optimizer": "adamw"}
    plain, more = (
        planned_bytes(config, train_settings(**options, **others), program=Program(0, 0))
        for others in ({}, {"gradient_accumulation_steps": 2})
    )
    assert more.activations - plain.activations == plain.gradients
    settings = train_settings(**options)
    size, loss, update = jax_activations(config, settings, 8, muon=True)
    assert loss == plain.loss and size > plain.activations and update == plain.update == 0


MUON = {("qwen3", 8, 288): 8.0, ("qwen3", 12, 512): 25.6, ("qwen3", 3, 864): 71.3,
        ("gpt2", 12, 768): 47.8, ("qwen3", 3, 1536): 225.1}  # fmt: skip
EIGHT_BITS = {("qwen3", 8, 288): 45.1, ("qwen3", 12, 512): 80.3, ("qwen3", 3, 864): 165.5,
              ("gpt2", 12, 768): 125.1, ("qwen3", 3, 1536): 410.6}  # fmt: skip
"""MiB that the compiler of jax 0.10.2 counts for a step, with a vocabulary of 8,192."""


def test_the_plan_of_an_update_is_what_the_compiler_counts() -> None:
    for case, counted in MUON.items():
        layout, layers, width = case
        config = GPTConfig(8192, 256, layers, width, {288: 9, 512: 8}.get(width, 12), layout=layout)
        held, passing = _jax_update_bytes(config, muon=True, use_8bit=True)
        blocks = 4 * count_parameters(config, embeddings=False)
        held -= min(blocks, 160 << 20)  # what compiling holds
        assert 0.9 < held / (counted * MIB) < 1.1, case
        assert 0.8 < passing / (EIGHT_BITS[case] * MIB) < 1.1, case
        assert _jax_update_bytes(config, muon=False, use_8bit=False) == (0, 0)


def test_a_chunk_of_ones_own_changes_the_logits() -> None:
    config = shape("qwen3", 2, 256)
    few, many = (
        jax_pass_bytes(config, rows=8, tokens=256, half=False, checkpointing=True, chunk_tokens=n)
        for n in (128, 2048)
    )
    assert few[1] < many[1] / 4 and sum(few) < sum(many)


PASSES = [
    (784_960, 69_632), (766_528, 88_064), (651_840, 69_632), (633_408, 88_064),
    (826_802, 73_728), (793_010, 107_520), (641_600, 73_728), (607_808, 107_520),
    (2_818_048, 344_064), (2_908_160, 253_952), (2_285_568, 344_064), (2_375_680, 253_952),
    (3_038_066, 290_816), (3_055_474, 273_408), (2_203_648, 290_816), (2_221_056, 273_408),
    (331_776, 1_085_440), (331_776, 1_103_872), (36_864, 1_085_440), (36_864, 1_103_872),
    (331_776, 1_216_512), (331_776, 1_726_464), (36_864, 1_216_512), (36_864, 1_726_464),
    (1_327_104, 6_438_912), (1_892_352, 1_269_760), (147_456, 6_438_912), (1_359_872, 1_269_760),
    (1_327_104, 4_734_976), (1_436_530, 1_892_352), (147_456, 4_734_976), (602_112, 1_892_352),
    (799_264, 69_632), (780_832, 88_064), (715_296, 69_632), (696_864, 88_064),
    (841_002, 73_728), (807_210, 107_520), (655_904, 73_728), (622_112, 107_520),
    (3_047_424, 344_064), (3_137_536, 253_952), (2_711_552, 344_064), (2_801_664, 253_952),
    (3_267_338, 290_816), (3_284_746, 273_408), (2_543_616, 290_816), (2_561_024, 273_408),
    (380_928, 1_085_440), (380_928, 1_103_872), (36_864, 1_085_440), (36_864, 1_103_872),
    (380_928, 1_216_512), (380_928, 1_726_464), (36_864, 1_216_512), (36_864, 1_726_464),
    (1_523_712, 6_438_912), (2_121_728, 1_269_760), (147_456, 6_438_912), (1_785_856, 1_269_760),
    (1_523_712, 4_734_976), (1_665_802, 1_892_352), (147_456, 4_734_976), (942_080, 1_892_352),
]  # fmt: skip


def pass_rows() -> list[tuple[int, int]]:
    """What a pass takes, over shapes and settings in which each moment is the larger one once."""
    found = []
    for layout, vocab_size, rows in itertools.product(("gpt2", "qwen3"), (64, 2048), (1, 4)):
        config = GPTConfig(vocab_size, 64, 3, 48, 4, layout=layout, num_kv_heads=4)
        for half, again, chunk in itertools.product((False, True), (False, True), (None, 40)):
            options = {"half": half, "checkpointing": again, "chunk_tokens": chunk}
            found.append(jax_pass_bytes(config, rows=rows, tokens=64, **options))
    return found


def test_a_pass_takes_what_its_moments_do() -> None:
    """`print(pass_rows())` writes the table anew, for a change that is meant."""
    assert pass_rows() == PASSES


def test_half_precision_on_a_cpu_keeps_copies_of_the_matrices() -> None:
    config = shape("qwen3", 2, 256)
    for half, rows in ((False, 2), (True, 2), (True, 1)):
        settings = train_settings(seq_len=16, batch_size=2, use_mixed_precision=half)
        plain = activation_bytes(
            config, tokens=16 * rows, half=half, checkpointing=False, accumulating=rows < 2
        )
        copies = 2 * count_parameters(config) if half else 0
        assert cpu_activations(config, settings, rows) == plain + copies


def test_dropout_counts_where_scores_are_dropped():
    """By the compiler's count 159 MiB: it is 298 with dropout, and 139 without."""
    plain = GPTConfig(4096, 1024, 3, 64, 8, layout="gpt2")
    without, dropped = (
        sum(jax_pass_bytes(config, rows=1, tokens=1024, half=False, checkpointing=False))
        for config in (plain, plain.replace(dropout=0.1))
    )
    assert 159 * MIB <= dropped - without <= 175 * MIB
