"""Tokens in the notation of byte-level files: a printable character for each byte.

In:      token texts with their ids, and merges, as a file has them; checked before use
Out:     a Vocabulary; or the token texts of one
Memory:  a few times the file
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from lowtide import _native
from lowtide.arrays import np
from lowtide.errors import DataError
from lowtide.tokenizer.patterns import Pattern, UnknownPartError
from lowtide.tokenizer.vocabulary import (
    Vocabulary,
    describe_merge,
    merges_by_rank,
)

__all__ = [
    "MAX_TOKENS",
    "check_ids",
    "format_merges",
    "format_vocab",
    "merge_texts",
    "printable",
    "read_bpe",
    "read_bpe_text",
    "split_merge",
    "token_texts",
    "unprintable",
    "vocab_section",
]

MAX_TOKENS = 1 << 24  # limit of the native vocabulary; a larger id means a damaged file


def _printable_table() -> list[str]:
    """Return the character that byte-level files write for each byte."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = [""] * 256
    for byte in kept:
        table[byte] = chr(byte)
    following = iter(range(0x100, 0x200))
    return [character or chr(next(following)) for character in table]


_PRINTABLE = _printable_table()
_TRANSLATION = dict(enumerate(_PRINTABLE))
# The inverse, through Latin-1, which is native and fast; characters that represent no byte must
# fail there.
_BYTES_AS_LATIN = {ord(character): chr(byte) for byte, character in enumerate(_PRINTABLE)}
_BACK = {code: _BYTES_AS_LATIN.get(code, "\uffff") for code in range(256)} | _BYTES_AS_LATIN


def printable(token: bytes) -> str:
    """Return a token in the notation of byte-level files.

    >>> printable(b" the")
    'Ġthe'
    """
    return token.decode("latin-1").translate(_TRANSLATION)


def unprintable(text: str) -> bytes:
    """Return the token for the `text` of a byte-level file; KeyError for an invalid character."""
    try:
        return text.translate(_BACK).encode("latin-1")
    except UnicodeEncodeError as error:
        raise KeyError(text[error.start]) from None


def check_ids(vocab: Any, path: object) -> dict[str, int]:
    """Return token texts with their ids, after checking that ids are unique integers."""
    if not isinstance(vocab, dict):
        raise DataError("expected tokens with their ids", path=str(path))
    texts: dict[int, str] = {}
    for text, id in vocab.items():
        if type(id) is not int or not 0 <= id < MAX_TOKENS:
            raise DataError(
                f"token {text!r} has the id {id!r}, expected a whole number from 0 to "
                f"{MAX_TOKENS - 1}",
                path=str(path),
            )
        if id in texts:
            raise DataError(f"tokens {texts[id]!r} and {text!r} share the id {id}", path=str(path))
        texts[id] = text
    return vocab


def split_merge(row: Any, path: object) -> tuple[str, str]:
    """Return the two parts of a merge, written "a b" or ["a", "b"]."""
    parts: Any = row.split(" ") if isinstance(row, str) else row
    if (
        not isinstance(parts, list)
        or len(parts) != 2
        or not all(isinstance(part, str) for part in parts)
    ):
        raise DataError(f"a merge has two parts, this one is {row!r}", path=str(path))
    return parts[0], parts[1]


def package_ids(texts: Iterable[str], known: Mapping[str, int], num_words: int) -> dict[str, int]:
    """The ids that the package tokenizers gives added tokens, whatever ids the file has.

    Tokens in `known` keep their ids in the vocabulary; new ones get consecutive ids from
    `num_words` on.

    >>> package_ids(["<s>", "<a>", "<b>"], {"<s>": 0}, 300)
    {'<s>': 0, '<a>': 300, '<b>': 301}
    """
    ids: dict[str, int] = {}
    following = num_words
    for text in texts:
        ids[text] = known.get(text, following)
        following = max(following, ids[text] + 1)
    return ids


def require_package_ids(
    added: Mapping[str, int], known: Mapping[str, int], num_words: int, path: object
) -> None:
    """Raise UnknownPartError if the package would give tokens other ids than the file."""
    for text, id in package_ids(added, known, num_words).items():
        if added[text] != id:
            raise UnknownPartError(
                f"added token {text!r} with the id {added[text]}, which becomes {id}",
                path=str(path),
            )


def read_bpe_text(
    vocab: bytes,
    merges: bytes,
    specials: Mapping[str, int | None],
    *,
    merges_are_json: bool,
    pattern: Pattern,
    whole_pieces: bool,
) -> Vocabulary | None:
    """Make a vocabulary of the text of its two sections, without a Python object for each token.

    A special token whose id is None gets the one in `vocab`, if any. Returns None unless the text
    has exactly the expected form: `read_bpe` then reports the error. GPT-2's files take 0.03 s this
    way, and 0.26 s as Python objects.
    """
    encoded = [text.encode("utf-8", "surrogatepass") for text in specials]
    found = _native.read_byte_level(
        vocab, merges, merges_are_json=merges_are_json, specials=encoded
    )
    if found is None:
        return None
    tokens, ids, rows = found
    known: dict[str, int] = {}
    there = {text: id for text, id in zip(specials, ids, strict=True) if id >= 0}
    num_words = len(tokens) - tokens.count(b"") + len(there)
    expected = package_ids(specials, there, num_words)
    for text, wanted in specials.items():
        if wanted is not None and wanted != expected[text]:
            return None
        id = there.get(text, -1) if wanted is None else wanted
        if id < 0:
            continue
        tokens += [b""] * (id + 1 - len(tokens))
        if tokens[id]:
            return None
        tokens[id] = text.encode("utf-8", "surrogatepass")
        known[text] = id
    vocabulary = Vocabulary(
        kind="bpe",
        tokens=tuple(tokens),
        special_tokens=known,
        pattern=pattern,
        merge_ids=rows,
        whole_pieces=whole_pieces,
    )
    return _recognise_ranks(vocabulary) if whole_pieces else vocabulary


