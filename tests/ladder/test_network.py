"""Matrices that lie across the borders of chunks are read whole, with their moments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lowtide.ladder.network import _LastRead, _overlaps
from lowtide.ladder.packing import pack_weights
from lowtide.ladder.units import Matrix, Unit

CHUNKS: list[tuple[slice, Any]] = [(slice(256 * n, 256 * n + 256), "abc"[n]) for n in range(3)]


@pytest.mark.parametrize(
    ("start", "size", "by", "expected"),
    [
        (0, 256, 1, [("a", slice(0, 256), slice(0, 256))]),
        (
            128,
            256,
            1,
            [("a", slice(128, 256), slice(0, 128)), ("b", slice(0, 128), slice(128, 256))],
        ),
        (128, 130, 128, [("a", slice(1, 2), slice(0, 1)), ("b", slice(0, 1), slice(1, 2))]),
        (
            128,
            512,
            1,
            [
                ("a", slice(128, 256), slice(0, 128)),
                ("b", slice(0, 256), slice(128, 384)),
                ("c", slice(0, 128), slice(384, 512)),
            ],
        ),
        (512, 128, 128, [("c", slice(0, 1), slice(0, 1))]),
    ],
)
def test_which_part_of_which_chunk(
    start: int, size: int, by: int, expected: list[tuple[Any, slice, slice]]
) -> None:
    assert list(_overlaps(Matrix("m", (size,), start), CHUNKS, by)) == expected


def test_a_matrix_across_three_chunks_is_read_as_it_was_packed() -> None:
    wide = torch.randn(768, generator=torch.Generator().manual_seed(5))
    weights = torch.empty(768, dtype=torch.bfloat16)
    chunks = []
    for part, _ in CHUNKS:
        low_bits = torch.empty(256, dtype=torch.uint8)
        pack_weights(wide[part], weights[part], low_bits)
        first = torch.arange(part.start, part.stop)
        chunks.append(
            (part, SimpleNamespace(low_bits=low_bits, first=first, first_scales=first[::128]))
        )
    matrix = Matrix("m", (16, 32), 128)
    unit = Unit("u", (matrix,), 768, 0, None)
    places = SimpleNamespace(read=lambda unit: (weights, chunks))
    reader = _LastRead(SimpleNamespace(placement=places))  # pyright: ignore[reportArgumentType]
    found = reader.weights(unit, matrix)
    assert found.shape == (16, 32)
    torch.testing.assert_close(found.flatten(), wide[128:640], rtol=2**-15, atol=0)
    assert reader.moment(unit, matrix, "first").tolist() == list(range(128, 640))
    assert reader.moment(unit, matrix, "first_scales").tolist() == [128, 256, 384, 512]
