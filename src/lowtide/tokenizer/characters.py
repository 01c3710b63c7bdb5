"""Encode text character by character: one table lookup per code point.

Memory:  4 bytes per code point up to the largest known one (at most 4.3 MB)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lowtide.arrays import np
from lowtide.errors import DataError
from lowtide.tokenizer.vocabulary import UNKNOWN, Vocabulary

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["CharacterEncoder", "last_character_cut"]


class CharacterEncoder:
    """The ids of characters; unknown ones become <unk>."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._specials = vocabulary.special_tokens
        self._special_expression = _any_of(self._specials)
        self._unknown = vocabulary.special_tokens[UNKNOWN]
        special_ids = set(vocabulary.special_tokens.values())
        codes = {
            ord(token.decode("utf-8", "surrogatepass")): id
            for id, token in enumerate(vocabulary.tokens)
            if token and id not in special_ids
        }
        self._table = np.full(max(codes, default=0) + 2, self._unknown, dtype=np.uint32)
        for code, id in codes.items():
            self._table[code] = id

    def encode(self, text: str, *, special: str = "text") -> npt.NDArray[np.uint32]:
        """Return the ids of `text`; `special` is as in `Tokenizer.encode`."""
        if special == "text" or not self._specials:
            return self._encode_plain(text)
        parts: list[npt.NDArray[np.uint32]] = []
        begin = 0
        for match in self._special_expression.finditer(text):
            if special == "forbid":
                raise DataError(f"special token {match.group()!r} in the text at {match.start()}")
            id = np.array([self._specials[match.group()]], dtype=np.uint32)
            parts += [self._encode_plain(text[begin : match.start()]), id]
            begin = match.end()
        return np.concatenate([*parts, self._encode_plain(text[begin:])])

    def _encode_plain(self, text: str) -> npt.NDArray[np.uint32]:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        # The last entry of the table is used for all larger code points.
        return self._table[np.minimum(codes, len(self._table) - 1)]


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Match any of `texts`, the longest first."""
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)))


def last_character_cut(data: bytes, specials: Sequence[bytes]) -> int:
    """Return the last offset where no character or special token is cut, whatever text follows.

    It is 0 if there is none.
    """
    cut = max(len(data) - max(map(len, specials), default=1), 0)
    while cut > 0 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    while True:  # moving before one special token may end inside another
        before = cut
        for token in specials:
            inside = data.find(token, max(cut - len(token) + 1, 0), cut + len(token) - 1)
            cut = inside if 0 <= inside < cut else cut
        if cut == before:
            return cut
