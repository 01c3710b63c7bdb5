"""Ids of a model as text while they come: prompts encoded, stops found, never half a character.

In:      a prompt; ids step by step, from either backend
Out:     pieces of text
Memory:  what might still become a stop text
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lowtide.errors import warn
from lowtide.generation.prompts import Prompt, encode_end
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
    """One continuation: turns ids into text, finds stop texts, holds back what might begin one."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = [text for text in stop if text]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = ""
        self.finished = False

    def feed(self, token: int) -> str:
        """Add one id; return the text that is certain now."""
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
        """Return what was held back."""
        if self.finished:
            return ""
        self.finished = True
        text, self._waiting = self._waiting + self._decoder.decode(b"", final=True), ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`."""
    return next(
        (n for n in range(min(len(text), len(stop)), 0, -1) if stop.startswith(text[-n:])), 0
    )


def not_text(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that stand for no text, of those a tokenizer has."""
    unknown = tokenizer.special_tokens.get(UNKNOWN)
    return [] if unknown is None or unknown >= tokenizer.vocab_size else [unknown]


def count_writable(tokenizer: Tokenizer, config: GPTConfig) -> int:
    """Return how many ids both know: vocabularies of networks are often rounded up."""
    return min(tokenizer.vocab_size, config.vocab_size)


def ends(tokenizer: Tokenizer) -> list[int]:
    return [] if tokenizer.end_of_text_id is None else [tokenizer.end_of_text_id]


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt, context: int) -> list[int]:
    """Encode what a model reads of a prompt: its last `context` ids.

    An empty prompt becomes the token that separates documents, or a line break.

    With a character tokenizer the line break comes first: a single file has no such separators.
    """
    ids = encode_end(tokenizer, prompt, context)
    if ids:
        return ids
    line_break = [int(token) for token in tokenizer.encode("\n", special="text")]
    if tokenizer.kind == "char" and not set(line_break) & set(not_text(tokenizer)):
        return line_break
    return ends(tokenizer) or line_break or [0]


def note_unknown(tokenizer: Tokenizer, prompt: Prompt) -> None:
    """Warn of characters in a prompt that a model by characters has never seen."""
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
    """What a text begins with."""

    ids: list[int]
    seed: int | None
    is_empty: bool
    """No warning is printed."""


def iter_starts(
    tokenizer: Tokenizer,
    prompts: Iterable[Prompt],
    *,
    num_samples: int,
    context: int,
    begin: int | None,
    seed: int | None,
) -> Iterator[Start]:
    """Yield what the model reads of each prompt, once for each of its samples."""
    for prompt in prompts:
        ids = encode_prompt(tokenizer, prompt, context)
        if begin is not None and len(ids) < context:  # one that is cut does not show its beginning
            ids = [begin, *ids] if prompt else [begin]
        for sample in range(num_samples):
            yield Start(ids, None if seed is None else seed + sample, not prompt)
