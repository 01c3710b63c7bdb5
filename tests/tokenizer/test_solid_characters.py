"""Merging that begins with characters gives what merging from bytes on gives."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import Tokenizer
from lowtide.tokenizer import reference

Pair = tuple[bytes, bytes]

# Few characters that share first or last bytes: those of two and of three bytes, one of four, and
# the space before them; whole and in parts.
_CHARACTERS = [" ", "a", "é", "è", "ш", "中", "丮", "弭", "가", "🙂"]
_BYTES = sorted({byte for character in _CHARACTERS for byte in character.encode()})


def draw_merges(source: random.Random) -> list[Pair]:
    """Any merges, also such as no training makes: across characters, and in any order."""
    tokens = [bytes([byte]) for byte in _BYTES]
    merges: dict[Pair, None] = {}
    texts = ["".join(source.choices(_CHARACTERS, k=5)).encode() for _ in range(12)]
    for _ in range(source.randrange(60)):
        text = source.choice(texts)
        at = source.randrange(1, len(text))
        left = max((token for token in tokens if text[:at].endswith(token)), key=len)
        right = max((token for token in tokens if text[at:].startswith(token)), key=len)
        if len(left + right) <= 12:
            merges[left, right] = None
            tokens.append(left + right)
    rows = list(merges)
    if source.random() < 0.5:
        source.shuffle(rows)
    return rows


@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=150, deadline=None)
def test_any_merges_of_characters_and_their_parts(seed: int) -> None:
    source = random.Random(seed)
    merges = draw_merges(source)
    vocabulary = {id: bytes([id]) for id in range(256)}
    tokens = sorted({left + right for left, right in merges})
    vocabulary |= {256 + number: token for number, token in enumerate(tokens)}
    ours = Tokenizer.from_vocabulary(vocabulary, merges)
    ids = {token: id for id, token in vocabulary.items()}
    texts = ["".join(source.choices(_CHARACTERS, k=source.randint(1, 30))) for _ in range(20)]
    pieces = [text.encode() for text in texts]
    pieces += [bytes(source.choices(_BYTES, k=source.randint(1, 40))) for _ in range(10)]
    pieces += [b" " + piece for piece in pieces]
    expected = ours.native.merge_pieces(pieces, together=False)
    for instructions in ("scalar", "avx2", "avx512"):
        assert ours.native.merge_pieces(pieces, instructions) == expected
    for text in pieces:
        tokens = reference.encode(text, merges=merges, pattern="gpt2")
        assert ours.encode(text).tolist() == [ids[token] for token in tokens]


def test_what_merges_behind_more_characters_than_a_word_has_bits() -> None:
    """Characters of which no token is, and behind sixty-four of their bytes two letters."""
    ours = Tokenizer.from_vocabulary(
        {**{id: bytes([id]) for id in range(256)}, 256: b"ab"}, [(b"a", b"b")]
    )
    piece = ("ш" * 40 + "ab" + "ш" * 40).encode()
    assert 256 in ours.native.merge_pieces([piece])[0]
    assert ours.native.merge_pieces([piece]) == ours.native.merge_pieces([piece], together=False)


@pytest.mark.parametrize("script", ["а", "가", "中", "あ", "α", "é", "ß"])
def test_text_in_a_script_from_the_cache_and_without(script: str) -> None:
    """Pieces of every length that a cache ends at, with few ids and with many."""
    source = random.Random(script)
    letters = [chr(ord(script) + step) for step in range(12)]
    lengths = [*range(1, 14), 15, 16, 21, 22, 40, 341, 342, 400]
    words = ["".join(source.choices(letters, k=length)) for length in lengths for _ in range(30)]
    words += [" " + word for word in words]
    ours = Tokenizer.load("gpt2")
    expected = ours.native.merge_pieces([word.encode() for word in words], together=False)
    for _ in range(2):
        assert [ours.encode(word).tolist() for word in words] == expected
