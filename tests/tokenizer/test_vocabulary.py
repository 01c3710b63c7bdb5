"""Vocabularies: ids as lowtide numbers them, and fingerprints that notice every difference."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import _native
from lowtide.errors import DataError
from lowtide.tokenizer.vocabulary import END_OF_TEXT, Vocabulary, merges_by_rank

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
