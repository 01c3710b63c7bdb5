"""Encode prompts, and decode ids to text one at a time: stop texts, characters of several tokens.

In:      a prompt; ids step by step, from any backend
Out:     pieces of text
Memory:  the end of a text that may be the beginning of a stop text
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lowtide.errors import warn
from lowtide.generation.prompts import Prompt, encode_end
from lowtide.generation.settings import WritingSettings
from lowtide.model.config import GPTConfig
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import UNKNOWN, Tokenizer

__all__ = [
    "Start",
    "TextStream",
    "count_writable",
    "encode_prompt",
    "ends",
    "iter_starts",
    "iter_texts",
    "not_text",
    "note_unknown",
]


def iter_texts(
    tokens: Iterator[Any], tokenizer: Tokenizer, *, num_samples: int, stop: Sequence[str] = ()
) -> Iterator[tuple[int, str]]:
    """Yield (sample number, new text) of ids [num_samples] that come step by step."""
    streams = [TextStream(tokenizer, stop) for _ in range(num_samples)]
    for step in tokens:
        for number, (stream, token) in enumerate(zip(streams, step.tolist(), strict=True)):
            if text := stream.feed(token):
                yield number, text
        if all(stream.finished for stream in streams):
            break
    for number, stream in enumerate(streams):
        if text := stream.end():
            yield number, text


class TextStream:
    """Decodes one text; its end is held back while it may be the beginning of a stop text."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = [text for text in stop if text]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = ""
        self.finished = False

    def feed(self, token: int) -> str:
        """Add one id; return the text that cannot be part of a stop text."""
        if self.finished:
            return ""
        if token == self._tokenizer.end_of_text_id:
            return self.end()
        self._waiting += self._decoder.decode(self._tokenizer.token_bytes(token))
        found = [self._waiting.find(text) for text in self._stop if text in self._waiting]
        if found:
            self.finished = True
            text, self._waiting = self._waiting[: min(found)], ""
            return text
        held = max((_overlap(self._waiting, text) for text in self._stop), default=0)
        cut = len(self._waiting) - held
        text, self._waiting = self._waiting[:cut], self._waiting[cut:]
        return text

    def end(self) -> str:
        """Finish, and return the text that was held back."""
        if self.finished:
            return ""
        self.finished = True
        text, self._waiting = self._waiting + self._decoder.decode(b"", final=True), ""
        return text


def _overlap(text: str, stop: str) -> int:
    """The length of the longest suffix of `text` that is a prefix of `stop`."""
    return next(
        (n for n in range(min(len(text), len(stop)), 0, -1) if stop.startswith(text[-n:])), 0
    )


def not_text(tokenizer: Tokenizer) -> list[int]:
    """The ids of a tokenizer that stand for no text."""
    unknown = tokenizer.special_tokens.get(UNKNOWN)
    return [] if unknown is None or unknown >= tokenizer.vocab_size else [unknown]


def count_writable(tokenizer: Tokenizer, config: GPTConfig) -> int:
    """The number of ids that both have: vocabularies of networks are often rounded up."""
    return min(tokenizer.vocab_size, config.vocab_size)


def ends(tokenizer: Tokenizer) -> list[int]:
    return [] if tokenizer.end_of_text_id is None else [tokenizer.end_of_text_id]


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt, context: int) -> list[int]:
    """The last `context` ids of a prompt, which are what a model reads.

    An empty prompt becomes the token that separates documents, or a line break; with a character
    tokenizer a line break, because a single file has no separators.
    """
    ids = encode_end(tokenizer, prompt, context)
    if ids:
        return ids
    line_break = [int(token) for token in tokenizer.encode("\n", special="text")]
    if tokenizer.kind == "char" and not set(line_break) & set(not_text(tokenizer)):
        return line_break
    return ends(tokenizer) or line_break or [0]


def note_unknown(tokenizer: Tokenizer, prompt: Prompt) -> None:
    """Warn of characters in a prompt that a character tokenizer does not have."""
    unknown = set(not_text(tokenizer))
    if tokenizer.kind != "char" or not unknown:
        return
    characters: dict[str, None] = {}
    for text in prompt.iter_text():
        characters.update(dict.fromkeys(text))
    strange = [c for c in characters if int(tokenizer.encode(c, special="text")[0]) in unknown]
    if strange:
        shown = " ".join(strange[:20]) + (" …" if len(strange) > 20 else "")
        warn(f"note: not in the model's vocabulary, read as {UNKNOWN}: {shown}")


@dataclass(frozen=True)
class Start:
    """The beginning of a text."""

    ids: list[int]
    seed: int | None
    is_empty: bool
    """True if the prompt has no text."""


def iter_starts(
    tokenizer: Tokenizer,
    prompts: Iterable[Prompt],
    options: WritingSettings,
) -> Iterator[Start]:
    """Yield what the model reads of each prompt, once for each of its samples."""
    begin, seed = options.begin, options.seed
    for prompt in prompts:
        ids = encode_prompt(tokenizer, prompt, options.context)
        if begin is not None and len(ids) < options.context:  # else its beginning is cut off
            ids = [begin, *ids] if prompt else [begin]
        for sample in range(options.num_samples):
            yield Start(ids, None if seed is None else seed + sample, not prompt)
