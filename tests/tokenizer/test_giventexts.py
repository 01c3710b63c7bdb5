"""Texts as callers give them: of any type, and with characters that UTF-8 does not have."""

from __future__ import annotations

from typing import Any

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
