"""Adapt tokenizers of three kinds for texts that are tokenized on the fly.

In:      a tokenizer: of lowtide, of the package tokenizers, or anything with `encode`
Out:     TextEncoder: ids of texts, the id between documents, a fingerprint
Memory:  the ids of one group of texts

Its functions are no lambdas, because loaders are pickled with their tokenizers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import DataError, UsageError
from lowtide.files import checksum_bytes
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.vocabulary import END_OF_TEXT, find_end

__all__ = ["ENCODING_THREADS", "Ids", "TextEncoder", "make_encoder"]

Ids = npt.NDArray[np.int32]
ENCODING_THREADS = 2
"""Threads of the tokenizer. Each has a cache, so only two; they are far faster than training."""
_PART_BYTES = 1 << 20


@dataclass(frozen=True)
class TextEncoder:
    """A tokenizer of any kind, as the loader needs it."""

    encode: Callable[[Sequence[bytes]], list[Ids]]
    end_of_text_id: int | None
    fingerprint: str
    iter_parts: Callable[[bytes], Iterator[Ids]] | None = None
    """Encodes one long text in parts, if the tokenizer can find places to cut."""
    part_bytes: int = _PART_BYTES
    """Approximate bytes of such a part; a text up to this size is encoded at once."""
    vocab_size: int | None = None
    """The number of ids, if known from the tokenizer."""

    def require_ids_below(self, count: int, *given: npt.NDArray[Any]) -> None:
        """Refuse ids from `count` on, which a model lacks: in those given, or in the vocabulary."""
        most = max((int(ids.max()) + 1 for ids in given if ids.size), default=self.vocab_size or 0)
        if most > count:
            raise DataError(
                f"the tokenizer of this text has ids up to {most - 1}, the model's vocabulary ends "
                f"at {count - 1}",
                next_step="give StreamingDataLoader(…) the tokenizer that the model is made for",
            )


def make_encoder(
    tokenizer: Any, *, end_of_text: str = END_OF_TEXT, part_bytes: int = _PART_BYTES
) -> TextEncoder:
    """Adapt a tokenizer: of lowtide (or its name or path), a tokenizers.Tokenizer, or anything
    whose `encode` returns ids."""
    if isinstance(tokenizer, TextEncoder):
        return tokenizer
    if isinstance(tokenizer, str | os.PathLike):  # text has `encode` too, and would be its own ids
        tokenizer = Tokenizer.load(os.fspath(tokenizer))
    if hasattr(tokenizer, "fingerprint") and hasattr(tokenizer, "encode_batch"):
        is_own = isinstance(tokenizer, Tokenizer)
        options = {"num_workers": ENCODING_THREADS, "special": "text"} if is_own else {}
        id_of = tokenizer.special_tokens.get
        encoder = TextEncoder(
            encode=partial(_encode_group, tokenizer, options),
            end_of_text_id=id_of(find_end(tokenizer.special_tokens)),
            fingerprint=str(tokenizer.fingerprint),
            iter_parts=partial(_iter_parts, tokenizer, part_bytes) if is_own else None,
            part_bytes=part_bytes,
            vocab_size=tokenizer.vocab_size if is_own else None,
        )
    elif hasattr(tokenizer, "token_to_id") and hasattr(tokenizer, "encode_batch"):
        id_of = tokenizer.token_to_id
        encoder = TextEncoder(
            encode=partial(_encode_by_tokenizers, tokenizer),
            end_of_text_id=id_of(END_OF_TEXT),
            fingerprint=checksum_bytes(tokenizer.to_str().encode()),
        )
    elif hasattr(tokenizer, "encode"):
        id_of = (tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}).get
        encoder = TextEncoder(
            encode=partial(_encode_each, tokenizer),
            end_of_text_id=getattr(tokenizer, "eos_token_id", None),
            fingerprint=f"{type(tokenizer).__name__} {getattr(tokenizer, 'vocab_size', '')}",
        )
    else:
        raise UsageError(
            f"a {type(tokenizer).__name__} is not a tokenizer: it has no encode",
            next_step='give lowtide.Tokenizer.load("gpt2"), or a tokenizers.Tokenizer',
        )
    if end_of_text == END_OF_TEXT:  # the default: the token of that name, or another usual one
        return encoder
    return _with_end(encoder, end_of_text, id_of(end_of_text) if end_of_text else None)


def _with_end(encoder: TextEncoder, name: str, end: int | None) -> TextEncoder:
    """The same with another token between documents; "" is none."""
    if name and end is None:
        raise UsageError(f"end_of_text is {name!r}, and the tokenizer has no such token")
    if end == encoder.end_of_text_id:
        return encoder
    return replace(encoder, end_of_text_id=end, fingerprint=f"{encoder.fingerprint} end {end}")


def _encode_group(tokenizer: Any, options: dict[str, Any], texts: Sequence[bytes]) -> list[Ids]:
    return list(tokenizer.encode_batch(list(texts), **options))


def _iter_parts(tokenizer: Tokenizer, part_bytes: int, text: bytes) -> Iterator[Ids]:
    """The ids of a long text in parts, equal to those of encoding it at once."""
    if tokenizer.package is not None:
        yield from tokenizer.iter_encoded([text], special="text")
        return
    begin, size = 0, part_bytes
    while begin < len(text):
        part = text[begin : begin + size]
        is_last = begin + size >= len(text)
        end = len(part) if is_last else tokenizer.last_cut(part)
        if end == 0:  # no place to cut: look further
            size *= 2
            continue
        part = part[:end]
        yield tokenizer.encode_batch([part], special="text", num_workers=ENCODING_THREADS)[0]
        begin, size = begin + end, part_bytes


def _encode_by_tokenizers(tokenizer: Any, texts: Sequence[bytes]) -> list[Ids]:
    strings = [text.decode("utf-8", "replace") for text in texts]
    found = tokenizer.encode_batch(strings, add_special_tokens=False)
    return [np.asarray(encoding.ids, dtype=np.int32) for encoding in found]


def _encode_each(tokenizer: Any, texts: Sequence[bytes]) -> list[Ids]:
    return [_encode_one(tokenizer, text) for text in texts]


def _encode_one(tokenizer: Any, text: bytes) -> Ids:
    found = tokenizer.encode(text.decode("utf-8", "replace"))
    ids = np.asarray(getattr(found, "ids", found))
    if ids.size and (ids.dtype.kind not in "iu" or int(ids.min()) < 0):
        raise DataError(f"{type(tokenizer).__name__}.encode gave {ids.dtype}, expected ids")
    return ids.astype(np.int32)
