"""The hand-written scanners split as the `regex` package does, and cuts never change the pieces."""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Callable
from unicodedata import category

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import _native
from lowtide.errors import DataError
from lowtide.tokenizer.patterns import EXPRESSIONS, PATTERN_NAMES, pattern_of_expression
from lowtide.tokenizer.reference import NEWER_CHARACTERS, _stand_ins, split_pieces, split_specials

PATTERNS = pytest.mark.parametrize("pattern", PATTERN_NAMES)


def split(pattern: str, text: bytes) -> list[bytes]:
    """Return the pieces, the same by every instruction set that this machine has."""
    ends = _native.split(pattern, text).tolist()
    for instructions in ("scalar", "avx2"):
        assert _native.split(pattern, text, instructions).tolist() == ends
    return [text[begin:end] for begin, end in itertools.pairwise([0, *ends])]


@PATTERNS
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_splits_as_the_regex_package(
    pattern: str, data: st.DataObject, nasty_text: st.SearchStrategy[str]
) -> None:
    text = data.draw(nasty_text).encode()
    assert split(pattern, text) == split_pieces(text, pattern)


@PATTERNS
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_splits_any_bytes_as_the_regex_package(
    pattern: str, data: st.DataObject, nasty_bytes: st.SearchStrategy[bytes]
) -> None:
    text = data.draw(nasty_bytes)
    assert split(pattern, text) == split_pieces(text, pattern)


# Few characters, so that every order of them comes: contractions, lines, indents, runs.
_ALPHABETS = ["' sSlLrReE", " \n\t\ra!/", "0123a ", "aAbB'sS", " \n\t\r\v\fabAB12'/.!sStTlLrReEvV_"]
# The same beyond ASCII: letters with case and without, of two, three and four bytes, beside
# symbols, marks, blanks and numbers of several bytes, and the letters of contractions.
_ALPHABETS += [
    "аБё іЇѢ'sS",
    "中文、。 \n名",
    "가힣퟿ A1.",
    "aAあB中b'sſ",
    "éÉß «»“”…\u00a0a",
    "ǅʰªA aéか",
]
_ALPHABETS += [
    "क्षि a1",
    "½٣٤1 a",
    "е\u0301Е\u0301 й",
    "䷀䶿龥　a。",
    "🙂👍🏽 中aA",
    "\u0378\ufeffa Я",
]
_RUNS = [1, 1, 1, 2, 3, 31, 62]


@PATTERNS
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_splits_plain_text_as_the_regex_package(pattern: str, data: st.DataObject) -> None:
    """Mostly without characters that the vector code leaves to the scalar code.

    Few examples, which shrink where one fails; below are many, which are quick to make.
    """
    letters = data.draw(st.sampled_from(_ALPHABETS))
    runs = st.tuples(st.sampled_from(letters), st.sampled_from(_RUNS))
    parts = data.draw(st.lists(runs, min_size=20, max_size=90))
    text = "".join(letter * count for letter, count in parts).encode()
    assert split(pattern, text) == split_pieces(text, pattern)


@PATTERNS
def test_random_plain_text(pattern: str) -> None:
    source = random.Random(pattern)
    for _ in range(1000):
        letters = source.choice(_ALPHABETS)
        text = "".join(source.choices(letters, k=source.choice([64, 65, 100, 130, 200]))).encode()
        assert split(pattern, text) == split_pieces(text, pattern)
    for _ in range(500):
        letters = source.choices(source.choice(_ALPHABETS), k=source.randint(20, 90))
        text = "".join(letter * source.choice(_RUNS) for letter in letters).encode()
        assert split(pattern, text) == split_pieces(text, pattern)


@functools.cache
def every_character_between_others() -> bytes:
    """Each kind of code point after a letter, a blank, a number and an apostrophe.

    Every one up to U+3400; above, each border between two general categories.
    """
    codes = [
        code
        for code in range(0x110000 - 1)
        if not 0xD7FF <= code < 0xE000
        and (code < 0x3400 or category(chr(code)) != category(chr(code + 1)))
    ]
    codes += [code + 1 for code in codes]
    return "".join(f"a{chr(code)} {chr(code)}1{chr(code)}'{chr(code)}A" for code in codes).encode()


@PATTERNS
def test_every_character_between_others(pattern: str) -> None:
    text = every_character_between_others()
    assert split(pattern, text) == split_pieces(text, pattern)


# Inside and beside every range that Unicode has added since tiktoken's: no letter, mark or number
# for tiktoken, and neither for lowtide.
_BORDERS = sorted(
    {
        code + step
        for word in NEWER_CHARACTERS.split()
        for code in (int(part, 16) for part in word.split("-"))
        for step in (-1, 0, 1)
    }
)
# The names that `_native.testing.character_classes` numbers, in the order of enum CharClass.
_CLASSES = {
    1: r"[\p{Lu}\p{Lt}]",
    2: r"\p{Ll}",
    3: r"[\p{Lm}\p{Lo}]",
    4: r"\p{M}",
    5: r"\p{N}",
    6: r"[\r\n]",
    7: r"[^\S\r\n]",
}
_EVERYTHING = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)


