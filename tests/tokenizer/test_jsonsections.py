"""Sections of a tokenizer.json: what is ours, what is left to the package, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lowtide.errors import DataError
from lowtide.tokenizer import jsonsections
from lowtide.tokenizer.jsonsections import (
    Parts,
    added_section,
    name_section,
    normalizer_section,
    pre_tokenizer_section,
    read_added,
    read_normalizer,
    read_parts,
    split_expression,
    split_step,
)
from lowtide.tokenizer.patterns import EXPRESSIONS, PATTERN_NAMES, UnknownPartError
from lowtide.tokenizer.tokentexts import TokenTexts
from lowtide.tokenizer.vocabulary import AddedToken, Vocabulary

PATH = Path("tokenizer.json")
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def sequence(*steps: Any) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


@pytest.mark.parametrize("pattern", PATTERN_NAMES)
def test_patterns_are_written_as_they_are_read(pattern: Any) -> None:
    section = pre_tokenizer_section(pattern)
    assert jsonsections._read_pattern(section, PATH) == pattern
    last = section["pretokenizers"][-1] if pattern != "gpt2" else section
    assert last == {**LEVEL, "use_regex": pattern in ("gpt2", "digits")}


DIGITS = {"type": "Digits", "individual_digits": True}
SPLIT = split_step(EXPRESSIONS["cl100k"])


@pytest.mark.parametrize(
    ("section", "pattern"),
    [
        (LEVEL, "gpt2"),
        ({**LEVEL, "use_regex": True}, "gpt2"),
        ({**LEVEL, "use_regex": False}, None),
        ({**LEVEL, "add_prefix_space": True}, None),
        (sequence(LEVEL), "gpt2"),
        (sequence(DIGITS, LEVEL), "digits"),
        (sequence({**DIGITS, "individual_digits": False}, LEVEL), None),
        (sequence(DIGITS, {**LEVEL, "use_regex": False}), None),
        (sequence(SPLIT, {**LEVEL, "use_regex": False}), "cl100k"),
        (sequence(SPLIT, LEVEL), None),
        (sequence(LEVEL, SPLIT), None),
        (sequence(SPLIT), None),
        (sequence(), None),
        (sequence(LEVEL, LEVEL), None),
        (sequence("no section"), None),
        ({"type": "Sequence"}, None),
        ({"type": "Whitespace"}, None),
        (None, None),
    ],
)
def test_which_pre_tokenizers_are_ours(section: Any, pattern: str | None) -> None:
    if pattern is not None:
        assert jsonsections._read_pattern(section, PATH) == pattern
        return
    with pytest.raises(UnknownPartError) as caught:
        jsonsections._read_pattern(section, PATH)
    assert caught.value.path == PATH


@pytest.mark.parametrize(
    ("change", "known"),
    [
        ({}, True),
        ({"behavior": "Removed", "invert": True}, True),
        ({"behavior": "Removed"}, False),
        ({"invert": True}, False),
        ({"behavior": "Contiguous"}, False),
        ({"pattern": {"String": "x"}}, False),
        ({"pattern": "x"}, False),
        ({"pattern": None}, False),
    ],
)
def test_a_split_whose_matches_are_the_pieces(change: dict[str, Any], known: bool) -> None:
    unknown = DataError("unknown")
    step = {**split_step("x+"), **change}
    if known:
        assert split_expression(step, unknown) == "x+"
        return
    with pytest.raises(DataError, match="unknown"):
        split_expression(step, unknown)


NFC = {"type": "NFC"}


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (None, "none"),
        (NFC, "nfc"),
        ({"type": "Sequence", "normalizers": []}, "none"),
        ({"type": "Sequence", "normalizers": [NFC]}, "nfc"),
        ({"type": "Sequence", "normalizers": [NFC, NFC]}, "normalizer Sequence(NFC, NFC)"),
        ({"type": "NFKC"}, "normalizer NFKC"),
        ({"type": "Sequence"}, "normalizer Sequence"),
        ("x" * 60, "normalizer '" + "x" * 39),
    ],
)
def test_which_normalizers_are_ours(section: Any, name: str) -> None:
    if not name.startswith("normalizer"):
        assert read_normalizer(section, PATH) == name
        return
    with pytest.raises(UnknownPartError) as caught:
        read_normalizer(section, PATH)
    assert caught.value.message == name
    assert name_section(None) == "none"


FLAGS = ("special", "lstrip", "rstrip", "normalized")


def test_added_tokens_are_read_with_their_flags() -> None:
    rows = [{"id": 7, "content": "<a>", "special": True}, {"id": 8, "content": "<b>"}]
    for number, flag in enumerate(FLAGS):
        rows.append({"id": 10 + number, "content": f"<{flag}>", flag: True})
    found = read_added(rows, PATH)
    assert found[:2] == (AddedToken("<a>", 7), AddedToken("<b>", 8, special=False))
    for token, flag in zip(found[2:], FLAGS, strict=True):
        assert {name: getattr(token, name) for name in FLAGS} == {
            name: name == flag for name in FLAGS
        }
    assert read_added([], PATH) == ()
    twice = [{"id": 1, "content": "<a>"}, {"id": 2, "content": "<a>"}]
    assert read_added(twice, PATH) == (AddedToken("<a>", 2, special=False),)  # the last counts


@pytest.mark.parametrize(
    ("rows", "why", "kind"),
    [
        ([{"id": 1}], "an added token has no content: {'id': 1}", DataError),
        ([{"id": 1, "content": ""}], "an added token has no content", DataError),
        ([{"id": 1, "content": 5}], "an added token has no content", DataError),
        ([5], "an added token has no content: 5", DataError),
        ({"id": 1}, "an added token has no content", DataError),
        ([{"content": "a"}], "token 'a' has the id None", DataError),
        (
            [{"id": 1, "content": "a", "single_word": True}],
            "'a' as a single word",
            UnknownPartError,
        ),
    ],
)
def test_added_tokens_that_are_none(rows: Any, why: str, kind: type[DataError]) -> None:
    with pytest.raises(kind) as caught:
        read_added(rows, PATH)
    assert why in caught.value.message
    assert isinstance(caught.value, UnknownPartError) == (kind is UnknownPartError)


def token(**flags: bool) -> AddedToken:
    return AddedToken("<a>", 1, **flags)


@pytest.mark.parametrize(
    ("normalizer", "added", "plain"),
    [
        ("none", [], True),
        ("nfc", [], False),
        ("none", [token()], True),
        ("none", [token(special=False)], False),
        ("none", [token(lstrip=True)], False),
        ("none", [token(rstrip=True)], False),
        ("none", [token(normalized=True)], True),
        ("none", [token(normalized=True), token(normalized=True)], True),
        ("none", [token(normalized=True), token()], False),
        ("none", [token(), token(special=False)], False),
    ],
)
def test_plain_special_tokens(normalizer: Any, added: list[AddedToken], plain: bool) -> None:
    parts = Parts("gpt2", normalizer, tuple(added))
    assert parts.is_plain is plain
    assert parts.ids == ({"<a>": 1} if added else {})


@pytest.mark.parametrize(
    ("content", "normalizer", "normalized", "known"),
    [
        ("<a>", NFC, True, True), ("\u00e9", NFC, True, False), ("K", NFC, True, False),
        (";", NFC, True, False), ("`", NFC, True, False), ("\u00e9", NFC, False, True),
        ("\u00e9", None, True, True), ("K", None, True, True),
    ],
)  # fmt: skip
def test_tokens_that_normalizing_could_make_are_not_ours(
    content: str, normalizer: Any, normalized: bool, known: bool
) -> None:
    row = {"id": 1, "content": content, "special": True, "normalized": normalized}
    data = {"normalizer": normalizer, "added_tokens": [row], "pre_tokenizer": LEVEL}
    if known:
        parts = read_parts(data, PATH)
        assert parts.ids == {content: 1} and parts.pattern == "gpt2"
        return
    with pytest.raises(UnknownPartError) as caught:
        read_parts(data, PATH)
    assert caught.value.message == f"added token {content!r}, normalized"


def test_tokens_are_written_in_the_order_of_their_ids() -> None:
    plain = Vocabulary(kind="bpe", tokens=(b"a", b"b"), special_tokens={"<b>": 1, "<a>": 0})
    row = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    assert added_section(plain) == [
        {"id": 0, "content": "<a>", **row, "special": True},
        {"id": 1, "content": "<b>", **row, "special": True},
    ]
    added = (AddedToken("<x>", 1, special=False, lstrip=True, rstrip=True, normalized=True),)
    rules = Vocabulary(
        kind="bpe", tokens=(b"a", b"b"), special_tokens={}, added_tokens=added, normalizer="nfc"
    )
    flags = {"lstrip": True, "rstrip": True, "normalized": True}
    assert added_section(rules) == [
        {"id": 1, "content": "<x>", "single_word": False, **flags, "special": False}
    ]
    assert normalizer_section(rules) == {"type": "NFC"} and normalizer_section(plain) is None


REPLACE = {"type": "Replace", "pattern": {"String": "_"}, "content": "-"}


@pytest.mark.parametrize(
    ("decoder", "texts"),
    [
        (None, {"ab": b" ab"}),
        ({"type": "ByteLevel"}, {"\u0120a": b" a", "\u4e2d": "\u4e2d".encode(), "<0x4>": b"<0x4>"}),
        ({"type": "ByteFallback"}, {"<0x41>": b"A", "<0xe9>": b"\xe9", "<0x4>": b"<0x4>"}),
        ({"type": "Metaspace"}, {"\u2581a": b" a", "a\u2581b": b"a b"}),
        ({"type": "Metaspace", "replacement": "#"}, {"#a": b" a", "\u2581a": "\u2581a".encode()}),
        ({"type": "WordPiece", "prefix": "##"}, {"##a": b"a", "a": b" a", "####a": b"##a"}),
        ({"type": "WordPiece"}, {"##a": b" ##a", "a": b" a"}),
        ({"type": "BPEDecoder", "suffix": "</w>"}, {"a</w>": b"a ", "a": b"a"}),
        (REPLACE, {"a_b": b"a-b"}),
        ({**REPLACE, "pattern": {"Regex": "_"}}, {"a_b": b"a_b"}),
        ({"type": "Sequence", "decoders": [REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}]},
         {"a_b": b"a-b", "<0x0A>": b"\n"}),
        ({"type": "Sequence", "decoders": []}, {"a": b" a"}),
        ({"type": "Fuse"}, {"a": b"a"}),
    ],
)  # fmt: skip
def test_what_tokens_stand_for_by_their_decoder(decoder: Any, texts: dict[str, bytes]) -> None:
    found = TokenTexts.of({"decoder": decoder})
    assert {text: found.bytes_of(text) for text in texts} == texts