def read_bpe(
    vocab: Mapping[str, int],
    merges: Iterable[tuple[str, str]],
    specials: Mapping[str, int],
    *,
    pattern: Pattern,
    whole_pieces: bool,
    path: object,
) -> Vocabulary:
    """Make a vocabulary from the contents of a byte-level file."""
    require_package_ids(specials, vocab, len(vocab), path)
    special_texts = {id: text for text, id in specials.items()}
    tokens: dict[int, bytes] = {}
    for text, id in vocab.items():
        if text in specials:
            continue
        if id in special_texts:
            raise DataError(
                f"token {text!r} has the id of the special token {special_texts[id]!r}: {id}",
                path=str(path),
            )
        try:
            tokens[id] = unprintable(text)
        except KeyError as error:
            raise UnknownPartError(
                f"token {text!r} (id {id}) is not byte-level: it has the character {error}",
                path=str(path),
            ) from None
    vocabulary = Vocabulary.from_rows(
        tokens,
        _merge_rows(vocab, merges, set(specials), path),
        special_tokens=specials,
        pattern=pattern,
        whole_pieces=whole_pieces,
    )
    return _recognise_ranks(vocabulary) if whole_pieces else vocabulary


def _merge_rows(
    vocab: Mapping[str, int], merges: Iterable[tuple[str, str]], specials: set[str], path: object
) -> list[tuple[int, int, int]]:
    """Return merges as ids; the text of a merged token is the concatenation of its two parts."""
    merges = list(merges)
    try:
        rows = [(vocab[left], vocab[right], vocab[left + right]) for left, right in merges]
    except KeyError:
        rows = None
    if rows is not None and not any(text in specials for pair in merges for text in pair):
        return rows
    for left, right in merges:
        for text in (left, right, left + right):
            if text not in vocab or text in specials:
                error = UnknownPartError if text in specials else DataError
                raise error(
                    _describe_missing(left, right, text, is_special=text in specials),
                    path=str(path),
                )
    raise AssertionError("unreachable")


def _describe_missing(left: str, right: str, text: str, *, is_special: bool) -> str:
    try:
        a, b, token = map(unprintable, (left, right, text))
    except KeyError as error:
        return f"a merge is not byte-level: character {error}"
    return describe_merge(a, b, token, is_special=is_special)


def _recognise_ranks(vocabulary: Vocabulary) -> Vocabulary:
    """Return a vocabulary as a ranked one if it was written from one."""
    ranked = merges_by_rank(vocabulary.tokens, vocabulary.added_ids)
    if vocabulary.merges is None or not np.array_equal(vocabulary.merges, ranked):
        return vocabulary
    return dataclasses.replace(vocabulary, merge_ids=None)


def token_texts(vocabulary: Vocabulary) -> list[str]:
    """Return the text of every token in byte-level notation, by id; empty for unused ids."""
    if vocabulary.kind == "bpe":
        texts = [printable(token) for token in vocabulary.tokens]
    else:
        texts = [token.decode("utf-8", "surrogatepass") for token in vocabulary.tokens]
    for text, id in vocabulary.added_ids.items():
        texts[id] = text
    return texts


def vocab_section(vocabulary: Vocabulary) -> dict[str, int]:
    """Return token texts with their ids; of equal tokens the first, since others never occur."""
    section: dict[str, int] = {}
    for id, text in enumerate(token_texts(vocabulary)):
        if not text:
            continue
        first = section.setdefault(text, id)
        special = vocabulary.added_ids.get(text)
        if first != id and special is not None:
            raise DataError(
                f"the special token {text!r} is how files write the ordinary token "
                f"{vocabulary.tokens[id if special == first else first]!r}",
                next_step="choose another special token",
            )
    return section


def merge_texts(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return the two parts of each merge in byte-level notation."""
    texts = token_texts(vocabulary)
    return [(texts[left], texts[right]) for left, right, _ in vocabulary.merge_rows().tolist()]


def _special_rows(vocabulary: Vocabulary) -> list[tuple[int, bytes, bytes]]:
    return [
        (
            id,
            text.encode("utf-8", "surrogatepass"),
            json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass"),
        )
        for text, id in vocabulary.added_ids.items()
    ]


def format_vocab(vocabulary: Vocabulary, *, between: str = ", ", colon: str = ": ") -> bytes:
    """Return token texts with their ids as JSON, with these separators."""
    written = None
    if vocabulary.kind == "bpe":
        written = _native.write_vocab_json(
            vocabulary.tokens,
            _special_rows(vocabulary),
            between=between.encode(),
            colon=colon.encode(),
        )
    if written is None:
        section = vocab_section(vocabulary)
        text = json.dumps(section, ensure_ascii=False, separators=(between, colon))
        written = text.encode("utf-8", "surrogatepass")
    return written


def format_merges(vocabulary: Vocabulary, *, as_json: bool) -> bytes:
    """Return the merges as a JSON array, a pair per line, or as the lines of a merges.txt."""
    rows = vocabulary.merge_ids
    if rows is None:
        rows = vocabulary.merge_rows().reshape(-1)
    written = _native.write_merges(
        vocabulary.tokens, rows, _special_rows(vocabulary), as_json=as_json
    )
    if written is None:
        pairs = merge_texts(vocabulary)
        lines = [json.dumps(pair, ensure_ascii=False) for pair in pairs]
        text = "[" + ",\n".join(lines) + "]" if as_json else "".join(f"{a} {b}\n" for a, b in pairs)
        written = text.encode("utf-8", "surrogatepass")
    return written
