"""Texts as callers give them: of any type, and with characters that UTF-8 does not have."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.errors import UsageError
from lowtide.tokenizer.giventexts import as_bytes, as_part, as_text

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
