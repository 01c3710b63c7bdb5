"""Texts, tokens and merges as callers give them, in the types that an encoder takes.

In:      str or bytes; bytes by id; pairs of bytes; UsageError for anything else
Out:     the same
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lowtide.counts import plain_number
from lowtide.errors import UsageError

__all__ = [
    "as_bytes",
    "as_part",
    "as_text",
    "merge_list",
    "require_several",
    "text_list",
    "tokens_by_id",
]


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


def tokens_by_id(vocabulary: Mapping[int, bytes]) -> dict[int, bytes]:
    """Tokens by id, as plain numbers; one with a negative id would take the place of another.

    >>> tokens_by_id({0: b"a"})
    {0: b'a'}
    """
    given: Any = vocabulary
    if not isinstance(given, Mapping):
        raise UsageError(f"a vocabulary is {type(given).__name__}, expected bytes by id")
    tokens: dict[int, bytes] = {}
    for id, token in vocabulary.items():
        number, value = plain_number(id), _as_any(token)
        if type(number) is not int or number < 0:
            raise UsageError(f"a token has the id {number!r}, expected a whole number from 0 on")
        if not isinstance(value, bytes):
            raise UsageError(f"token {number} is {type(value).__name__}, expected bytes")
        tokens[number] = value
    return tokens


def merge_list(merges: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Merges as a list of pairs.

    >>> merge_list([(b"a", b"b")])
    [(b'a', b'b')]
    """
    given: Any = merges
    if not isinstance(given, Iterable):
        raise UsageError(f"merges is {type(given).__name__}, expected pairs of bytes")
    pairs: list[tuple[bytes, bytes]] = []
    for row in given:
        pair = _as_any(row)
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2
        if not (is_pair and all(isinstance(part, bytes) for part in pair)):
            raise UsageError(f"a merge is {str(pair)[:40]!r}, expected a pair of bytes")
        pairs.append((pair[0], pair[1]))
    return pairs


def require_several(texts: Iterable[str | bytes], method: str) -> None:
    """Refuse one text, or what is no series of texts."""
    given: Any = texts
    if isinstance(given, str | bytes):
        raise UsageError(
            f"{method} takes a list of texts, and one text was given",
            next_step="tokenizer.encode(text)",
        )
    if not isinstance(given, Iterable):
        raise UsageError(f"{method} takes a list of texts, not {type(given).__name__}")


def _as_any(value: Any) -> Any:
    """A value of which nothing is known: callers may give anything."""
    return value


def _require_text(text: str | bytes) -> str | bytes:
    """Refuse what is neither str nor bytes, and return the rest as it is."""
    given: Any = text
    if not isinstance(given, str | bytes):
        raise UsageError(f"a text is {type(given).__name__}, expected str or bytes")
    return text


def _without_halves(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, which UTF-8 cannot represent."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
