"""Continue a prompt token by token, past the context too, and turn the ids into text as they come.

In:      a GPT and its Tokenizer, a prompt
Out:     text, whole or in pieces; never half a character
Memory:  a cache of keys and values for the texts that are written at once (rows)
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import torch
from torch import Tensor

from lowtide.aliases import own_name
from lowtide.errors import UsageError
from lowtide.flatsettings import setting_fields
from lowtide.generation.continuations import Rows
from lowtide.generation.drawing import ArrayChooser
from lowtide.generation.prompts import Prompt
from lowtide.generation.sampling import TensorChooser
from lowtide.generation.settings import (
    BATCH_SIZE,
    MOST_TEXTS,
    WRITING_NAMES,
    GenerateSettings,
    SamplingSettings,
)
from lowtide.generation.textstreams import count_writable, iter_starts, not_text
from lowtide.generation.writing import write_texts
from lowtide.model.decoder import DecoderSteps
from lowtide.model.gpt import GPT
from lowtide.model.rowcaches import open_steps
from lowtide.model.weights import NETWORKS
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lowtide.keywordtypes import GenerateKeywords

__all__ = ["WRITER", "generate_text", "iter_tokens", "open_rows", "stream_pieces", "stream_text"]


def open_rows(
    model: GPT,
    num_rows: int,
    *,
    sampling: SamplingSettings | None = None,
    vocab_size: int | None = None,
    banned: Sequence[int] = (),
    context: int | None = None,
) -> Rows:
    """Rows for texts of a model; native code writes them on a CPU, torch elsewhere."""
    settings, size = sampling or SamplingSettings(), vocab_size or model.config.vocab_size
    context = context or model.config.context_length
    steps = open_steps(model, num_rows)
    if isinstance(steps, DecoderSteps):
        chooser = functools.partial(ArrayChooser, sampling=settings, vocab_size=size)
    else:
        chooser = functools.partial(
            TensorChooser, sampling=settings, vocab_size=size, device=model.device
        )
    return Rows(steps, chooser, num_rows, context=context, banned=banned)


def iter_tokens(
    model: GPT,
    prompt_ids: Sequence[int],
    *,
    num_samples: int = 1,
    max_new_tokens: int = 100,
    sampling: SamplingSettings | None = None,
    vocab_size: int | None = None,
    banned: Sequence[int] = (),
    banned_first: Sequence[int] = (),
    seed: int | None = None,
    context: int | None = None,
) -> Iterator[Tensor]:
    """Yield the next ids [num_samples], one step at a time; never one of `banned`.

    A full cache is emptied and filled again with the newer half of the context, so the cost per
    token stays bounded and positions never run out. `context` is the model's if not given. Every
    sample has a seed of its own, counted up from the one given.
    """
    rows = open_rows(
        model,
        num_samples,
        sampling=sampling,
        vocab_size=vocab_size,
        banned=banned,
        context=context,
    )
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
    model: GPT,
    tokenizer: Tokenizer,
    prompts: str | Prompt | Iterable[Prompt],
    *,
    num_samples: int = 1,
    max_new_tokens: int = 100,
    sampling: SamplingSettings | None = None,
    stop: Sequence[str] = (),
    seed: int | None = None,
    context: int | None = None,
    begin: int | None = None,
    batch_size: int = BATCH_SIZE,
) -> Iterator[tuple[int, str]]:
    """Yield (number of the text, new text) as the model writes; `begin` comes before every prompt.

    Up to `batch_size` texts are written at once: the samples of the first prompt, then those of the
    next. Each is what it would be alone.
    """
    if isinstance(prompts, (str, Prompt)):
        prompts = [Prompt(prompts) if isinstance(prompts, str) else prompts]
        batch_size = min(batch_size, num_samples)
    pieces = stream_pieces(
        model,
        tokenizer,
        prompts,
        num_samples=num_samples,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop=stop,
        seed=seed,
        context=context,
        begin=begin,
        batch_size=batch_size,
    )
    return ((number, text) for number, text in pieces if text)


def stream_pieces(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Iterable[Prompt],
    *,
    num_samples: int,
    max_new_tokens: int,
    sampling: SamplingSettings | None,
    stop: Sequence[str],
    seed: int | None,
    context: int | None,
    begin: int | None,
    batch_size: int,
) -> Iterator[tuple[int, str]]:
    """Yield pieces of texts with the texts' numbers; an empty one follows the last of each."""
    context = context or model.config.context_length
    rows = open_rows(
        model,
        batch_size,
        sampling=sampling,
        vocab_size=count_writable(tokenizer, model.config),
        banned=not_text(tokenizer),
        context=context,
    )
    starts = iter_starts(
        tokenizer, prompts, num_samples=num_samples, context=context, begin=begin, seed=seed
    )
    return write_texts(rows, tokenizer, starts, max_new_tokens=max_new_tokens, stop=stop)


