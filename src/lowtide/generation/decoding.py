"""Continue prompts with a network of torch; texts may be longer than its context.

In:      a GPT and its Tokenizer, prompts
Out:     text, whole or in pieces; never half a character
Memory:  a cache of keys and values for the texts that are written at once (rows)
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from lowtide.aliases import own_name
from lowtide.errors import UsageError
from lowtide.flatsettings import setting_fields
from lowtide.generation.continuations import MakeChooser, Steps
from lowtide.generation.drawing import ArrayChooser
from lowtide.generation.prompts import Prompt
from lowtide.generation.sampling import TensorChooser
from lowtide.generation.settings import (
    MOST_TEXTS,
    WRITING_NAMES,
    GenerateSettings,
    SamplingSettings,
    WritingSettings,
)
from lowtide.generation.textstreams import count_writable
from lowtide.generation.writing import write_prompts
from lowtide.model.config import GPTConfig
from lowtide.model.decoder import DecoderSteps
from lowtide.model.gpt import GPT
from lowtide.model.networks import require_values
from lowtide.model.rowcaches import open_steps
from lowtide.model.weights import NETWORKS
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.named import open_tokenizer

if TYPE_CHECKING:
    from lowtide.keywordtypes import GenerateKeywords

__all__ = ["WRITER", "generate_text", "make_choosers", "stream_pieces"]


def make_choosers(
    steps: Steps, model: GPT, sampling: SamplingSettings, vocab_size: int
) -> MakeChooser:
    """The function that makes choosers for logits as `steps` returns them: arrays or tensors."""
    if isinstance(steps, DecoderSteps):
        return functools.partial(ArrayChooser, sampling=sampling, vocab_size=vocab_size)
    return functools.partial(
        TensorChooser, sampling=sampling, vocab_size=vocab_size, device=model.device
    )


def stream_pieces(
    model: GPT, tokenizer: Tokenizer, prompts: Iterable[Prompt], options: WritingSettings
) -> Iterator[tuple[int, str]]:
    """Continue prompts, on a CPU by native code; yield pieces of texts like `write_texts`."""
    steps = open_steps(model, options.batch_size)
    vocab_size = count_writable(tokenizer, model.config)
    choosers = make_choosers(steps, model, options.sampling, vocab_size)
    return write_prompts(steps, choosers, tokenizer, prompts, options)


@overload
def generate_text(
    model: GPT,
    tokenizer: Tokenizer | str | Path,
    prompt: str = "",
    *,
    num_samples: Literal[1] = ...,
    **options: Unpack[GenerateKeywords],
) -> str: ...
@overload
def generate_text(
    model: GPT,
    tokenizer: Tokenizer | str | Path,
    prompt: str = "",
    *,
    num_samples: int,
    **options: Unpack[GenerateKeywords],
) -> list[str]: ...
@overload
def generate_text(
    model: GPT,
    tokenizer: Tokenizer | str | Path,
    prompt: Sequence[str],
    *,
    num_samples: Literal[1] = ...,
    **options: Unpack[GenerateKeywords],
) -> list[str]: ...
@overload
def generate_text(
    model: GPT,
    tokenizer: Tokenizer | str | Path,
    prompt: Sequence[str],
    *,
    num_samples: int,
    **options: Unpack[GenerateKeywords],
) -> list[list[str]]: ...
def generate_text(
    model: GPT,
    tokenizer: Tokenizer | str | Path,
    prompt: str | Sequence[str] = "",
    *,
    num_samples: int = 1,
    **options: Unpack[GenerateKeywords],
) -> Any:
    """Return the continuation of a prompt, or a list of `num_samples` of them.

    With several prompts, a list with one of these for each.

    `generate_text(model, tokenizer, "Once upon a time", max_new_tokens=50, temperature=0)`
    """
    _refuse_unused(options)
    settings = build_settings(
        GenerateSettings, {"model_name": "", "num_samples": num_samples, **options}
    )
    tokenizer = open_tokenizer(tokenizer)
    _require_fitting(model, tokenizer)
    prompts, num_samples = _as_prompts(prompt), settings.num_samples
    texts = [""] * (num_samples * len(prompts))
    was_training = model.training
    model.eval()
    writing = WritingSettings(
        context=model.config.context_length,
        num_samples=num_samples,
        max_new_tokens=settings.max_new_tokens,
        sampling=settings.sampling(),
        stop=settings.stop,
        seed=settings.seed,
        batch_size=min(settings.batch_size, max(1, len(texts))),
    )
    try:
        for number, text in stream_pieces(model, tokenizer, map(Prompt, prompts), writing):
            texts[number] += text
    finally:
        model.train(was_training)
    if num_samples > 1:
        parts = [texts[i : i + num_samples] for i in range(0, len(texts), num_samples)]
        return parts[0] if isinstance(prompt, str) else parts
    return texts[0] if isinstance(prompt, str) else texts


def _require_fitting(model: Any, tokenizer: Tokenizer) -> None:
    """Refuse what is no network, and a tokenizer with ids that its embedding has no rows for."""
    # One that is compiled is of another type; modules of other kinds have other configs.
    if not isinstance(getattr(model, "config", None), GPTConfig):
        raise UsageError(
            f"model is of type {type(model).__name__}, expected a lowtide.GPT",
            next_step="give lowtide.load_model(FOLDER), or let lowtide.generate(model_name=…) "
            "load it",
        )
    require_values(model)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise UsageError(
            f"the tokenizer has {tokenizer.vocab_size:,} ids, the model's embedding "
            f"{model.config.vocab_size:,} rows",
            next_step="give the tokenizer that the model was trained with",
        )


def _as_prompts(prompt: Any) -> list[str]:
    """One prompt or several as a list; bytes and ids are refused."""
    is_one = isinstance(prompt, str | bytes) or not isinstance(prompt, Iterable)
    prompts: list[Any] = [prompt] if is_one else list(prompt)
    for one in prompts:
        if not isinstance(one, str):
            raise UsageError(
                f"a prompt is of type {type(one).__name__}, expected text",
                next_step="give text, or a list of texts; Tokenizer.decode makes text of ids",
            )
    return prompts


def _refuse_unused(options: Mapping[str, Any]) -> None:
    """Refuse settings that only `lowtide generate` uses: how it loads a model and prompts."""
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

    stream = staticmethod(stream_pieces)


WRITER = _TorchWriter()
