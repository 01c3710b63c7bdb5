"""Texts as callers give them: of any type, and with characters that UTF-8 does not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowtide.errors import UsageError
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.giventexts import as_bytes, as_part, as_text, text_list

HALF, PAIR = "a\ud800b", "a\ud83d\ude00b"


def test_texts_stay_as_they_are() -> None:
    assert as_text("é") == "é" and as_bytes("é") == b"\xc3\xa9" and as_part("é") == "é"
    assert as_text(b"\xc3\xa9") == "é" and as_bytes(b"\xff") == b"\xff"
    assert as_part(b"\xc3") == b"\xc3"  # the character ends in the next part
    assert as_text(b"a\xff") == "a\ufffd"


def test_halves_of_pairs_are_unknown_characters_for_every_encoder() -> None:
    """Of Gemma they were question marks, and an error of the package tokenizers."""
    for text, wanted in ((HALF, "a\ufffdb"), (PAIR, "a\U0001f600b")):
        assert as_text(text) == as_part(text) == wanted
        assert as_bytes(text) == wanted.encode()


@pytest.mark.parametrize("value", [None, 5, ["a"], bytearray(b"a")])
def test_anything_else_is_refused(value: Any) -> None:
    for take in (as_bytes, as_text, as_part):
        with pytest.raises(UsageError, match=f"a text is {type(value).__name__}, expected str"):
            take(value)


def test_one_special_token_is_not_its_characters() -> None:
    """Tokenizer.from_merges had "<", "x" and ">" for special tokens."""
    assert Tokenizer.from_merges([], special_tokens="<x>").special_tokens == {"<x>": 0}
    assert Tokenizer.from_characters("ab", special_tokens="<unk>").special_tokens == {"<unk>": 0}
    plain = Tokenizer.from_merges([], special_tokens=[])
    found = Tokenizer.from_vocabulary(plain.vocabulary, [], "<x>")
    assert found.special_tokens == {"<x>": 256}
    with pytest.raises(UsageError, match="a text is int"):
        text_list([5])  # pyright: ignore


BYTES = {number: bytes([number]) for number in range(256)}


@pytest.mark.parametrize(
    ("vocabulary", "merges", "message"),
    [
        (BYTES | {-1: b"ab"}, [], "a token has the id -1, expected a whole number from 0 on"),
        (BYTES | {256.0: b"ab"}, [], "a token has the id 256.0, expected a whole number"),
        (BYTES | {"256": b"ab"}, [], "a token has the id '256', expected a whole number"),
        (BYTES | {256: "ab"}, [], "token 256 is str, expected bytes"),
        ({token: id for id, token in BYTES.items()}, [], r"the id b'\\x00', expected a whole"),
        (None, [], "a vocabulary is NoneType, expected bytes by id"),
        (BYTES, None, "merges is NoneType, expected pairs of bytes"),
        (BYTES, [(b"a",)], "a merge is .*, expected a pair of bytes"),
        (BYTES, [("a", "b")], "a merge is .*, expected a pair of bytes"),
        (BYTES, "ab", "a merge is 'a', expected a pair of bytes"),
    ],
)
def test_a_vocabulary_is_bytes_by_id(vocabulary: Any, merges: Any, message: str) -> None:
    """The token of id -1 took the place of the last one, without a word."""
    with pytest.raises(UsageError, match=message):
        Tokenizer.from_vocabulary(vocabulary, merges)
    if vocabulary is BYTES:
        with pytest.raises(UsageError, match=message):
            Tokenizer.from_merges(merges)


def test_ids_of_numpy_and_merges_as_lists_are_taken() -> None:
    ids = {np.int64(number): token for number, token in (BYTES | {256: b"ab"}).items()}
    merges: Any = [[b"a", b"b"]]
    assert Tokenizer.from_vocabulary(ids, merges).encode("ab").tolist() == [256]


def test_many_texts_are_a_list() -> None:
    tokenizer = Tokenizer.from_merges([])
    given: Any
    for given in (None, 5):
        with pytest.raises(UsageError, match="encode_batch takes a list of texts, not"):
            tokenizer.encode_batch(given)
    with pytest.raises(UsageError, match="id is 'a', expected a whole number"):
        given = "a"
        tokenizer.token_bytes(given)
