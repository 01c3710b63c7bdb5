"""What batches straight from text take, over a grid; and documents that are held out of them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xxhash

from lowtide.errors import UsageError
from lowtide.files import checksum_bytes
from lowtide.loader.footprint import estimate_memory_usage, planned_bytes
from lowtide.loader.heldout import KeptTexts, is_held_out
from lowtide.loader.textencoders import ENCODING_THREADS
from lowtide.loader.texts import Text
from lowtide.tokenizer.limits import EncodingLimits

BESIDE = (46 << 20) + ENCODING_THREADS * EncodingLimits.cache_bytes


@pytest.mark.parametrize(
    ("seq_len", "buffer", "stride", "ids"),
    [(128, 1000, None, 128_000), (128, 1000, 64, 64_000), (128, 1, None, 128), (128, 0, 7, 7),
     (128, -5, None, 128), (1, 3, 9, 27)],
)  # fmt: skip
def test_blocks_are_held_four_times(
    seq_len: int, buffer: int, stride: int | None, ids: int
) -> None:
    found = planned_bytes(seq_len=seq_len, shuffle_buffer_size=buffer, stride=stride)
    assert found == 4 * 4 * ids + BESIDE


@pytest.mark.parametrize(
    ("sequences", "length", "batch", "full", "streaming", "savings"),
    [
        (1 << 20, 128, 1 << 10, 1024.0, 1.0, "99.90%"),
        (1 << 20, 1, 1, 8.0, 0.0, "100.00%"),
        (1000, 1000, 250, 7.63, 1.91, "75.00%"),
        (10, 131_072, 10, 10.0, 10.0, "0.00%"),
        (10, 131_072, 99, 10.0, 10.0, "0.00%"),  # no more than there are
        (1, 1, 1, 0.0, 0.0, "0.00%"),
    ],
)
def test_all_sequences_against_a_batch_of_them(
    sequences: int, length: int, batch: int, full: float, streaming: float, savings: str
) -> None:
    assert estimate_memory_usage(sequences, length, batch) == {
        "full_load_mb": full, "streaming_mb": streaming, "memory_savings": savings,
    }  # fmt: skip


@pytest.mark.parametrize("place", range(3))
def test_numbers_below_one_are_refused(place: int) -> None:
    given = [1, 1, 1]
    given[place] = 0
    name = ("num_sequences", "seq_len", "batch_size")[place]
    with pytest.raises(UsageError, match=f"{name} is 0, expected at least 1"):
        estimate_memory_usage(*given)


def make_text(data: bytes, begins: bool = True, ends: bool = True) -> Text:
    return Text(data, (0, 0, 0), begins_document=begins, ends_document=ends)


def test_whole_documents_are_held_out_by_their_hash() -> None:
    words = [str(number).encode() for number in range(400)]
    for fraction in (0.0, 0.1, 0.5, 1.0):
        held = [is_held_out(make_text(word), fraction) for word in words]
        border = int(fraction * 2.0**64)
        assert held == [xxhash.xxh3_64_intdigest(word) < border for word in words]
    for begins, ends in ((False, True), (True, False), (False, False)):
        assert not any(is_held_out(make_text(word, begins, ends), 1.0) for word in words)


def test_the_texts_that_stay() -> None:
    words = [str(number).encode() for number in range(40)]
    asked: list[Any] = []

    def iterate(**given: Any) -> Iterator[Text]:
        asked.append(given)
        return map(make_text, words)

    source: Any = SimpleNamespace(iter_texts=iterate, fingerprint="abc", text_bytes=1000)
    kept = KeptTexts(source, 0.25)
    found = [text.data for text in kept.iter_texts(seed=3, place=(1, 2))]
    assert found == [word for word in words if not is_held_out(make_text(word), 0.25)]
    assert 20 < len(found) < 40 and asked == [{"seed": 3, "place": (1, 2)}]
    assert kept.text_bytes == 750
    assert kept.fingerprint == checksum_bytes(b"abc\nheld out 0.25")
    source.text_bytes = None
    assert kept.text_bytes is None


def test_numbers_of_numpy_do_not_overflow() -> None:
    """30,000 tokens in 16 bits gave a negative size."""
    found = estimate_memory_usage(np.int32(10**9), np.int16(30_000), np.int8(100))
    assert found == estimate_memory_usage(10**9, 30_000, 100)
