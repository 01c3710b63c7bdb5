"""Byte-level texts: the native way gives what the plain way gives, or leaves it to that one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import Tokenizer, _native
from lowtide.errors import DataError
from lowtide.tokenizer import bytelevel, formats, huggingface
from lowtide.tokenizer.bytelevel import (
    MAX_TOKENS,
    check_ids,
    format_merges,
    format_vocab,
    merge_texts,
    package_ids,
    printable,
    read_bpe,
    read_bpe_text,
    split_merge,
    token_texts,
    unprintable,
    vocab_section,
)
from lowtide.tokenizer.patterns import UnknownPartError
from lowtide.tokenizer.vocabulary import AddedToken, Vocabulary

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


@pytest.mark.parametrize("ranked", [False, True])
def test_what_native_code_does_not_write_is_written_the_same(
    monkeypatch: pytest.MonkeyPatch, ranked: bool
) -> None:
    vocabulary = small(['<"\u00e9\n>', "<|endoftext|>"])
    if ranked:
        vocabulary = dataclasses.replace(vocabulary, merge_ids=None)
    expected = [
        format_vocab(vocabulary), format_vocab(vocabulary, between=",\n", colon=":"),
        format_merges(vocabulary, as_json=True), format_merges(vocabulary, as_json=False),
    ]  # fmt: skip
    assert expected[2].startswith(b"[[") and expected[3].startswith(b"t h\n")
    monkeypatch.setattr(bytelevel._native, "write_vocab_json", lambda *_, **__: None)
    monkeypatch.setattr(bytelevel._native, "write_merges", lambda *_, **__: None)
    found = [
        format_vocab(vocabulary), format_vocab(vocabulary, between=",\n", colon=":"),
        format_merges(vocabulary, as_json=True), format_merges(vocabulary, as_json=False),
    ]  # fmt: skip
    assert found[:2] == expected[:2] and found[3] == expected[3]
    assert json.loads(found[2]) == json.loads(expected[2])
    assert found[2].count(b"\n") == len(MERGES) - 1 == expected[2].count(b"\n")


def test_characters_are_written_as_they_are() -> None:
    vocabulary = Vocabulary.from_characters("b\u00e9\ud800")
    texts = ["<|endoftext|>", "<unk>", "b", "\u00e9", "\ud800"]
    assert token_texts(vocabulary) == texts
    written = format_vocab(vocabulary).decode("utf-8", "surrogatepass")
    assert written == json.dumps({text: id for id, text in enumerate(texts)}, ensure_ascii=False)


WORDS = {"a": 0, "b": 1, "ab": 2, "<s>": 3}


def read_both(
    specials: dict[str, int], vocab: dict[str, int] | None = None, merges: Any = (("a", "b"),),
    **more: Any,
) -> Vocabulary | str | None:  # fmt: skip
    """A vocabulary as both ways read it; what is wrong where the quick one leaves it."""
    vocab = WORDS if vocab is None else vocab
    given: dict[str, Any] = {"pattern": "gpt2", "whole_pieces": False, **more}
    text = "".join(f"{a} {b}\n" for a, b in merges)
    quick = read_bpe_text(
        json.dumps(vocab).encode(), text.encode(), specials, merges_are_json=False, **given
    )
    try:
        slow = read_bpe(vocab, merges, specials, path="tokenizer.json", **given)
    except DataError as error:
        assert quick is None
        return error.message
    if quick is not None:
        assert_same(quick, slow)
    return slow


@pytest.mark.parametrize(
    ("specials", "tokens"),
    [
        ({}, (b"a", b"b", b"ab", b"<s>")),
        ({"<s>": 3}, (b"a", b"b", b"ab", b"<s>")),
        ({"<t>": 4}, (b"a", b"b", b"ab", b"<s>", b"<t>")),
        ({"<s>": 3, "<t>": 4, "<u>": 5}, (b"a", b"b", b"ab", b"<s>", b"<t>", b"<u>")),
        ({"<t>": 4, "<s>": 3}, (b"a", b"b", b"ab", b"<s>", b"<t>")),
    ],
)
def test_special_tokens_are_in_the_vocabulary_or_behind_it(
    specials: dict[str, int], tokens: tuple[bytes, ...]
) -> None:
    found = read_both(specials)
    assert isinstance(found, Vocabulary)
    assert found.tokens == tokens and dict(found.special_tokens) == specials
    assert found.merges is not None and found.merges.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"specials": {"<t>": 5}}, "added token '<t>' with the id 5, which becomes 4"),
        ({"specials": {"<s>": 4}}, "added token '<s>' with the id 4, which becomes 3"),
        ({"specials": {"<t>": 4, "<u>": 4}}, "added token '<u>' with the id 4, which becomes 5"),
        ({"specials": {}, "merges": (("a", "a"),)}, "merge of b'a' and b'a': no token b'aa'"),
        ({"specials": {}, "merges": (("a", "x"),)}, "merge of b'a' and b'x': no token b'x'"),
        ({"specials": {"<s>": 3}, "merges": (("a", "b"), ("a", "<s>"))},
         "b'<s>' is a special token, and an ordinary one of the merge of b'a' and b'<s>': it can "
         "be one of them"),
        ({"specials": {}, "vocab": {"a": 0, "\u4e2d": 1}, "merges": ()},
         "token '\u4e2d' (id 1) is not byte-level: it has the character '\u4e2d'"),
        ({"specials": {}, "vocab": {"a": 0}, "merges": (("\u4e2d", "a"),)},
         "a merge is not byte-level: character '\u4e2d'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_vocabulary_is_said(given: dict[str, Any], why: str) -> None:
    assert read_both(**given) == why


def test_a_token_with_the_id_of_a_special_one_is_refused() -> None:
    with pytest.raises(DataError) as caught:
        read_bpe(
            {"a": 0, "b": 0}, [], {"a": 0}, pattern="gpt2", whole_pieces=False, path="vocab.json"
        )
    assert caught.value.message == "token 'b' has the id of the special token 'a': 0"
    assert caught.value.path == "vocab.json"


def test_gaps_are_filled_and_ids_that_are_far_away_are_left_to_the_plain_way() -> None:
    vocab = {"a": 0, "b": 5}
    found = read_both({"<t>": 2}, vocab, merges=())
    assert isinstance(found, Vocabulary)
    assert found.tokens == (b"a", b"", b"<t>", b"", b"", b"b")
    named: dict[str, int | None] = {"<s>": None, "<t>": None}
    quick = read_bpe_text(
        json.dumps(WORDS).encode(), b"", named, merges_are_json=False, pattern="gpt2",
        whole_pieces=False,
    )  # fmt: skip
    assert quick is not None and dict(quick.special_tokens) == {"<s>": 3}
    far = read_both({"<t>": 1 << 23}, vocab, merges=())
    assert isinstance(far, str)


def test_merges_that_are_those_of_ranks_are_known_as_such() -> None:
    for merges, whole, ranked in (
        ((("a", "b"),), True, True),
        ((("a", "b"),), False, False),
        ((), True, False),
    ):
        found = read_both({}, merges=merges, whole_pieces=whole)
        assert isinstance(found, Vocabulary)
        assert (found.merges is None) is ranked


@pytest.mark.parametrize("id", [-1, MAX_TOKENS, True, 1.0, "1", None])
def test_ids_are_whole_numbers_below_a_limit(id: Any) -> None:
    with pytest.raises(DataError) as caught:
        check_ids({"a": 0, "b": id}, "vocab.json")
    assert caught.value.message == (
        f"token 'b' has the id {id!r}, expected a whole number from 0 to {MAX_TOKENS - 1}"
    )
    good = {"a": 0, "b": MAX_TOKENS - 1}
    assert check_ids(good, "vocab.json") is good


def test_ids_are_given_once() -> None:
    with pytest.raises(DataError, match="tokens 'a' and 'b' share the id 7"):
        check_ids({"a": 7, "b": 7}, "vocab.json")
    with pytest.raises(DataError, match="expected tokens with their ids"):
        check_ids([1], "vocab.json")


@pytest.mark.parametrize("row", ["a", "a b c", "", ["a"], ["a", "b", "c"], ["a", 1], {"a": "b"}, 5])
def test_merges_have_two_parts(row: Any) -> None:
    assert split_merge("a b", "x") == split_merge(["a", "b"], "x") == ("a", "b")
    with pytest.raises(DataError) as caught:
        split_merge(row, "merges.txt")
    assert caught.value.message == f"a merge has two parts, this one is {row!r}"


@pytest.mark.parametrize(
    ("texts", "known", "ids"),
    [
        ("ab", {}, [10, 11]),
        ("abc", {"b": 4}, [10, 4, 11]),
        ("abc", {"a": 20}, [20, 21, 22]),
        ("abc", {"a": 9}, [9, 10, 11]),
        ("abc", {"a": 10}, [10, 11, 12]),
    ],
)
def test_ids_that_the_package_gives(texts: str, known: dict[str, int], ids: list[int]) -> None:
    assert package_ids(texts, known, 10) == dict(zip(texts, ids, strict=True))


def test_a_special_token_that_is_written_like_another_is_named() -> None:
    for tokens, special in (((b" ", b"x"), 1), ((b"x", b" "), 0)):
        vocabulary = Vocabulary(kind="bpe", tokens=tokens, special_tokens={"\u0120": special})
        with pytest.raises(DataError) as caught:
            vocab_section(vocabulary)
        assert caught.value.message == (
            "the special token '\u0120' is how files write the ordinary token b' '"
        )
    same = Vocabulary(kind="bpe", tokens=(b"a", b"", b"a"), special_tokens={})
    assert vocab_section(same) == {"a": 0}


def test_an_unknown_part_is_left_to_the_package() -> None:
    for specials, vocab in (({"<t>": 9}, WORDS), ({"<s>": 3}, WORDS)):
        merges = [("a", "<s>")] if "<s>" in specials else []
        with pytest.raises(UnknownPartError):
            read_bpe(
                {**vocab, "a<s>": 4}, merges, specials, pattern="gpt2", whole_pieces=False,
                path="tokenizer.json",
            )  # fmt: skip
    added = (AddedToken("<x>", 1),)
    vocabulary = Vocabulary(kind="bpe", tokens=(b"a", b"b"), special_tokens={}, added_tokens=added)
    assert token_texts(vocabulary) == ["a", "<x>"]


def test_special_tokens_that_are_not_there_leave_the_others() -> None:
    """One that the vocabulary does not have is passed by."""
    named: dict[str, int | None] = {"<none>": None, "<s>": None}
    found = read_bpe_text(
        json.dumps(WORDS).encode(), b"", named, merges_are_json=False, pattern="gpt2",
        whole_pieces=False,
    )  # fmt: skip
    assert found is not None and dict(found.special_tokens) == {"<s>": 3}
