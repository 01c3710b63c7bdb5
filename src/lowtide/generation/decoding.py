"""Continue a prompt token by token, past the context too, and turn the ids into text as they come.

In:      a GPT and its Tokenizer, a prompt
Out:     text, whole or in pieces; never half a character
Memory:  one cache of keys and values for the context
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lowtide.generation.prompts import Prompt, count_prompts, iter_prompts
from lowtide.generation.sampling import choose_tokens
from lowtide.generation.settings import GenerateSettings, SamplingSettings
from lowtide.generation.streams import encode_prompt, ends, iter_texts, not_text, note_unknown
from lowtide.model.blocks import KVCache
from lowtide.model.companions import require_vocabulary
from lowtide.model.config import find_model_dir, load_config
from lowtide.model.devices import device_memory, pick_device
from lowtide.model.gpt import GPT
from lowtide.model.inference import PROMPT_PART, budget_of, fit_context
from lowtide.model.templates import begin_token, read_sections
from lowtide.model.weights import load_model
from lowtide.progress import Phase, Progress, run_metrics_path
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer

__all__ = ["generate", "generate_text", "iter_tokens", "stream_text"]


@torch.inference_mode()
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
    token stays bounded and positions never run out. `context` is the model's if not given.
    """
    sampling = sampling or SamplingSettings()
    vocab_size = vocab_size or model.config.vocab_size
    context, device = context or model.config.context_length, model.device
    generator = torch.Generator(device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    prompt = list(prompt_ids)[-context:]
    seen = torch.tensor([prompt] * num_samples, dtype=torch.long, device=device)
    fresh = seen
    capacity = min(context, len(prompt) + max_new_tokens)
    dtype = model.embedding.weight.dtype
    cache = KVCache(model.config, num_samples, device, dtype, capacity=capacity)
    for step in range(max_new_tokens):
        if cache.length + fresh.shape[1] > context:
            cache.length = 0
            fresh = seen[:, -max(1, context // 2) :]
        logits = _read(model, fresh, cache)
        fresh = choose_tokens(
            logits,
            seen,
            sampling,
            vocab_size=vocab_size,
            banned=banned if step else (*banned, *banned_first),
            generator=generator,
        ).unsqueeze(-1)
        seen = torch.cat((seen, fresh), dim=1)[:, -context:]
        yield fresh.squeeze(-1)


def _read(model: GPT, ids: Tensor, cache: KVCache) -> Tensor:
    """Logits for the token after `ids`, which are read a part at a time."""
    parts = ids.split(PROMPT_PART, dim=1)
    for part in parts[:-1]:
        model.hidden(part, cache)
    return model.next_logits(parts[-1], cache)


def stream_text(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str | Prompt,
    *,
    num_samples: int = 1,
    max_new_tokens: int = 100,
    sampling: SamplingSettings | None = None,
    stop: Sequence[str] = (),
    seed: int | None = None,
    context: int | None = None,
    begin: int | None = None,
) -> Iterator[tuple[int, str]]:
    """Yield (sample number, new text) as the model writes; `begin` comes before every prompt."""
    prompt = Prompt(prompt) if isinstance(prompt, str) else prompt
    context = context or model.config.context_length
    ids = encode_prompt(tokenizer, prompt, context)
    if begin is not None and len(ids) < context:  # one that is cut does not show its beginning
        ids = [begin, *ids] if prompt else [begin]
    tokens = iter_tokens(
        model,
        ids,
        num_samples=num_samples,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        vocab_size=min(tokenizer.vocab_size, model.config.vocab_size),
        banned=not_text(tokenizer),
        # Without a prompt the first token may not be end-of-text: the sample would be empty.
        banned_first=ends(tokenizer) if not prompt else (),
        seed=seed,
        context=context,
    )
    return iter_texts(tokens, tokenizer, num_samples=num_samples, stop=stop)


def generate_text(
    model: GPT, tokenizer: Tokenizer, prompt: str = "", *, num_samples: int = 1, **options: Any
) -> str | list[str]:
    """Return the continuation of a prompt, or a list of several; options as in GenerateSettings.

    `generate_text(model, tokenizer, "Once upon a time", max_new_tokens=50, temperature=0)`
    """
    settings = build_settings(
        GenerateSettings, {"model_name": "", "num_samples": num_samples, **options}
    )
    texts = [""] * num_samples
    was_training = model.training
    model.eval()
    try:
        for number, text in stream_text(
            model,
            tokenizer,
            prompt,
            num_samples=num_samples,
            max_new_tokens=settings.max_new_tokens,
            sampling=settings.sampling(),
            stop=settings.stop,
            seed=settings.seed,
        ):
            texts[number] += text
    finally:
        model.train(was_training)
    return texts if num_samples > 1 else texts[0]


def generate(settings: GenerateSettings | None = None, /, **options: Any) -> Iterator[str]:
    """Yield pieces of text to print: each prompt, then its continuation as it is written."""
    settings = settings or build_settings(GenerateSettings, options)
    run_dir = find_model_dir(settings.model_name, settings.checkpoints_dir)
    folder = run_dir / "best" if settings.best else run_dir
    device = pick_device(settings.device)
    num_prompts = count_prompts(settings)
    budget = budget_of(settings.memory)
    # On a terminal the text itself is the progress; a line between its words would tear it apart.
    stream = None if sys.stdout.isatty() else "stderr"
    with Progress(
        "generate",
        budget_bytes=budget,
        metrics_path=run_metrics_path(run_dir),
        device_memory=device_memory(device),
        stream=stream,
    ) as progress:
        tokenizer = Tokenizer.load(folder)
        config = load_config(run_dir)
        require_vocabulary(tokenizer, config, folder)
        begin = begin_token(read_sections(tokenizer, folder))
        context = config.context_length
        if device.type == "cpu":
            context = fit_context(config, budget)
            if context < config.context_length:
                progress.note(f"{context:,} tokens of {config.context_length:,} keep the budget")
        model = load_model(folder, device=device)
        total = num_prompts * settings.num_samples
        with progress.phase("generate", total=total, unit="texts") as phase:
            prompts = iter_prompts(settings)
            yield from _continue_all(model, tokenizer, prompts, settings, phase, context, begin)


def _continue_all(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Iterator[Prompt],
    settings: GenerateSettings,
    phase: Phase,
    context: int,
    begin: int | None,
) -> Iterator[str]:
    for position, prompt in enumerate(prompts):
        note_unknown(tokenizer, prompt)
        for number in range(settings.num_samples):
            if settings.num_samples > 1:
                yield f"--- {position + 1}.{number + 1}\n"
            yield from prompt.iter_text()
            seed = None if settings.seed is None else settings.seed + number
            pieces = stream_text(
                model,
                tokenizer,
                prompt,
                max_new_tokens=settings.max_new_tokens,
                sampling=settings.sampling(),
                stop=settings.stop,
                seed=seed,
                context=context,
                begin=begin,
            )
            for _, text in pieces:
                yield text
            yield "\n"
            phase.advance()
