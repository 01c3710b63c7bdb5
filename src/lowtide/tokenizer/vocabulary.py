"""The Vocabulary: all that decides a tokenizer's ids (tokens, merges, special tokens, pattern).

Memory:  a few hundred bytes per token
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from lowtide import _native
from lowtide.arrays import np
from lowtide.errors import DataError, UsageError
from lowtide.quickclasses import dataclass
from lowtide.tokenizer.patterns import Pattern

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "END_NAMES",
    "END_OF_TEXT",
    "UNKNOWN",
    "AddedToken",
    "Normalizer",
    "Vocabulary",
    "describe_merge",
    "find_end",
    "id_bytes",
    "merges_by_rank",
    "require_dense",
]

Normalizer = Literal["none", "nfc"]

END_OF_TEXT = "<|endoftext|>"
END_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")
"""Names of the end-of-document token in published vocabularies; the first one found is used."""
UNKNOWN = "<unk>"
_MOST_UNUSED = 1 << 18  # the special tokens of o200k begin at 199,999, even if others are few


def find_end(special_tokens: Mapping[str, int]) -> str | None:
    """The special token that ends documents.

    >>> find_end({"<s>": 1, "</s>": 2})
    '</s>'
    """
    return next((name for name in END_NAMES if name in special_tokens), None)


def id_bytes(vocab_size: int) -> int:
    """Bytes of the smallest unsigned type that holds every id below `vocab_size`."""
    return 2 if vocab_size <= 1 << 16 else 4


def require_dense(highest_id: int, num_tokens: int) -> None:
    """Refuse ids so large that most of the table would be empty, before the table is allocated.

    Published vocabularies leave some ids unused, but one id of 2^24 among a few hundred tokens
    would take a gigabyte here, and an embedding of as many rows.
    """
    largest = 4 * num_tokens + _MOST_UNUSED
    if highest_id >= largest:
        raise DataError(
            f"the id {highest_id} is too large for {num_tokens} tokens: expected ids below "
            f"{largest}",
            next_step="number the tokens from 0 on, with few gaps",
        )


@dataclass(frozen=True)
class AddedToken:
    """A token that is matched in text before it is split, by the rules of Hugging Face."""

    content: str
    id: int
    special: bool = True
    """True for a special token, which may be treated as plain text; others are always matched."""
    lstrip: bool = False
    """Absorbs the blanks before it."""
    rstrip: bool = False
    """Absorbs the blanks after it."""
    normalized: bool = False
    """Matched in the normalized text, not in the original."""


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, and the rules to encode text."""

    kind: Literal["bpe", "char", "package"]
    tokens: tuple[bytes, ...]
    """Bytes by id; empty where an id is not used. Special tokens are here too."""
    special_tokens: Mapping[str, int]
    """Ids of the special tokens."""
    pattern: Pattern = "gpt2"
    merge_ids: memoryview | None = None
    """Left id, right id, token id of each merge in the order they apply, as uint32. None: ids are
    ranks, and any two tokens that together spell a token merge into it, the lowest id first
    (tiktoken's rule)."""
    whole_pieces: bool = False
    """A piece that is a token is encoded as that token, regardless of merges."""
    normalizer: Normalizer = "none"
    """The normalization of text before it is split."""
    added_tokens: tuple[AddedToken, ...] = ()
    """All added tokens, special ones included, if any has rules beyond a plain special token's."""
    source: bytes | None = None
    """Kind package: the tokenizer.json as it was read, packed by zstandard."""
    reason: str = ""
    """Kind package: the part that native code does not support."""

    def __post_init__(self) -> None:
        for text, id in self.special_tokens.items():
            if not 0 <= id < len(self.tokens):
                raise DataError(f"special token {text!r} has id {id}, beyond the vocabulary")

    def __getstate__(self) -> dict[str, Any]:
        # A view of memory cannot be pickled, an array of numbers can.
        merges = None if self.merge_ids is None else array("I", self.merge_ids.tobytes())
        return {**self.__dict__, "merge_ids": merges}

    def __setstate__(self, state: dict[str, Any]) -> None:
        merges = state["merge_ids"]
        self.__dict__.update(state, merge_ids=None if merges is None else memoryview(merges))

    @property
    def has_rules(self) -> bool:
        """True if added tokens have rules beyond those of plain special tokens."""
        return self.normalizer != "none" or bool(self.added_tokens)

    @property
    def added_ids(self) -> Mapping[str, int]:
        """Special and added tokens with their ids, which no merge creates."""
        if not self.added_tokens:
            return self.special_tokens
        return {token.content: token.id for token in self.added_tokens}

    @property
    def merges(self) -> npt.NDArray[np.uint32] | None:
        """Rows (left id, right id, token id), if there are any."""
        return None if self.merge_ids is None else np.asarray(self.merge_ids).reshape(-1, 3)

    @property
    def fingerprint(self) -> str:
        """A hexadecimal digest of everything that decides ids."""
        if self.source is not None:
            return source_fingerprint(self.source)
        digest = hashlib.sha256()
        head = [self.kind, self.pattern if self.kind == "bpe" else "", str(self.whole_pieces)]
        digest.update("\n".join(head).encode())
        digest.update(_native.join_with_lengths(self.tokens))
        for text, id in sorted(self.special_tokens.items(), key=lambda item: item[1]):
            digest.update(f"\n{id} {text}".encode())
        if self.merge_ids is not None:
            digest.update(self.merge_ids)
        if self.has_rules:
            rows = [dataclasses.astuple(token) for token in self.added_tokens]
            rules = json.dumps([self.normalizer, sorted(rows, key=lambda row: row[1])])
            digest.update(f"\nrules {rules}".encode())
        return digest.hexdigest()[:32]

    @classmethod
    def from_merges(
        cls,
        merges: Iterable[tuple[bytes, bytes]],
        *,
        special_tokens: Iterable[str] = (),
        pattern: Pattern = "gpt2",
    ) -> Vocabulary:
        """Number tokens as lowtide does: special tokens, the 256 bytes, then one id per merge."""
        specials = list(dict.fromkeys(special_tokens))
        merges = list(merges)
        tokens = [text.encode() for text in specials] + [bytes([byte]) for byte in range(256)]
        tokens += [left + right for left, right in merges]
        seen: set[bytes] = set()
        for id, token in enumerate(tokens[len(specials) :], len(specials)):
            if token in seen:
                tokens[id] = b""  # a token made twice keeps its first id; the second never occurs
            seen.add(token)
        return cls.from_tokens(
            dict(enumerate(tokens)),
            merges,
            special_tokens={text: id for id, text in enumerate(specials)},
            pattern=pattern,
        )

    @classmethod
    def from_tokens(
        cls,
        tokens: Mapping[int, bytes],
        merges: Iterable[tuple[bytes, bytes]],
        *,
        special_tokens: Mapping[str, int],
        pattern: Pattern = "gpt2",
        whole_pieces: bool = False,
    ) -> Vocabulary:
        """Make a vocabulary of tokens by id and merges of bytes."""
        special_ids = set(special_tokens.values())
        ids: dict[bytes, int] = {}
        for id, token in sorted(tokens.items()):
            if token and id not in special_ids:
                ids.setdefault(token, id)
        rows: list[tuple[int, int, int]] = []
        for left, right in merges:
            try:
                rows.append((ids[left], ids[right], ids[left + right]))
            except KeyError as error:
                token = error.args[0]
                is_special = any(text.encode() == token for text in special_tokens)
                raise DataError(describe_merge(left, right, token, is_special=is_special)) from None
        return cls.from_rows(
            tokens,
            rows,
            special_tokens=special_tokens,
            pattern=pattern,
            whole_pieces=whole_pieces,
        )

    @classmethod
    def from_rows(
        cls,
        tokens: Mapping[int, bytes],
        rows: Sequence[tuple[int, int, int]] | None,
        *,
        special_tokens: Mapping[str, int],
        pattern: Pattern = "gpt2",
        whole_pieces: bool = False,
    ) -> Vocabulary:
        """Make a vocabulary of tokens by id and merges of ids; None: ids are ranks."""
        highest = max([*tokens, *special_tokens.values()], default=-1)
        require_dense(highest, len(tokens) + len(special_tokens))
        table = [b""] * (highest + 1)
        for id, token in tokens.items():
            table[id] = token
        for text, id in special_tokens.items():
            table[id] = text.encode()
        return cls(
            kind="bpe",
            tokens=tuple(table),
            special_tokens=dict(special_tokens),
            pattern=pattern,
            merge_ids=None if rows is None else memoryview(array("I", chain.from_iterable(rows))),
            whole_pieces=whole_pieces,
        )

    @classmethod
    def from_characters(
        cls, characters: Iterable[str], *, special_tokens: Iterable[str] = (END_OF_TEXT, UNKNOWN)
    ) -> Vocabulary:
        """Make a character vocabulary: special tokens, then the characters in their order."""
        specials = list(dict.fromkeys(special_tokens))
        if UNKNOWN not in specials:
            raise UsageError(f"a character tokenizer needs {UNKNOWN} among its special tokens")
        distinct = sorted(set(characters))
        if any(len(character) != 1 for character in distinct):
            raise UsageError("characters must be single code points")
        tokens = [text.encode() for text in specials]
        tokens += [character.encode("utf-8", "surrogatepass") for character in distinct]
        return cls(
            kind="char",
            tokens=tuple(tokens),
            special_tokens={text: id for id, text in enumerate(specials)},
        )

    def merge_bytes(self) -> list[tuple[bytes, bytes]]:
        """Return the merges as pairs of bytes, in order."""
        rows = self.merge_rows().tolist()
        return [(self.tokens[left], self.tokens[right]) for left, right, _ in rows]

    def merge_rows(self) -> npt.NDArray[np.uint32]:
        """Return the merges as rows (left id, right id, token id), in order."""
        merges = self.merges
        return merges_by_rank(self.tokens, self.added_ids) if merges is None else merges


