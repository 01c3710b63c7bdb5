"""Reading at a place: all that was asked for, however little the system gives at a time."""

from __future__ import annotations

import io
import random
from types import SimpleNamespace

import pytest

from lowtide.corpus import cutting
from lowtide.corpus.cutting import cut_text, read_at
from lowtide.corpus.inputs import InputFile


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


@pytest.mark.parametrize(
    ("window", "start", "limit", "cut"),
    [
        (b"ab\r\n\r\ncd", 3, 100, (6, False)),
        (b"ab\r\n\r\ncd", 5, 100, (6, False)),  # half of it is behind us
        (b"ab\r\n\r\ncd", 6, 100, (6, True)),
        (b"ab\r\n\r\ncd\n\n", 3, 100, (6, False)),  # the first, however it is written
        (b"ab\n\ncd\r\n\r\n", 3, 100, (4, False)),
        (b"ab\r\n\r\ncd", 3, 1, (3, True)),
        (b"ab\n\r\ncd", 3, 100, (5, False)),
        (b"ab\r\n\ncd", 3, 100, (5, False)),
    ],
)
def test_line_ends_of_a_separator_may_be_those_of_windows(window, start, limit, cut):
    assert cut_text(window, start, b"\n\n", limit) == cut


def plain_cut(window: bytes, start: int, limit: int) -> int | None:
    """Behind the first line end between two words, looked at one by one."""
    for place in range(start, min(limit, len(window) - 1)):
        around = window[max(place - 1, 0) : place], window[place + 1 : place + 2]
        if window[place] == 10 and around[0].strip() and around[1].isalnum():
            return place + 1
    return None


def test_a_line_end_between_two_words_is_the_first_choice():
    chooser = random.Random(7)
    found = 0
    for _ in range(3000):
        window = bytes(chooser.choices(b"\n\n\n \r\taZ9-\xc3", k=chooser.randrange(1, 30)))
        start, limit = chooser.randrange(len(window)), chooser.randrange(30)
        expected = plain_cut(window, start, limit)
        if expected is not None:
            found += 1
            assert cut_text(window, start, b"", limit) == (expected, True)
        elif (first := window.find(b"\n", start, limit)) >= 0:
            assert cut_text(window, start, b"", limit) == (first + 1, True)
    assert found > 100


def find_in(tmp_path, data, nominal, kind="text", **limits):
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    source = InputFile(0, path, kind, None, len(data))
    options = SimpleNamespace(separator=b"--", window_bytes=64)
    with path.open("rb") as file:
        return cutting.find_cut(file, source, nominal, options, **limits)


@pytest.mark.parametrize("probe", [4, 64])
def test_blocks_end_behind_a_separator_else_inside_a_document(tmp_path, probe):
    """Looked for close by first, then in all of the window, and never beyond it."""
    text = b"x" * 300

    def find(data, nominal):
        return find_in(tmp_path, data, nominal, probe_bytes=probe)

    def put(place, mark):
        return text[:place] + mark + text[place + len(mark) :]

    assert find(text, 0) == (0, False)
    assert find(text, 300) == (300, False)
    for place in (99, 100, 102, 140, 162):
        assert find(put(place, b"--"), 100) == (place + 2, False)
    assert find(put(98, b"--"), 100) == (100, True)  # it ends where the block would
    assert find(put(166, b"--"), 100) == (100, True)  # beyond the window
    assert find(put(120, b"\ny"), 100) == (121, True)
    assert find(put(120, b" y"), 100) == (120, True)


def test_the_end_of_a_file_that_is_near_is_the_end_of_its_last_block(tmp_path):
    text = b"x" * 300
    assert find_in(tmp_path, text, 235) == (235, True)
    assert find_in(tmp_path, text, 236) == (300, False)
    assert find_in(tmp_path, text[:250] + b"--" + text[252:], 236) == (252, False)


def test_rows_are_cut_behind_their_lines(tmp_path):
    rows = b'{"text": "a"}\n' * 30
    for nominal in (14, 15, 27, 28):
        assert find_in(tmp_path, rows, nominal, "jsonl") == (-(-nominal // 14) * 14, False)


@pytest.mark.parametrize("probe", [1, 3, 8, 16, 63])
def test_nothing_beyond_the_window_is_looked_at(tmp_path, probe):
    """However quickly the looks become larger: eight times each, and the window at most."""
    text = b"x" * 300
    for place in range(96, 180):
        data = text[:place] + b"--" + text[place + 2 :]
        found = find_in(tmp_path, data, 100, probe_bytes=probe)
        assert found == find_in(tmp_path, data, 100, probe_bytes=64)
        assert found[1] == (not 99 <= place <= 163)
