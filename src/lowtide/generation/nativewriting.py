"""Continue prompts with a network in native code, without torch or JAX.

In:      a DecoderNetwork and its Tokenizer, prompts
Out:     pieces of text
Memory:  a cache of keys and values for the texts that are written at once
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from lowtide.generation.drawing import ArrayChooser
from lowtide.generation.prompts import Prompt
from lowtide.generation.settings import MOST_TEXTS, WritingSettings
from lowtide.generation.textstreams import count_writable
from lowtide.generation.writing import write_prompts
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
        options: WritingSettings,
    ) -> Iterator[tuple[int, str]]:
        choosers = functools.partial(
            ArrayChooser,
            sampling=options.sampling,
            vocab_size=count_writable(tokenizer, model.config),
        )
        steps = DecoderSteps(model, options.batch_size)
        return write_prompts(steps, choosers, tokenizer, prompts, options)


WRITER = _NativeWriter()