def source_fingerprint(source: bytes) -> str:
    """A digest of the parts of a packed tokenizer.json that decide ids, however it is formatted.

    The decoder and what is put around a text (BOS, padding) are not included.
    """
    import zstandard  # few tokenizers need it

    data = json.loads(zstandard.ZstdDecompressor().decompress(source))
    parts = [data.get(name) for name in ("added_tokens", "normalizer", "pre_tokenizer", "model")]
    merges = parts[-1].get("merges")
    if isinstance(merges, list):  # written "a b" or ["a", "b"]
        pairs = [row.split(" ", 1) if isinstance(row, str) else row for row in merges]
        parts[-1] = {**parts[-1], "merges": pairs}
    text = json.dumps(["package", *parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def describe_merge(left: bytes, right: bytes, token: bytes, *, is_special: bool) -> str:
    """The error for a merge that involves a special or missing token."""
    if is_special:
        return (
            f"{token!r} is a special token, and an ordinary one of the merge of {left!r} and "
            f"{right!r}: it can be one of them"
        )
    return f"merge of {left!r} and {right!r}: no token {token!r}"


def merges_by_rank(
    tokens: Sequence[bytes], special_tokens: Mapping[str, int]
) -> npt.NDArray[np.uint32]:
    """Return for a ranked vocabulary every pair of tokens that spells a token, in order of rank."""
    ordinary = list(tokens)
    for id in special_tokens.values():
        ordinary[id] = b""
    return _native.rules_by_rank(ordinary).reshape(-1, 3)
