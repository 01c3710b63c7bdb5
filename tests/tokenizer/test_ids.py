"""Ids of texts are joined, not added."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from lowtide import Tokenizer
from lowtide.errors import UsageError
from lowtide.tokenizer.ids import TokenIds, checked_ids


def test_two_texts_are_one_after_the_other() -> None:
    tokenizer = Tokenizer.load("gpt2")
    first, second = tokenizer.encode("low tide"), tokenizer.encode(" and high")
    joined = first + second
    assert joined.tolist() == first.tolist() + second.tolist()
    assert tokenizer.decode(joined) == "low tide and high"
    assert tokenizer.decode(tokenizer.encode("a") + tokenizer.encode("b")) == "ab"
    end = tokenizer.special_tokens["<|endoftext|>"]
    ends = [end]
    assert (first + ends)[-1] == end and (ends + first)[0] == end
    assert (first + np.array([end]))[-1] == end and (np.array([end]) + first)[0] == end
    grown = first
    grown += second
    assert grown.tolist() == joined.tolist() and len(first) == 2
    assert (first + tokenizer.encode("")).tolist() == first.tolist()


def test_ids_are_embedded_and_serialised_as_they_are() -> None:
    tokenizer = Tokenizer.load("gpt2")
    one, *more = tokenizer.encode_batch(["low tide", "high"])
    for ids in (tokenizer.encode("low tide"), one, next(tokenizer.iter_encoded(["low tide"]))):
        assert json.loads(json.dumps(list(ids))) == ids.tolist() == [9319, 20013]
        assert {type(id) for id in ids} == {int}
        assert torch.nn.Embedding(50257, 2)(torch.tensor(ids)).shape == (2, 2)
        assert (ids - ids[::-1]).tolist() == [-10694, 10694]
    assert (one + more[0]).tolist() == [*one, *more[0]]
    long = np.arange(40_000, dtype=np.int32).view(TokenIds)
    assert list(long) == long.tolist()
    assert [row.tolist() for row in long[:4].reshape(2, 2)] == [[0, 1], [2, 3]]


def test_it_is_an_array_in_everything_else() -> None:
    ids = np.arange(5, dtype=np.int32).view(TokenIds)
    assert (ids + 1).tolist() == [1, 2, 3, 4, 5] and (1 + ids).tolist() == [1, 2, 3, 4, 5]
    assert (ids == ids[:]).all() and int(ids.sum()) == 10 and repr(ids) == repr(np.asarray(ids))
    assert (ids[1:3] + ids[:1]).tolist() == [1, 2, 0]
    assert pickle.loads(pickle.dumps(ids)).tolist() == ids.tolist()
    for other in ([0.5], [[1]], ["a"]):
        with pytest.raises(TypeError, match="joined with ids"):
            ids + other


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 9000])
def test_numbers_come_one_by_one(size: int) -> None:
    ids = np.arange(size, dtype=np.int32).view(TokenIds)
    found = list(ids)
    assert found == list(range(size)) and all(type(id) is int for id in found)
    rows = np.arange(6, dtype=np.int32).reshape(2, 3).view(TokenIds)
    assert [row.tolist() for row in rows] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("other", [[[1]], [0.5], ["a"], np.zeros((1, 1), int)])
def test_only_ids_are_joined(other: Any) -> None:
    ids = np.array([7], dtype=np.int32).view(TokenIds)
    for join in (lambda: ids + other, lambda: other + ids):
        with pytest.raises(TypeError, match="ids are joined with ids, not with"):
            join()
    none: list[int] = []
    assert (ids + none).tolist() == (none + ids).tolist() == [7]


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ([5, 10], "ids from 5 to 10: expected whole numbers from 0 to 9"),
        ([-1, 9], "ids from -1 to 9: expected whole numbers from 0 to 9"),
        ([1, 2.5], "id 1.0; expected whole numbers from 0 to 9"),
        (["a"], "id 'a'; expected whole numbers from 0 to 9"),
        (5, "these are not ids: 5; expected whole numbers from 0 to 9"),
        ([[1], [1, 2]], "these are not ids: [[1], [1, 2]]; expected whole numbers from 0 to 9"),
    ],
)
def test_what_is_no_id_is_named(ids: Any, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked_ids(ids, vocab_size=10)
    assert caught.value.message == why
    assert checked_ids([0, 9], vocab_size=10).tolist() == [0, 9]
    assert checked_ids([], vocab_size=10).size == 0
