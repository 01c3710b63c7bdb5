"""Ids and pieces of text as a torch network gives them, with a default for every option."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lowtide.generation.continuations import Rows
from lowtide.generation.decoding import make_choosers, stream_pieces
from lowtide.generation.prompts import Prompt
from lowtide.generation.settings import SamplingSettings, WritingSettings
from lowtide.model.rowcaches import open_steps
from lowtide.tokenizer import Tokenizer


def open_rows(
    model: Any,
    num_rows: int,
    *,
    sampling: SamplingSettings | None = None,
    vocab_size: int | None = None,
    banned: Sequence[int] = (),
    context: int | None = None,
) -> Rows:
    """Rows for texts of a model."""
    sampling = sampling or SamplingSettings()
    steps = open_steps(model, num_rows)
    choosers = make_choosers(steps, model, sampling, vocab_size or model.config.vocab_size)
    context = context or model.config.context_length
    return Rows(steps, choosers, num_rows, context=context, banned=banned)


def iter_tokens(
    model: Any,
    prompt_ids: Sequence[int],
    *,
    num_samples: int = 1,
    max_new_tokens: int = 100,
    banned_first: Sequence[int] = (),
    seed: int | None = None,
    **options: Any,
) -> Iterator[Tensor]:
    """Yield the next ids [num_samples], one step at a time; options are those of `open_rows`."""
    rows = open_rows(model, num_samples, **options)
    for number in range(num_samples):
        rows.begin(
            prompt_ids,
            max_new_tokens=max_new_tokens,
            seed=None if seed is None else seed + number,
            banned_first=banned_first,
        )
    for _ in range(max_new_tokens):
        yield torch.tensor([token for _, token in rows.step()])


def stream_text(
    model: Any, tokenizer: Tokenizer, prompts: str | Iterable[Prompt], **options: Any
) -> Iterator[tuple[int, str]]:
    """Yield (number of the text, new text); options are those of WritingSettings."""
    if isinstance(prompts, str):
        prompts, options = [Prompt(prompts)], {"batch_size": 1, **options}
    options = {"context": model.config.context_length, **options}
    pieces = stream_pieces(model, tokenizer, prompts, WritingSettings(**options))
    return ((number, text) for number, text in pieces if text)
