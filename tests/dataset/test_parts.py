"""Parts of the work: small files together up to a size, large ones by their blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.corpus.reading import ReadingSettings
from lowtide.dataset.staged.parts import Part, cut_parts

OPTIONS = ReadingSettings(block_bytes=100)


def stream(size: int, *, cut: bool = True) -> Any:
    blocks = -(-size // 100)
    return SimpleNamespace(size_bytes=size, num_blocks=blocks, random_access=cut)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([100, 200, 100], [Part(0, 2), Part(2, 3)]),  # exactly full
        ([100, 201], [Part(0, 1), Part(1, 2)]),
        ([300, 300], [Part(0, 1), Part(1, 2)]),
        ([10] * 31, [Part(0, 30), Part(30, 31)]),
        ([50, 701, 50, 50], [Part(0, 1), *(Part(1, 2, b, b + 3) for b in (0, 3)),
                             Part(1, 2, 6, 8), Part(2, 4)]),
        ([], []),
    ],
)  # fmt: skip
def test_parts_are_as_large_as_is_asked_for(sizes: list[int], expected: list[Part]) -> None:
    assert cut_parts([stream(size) for size in sizes], OPTIONS, 300) == expected


def test_what_is_read_in_order_is_not_cut() -> None:
    streams = [stream(50), stream(1000, cut=False), stream(50)]
    assert cut_parts(streams, OPTIONS, 300) == [Part(0, 1), Part(1, 2), Part(2, 3)]


def test_a_part_has_a_block_at_least() -> None:
    found = cut_parts([stream(250)], OPTIONS, 10)
    assert found == [Part(0, 1, begin, begin + 1) for begin in range(3)]
