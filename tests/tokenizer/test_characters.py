"""The character tokenizer: one id per character, `<unk>` for unknown ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lowtide.errors import DataError, UsageError
from lowtide.tokenizer import END_OF_TEXT, UNKNOWN, Tokenizer
from lowtide.tokenizer.characters import CharacterEncoder, last_character_cut
from lowtide.tokenizer.limits import EncodingLimits
from lowtide.tokenizer.vocabulary import Vocabulary

CHARACTERS = "abc é中😀\n'<|endoftx>"


@pytest.fixture(scope="module")
def characters() -> Tokenizer:
    return Tokenizer.from_characters(CHARACTERS)


def test_ids_are_special_tokens_then_characters_in_order(characters: Tokenizer) -> None:
    assert characters.kind == "char"
    assert characters.name == "char"
    assert characters.special_tokens == {END_OF_TEXT: 0, UNKNOWN: 1}
    assert characters.vocab_size == 2 + len(set(CHARACTERS))
    expected = [END_OF_TEXT.encode(), UNKNOWN.encode()]
    expected += [character.encode() for character in sorted(set(CHARACTERS))]
    assert [characters.token_bytes(id) for id in range(characters.vocab_size)] == expected
    assert characters.merges == []
    with pytest.raises(UsageError, match="no native vocabulary"):
        _ = characters.native


@given(text=st.text(alphabet=CHARACTERS) | st.text())
@example(END_OF_TEXT)
@settings(max_examples=150, deadline=None)
def test_each_character_is_one_id(characters: Tokenizer, text: str) -> None:
    ids = characters.encode(text, special="text")
    assert ids.dtype == np.int32
    assert len(ids) == len(text)
    known = "".join(c if c in CHARACTERS else UNKNOWN for c in text)
    assert characters.decode(ids) == known
    for special in ("text", "allow"):
        assert characters.encode(text.encode("utf-8", "replace"), special=special).tolist() == [
            *characters.encode(text.encode("utf-8", "replace").decode(), special=special)
        ]


def test_bytes_that_are_no_text_are_unknown(characters: Tokenizer) -> None:
    assert characters.encode(b"a\xffb").tolist() == [
        characters.encode("a")[0],
        1,
        characters.encode("b")[0],
    ]
    assert characters.encode("a\ud800").tolist()[1:] == [1]


def test_special_modes(characters: Tokenizer) -> None:
    text = f"a{END_OF_TEXT}b"
    assert 0 not in characters.encode(text, special="text")
    allowed = characters.encode(text)
    assert allowed.tolist() == [characters.encode("a")[0], 0, characters.encode("b")[0]]
    assert characters.decode(allowed) == text
    with pytest.raises(DataError, match="special token"):
        characters.encode(text, special="forbid")
    batch = characters.encode_batch([text, "", "abc"], special="allow")
    assert [len(ids) for ids in batch] == [3, 0, 3]


@pytest.mark.parametrize("window_bytes", [1, 3, 40])
def test_streams_and_files_are_one_text(
    tmp_path: Path,
    make_text: Callable[[int, int], bytes],
    window_bytes: int,
) -> None:
    specials = [UNKNOWN, "<|end", "nd|>", "|>a", "中😀"]
    limits = EncodingLimits(window_bytes=window_bytes)
    ours = Tokenizer(Tokenizer.from_characters(CHARACTERS, specials).data, limits=limits)
    text = make_text(5, 3000) + "<|end|>a中😀".encode() * 20 + b"\xe4\xb8" + b"\xf0\x9f\x98a"
    for mode in ("text", "allow"):
        expected = ours.encode(text, special=mode).tolist()
        for step in (1, 7, 64):
            parts = (text[i : i + step] for i in range(0, len(text), step))
            assert list(ours.encode_iterable(parts, special=mode)) == expected
        (tmp_path / "text.txt").write_bytes(text)
        count = ours.encode_file(tmp_path / "text.txt", tmp_path / "ids.bin", special=mode)
        assert count == len(expected)
        assert np.fromfile(tmp_path / "ids.bin", dtype="<u2").tolist() == expected


def test_unknown_needs_a_token() -> None:
    with pytest.raises(UsageError, match="needs <unk>"):
        Tokenizer.from_characters("abc", ["<|endoftext|>"])
    with pytest.raises(UsageError, match="single code points"):
        Tokenizer.from_characters(["ab"])


@pytest.mark.parametrize(
    ("data", "specials", "cut"),
    [
        (b"", (), 0),
        (b"a", (), 0),
        (b"ab", (), 1),
        ("aä".encode(), (), 1),
        ("äb".encode(), (), 2),
        (b"\x80\x80", (), 0),  # only the ends of characters
        (b"abc<e>", (b"<e>",), 3),
        (b"abc<e", (b"<e>",), 2),
        (b"a<e>b", (b"<e>",), 1),
        (b"a<e>bc", (b"<e>",), 1),
        (b"a<e>bcd", (b"<e>",), 4),
        (b"a<<e>x", (b"<e>", b"a<<"), 0),  # out of one, and into another
    ],
)
def test_a_cut_is_the_last_place_between_characters_and_tokens(
    data: bytes, specials: tuple[bytes, ...], cut: int
) -> None:
    assert last_character_cut(data, specials) == cut


def test_a_table_has_a_place_for_all_that_is_beyond_it() -> None:
    """The largest known character, and one place more."""
    encoder = CharacterEncoder(Vocabulary.from_characters("a\u00e9"))
    assert len(encoder._table) == 0xE9 + 2
    assert encoder.encode("a\u00e9\u00ea\u4e2d\x00").tolist() == [2, 3, 1, 1, 1]
    nothing = CharacterEncoder(Vocabulary.from_characters(""))
    assert len(nothing._table) == 2
    assert nothing.encode("\x00a").tolist() == [1, 1]


def test_ids_that_are_not_used_are_no_characters() -> None:
    vocabulary = Vocabulary(kind="char", tokens=(b"<unk>", b"", b"a"), special_tokens={"<unk>": 0})
    assert CharacterEncoder(vocabulary).encode("a\x00").tolist() == [2, 0]
