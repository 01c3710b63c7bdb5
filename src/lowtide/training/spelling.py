"""Common parts of tokens by their spelling: `Nation`, ` nation` and ` nations` share some.

In:      the bytes of every token
Out:     parts of words, and which tokens have which
Memory:  at most 4 KiB a token while they are looked for, and 650 bytes a token afterwards

A token's parts are its word (without the leading space, in lower case) and all its character
n-grams of length three to five, with begin and end marked; of characters that are words or
syllables by themselves (Chinese, Japanese, Korean) also single ones and pairs. Only the first 16
characters count. A leading space and a capital letter are parts as well, which very many tokens
share. A part of only one token is dropped.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowtide.model.config import GPTConfig
from lowtide.quickclasses import dataclass

__all__ = ["SharingBytes", "Spelling", "find_spelling", "search_bytes", "sharing_bytes"]

Array = np.ndarray[Any, Any]

_MOST_CHARACTERS = 16
_SHORTEST, _LONGEST = 3, 5
_FIRST_IDEOGRAPH = 0x2E80
# The word, n-grams of three to five of 18 characters, of ideographs single ones and pairs, a
# leading space or none, and a capital letter.
_MOST_FOUND = (
    3
    + 2 * _MOST_CHARACTERS
    - 1
    + sum(_MOST_CHARACTERS + 2 - length + 1 for length in range(_SHORTEST, _LONGEST + 1))
)
_BEGIN, _END = "\x02", "\x03"
_FACTOR = 0x9E3779B97F4A7C15  # of a hash of the characters: odd, and large


@dataclass(frozen=True)
class Spelling:
    """Parts of tokens, as lists one after the other: both directions."""

    parts: Array
    """The parts of the first token, then those of the second, and so on."""
    part_ends: Array
    """Where each token's parts begin in `parts`, and the end of the last."""
    tokens: Array
    """The tokens that have the first part, and so on."""
    token_ends: Array
    scales: Array
    """One over the root of how many parts each token has; 0 where it has none."""

    @property
    def num_parts(self) -> int:
        """How many parts there are."""
        return len(self.token_ends) - 1

    @property
    def fingerprint(self) -> int:
        """A hash of all parts."""
        return zlib.crc32(self.parts.tobytes(), zlib.crc32(self.part_ends.tobytes()))


@dataclass(frozen=True)
class SharingBytes:
    """The memory of shared updates."""

    moments: int
    lists: int
    step: int


def sharing_bytes(config: GPTConfig) -> SharingBytes:
    """Upper bounds for moments of parts, lists of parts, and temporary memory of a step.

    There are at most as many parts as tokens, and moments for each table that is not tied.
    """
    table = 4 * config.vocab_size * config.width
    return SharingBytes(
        moments=2 * table * (1 if config.tie_weights else 2),
        lists=config.vocab_size * (2 * 4 * _MOST_FOUND + 12),
        step=3 * table,
    )


def search_bytes(num_rows: int) -> int:
    """Peak memory of `find_spelling`: six numbers for each part of each token."""
    return num_rows * (6 * 8 * _MOST_FOUND + 256)


def find_spelling(
    tokens: Sequence[bytes], num_rows: int, *, most_parts: int | None = None
) -> Spelling:
    """Return the parts of tokens; b"" has none.

    There are as many parts as rows at most, or `most_parts`: the commonest.
    """
    most_parts = most_parts or num_rows
    found = (_hash_parts([_word(token) for token in tokens]), _hash_forms(tokens))
    hashes, owners = (np.concatenate(both) for both in zip(*found, strict=True))
    order = np.lexsort((owners, hashes))
    hashes, owners = hashes[order], owners[order]
    is_new = np.ones(len(hashes), bool)  # a part that a token has twice counts once
    is_new[1:] = (hashes[1:] != hashes[:-1]) | (owners[1:] != owners[:-1])
    hashes, owners = hashes[is_new], owners[is_new]
    _, counts = np.unique(hashes, return_counts=True)
    is_kept = counts > 1
    if is_kept.sum() > most_parts:
        commonest = np.argsort(np.where(is_kept, -counts, 0), kind="stable")[:most_parts]
        is_kept = np.zeros(len(counts), bool)
        is_kept[commonest] = True
    owners = owners[np.repeat(is_kept, counts)].astype(np.int32)
    counts = counts[is_kept]
    numbers = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    by_token = np.argsort(owners, kind="stable")
    each = np.bincount(owners, minlength=num_rows)
    with np.errstate(divide="ignore"):
        scales = np.where(each > 0, 1 / np.sqrt(each), 0).astype(np.float32)
    return Spelling(
        parts=numbers[by_token],
        part_ends=_ends(each),
        tokens=owners,
        token_ends=_ends(counts),
        scales=scales,
    )


def _ends(counts: Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _word(token: bytes) -> str:
    text = token.decode("utf-8", "surrogateescape").lstrip(" ")
    return text[:_MOST_CHARACTERS].lower()[:_MOST_CHARACTERS]


def _hash_forms(tokens: Sequence[bytes]) -> tuple[Array, Array]:
    """Hash the form of words: with a leading space or not, and perhaps a capital letter."""
    found: list[tuple[int, int]] = []
    for number, token in enumerate(tokens):
        if token:
            found.append((1 if token.startswith(b" ") else 2, number))
        if token.decode("utf-8", "surrogateescape").lstrip(" ")[:1].isupper():
            found.append((3, number))
    hashes, owners = np.array(found, np.int64).reshape(-1, 2).T
    return hashes.astype(np.uint64), owners


def _hash_parts(words: list[str]) -> tuple[Array, Array]:
    """Hash every part of every word; return the hashes and the word of each."""
    marked = [f"{_BEGIN}{word}{_END}" if word else "" for word in words]
    codes = np.frombuffer("".join(marked).encode("utf-32-le", "surrogatepass"), np.uint32)
    lengths = np.array([len(word) for word in marked], np.int64)
    owners = np.repeat(np.arange(len(words)), lengths)
    found = [_hash_words(codes, lengths)]
    for length in range(1, _LONGEST + 1):
        if len(codes) < length:
            continue
        count = len(codes) - length + 1
        wanted = owners[:count] == owners[length - 1 :]
        windows = np.lib.stride_tricks.sliding_window_view(codes, length)
        if length < _SHORTEST:
            wanted &= (windows >= _FIRST_IDEOGRAPH).all(axis=1)
        starts = np.flatnonzero(wanted)
        hashes = np.full(len(starts), length, np.uint64)
        for place in range(length):
            hashes = _mix(hashes, codes[starts + place])
        found.append((hashes, owners[starts]))
    return np.concatenate([h for h, _ in found]), np.concatenate([o for _, o in found])


def _hash_words(codes: Array, lengths: Array) -> tuple[Array, Array]:
    """Hash whole words, a character of all of them at a time."""
    starts = np.cumsum(lengths) - lengths
    hashes = np.zeros(len(lengths), np.uint64)
    for place in range(int(lengths.max(initial=0))):
        longer = lengths > place
        hashes[longer] = _mix(hashes[longer], codes[starts[longer] + place])
    has_word = np.flatnonzero(lengths)
    return hashes[has_word], has_word


def _mix(hashes: Array, codes: Array) -> Array:
    mixed = (hashes ^ codes.astype(np.uint64)) * np.uint64(_FACTOR)
    return mixed ^ (mixed >> np.uint64(29))
