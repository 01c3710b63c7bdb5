"""Ids of texts are joined, not added."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch

from lowtide import Tokenizer
from lowtide.tokenizer.ids import TokenIds


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
