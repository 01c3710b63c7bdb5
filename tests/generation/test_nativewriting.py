"""Texts of the native network: what goes from the settings to the rows that write them."""

from dataclasses import replace

import numpy as np

from lowtide.generation.nativewriting import WRITER
from lowtide.generation.prompts import Prompt
from lowtide.generation.settings import WritingSettings
from lowtide.model.config import GPTConfig
from lowtide.model.decoder import DecoderNetwork
from lowtide.model.firstweights import iter_first_weights
from lowtide.tokenizer import Tokenizer


def written(tokenizer, vocab_size):
    """Four texts of the first ids of a network to which later ones are the likeliest by far."""
    config = GPTConfig(64, 16, 1, 8, 1, tie_weights=False)
    weights = {name: np.array(value) for name, value in iter_first_weights(config, 1)}
    weights["head.weight"][tokenizer.vocab_size :] *= 100
    for name in ("embedding.weight", "head.weight"):
        weights[name] = weights[name][:vocab_size]
    network = DecoderNetwork(replace(config, vocab_size=vocab_size), weights, num_workers=1)
    options = WritingSettings(16, num_samples=4, max_new_tokens=12, seed=1, batch_size=2)
    return list(WRITER.stream(network, tokenizer, [Prompt("a")], options))


def test_ids_that_the_tokenizer_does_not_know_are_never_written():
    tokenizer = Tokenizer.from_characters("ab")
    texts = written(tokenizer, 64)
    assert texts == written(tokenizer, tokenizer.vocab_size)
    assert len(set(texts)) > 4
