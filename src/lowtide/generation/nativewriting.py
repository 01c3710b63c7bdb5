"""Texts of networks in native code, which needs neither torch nor JAX.

In:      a DecoderNetwork and its Tokenizer, prompts
Out:     pieces of text
Memory:  a cache of keys and values for the texts that are written at once
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

from lowtide.generation.continuations import Rows
from lowtide.generation.drawing import ArrayChooser
from lowtide.generation.prompts import Prompt
from lowtide.generation.settings import MOST_TEXTS, SamplingSettings
from lowtide.generation.textstreams import count_writable, iter_starts, not_text
from lowtide.generation.writing import write_texts
from lowtide.model.decoder import DecoderNetwork, DecoderSteps
from lowtide.model.decoderweights import NETWORKS
from lowtide.tokenizer import Tokenizer

__all__ = ["WRITER"]


class _NativeWriter:
    """Texts of native networks; the methods are documented in Writer (generating.py)."""

    networks = NETWORKS
    most_rows = MOST_TEXTS

    def stream(
        self,
        model: DecoderNetwork,
        tokenizer: Tokenizer,
        prompts: Iterable[Prompt],
        *,
        num_samples: int,
        max_new_tokens: int,
        sampling: SamplingSettings,
        stop: Sequence[str],
        seed: int | None,
        context: int,
        begin: int | None,
        batch_size: int,
    ) -> Iterator[tuple[int, str]]:
        chooser = functools.partial(
            ArrayChooser,
            sampling=sampling,
            vocab_size=count_writable(tokenizer, model.config),
        )
        rows = Rows(
            DecoderSteps(model, batch_size),
            chooser,
            batch_size,
            context=context,
            banned=not_text(tokenizer),
        )
        starts = iter_starts(
            tokenizer, prompts, num_samples=num_samples, context=context, begin=begin, seed=seed
        )
        return write_texts(rows, tokenizer, starts, max_new_tokens=max_new_tokens, stop=stop)


WRITER = _NativeWriter()