@pytest.mark.parametrize("number", _CLASSES)
def test_every_character_has_the_class_that_tiktoken_gives_it(number: int) -> None:
    """All code points; those that `regex` knows of a newer Unicode are named, every one."""
    import regex
    import tiktoken

    encoding = tiktoken.Encoding(
        "class",
        pat_str=_CLASSES[number],
        mergeable_ranks={bytes([byte]): byte for byte in range(256)},
        special_tokens={},
    )
    theirs = set(bytes(encoding.encode_ordinary(_EVERYTHING)).decode())  # the rest is left out
    ours = {
        chr(code) for code in np.flatnonzero(_native.testing.character_classes() == number).tolist()
    }
    assert ours == theirs
    newer = set(regex.findall(_CLASSES[number], _EVERYTHING)) ^ ours
    named = {chr(code) for code in _stand_ins()}
    assert newer <= named, "regex moved on: run generate_character_ranges.py and name the new ones"


def test_the_newer_characters_are_those_that_differ() -> None:
    import regex

    classes = _native.testing.character_classes()
    expressions = {number: regex.compile(expression) for number, expression in _CLASSES.items()}
    for code in _stand_ins():
        number = int(classes[code])
        assert number in (0, 2)
        assert not number or not expressions[number].match(chr(code))
        assert number or any(found.match(chr(code)) for found in expressions.values())


@PATTERNS
def test_newer_characters_split_as_in_tokenizers(pattern: str) -> None:
    from tokenizers import Regex, pre_tokenizers

    theirs = pre_tokenizers.Split(Regex(EXPRESSIONS[pattern]), "isolated")
    for code in _BORDERS:
        character = chr(code)
        text = f"a{character}A {character}1{character}2'{character}\n{character}{character}é:A"
        pieces = [piece.encode() for piece, _ in theirs.pre_tokenize_str(text)]
        assert split(pattern, text.encode()) == pieces == split_pieces(text.encode(), pattern)


@PATTERNS
@pytest.mark.parametrize("tail", ["'re x", "'", "  b", " \n", "é", "a'", "'\u017f!", "12", "\t\t"])
def test_block_borders(pattern: str, tail: str) -> None:
    for unit in ("a", " ", "1", "!", "'", "ab c"):
        for length in [*range(54, 72), *range(118, 136)]:
            text = ((unit * length)[:length] + tail + "and so on " * 8).encode()
            assert split(pattern, text) == split_pieces(text, pattern)


@PATTERNS
def test_pieces_are_the_text(pattern: str, make_text: Callable[[int, int], bytes]) -> None:
    text = make_text(2, 50_000)
    assert b"".join(split(pattern, text)) == text
    assert split(pattern, b"") == []


@PATTERNS
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_cuts_never_change_pieces(
    pattern: str, data: st.DataObject, nasty_bytes: st.SearchStrategy[bytes]
) -> None:
    text = data.draw(nasty_bytes)
    cuts = [int(cut) for cut in _native.testing.safe_cuts(text, [])]
    whole = split(pattern, text)
    for cut in cuts:
        assert split(pattern, text[:cut]) + split(pattern, text[cut:]) == whole
    parts = [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])]
    assert [piece for part in parts for piece in split(pattern, part)] == whole


def test_there_are_cuts() -> None:
    """Else what is said of each below would hold of none."""
    cuts = _native.testing.safe_cuts(b"some words\nand lines, one after the other\n", [b"<|end|>"])
    assert len(cuts) > 3


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_cuts_never_cut_special_tokens(
    data: st.DataObject, nasty_bytes: st.SearchStrategy[bytes], specials: list[str]
) -> None:
    text = data.draw(nasty_bytes)
    whole = split_specials(text, specials)
    special_tokens = [special.encode() for special in specials]
    for cut in _native.testing.safe_cuts(text, special_tokens).tolist():
        left = split_specials(text[:cut], specials)
        right = split_specials(text[cut:], specials)
        if left and right and not left[-1][1] and not right[0][1]:
            left[-1:], right = [(left[-1][0] + right[0][0], False)], right[1:]
        assert left + right == whole


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_last_cut_holds_whatever_follows(
    data: st.DataObject, nasty_bytes: st.SearchStrategy[bytes], specials: list[str]
) -> None:
    text, more = data.draw(nasty_bytes), data.draw(nasty_bytes)
    special_tokens = [special.encode() for special in specials]
    cut = _native.last_cut(text, special_tokens)
    assert 0 <= cut <= len(text)
    if cut:
        assert cut in _native.testing.safe_cuts(text + more, special_tokens).tolist()


def test_text_in_any_script_has_cuts() -> None:
    """Windows stay small in scripts without blanks, too."""
    for text in ("中文没有空格。但是有标点，" * 50, "日本語の文章です。" * 50, "ประเทศไทย " * 50):
        cuts = _native.testing.safe_cuts(text.encode(), []).tolist()
        assert max(b - a for a, b in itertools.pairwise([0, *cuts, len(text.encode())])) < 120


def test_expressions_are_recognised() -> None:
    for pattern, expression in EXPRESSIONS.items():
        assert pattern_of_expression(expression) == pattern
    with pytest.raises(DataError, match="unknown split pattern"):
        pattern_of_expression(r"\w+", path="tokenizer.json")
    for length, shown in ((60, "x" * 60), (61, f"{'x' * 57}...")):
        with pytest.raises(DataError, match=rf"unknown split pattern '{re.escape(shown)}'$"):
            pattern_of_expression("x" * length)


def test_other_spellings_split_the_same(make_text: Callable[[int, int], bytes]) -> None:
    import regex

    from lowtide.tokenizer.patterns import _OTHER_SPELLINGS

    text = make_text(3, 20_000).decode()
    for expression, pattern in _OTHER_SPELLINGS.items():
        assert pattern_of_expression(expression) == pattern
        pieces = regex.findall(expression, text)
        assert "".join(pieces) == text
        assert pieces == regex.findall(EXPRESSIONS[pattern], text)
