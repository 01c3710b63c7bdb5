"""Reading at a place: all that was asked for, however little the system gives at a time."""

from __future__ import annotations

import io

import pytest

from lowtide.corpus.cutting import cut_text, read_at


class Drops(io.BytesIO):
    """A file that gives at most three bytes at a time, as pipes and some file systems may."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(3, size or 0))


@pytest.mark.parametrize("size", [0, 1, 3, 4, 6, 7, 100])
def test_reading_goes_on_until_all_is_there(size: int) -> None:
    data = bytes(range(50))
    assert read_at(Drops(data), 5, size) == data[5 : 5 + size]


@pytest.mark.parametrize(
    ("window", "start", "limit", "cut"),
    [
        (b"ab--cd", 1, 100, (4, False)),  # after a separator
        (b"ab--cd", 4, 100, (4, True)),  # one that ends where the search begins is behind us
        (b"ab--cd", 3, 100, (4, False)),  # one that is half behind us still ends a document
        (b"abcd--", 1, 4, (6, False)),
        (b"abcd--", 1, 3, (1, True)),  # one that begins beyond the limit is too far
        (b"\nab", 0, 100, (1, True)),  # a line break at the very beginning follows nothing
        (b"a\nb", 0, 100, (2, True)),
        (b"a \nb\nc", 0, 100, (5, True)),  # rather between two words
        (b"a\n\nb", 0, 100, (2, True)),
        (b"a\n", 0, 100, (2, True)),
        (b"a\nb", 0, 1, (0, True)),
        (b"ab cd", 1, 100, (2, True)),
        (b"ab cd", 1, 2, (1, True)),
        (b" abcd", 0, 100, (0, True)),
        ("\u4e2d\u4e2d".encode(), 1, 100, (3, True)),
        (b"\x80\x80", 0, 100, (2, True)),
        (b"abc", 3, 100, None),
    ],
)
def test_places_to_cut(window, start, limit, cut):
    assert cut_text(window, start, b"--", limit) == cut


def test_without_a_separator_lines_decide():
    assert cut_text(b"ab--c\nd", 0, b"", 100) == (6, True)
