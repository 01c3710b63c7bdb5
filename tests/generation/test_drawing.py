"""Tokens drawn with NumPy: greedy, top-k, top-p, penalty, seeds, as torch's rules have them."""

from typing import Any

import numpy as np
import pytest
import torch

from lowtide.generation.drawing import ArrayChooser, _shares, choose_token
from lowtide.generation.sampling import choose_tokens, filter_logits
from lowtide.generation.settings import SamplingSettings

LOGITS = np.array([1.0, 3.0, 2.0, -1.0], np.float32)
PLAIN = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0)
GREEDY = SamplingSettings(temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=2.0)


@pytest.fixture
def dice():
    return np.random.default_rng(0)


def test_the_likeliest_that_may_be_is_taken(dice):
    assert choose_token(LOGITS, [], GREEDY, dice=dice) == 1
    assert choose_token(LOGITS, [1], GREEDY, dice=dice) == 2  # 3 / 2 is less than 2
    assert choose_token(LOGITS, [1, 1, 1], GREEDY, dice=dice) == 2
    assert choose_token(LOGITS, [], GREEDY, banned=[1], dice=dice) == 2
    assert choose_token(np.full(3, -4.0), [0, 2, 9], GREEDY, dice=dice) == 1  # made smaller yet
    assert choose_token(np.array([np.nan, 1.0]), [], GREEDY, dice=dice) == 1
    assert LOGITS.tolist() == [1.0, 3.0, 2.0, -1.0]


def test_draws_have_the_shares_of_the_logits(dice):
    wanted = np.exp(LOGITS) / np.exp(LOGITS).sum()
    left, shares = _shares(LOGITS, PLAIN)
    assert left.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(shares, wanted, rtol=1e-6)
    drawn = [choose_token(LOGITS, [], PLAIN, dice=dice) for _ in range(400)]
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 400, wanted, atol=0.08)
    cold = SamplingSettings(temperature=0.1, top_k=0, top_p=1.0, repetition_penalty=1.0)
    assert [choose_token(LOGITS, [], cold, dice=dice) for _ in range(50)].count(1) > 45
    assert choose_token(np.full(5, np.nan), [], PLAIN, dice=dice) in range(5)


@pytest.mark.parametrize("largest", [np.inf, 3e38, -np.inf, -3e38])
@pytest.mark.parametrize(
    "settings", [SamplingSettings(), SamplingSettings(1e-4, 0, 1.0, 1e-3), SamplingSettings(1e3)]
)
def test_logits_beyond_all_bounds_still_give_a_token(largest, settings, dice):
    """As a model that diverged has them: no NumPy warning either."""
    for logits in (np.full(4, largest, np.float32), np.array([0, largest, np.nan, 1], np.float32)):
        options: Any = {"banned": [0]}
        token = choose_token(logits, [1, 2], settings, dice=dice, **options)
        seen = torch.tensor([[1, 2]])
        drawn = choose_tokens(torch.tensor(logits[None]), seen, settings, vocab_size=4, **options)
        found = {token, int(drawn)}
        assert found == {1} if logits[0] == 0 and largest > 0 else found <= {1, 2, 3}


def test_top_k_and_top_p_leave_the_likeliest():
    def left(top_k, top_p):
        made = SamplingSettings(temperature=1.0, top_k=top_k, top_p=top_p, repetition_penalty=1.0)
        tokens, shares = _shares(LOGITS, made)
        np.testing.assert_allclose(shares.sum(), 1, rtol=1e-9)
        return sorted(tokens.tolist())

    assert left(1, 1.0) == [1] and left(2, 1.0) == [1, 2] and left(3, 1.0) == [0, 1, 2]
    assert left(4, 1.0) == left(9, 1.0) == [0, 1, 2, 3]
    assert left(0, 0.0) == [1] and left(0, 0.5) == [1] and left(0, 0.7) == [1, 2]
    assert left(0, 0.99) == [0, 1, 2, 3] and left(2, 0.99) == [1, 2]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.9), (7, 1.0), (20, 0.6), (0, 0.0), (1, 0.5)])
def test_what_is_left_is_what_torch_leaves(top_k, top_p, seed):
    logits = np.random.default_rng(seed).normal(size=200).astype(np.float32) * (1 + seed)
    settings = SamplingSettings(1.0, top_k, top_p, 1.0)
    theirs = filter_logits(torch.from_numpy(logits)[None], settings)[0].softmax(-1).numpy()
    left, shares = _shares(logits, settings)
    assert sorted(left.tolist()) == np.flatnonzero(theirs).tolist()
    np.testing.assert_allclose(shares, theirs[left], rtol=1e-4)
    greedy = SamplingSettings(0.0, top_k, top_p, 1.7)
    seen = [3, 5, 199, 5]
    chosen = choose_tokens(
        torch.from_numpy(logits)[None], torch.tensor([seen]), greedy, vocab_size=200
    )
    assert choose_token(logits, seen, greedy, dice=np.random.default_rng(0)) == int(chosen)


def test_a_seed_decides_and_the_vocabulary_ends(dice):
    logits = np.linspace(0, 1, 50, dtype=np.float32)

    def draw(seed):
        choice = ArrayChooser([1, 2], 4, seed, SamplingSettings(), 11)
        return [choice.choose(logits, [3]) for _ in range(30)]

    assert draw(1) == draw(1) != draw(2)
    assert max(draw(1)) < 11 and 3 not in draw(1)
