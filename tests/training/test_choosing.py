"""What settings leave open: shapes, optimizers, sizes of vocabularies."""

import pytest

from lowtide.errors import UsageError
from lowtide.model.config import GPTConfig
from lowtide.model.sizing import count_parameters, suitable_vocabulary
from lowtide.training.choosing import (
    adam_betas,
    begins_at_counts,
    choose_optimizer,
    embedding_rate,
    learned_vocabulary,
    model_config,
    muon_momentum,
    peak_learning_rate,
)
from lowtide.training.settings import train_settings


def chosen(config, **options):
    settings = train_settings(**options)
    return choose_optimizer(settings.learning, config, settings.tokens_per_step)


def vocabulary(settings, text_bytes):
    return learned_vocabulary(settings.data.vocab_size, settings.model, text_bytes)


def test_auto_takes_muon_where_it_costs_little():
    config = GPTConfig(1000, 64, 2, 128, 4)
    assert chosen(config, batch_size=4, seq_len=64) == "adamw"
    assert chosen(config, batch_size=12, seq_len=64) == "muon"
    assert chosen(config, batch_size=64, seq_len=64, use_8bit_optimizer=True) == "adamw"
    assert chosen(config, optimizer="muon", batch_size=1) == "muon"


def test_a_shape_comes_from_fields_or_a_count():
    assert model_config(train_settings().model, 100).width == 384
    given = model_config(train_settings(num_layers=2, width=64, num_heads=2, seq_len=32).model, 100)
    assert (given.num_layers, given.width, given.context_length) == (2, 64, 32)
    counted = model_config(train_settings(target_params=200_000, dropout=0.1).model, 100)
    assert counted.dropout == 0.1


def test_a_count_and_a_shape_together_are_refused():
    with pytest.raises(UsageError, match="target_params and width are both given"):
        model_config(train_settings(target_params=100_000, width=64).model, 100)


def test_every_part_of_the_shape_is_taken():
    shape = {"num_layers": 2, "width": 64, "num_heads": 2}
    old = model_config(train_settings(layout="gpt2", dropout=0.25, seq_len=32, **shape).model, 100)
    assert old == GPTConfig(100, 32, 2, 64, 2, layout="gpt2", dropout=0.25, norm_eps=1e-5)
    options = {"tie_weights": False, "dropout": 0.25, "seq_len": 32}
    given = model_config(train_settings(**shape, **options).model, 100)
    assert given == GPTConfig(100, 32, 2, 64, 2, tie_weights=False, dropout=0.25)
    counted = model_config(train_settings(target_params=200_000, **options).model, 100)
    assert (counted.layout, counted.tie_weights, counted.context_length) == ("qwen3", False, 32)
    assert (counted.dropout, counted.vocab_size) == (0.25, 100)
    plain = model_config(train_settings().model, 100)
    assert (plain.norm_eps, plain.tie_weights, plain.layout) == (1e-6, True, "qwen3")


def test_muon_up_to_a_quarter_more_than_a_step():
    config = GPTConfig(1000, 64, 2, 128, 4)
    assert chosen(config, batch_size=4, seq_len=128) == "muon"  # 4 * 128
    assert chosen(config, batch_size=1, seq_len=511) == "adamw"


def test_the_vocabulary_to_learn_suits_model_and_text():
    assert vocabulary(train_settings(vocab_size=999), 10**9) == 999
    counted = vocabulary(train_settings(target_params=100_000_000), 10**9)
    assert counted == suitable_vocabulary(100_000_000, 10**9)
    shaped = vocabulary(train_settings(), 10**7)
    assert shaped == suitable_vocabulary(
        count_parameters(model_config(train_settings().model, 256)), 10**7
    )


def test_a_model_that_is_there_learns_on_at_a_lower_rate():
    config = GPTConfig(vocab_size=256, context_length=32, num_layers=2, width=64, num_heads=2)
    fresh = peak_learning_rate(train_settings(), config, "adamw")
    adapted = peak_learning_rate(train_settings(init_from_model="other"), config, "adamw")
    assert 0 < adapted < fresh
    asked = train_settings(init_from_model="other", learning_rate=0.25)
    assert peak_learning_rate(asked, config, "adamw") == 0.25


WORDS = GPTConfig(2000, 64, 2, 128, 4)


def small(optimizer="muon", config=WORDS, **options):
    """What a new model's embedding begins at, and the multiple of the rate that it learns at."""
    settings = train_settings(**{"target_params": 30_000_000, **options})
    return begins_at_counts(settings, config), embedding_rate(settings, config, optimizer)


def test_small_models_by_a_count_begin_at_counts_and_learn_embeddings_faster():
    assert small() == small(target_params=1) == (True, 3.0)
    assert small("adamw") == small("adamw", target_params=1_000_001) == (True, 1.0)
    assert small("adamw", target_params=1_000_000) == (True, 3.0)
    assert small(dataset_id="stories") == (False, 3.0)
    for other in ({"target_params": 30_000_001}, {"target_params": None, "width": 128}):
        assert small(**other) == (False, 1.0)
    assert small(init_from_model="base") == (False, 1.0)


def test_a_vocabulary_that_is_no_larger_than_the_width_is_left_as_it_was():
    sizes = {size: small(config=WORDS.replace(vocab_size=size)) for size in (128, 129)}
    assert sizes == {128: (False, 1.0), 129: (True, 3.0)}


def betas(optimizer="muon", **options):
    """How much of its moments AdamW keeps for a small model."""
    settings = train_settings(**{"target_params": 30_000_000, **options})
    return adam_betas(settings, WORDS, optimizer)


def test_second_moments_of_small_models_have_a_longer_memory():
    assert betas() == betas(dataset_id="stories") == (0.9, 0.99)
    assert betas("adamw", target_params=1_000_000) == (0.9, 0.99)
    assert betas("adamw", target_params=1_000_001) == (0.9, 0.95)
    for other in ({"target_params": 30_000_001}, {"init_from_model": "base"}):
        assert betas(**other) == (0.9, 0.95)
    assert betas(beta1=0.8, beta2=0.5) == (0.8, 0.5)
    assert betas(beta2=0.0) == (0.9, 0.0)


def test_new_small_models_have_less_momentum():
    def momentum(config=WORDS, **options):
        return muon_momentum(train_settings(**{"target_params": 30_000_000, **options}), config)

    assert momentum() == momentum(target_params=1) == 0.9
    for other in ({"target_params": 30_000_001}, {"init_from_model": "base"}):
        assert momentum(**other) == 0.95
    assert momentum(target_params=None, width=128) == 0.95
    assert momentum(config=WORDS.replace(vocab_size=128)) == 0.95  # characters
    assert momentum(momentum=0.7) == momentum(momentum=0.7, target_params=124_000_000) == 0.7


def test_what_is_asked_for_beats_what_suits_a_small_model():
    assert small(first_embedding="random", embedding_rate=1.5) == (False, 1.5)
    large = {"target_params": 124_000_000, "embedding_rate": 2.0}
    assert small(**large, first_embedding="cooccurrence") == (True, 2.0)
