"""Hashes of inputs from those of their parts: by number, whichever came, and none of the others."""

from __future__ import annotations

import pytest
import xxhash

from lowtide.corpus.inputhashes import InputHashes, hash_content
from lowtide.corpus.reading import ReadingSettings, Segment, TextBlock


def folded(*parts: str) -> str:
    whole = ""
    for part in parts:
        whole = xxhash.xxh3_128_hexdigest((whole + part).encode())
    return whole


@pytest.mark.parametrize("first", [0, 5])
def test_inputs_that_came_have_a_hash_and_those_between_none(first: int) -> None:
    hashes = InputHashes()
    hashes.add([(first, "a"), (first, "b")])
    hashes.add([(first, "c"), (first + 3, "d")])
    hashes.add([(first + 4, "e")])
    assert hashes.finish() is hashes
    wanted = [None, folded("a", "b", "c"), None, None, folded("d"), folded("e"), None]
    assert [hashes.get(number) for number in range(first - 1, first + 6)] == wanted


def test_without_parts_there_are_none() -> None:
    assert [InputHashes().finish().get(number) for number in (-1, 0, 1)] == [None] * 3


@pytest.mark.parametrize("kind", ["text", "jsonl", "rows"])
def test_the_field_of_jsonl_counts_and_of_nothing_else(kind: str) -> None:
    data = b"firstsecond"
    block = TextBlock(0, 0, kind, data, (Segment(3, 0, 0, 5), Segment(4, 0, 5, 11)))
    for field in ("text", "body"):
        seed = xxhash.xxh3_64_intdigest(field.encode()) if kind == "jsonl" else 0
        expected = [(3, xxhash.xxh3_128_hexdigest(b"first", seed)),
                    (4, xxhash.xxh3_128_hexdigest(b"second", seed))]  # fmt: skip
        assert hash_content(block, ReadingSettings(text_field=field)) == expected
