"""Counts equal the network's, and a target number of parameters is met."""

import re

import pytest
import torch

from lowtide.errors import UsageError
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.sizing import (
    count_parameters,
    flops_per_token,
    shape_for_parameters,
    suitable_vocabulary,
)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_kv_heads": 2, "head_dim": 32},
        {"tie_weights": False},
        {"layout": "gpt2"},
    ],
)
def test_the_count_is_the_networks(fields):
    config = GPTConfig(vocab_size=300, num_layers=3, width=96, num_heads=4, **fields)
    with torch.device("meta"):
        model = GPT(config)
    assert count_parameters(config) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("layout", ["qwen3", "gpt2"])
@pytest.mark.parametrize(
    ("target", "vocab_size"),
    [
        (20_000, 65),
        (100_000, 256),
        (500_000, 1000),
        (1_000_000, 2048),
        (1_000_000, 65),
        (10_000_000, 50304),
        (150_000_000, 50304),
        (750_000_000, 32000),
        (1_500_000_000, 50304),
    ],
)
def test_targets_are_met_within_five_percent(layout, target, vocab_size):
    config = shape_for_parameters(target, vocab_size=vocab_size, layout=layout)
    assert abs(count_parameters(config) / target - 1) <= 0.05
    assert 8 <= config.width // config.num_heads <= 128


def test_a_vocabulary_that_takes_everything_is_refused():
    with pytest.raises(UsageError, match=r"no shape has 100 parameters.*smallest has ") as no:
        shape_for_parameters(100, vocab_size=20)
    assert "smaller vocabulary" in str(no.value.next_step)


def test_a_size_beyond_all_shapes_is_refused():
    with pytest.raises(UsageError, match="the largest has ") as caught:
        shape_for_parameters(10**15, vocab_size=50304)
    assert "--num-layers and --width" in str(caught.value.next_step)


@pytest.mark.parametrize("target", [100_000, 500_000, 1_000_000])
def test_a_vocabulary_that_leaves_no_network_is_refused_with_a_remedy_that_works(target):
    with pytest.raises(UsageError, match="takes nearly all of") as caught:
        shape_for_parameters(target, vocab_size=50304)
    vocab_size, enough = map(int, re.findall(r"--[a-z-]+ (\d+)", caught.value.next_step))
    for count, size in ((target, vocab_size), (enough, 50304)):
        config = shape_for_parameters(count, vocab_size=size)
        assert count_parameters(config, embeddings=False) >= 0.1 * count


def test_vocabularies_grow_with_the_model_and_stay_below_the_text():
    sizes = [suitable_vocabulary(10**power) for power in range(4, 11)]
    assert sizes == sorted(sizes) and sizes[0] == 300 and sizes[-1] == 32000
    assert suitable_vocabulary(10**6, text_bytes=10**5) == 600
    assert suitable_vocabulary(10**6, text_bytes=100) == 300
    for power in (5, 6, 7, 8):
        config = shape_for_parameters(10**power, vocab_size=suitable_vocabulary(10**power))
        share = config.vocab_size * config.width / count_parameters(config)
        assert 0.1 < share < 0.35


def test_flops_are_nanogpts():
    config = GPTConfig(50304, 1024, 12, 768, 12, layout="gpt2")
    without_positions = count_parameters(config) - 1024 * 768
    assert flops_per_token(config, 1024) == 6 * without_positions + 12 * 12 * 768 * 1024
