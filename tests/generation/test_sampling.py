"""Sampling: greedy, top-k, top-p, penalty, seeds; nothing beyond the vocabulary."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import UsageError
from lowtide.generation.sampling import TensorChooser, _penalize, choose_tokens, filter_logits
from lowtide.generation.settings import PRESETS, GenerateSettings, SamplingSettings

PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}


def sampling(**changes):
    return SamplingSettings(**{**PLAIN, **changes})


def kept(logits, **changes):
    filtered = filter_logits(torch.tensor([logits]), sampling(**changes))
    return torch.isfinite(filtered)[0].tolist()


def test_temperature_zero_takes_the_likeliest():
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 0.0, 9.0]])
    seen = torch.zeros(2, 1, dtype=torch.long)
    found = choose_tokens(logits, seen, sampling(temperature=0.0), vocab_size=3)
    assert found.tolist() == [1, 2]
    assert choose_tokens(logits, seen, sampling(temperature=0.0), vocab_size=2).tolist() == [1, 0]


def test_top_k_and_top_p_keep_the_likeliest():
    assert kept([1.0, 4.0, 2.0, 3.0], top_k=2) == [False, True, False, True]
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    assert kept(logits, top_p=0.6) == [True, True, False, False]
    assert kept(logits, top_p=0.01) == [True, False, False, False]
    assert kept(logits, top_p=0.0) == [True, False, False, False]
    assert kept(logits, top_k=50, top_p=1.0) == [True] * 4


def test_the_penalty_makes_seen_tokens_less_likely():
    logits = torch.tensor([[2.0, -1.0, 1.9]])
    seen = torch.tensor([[0, 0, 1]])
    found = choose_tokens(
        logits, seen, sampling(temperature=0.0, repetition_penalty=1.5), vocab_size=3
    )
    assert found.tolist() == [2]


@settings(max_examples=30, deadline=None)
@given(
    st.floats(0, 2),
    st.integers(0, 20),
    st.floats(0.01, 1),
    st.floats(0.5, 2),
    st.integers(0, 2**32),
)
def test_any_setting_gives_a_valid_repeatable_token(temperature, top_k, top_p, penalty, seed):
    settings = SamplingSettings(temperature, top_k, top_p, penalty)
    logits = torch.randn(3, 13, generator=torch.Generator().manual_seed(seed))
    seen = torch.randint(13, (3, 5), generator=torch.Generator().manual_seed(seed))
    draws = [
        choose_tokens(
            logits,
            seen,
            settings,
            vocab_size=11,
            generator=torch.Generator().manual_seed(seed),
        )
        for _ in range(2)
    ]
    assert torch.equal(draws[0], draws[1])
    assert ((draws[0] >= 0) & (draws[0] < 11)).all()


def test_presets_give_values_and_flags_beat_them():
    chosen = GenerateSettings(model_name="m", preset="code", top_k=7).sampling()
    assert chosen == SamplingSettings(0.2, 7, 0.9, 1.0)
    assert GenerateSettings(model_name="m").sampling() == PRESETS["default"]
    assert PRESETS["deterministic"].temperature == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0, expected from 0 to 1,000"),
        ({"temperature": float("inf")}, "temperature is inf, expected from 0 to 1,000"),
        ({"top_k": -1}, "top_k is -1, expected 0 or more"),
        ({"top_p": -0.1}, "top_p is -0.1, expected from 0 to 1"),
        ({"top_p": 1.1}, "top_p is 1.1, expected from 0 to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0, expected from 0.001"),
        ({"repetition_penalty": 1e-30}, "expected from 0.001 to 1,000"),
        ({"top_p": float("nan")}, "top_p is nan"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"each_line": True}, "each_line is True, expected --prompt-file"),
    ],
)
def test_values_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        GenerateSettings(model_name="m", **options)


@pytest.mark.parametrize("value", [0.0, 0.01])
def test_the_smallest_values_are_taken(value):
    chosen = SamplingSettings(value, 0, value, 0.01)
    assert (chosen.temperature, chosen.top_k, chosen.top_p) == (value, 0, value)
    assert SamplingSettings(1.0, 1, 1.0, 0.5).top_k == 1


def test_the_presets_are_what_the_help_says():
    found = {
        name: (one.temperature, one.top_k, one.top_p, one.repetition_penalty)
        for name, one in PRESETS.items()
        if name != "deterministic"
    }
    assert found == {
        "default": (0.8, 50, 0.95, 1.1),
        "chat": (0.7, 50, 0.9, 1.1),
        "creative": (1.0, 0, 0.95, 1.05),
        "factual": (0.3, 20, 0.8, 1.1),
        "code": (0.2, 40, 0.9, 1.0),
    }


def test_borders_of_top_k_and_top_p():
    even = [0.0, 0.0, 0.0, 0.0]
    assert kept([1.0, 2.0, 3.0], top_k=1) == [False, False, True]
    assert kept([1.0, 2.0, 3.0], top_k=3) == [True, True, True]
    assert kept([1.0, 2.0, 3.0], top_k=4) == [True, True, True]
    assert kept([1.0, 2.0, 3.0], top_k=0) == [True, True, True]
    assert sum(kept(even, top_p=0.5)) == 2  # two make up half
    assert sum(kept(even, top_p=0.51)) == 3
    assert sum(kept(even, top_p=0.0)) == 1
    assert sum(kept(even, top_p=1.0)) == 4
    # All of a probability that is rounded to 1 before the last token.
    assert kept([0.0, -40.0], top_p=1.0) == [True, True]
    assert kept([0.0, 5.0, 1.0], top_p=0.1) == [False, True, False]


def test_the_penalty_divides_what_is_likely_and_multiplies_what_is_not():
    logits = torch.tensor([[0.5, -2.0, 0.0, 4.0]])
    seen = torch.tensor([[0, 1, 9]])  # 9 is beyond the vocabulary: the last stands for it
    assert _penalize(logits, seen, 2.0).tolist() == [[0.25, -4.0, 0.0, 2.0]]


def test_next_to_no_temperature_takes_the_likeliest_and_more_draws():
    logits = torch.tensor([[0.0, 1e-4]]).repeat(200, 1)
    seen = torch.zeros(200, 1, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)

    def draw(temperature):
        settings = SamplingSettings(temperature, 0, 1.0, 1.0)
        return choose_tokens(logits, seen, settings, vocab_size=2, generator=generator)

    assert draw(0.99e-4).sum() == 200
    assert 100 < draw(1e-4).sum() < 200


def test_broken_logits_and_banned_ids_still_give_a_token():
    logits = torch.full((1, 4), torch.nan)
    settings = SamplingSettings(0.0, 0, 1.0, 1.0)
    seen = torch.zeros(1, 1, dtype=torch.long)
    assert choose_tokens(logits, seen, settings, vocab_size=4).item() == 0
    assert choose_tokens(logits, seen, settings, vocab_size=4, banned=[0, 1]).item() == 2


def test_the_newest_ids_are_those_that_a_penalty_looks_at():
    """A ring of five, begun with two: each id takes the place of the oldest one."""
    plain = sampling(temperature=0.0)
    sampler = TensorChooser([1, 2], 5, 0, plain, vocab_size=20, device=torch.device("cpu"))
    assert sampler.recent.ids.tolist() == [[1, 2, 1, 1, 1]]
    rings = []
    for wanted in (10, 11, 12, 13, 14, 15):
        assert sampler.choose(torch.eye(20)[wanted], banned=()) == wanted
        rings.append(sampler.recent.ids[0].tolist())
    assert rings[0] == [1, 2, 10, 1, 1]
    assert rings[2:] == [
        [1, 2, 10, 11, 12], [13, 2, 10, 11, 12], [13, 14, 10, 11, 12], [13, 14, 15, 11, 12]
    ]  # fmt: skip


def test_a_seed_gives_the_same_tokens_and_none_gives_others():
    def draw(seed):
        device = torch.device("cpu")
        chooser = TensorChooser([1], 9, seed, sampling(), vocab_size=1000, device=device)
        return [chooser.choose(torch.zeros(1000), ()) for _ in range(8)]

    assert draw(3) == draw(3) != draw(4)
    assert draw(None) != draw(None)


@pytest.mark.parametrize("penalty", [0.5, 1.5, 2.0, 3.0])
def test_every_penalty_but_one_counts(penalty):
    settings = sampling(temperature=0.0, repetition_penalty=penalty)
    logits, seen = torch.tensor([[2.0, 1.9], [1.9, 2.0]]), torch.tensor([[0], [0]])
    found = choose_tokens(logits, seen, settings, vocab_size=2).tolist()
    assert found == ([0, 0] if penalty < 1 else [1, 1])


@pytest.mark.parametrize(("top_k", "vocabulary"), [(0, 5), (2, 5)])
def test_one_token_is_drawn_for_each_row(top_k, vocabulary):
    logits, seen = torch.zeros(3, vocabulary), torch.zeros(3, 1, dtype=torch.long)
    assert choose_tokens(logits, seen, sampling(top_k=top_k), vocab_size=vocabulary).shape == (3,)
