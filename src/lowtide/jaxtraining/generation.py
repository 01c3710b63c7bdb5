"""Continue prompts with a network of JAX; texts may be longer than its context.

In:      a JaxGPT and its Tokenizer, prompts
Out:     text, whole or in pieces
Memory:  one cache of keys and values for the context
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lowtide.generation.drawing import choose_token
from lowtide.generation.prompts import Prompt
from lowtide.generation.settings import SamplingSettings, WritingSettings
from lowtide.generation.textstreams import (
    count_writable,
    ends,
    iter_starts,
    iter_texts,
    not_text,
)
from lowtide.jaxtraining.loading import NETWORKS
from lowtide.jaxtraining.network import Form, new_cache, next_logits
from lowtide.jaxtraining.trees import JaxGPT
from lowtide.model.inference import PROMPT_PART
from lowtide.tokenizer import Tokenizer

__all__ = [
    "WRITER",
    "generate_text",
    "iter_tokens",
    "stream_pieces",
]

Array = Any

_step = functools.partial(jax.jit, static_argnames=("form",), donate_argnames=("cache",))(
    next_logits
)


def iter_tokens(
    model: JaxGPT,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int = 100,
    sampling: SamplingSettings | None = None,
    vocab_size: int | None = None,
    banned: Sequence[int] = (),
    banned_first: Sequence[int] = (),
    seed: int | None = None,
    context: int | None = None,
) -> Iterator[Any]:
    """Yield the next ids [1], one step at a time; never one of `banned`.

    A full cache is refilled with the newer half of the context, which is the model's if none is
    given. A prompt is read in parts, padded to a power of two, so that few shapes are compiled and
    the attention matrix of a long prompt never exists as a whole.
    """
    sampling = sampling or SamplingSettings()
    vocab_size = vocab_size or model.config.vocab_size
    context = context or model.config.context_length
    form = Form(model.config.replace(dropout=0.0, context_length=context))
    dice = np.random.default_rng(seed)
    seen = list(prompt_ids)[-context:]
    fresh, length = seen, 0
    cache = new_cache(form, 1)
    for step in range(max_new_tokens):
        if length + len(fresh) > context:
            length, fresh = 0, seen[-max(1, context // 2) :]
        for first in range(0, len(fresh), PROMPT_PART):
            part = fresh[first : first + PROMPT_PART]
            size = min(context - length, 1 << (len(part) - 1).bit_length())
            ids = np.zeros((1, size), np.int32)
            ids[0, : len(part)] = part
            logits, cache = _step(
                model.params, cache, jnp.array(ids), length, len(part) - 1, form=form
            )
            length += len(part)
        token = choose_token(
            np.asarray(logits[0], np.float32)[:vocab_size],  # pyright: ignore[reportPossiblyUnboundVariable]
            seen,
            sampling,
            banned=banned if step else (*banned, *banned_first),
            dice=dice,
        )
        fresh = [token]
        seen = [*seen, token][-context:]
        yield np.array([token])


def stream_pieces(
    model: JaxGPT, tokenizer: Tokenizer, prompts: Iterable[Prompt], options: WritingSettings
) -> Iterator[tuple[int, str]]:
    """Continue prompts, one text after another; yield pieces of texts like `write_texts`."""
    for number, start in enumerate(iter_starts(tokenizer, prompts, options)):
        tokens = iter_tokens(
            model,
            start.ids,
            max_new_tokens=options.max_new_tokens,
            sampling=options.sampling,
            vocab_size=count_writable(tokenizer, model.config),
            banned=not_text(tokenizer),
            # Without a prompt the first token may not be end-of-text: the text would be empty.
            banned_first=ends(tokenizer) if start.is_empty else (),
            seed=start.seed,
            context=options.context,
        )
        for _, text in iter_texts(tokens, tokenizer, num_samples=1, stop=options.stop):
            yield number, text
        yield number, ""


def generate_text(
    model: JaxGPT, tokenizer: Tokenizer, prompt: str, *, max_new_tokens: int, seed: int
) -> str:
    """Return the continuation of a prompt."""
    context = model.config.context_length
    options = WritingSettings(context, max_new_tokens=max_new_tokens, seed=seed)
    pieces = stream_pieces(model, tokenizer, [Prompt(prompt)], options)
    return "".join(text for _, text in pieces)


class _JaxWriter:
    """Texts of networks of JAX; the methods are documented in Writer (generation/generating.py)."""

    networks = NETWORKS
    most_rows = 1
    stream = staticmethod(stream_pieces)


WRITER = _JaxWriter()
