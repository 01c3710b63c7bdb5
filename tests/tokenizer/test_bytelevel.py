"""Byte-level texts: the native way gives what the plain way gives, or leaves it to that one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import Tokenizer, _native
from lowtide.errors import DataError
from lowtide.tokenizer import formats, huggingface
from lowtide.tokenizer.bytelevel import (
    format_merges,
    format_vocab,
    merge_texts,
    printable,
    unprintable,
    vocab_section,
)
from lowtide.tokenizer.vocabulary import Vocabulary

MERGES = [
    (b"t", b"h"),
    (b" ", b"th"),
    (b'"', b"\\"),
    (b"\xc3", b"\xa9"),
    (b"\n", b"\n"),
    (b"\xff", b"\x00"),
]


def small(specials: list[str] | None = None) -> Vocabulary:
    wanted = ["<|endoftext|>"] if specials is None else specials
    return Vocabulary.from_merges(MERGES, special_tokens=wanted)


def assert_same(one: Vocabulary | None, other: Vocabulary) -> None:
    assert one is not None
    assert one.tokens == other.tokens
    assert dict(one.special_tokens) == dict(other.special_tokens)
    assert one.pattern == other.pattern
    assert one.whole_pieces == other.whole_pieces
    assert (one.merges is None) == (other.merges is None)
    if one.merges is not None:
        np.testing.assert_array_equal(one.merges, other.merges)
    assert one.fingerprint == other.fingerprint


@given(st.binary(max_size=20))
def test_printable_text_becomes_the_same_bytes_again(token: bytes) -> None:
    assert unprintable(printable(token)) == token


@pytest.mark.parametrize("specials", [[], None, ['<"é\n>', "<|endoftext|>"]])
def test_native_text_is_what_json_would_write(specials: list[str] | None) -> None:
    vocabulary = small(specials)
    assert json.loads(format_vocab(vocabulary)) == vocab_section(vocabulary)
    expected = json.dumps(vocab_section(vocabulary), ensure_ascii=False).encode()
    assert format_vocab(vocabulary) == expected
    pairs = [list(pair) for pair in merge_texts(vocabulary)]
    assert json.loads(format_merges(vocabulary, as_json=True)) == pairs
    lines = format_merges(vocabulary, as_json=False).decode().split("\n")
    assert lines == [f"{left} {right}" for left, right in pairs] + [""]


def test_of_equal_tokens_the_first_is_written() -> None:
    vocabulary = Vocabulary(kind="bpe", tokens=(b"a", b"b", b"a", b""), special_tokens={})
    assert format_vocab(vocabulary) == b'{"a": 0, "b": 1}'


def test_a_special_token_written_like_another_is_refused() -> None:
    vocabulary = Vocabulary(kind="bpe", tokens=(b" ", b"x"), special_tokens={"Ġ": 1})
    with pytest.raises(DataError, match="is how files write"):
        format_vocab(vocabulary)


@pytest.mark.parametrize("specials", [[], None, ["<|endoftext|>", "<é>"]])
def test_both_ways_of_reading_agree(tmp_path: Path, specials: list[str] | None) -> None:
    vocabulary = small(specials)
    formats.write_vocab_and_merges(tmp_path, vocabulary)
    huggingface.write_tokenizer_json(tmp_path / "tokenizer.json", vocabulary)
    paths = tmp_path / "vocab.json", tmp_path / "merges.txt"
    assert_same(formats._load_natively(*paths), vocabulary)
    assert_same(formats._load_slowly(*paths), vocabulary)
    path = tmp_path / "tokenizer.json"
    assert_same(huggingface._load_natively(path), vocabulary)
    assert_same(huggingface._load(json.loads(path.read_bytes()), path), vocabulary)


def test_both_ways_agree_on_gpt2(tmp_path: Path) -> None:
    vocabulary = Tokenizer.load("gpt2").data
    formats.write_vocab_and_merges(tmp_path, vocabulary)
    assert_same(formats._load_slowly(tmp_path / "vocab.json", tmp_path / "merges.txt"), vocabulary)


def test_merges_as_strings_are_read_natively_too(tmp_path: Path) -> None:
    vocabulary = small()
    contents = huggingface.tokenizer_json(vocabulary)
    contents["model"]["merges"] = [f"{a} {b}" for a, b in contents["model"]["merges"]]
    path = tmp_path / "tokenizer.json"
    for ensure_ascii in (True, False):
        path.write_text(json.dumps(contents, ensure_ascii=ensure_ascii), encoding="utf-8")
        assert_same(huggingface._load_natively(path), vocabulary)


@given(st.data())
def test_damaged_text_is_never_read_as_something_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "tokenizer.json"
    contents = huggingface.tokenizer_json(small(["<|endoftext|>", "<é>"]))
    text = bytearray(json.dumps(contents, ensure_ascii=False).encode())
    begin = bytes(text).index(b'"vocab"')
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(begin, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from(
                [b"", b'"', b"\\", b"0", b"1", b",", b"]", b" ", b"\xff", b"\n", b"\\u0020"]
            )
        )
    path.write_bytes(text)
    quick = huggingface._load_natively(path)
    if quick is not None:
        assert_same(quick, huggingface._load(json.loads(bytes(text)), path))


@given(st.binary(max_size=60), st.binary(max_size=60), st.booleans())
def test_any_bytes_are_survived(vocab: bytes, merges: bytes, as_json: bool) -> None:
    """Whatever is read lies within what was given, and what is no vocabulary is none."""
    sections = _native.find_json_sections(vocab)
    assert sections is None or all(0 <= place <= len(vocab) for place in sections)
    found = _native.read_byte_level(vocab, merges, merges_are_json=as_json, specials=[b"x"])
    assert found is None or vocab.lstrip().startswith(b"{")
    few = _native.read_byte_level(b'{"a":0}', merges, merges_are_json=as_json, specials=[])
    assert few is None or not merges.strip() or merges.lstrip().startswith((b"#", b"a", b"["))


def test_a_huge_id_makes_no_huge_table() -> None:
    assert (
        _native.read_byte_level(b'{"a":16000000}', b"", merges_are_json=False, specials=[]) is None
    )
