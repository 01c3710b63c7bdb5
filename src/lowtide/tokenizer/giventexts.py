"""Texts as callers give them, str or bytes, in the type that an encoder takes.

In:      str or bytes; UsageError for anything else
Out:     the same text
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lowtide.errors import UsageError

__all__ = ["as_bytes", "as_part", "as_text", "text_list"]


def as_bytes(text: str | bytes) -> bytes:
    """A text as UTF-8; each half of a surrogate pair becomes U+FFFD."""
    text = _require_text(text)
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _without_halves(text).encode()


def as_text(text: str | bytes) -> str:
    """A text that UTF-8 can represent; what it cannot becomes U+FFFD."""
    text = _require_text(text)
    if isinstance(text, bytes):
        return text.decode("utf-8", "replace")
    try:
        text.encode()
    except UnicodeEncodeError:
        return _without_halves(text)
    return text


def as_part(text: str | bytes) -> str | bytes:
    """The same for a part of a stream: bytes may end inside a character, and stay as they are."""
    return as_text(text) if isinstance(text, str) else _require_text(text)


def text_list(texts: Iterable[str]) -> list[str]:
    """Texts as a list; one text is one, not its characters.

    >>> text_list("<|endoftext|>"), text_list(("<s>", "</s>"))
    (['<|endoftext|>'], ['<s>', '</s>'])
    """
    given = [texts] if isinstance(texts, str) else list(texts)
    for text in given:
        _require_text(text)
    return given


def _require_text(text: str | bytes) -> str | bytes:
    """Refuse what is neither str nor bytes, and return the rest as it is."""
    given: Any = text
    if not isinstance(given, str | bytes):
        raise UsageError(f"a text is {type(given).__name__}, expected str or bytes")
    return text


def _without_halves(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, which UTF-8 cannot represent."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