@overload
def generate_text(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str = "",
    *,
    num_samples: Literal[1] = ...,
    **options: Unpack[GenerateKeywords],
) -> str: ...
@overload
def generate_text(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str = "",
    *,
    num_samples: int,
    **options: Unpack[GenerateKeywords],
) -> list[str]: ...
@overload
def generate_text(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: Sequence[str],
    *,
    num_samples: Literal[1] = ...,
    **options: Unpack[GenerateKeywords],
) -> list[str]: ...
@overload
def generate_text(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: Sequence[str],
    *,
    num_samples: int,
    **options: Unpack[GenerateKeywords],
) -> list[list[str]]: ...
def generate_text(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str | Sequence[str] = "",
    *,
    num_samples: int = 1,
    **options: Unpack[GenerateKeywords],
) -> Any:
    """Return the continuation of a prompt, or a list of `num_samples` of them.

    Of several prompts a list with one of these for each.

    `generate_text(model, tokenizer, "Once upon a time", max_new_tokens=50, temperature=0)`
    """
    _refuse_unused(options)
    settings = build_settings(
        GenerateSettings, {"model_name": "", "num_samples": num_samples, **options}
    )
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    texts = [""] * (num_samples * len(prompts))
    was_training = model.training
    model.eval()
    try:
        for number, text in stream_text(
            model,
            tokenizer,
            [Prompt(text) for text in prompts],
            num_samples=num_samples,
            max_new_tokens=settings.max_new_tokens,
            sampling=settings.sampling(),
            stop=settings.stop,
            seed=settings.seed,
            batch_size=min(settings.batch_size, max(1, len(texts))),
        ):
            texts[number] += text
    finally:
        model.train(was_training)
    if num_samples > 1:
        parts = [texts[i : i + num_samples] for i in range(0, len(texts), num_samples)]
        return parts[0] if isinstance(prompt, str) else parts
    return texts[0] if isinstance(prompt, str) else texts


def _refuse_unused(options: Mapping[str, Any]) -> None:
    """Refuse what is of `lowtide generate` alone: a model in memory has its place and its size."""
    fields = setting_fields(GenerateSettings)
    for name in options:
        own = own_name(name, fields)
        if own in fields and own not in WRITING_NAMES and options[name] != fields[own].default:
            raise UsageError(
                f"generate_text takes no {name}: the model and the prompt are in memory already",
                next_step="leave it out, or let lowtide.generate(model_name=…) load the model, "
                "which heeds it",
            )


class _TorchWriter:
    """Texts of torch's networks; the methods are documented in Writer (generating.py)."""

    networks = NETWORKS
    most_rows = MOST_TEXTS

    def stream(
        self, model: GPT, tokenizer: Tokenizer, prompts: Iterable[Prompt], **options: Any
    ) -> Iterator[tuple[int, str]]:
        return stream_pieces(model, tokenizer, prompts, **options)


WRITER = _TorchWriter()
