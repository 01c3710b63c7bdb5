"""Text that is hard on tokenizers, and small vocabularies to try it on."""

from __future__ import annotations

import functools
import random

import pytest
from hypothesis import strategies as st

from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.reference import count_pieces, learn_merges

SPECIALS = ["<|endoftext|>", "<|end|>", "<|", "|>a", "a<"]  # overlapping on purpose

# One or more of every class that the patterns tell apart, and the odd ones among them.
_ATOMS = [
    *"aZsStTdmMlLvVrReE09_-.,!/<|>",
    "'", "'s", "'S", "'ll", "'lL", "'re", "'VE", "\u2019s", "'\u017f", "\u017f", "''",
    " ", "  ", "\t", "\n", "\r", "\r\n", "\n\n", "\v", "\f", "\x00", "\x1c", "\x7f",
    "\x85", "\xa0", "\u1680", "\u2000", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000",
    "\u200b", "\u200d", "\ufeff", "\u180e",
    "é", "ß", "Ж", "ж", "中", "文", "あ", "한", "ا", "ש", "ก",
    "\u01c5", "\u01c8", "\u1f88",  # title case
    "\u02b0", "\u0e46", "\u00aa", "\u00ba",  # modifier letters, ordinals
    "\u0301", "\u0327", "\u093f", "\u20dd", "\u0483", "\ufe0f",  # marks of all three kinds
    "\u0660", "\u0967", "\uff11", "\u00bd", "\u2167", "\u3007", "\U0001d7d8", "\u00b2",
    "\U00010400", "\U00010428", "\U0001e921", "\U0001d54f", "\U00020000",
    "😀", "👩\u200d💻", "🇩🇪", "€", "§", "°", "\u0378", "\ue000", "\ufffd", "\uffff",
    *SPECIALS,
]  # fmt: skip

# What is no UTF-8: stray and missing continuation bytes, overlong forms, surrogates, large codes.
_STRAY = [
    b"\x80", b"\xbf", b"\xc0", b"\xc1", b"\xc0\x80", b"\xc3", b"\xe2", b"\xe2\x82", b"\xe0\x80\xaf",
    b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0", b"\xf0\x9f", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80",
    b"\xf5", b"\xff", b"\xfe",
]  # fmt: skip


@pytest.fixture(scope="session")
def specials() -> list[str]:
    """Special tokens that overlap one another."""
    return SPECIALS


@pytest.fixture(scope="session")
def nasty_text() -> st.SearchStrategy[str]:
    """Text with something of every kind, mostly where blocks of 64 bytes end."""
    words = st.lists(
        st.sampled_from(_ATOMS) | st.characters(exclude_categories=["Cs"]), max_size=40
    )
    filler = st.sampled_from(["", "a" * 63, "a b " * 16, "x" * 31 + " ", "word " * 12, "9" * 62])
    return st.builds(lambda a, b, c: a + "".join(b) + c, filler, words, filler)


@pytest.fixture(scope="session")
def nasty_bytes(nasty_text: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """The same as bytes, with bytes in between that are no UTF-8."""
    parts = st.lists(
        nasty_text.map(str.encode) | st.sampled_from(_STRAY) | st.binary(max_size=8), max_size=6
    )
    return parts.map(b"".join)


@functools.cache
def random_text(seed: int, length: int) -> bytes:
    """Return text of about `length` bytes, always the same for a seed; also when it is no UTF-8.

    It has no NUL: a file that has one in its first bytes is no text.
    """
    source = random.Random(seed)
    words = ["".join(source.choices("abcdeé中'", k=source.randint(1, 6))) for _ in range(300)]
    plain = [atom.replace("\x00", "\x01") for atom in _ATOMS]
    atoms = [atom.encode() for atom in (plain + words + [" "] * 300)] + _STRAY[: seed % 3 * 9]
    parts: list[bytes] = []
    size = 0
    while size < length:
        parts.append(source.choice(atoms))
        size += len(parts[-1])
    return b"".join(parts)


@pytest.fixture(scope="session")
def make_text() -> object:
    """Return `random_text`."""
    return random_text


@pytest.fixture(scope="session")
def small_merges() -> list[tuple[bytes, bytes]]:
    """Some 250 merges, learned in plain Python from text like `nasty_text`."""
    texts = [random_text(1, 6000), b"the cat's hat " * 50]
    counts = count_pieces(texts, pattern="gpt2", specials=SPECIALS)
    return learn_merges(counts, target=250, tie_break="huggingface")


@pytest.fixture(scope="session")
def small_tokenizer(small_merges: list[tuple[bytes, bytes]]) -> Tokenizer:
    """A tokenizer of `small_merges` with overlapping special tokens."""
    return Tokenizer.from_merges(small_merges, special_tokens=SPECIALS)
