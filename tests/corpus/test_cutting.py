"""Reading at a place: all that was asked for, however little the system gives at a time."""

from __future__ import annotations

import io

import pytest

from lowtide.corpus.cutting import read_at


class Drops(io.BytesIO):
    """A file that gives at most three bytes at a time, as pipes and some file systems may."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(3, size or 0))


@pytest.mark.parametrize("size", [0, 1, 3, 4, 6, 7, 100])
def test_reading_goes_on_until_all_is_there(size: int) -> None:
    data = bytes(range(50))
    assert read_at(Drops(data), 5, size) == data[5 : 5 + size]
