"""Vocabularies: ids as lowtide numbers them, and fingerprints that notice every difference."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lowtide import _native
from lowtide.errors import DataError, UsageError
from lowtide.tokenizer.vocabulary import (
    END_OF_TEXT,
    AddedToken,
    Vocabulary,
    find_end,
    id_bytes,
    merges_by_rank,
    require_dense,
    source_fingerprint,
)

MERGES = [(b"a", b"b"), (b"ab", b"c"), (b"b", b"c"), (b"a", b"bc")]


def test_ids_are_special_tokens_bytes_merges() -> None:
    vocabulary = Vocabulary.from_merges(MERGES[:3], special_tokens=["<s>", END_OF_TEXT, "<s>"])
    assert vocabulary.special_tokens == {"<s>": 0, END_OF_TEXT: 1}
    assert vocabulary.tokens[2:258] == tuple(bytes([byte]) for byte in range(256))
    assert vocabulary.tokens[258:] == (b"ab", b"abc", b"bc")
    assert vocabulary.merge_bytes() == MERGES[:3]


def test_a_token_made_twice_keeps_its_first_id() -> None:
    vocabulary = Vocabulary.from_merges(MERGES)
    assert vocabulary.tokens[256:] == (b"ab", b"abc", b"bc", b"")
    assert vocabulary.merges is not None
    assert vocabulary.merges[3].tolist() == [97, 258, 257]


def test_a_merge_of_unknown_tokens_is_refused() -> None:
    with pytest.raises(DataError, match="no token b'xy'"):
        Vocabulary.from_merges([(b"xy", b"z")])


def test_a_special_token_beyond_the_ids_is_refused() -> None:
    with pytest.raises(DataError, match="beyond the vocabulary"):
        Vocabulary(kind="bpe", tokens=(b"a",), special_tokens={"<s>": 1})


def test_everything_that_decides_ids_is_in_the_fingerprint() -> None:
    vocabulary = Vocabulary.from_merges(MERGES, special_tokens=["<s>"])
    others = [
        Vocabulary.from_merges(MERGES[:3], special_tokens=["<s>"]),
        Vocabulary.from_merges([MERGES[2], *MERGES[:2]], special_tokens=["<s>"]),
        Vocabulary.from_merges(MERGES, special_tokens=["<t>"]),
        Vocabulary.from_merges(MERGES, special_tokens=["<s>", "<t>"]),
        Vocabulary.from_merges(MERGES, special_tokens=["<s>"], pattern="o200k"),
        dataclasses.replace(vocabulary, whole_pieces=True),
        dataclasses.replace(vocabulary, merge_ids=None),
        dataclasses.replace(vocabulary, special_tokens={}),
        dataclasses.replace(vocabulary, tokens=(*vocabulary.tokens, b"zz")),
        Vocabulary.from_characters("abc"),
        Vocabulary.from_characters("abd"),
    ]
    prints = [vocabulary.fingerprint, *(other.fingerprint for other in others)]
    assert len(set(prints)) == len(prints)
    assert Vocabulary.from_merges(MERGES, special_tokens=["<s>"]).fingerprint == prints[0]


@given(st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=30, unique=True))
def test_merges_by_rank_are_all_pairs_that_spell_a_token(tokens: list[bytes]) -> None:
    ids = {token: id for id, token in enumerate(tokens)}
    expected = [
        [ids[token[:cut]], ids[token[cut:]], id]
        for id, token in enumerate(tokens)
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    assert merges_by_rank(tokens, {}).tolist() == expected
    without_first = [row for row in expected if 0 not in row]
    assert merges_by_rank(tokens, {"special": 0}).tolist() == without_first


@pytest.mark.parametrize("place", [0, 1, 2])
def test_merges_beyond_the_ids_are_refused_wherever_the_number_stands(place: int) -> None:
    tokens = [bytes([byte]) for byte in range(256)] + [b"ab"]
    rule = np.array([97, 98, 256], np.uint32)

    def make() -> _native.Vocabulary:
        return _native.Vocabulary("gpt2", tokens, rule, [], whole_pieces=False, cache_bytes=1 << 16)

    assert make().encode(b"ab", True).tolist() == [256]
    rule[place] = 257
    with pytest.raises(ValueError, match="merge of a token beyond the ids"):
        make()


def test_special_tokens_count_for_how_large_an_id_may_be() -> None:
    tokens, most = {0: b"a", 1: b"b"}, 4 * 5 + (1 << 18)
    special_tokens = {"<a>": 2, "<b>": 3, "<c>": most - 1}
    assert len(Vocabulary.from_rows(tokens, [], special_tokens=special_tokens).tokens) == most
    with pytest.raises(DataError, match=f"the id {most} is too large for 5 tokens"):
        Vocabulary.from_rows(tokens, [], special_tokens={**special_tokens, "<c>": most})


def test_ids_take_two_bytes_while_they_fit() -> None:
    assert [id_bytes(size) for size in (1, 65_535, 65_536, 65_537, 1 << 20)] == [2, 2, 2, 4, 4]


@pytest.mark.parametrize("tokens", [0, 1, 1000])
def test_ids_may_leave_some_unused_and_not_most(tokens: int) -> None:
    largest = 4 * tokens + (1 << 18)
    require_dense(largest - 1, tokens)
    with pytest.raises(DataError) as caught:
        require_dense(largest, tokens)
    assert caught.value.message == (
        f"the id {largest} is too large for {tokens} tokens: expected ids below {largest}"
    )


def test_the_first_name_of_an_end_counts() -> None:
    assert find_end({"[SEP]": 0, "</s>": 1, "<eos>": 2}) == "</s>"
    assert find_end({"<s>": 1}) is None


def test_of_equal_tokens_merges_mean_the_first_that_is_not_special() -> None:
    tokens = {0: b"a", 1: b"", 2: b"b", 3: b"ab", 4: b"a", 5: b"ab", 6: b"b"}
    found = Vocabulary.from_tokens(tokens, [(b"a", b"b")], special_tokens={"a": 0})
    assert found.merges is not None and found.merges.tolist() == [[4, 2, 3]]
    with pytest.raises(DataError, match="no token b''"):
        Vocabulary.from_tokens(tokens, [(b"", b"b")], special_tokens={})
    with pytest.raises(DataError, match="b'x' is a special token, and an ordinary one"):
        Vocabulary.from_tokens({0: b"a", 1: b"x"}, [(b"a", b"x")], special_tokens={"x": 1})


def test_ids_of_special_tokens_lie_in_the_vocabulary() -> None:
    for id in (-1, 2):
        with pytest.raises(DataError) as caught:
            Vocabulary(kind="bpe", tokens=(b"a", b"b"), special_tokens={"<s>": id})
        assert caught.value.message == f"special token '<s>' has id {id}, beyond the vocabulary"
    for id in (0, 1):
        Vocabulary(kind="bpe", tokens=(b"a", b"b"), special_tokens={"<s>": id})
    assert Vocabulary.from_rows({}, [], special_tokens={}).tokens == ()


def test_rules_beyond_special_tokens_decide_too() -> None:
    plain = Vocabulary.from_merges(MERGES, special_tokens=["<s>"])
    assert plain.has_rules is False and plain.added_ids == {"<s>": 0}
    token = AddedToken("<t>", 5, special=False)
    added = dataclasses.replace(plain, added_tokens=(token, AddedToken("<s>", 0)))
    assert added.has_rules is True and added.added_ids == {"<t>": 5, "<s>": 0}
    composed = dataclasses.replace(plain, normalizer="nfc")
    assert composed.has_rules is True
    turned = dataclasses.replace(added, added_tokens=added.added_tokens[::-1])
    others = [
        dataclasses.replace(added, added_tokens=(dataclasses.replace(token, **{name: True}),))
        for name in ("special", "lstrip", "rstrip", "normalized")
    ]
    prints = [plain, added, composed, *others]
    assert len({one.fingerprint for one in prints}) == len(prints)
    assert turned.fingerprint == added.fingerprint


def packed(**parts: Any) -> bytes:
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "a b": 2}, "merges": ["a b", "a b c"]}
    whole = {"added_tokens": [], "normalizer": None, "pre_tokenizer": None, "model": model}
    text = json.dumps({**whole, "decoder": 1, "padding": 2, **parts})
    return zstandard.ZstdCompressor().compress(text.encode())


def test_what_the_package_runs_is_known_by_the_parts_that_decide_ids() -> None:
    known = source_fingerprint(packed())
    assert len(known) == 32
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "a b": 2}}
    pairs = {**model, "merges": [["a", "b"], ["a", "b c"]]}
    assert source_fingerprint(packed(model=pairs)) == known
    assert source_fingerprint(packed(decoder=7, padding=None)) == known
    others: list[dict[str, Any]] = [
        {"model": {**model, "merges": [["a", "b"], ["a b", "c"]]}}, {"model": model},
        {"added_tokens": [1]}, {"normalizer": {}}, {"pre_tokenizer": {}},
    ]  # fmt: skip
    found = {source_fingerprint(packed(**other)) for other in others}
    assert len({known, *found}) == len(others) + 1


def test_characters_are_single_and_unknown_ones_have_an_id() -> None:
    found = Vocabulary.from_characters("ba\u00e9a", special_tokens=["<unk>", "<x>", "<unk>"])
    assert found.tokens == (b"<unk>", b"<x>", b"a", b"b", "\u00e9".encode())
    assert found.special_tokens == {"<unk>": 0, "<x>": 1}
    with pytest.raises(UsageError, match="needs <unk> among its special tokens"):
        Vocabulary.from_characters("a", special_tokens=["<x>"])
    for wrong in (["ab"], [""]):
        with pytest.raises(UsageError, match="characters must be single code points"):
            Vocabulary.from_characters(wrong)
