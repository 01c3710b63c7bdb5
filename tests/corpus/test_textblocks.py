"""Inputs of streams by their numbers, and the sizes that reading goes by."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.corpus.inputs import InputFile
from lowtide.corpus.textblocks import (
    ReadingSettings,
    Segment,
    Stream,
    StreamPaths,
    iter_separated,
    separator_spellings,
)
from lowtide.errors import UsageError


def make_stream(index: int, first: int, count: int) -> Stream:
    inputs = [
        InputFile(number, Path(f"{number}.txt"), "text", None, 10)
        for number in range(first, first + count)
    ]
    return Stream(index, inputs, random_access=False, num_blocks=1)


def test_every_input_is_found_by_its_number() -> None:
    streams = [make_stream(0, 2, 3), make_stream(1, 0, 0), make_stream(2, 5, 1)]
    paths = StreamPaths(streams)
    found = [paths.get(index) for index in range(8)]
    assert found == [None, None, *(Path(f"{number}.txt") for number in range(2, 6)), None, None]
    assert [stream.size_bytes for stream in streams] == [30, 0, 10]


def test_between_two_streams_nobody_is_named() -> None:
    paths = StreamPaths([make_stream(0, 0, 1), make_stream(1, 4, 1)])
    assert [paths.get(index) is None for index in range(5)] == [False, True, True, True, False]


def test_a_block_looks_half_its_size_further() -> None:
    options = ReadingSettings(block_bytes=100)
    assert (options.window_bytes, options.longest_bytes) == (50, 150)


@pytest.mark.parametrize("letter", ["\ud800", "\udfff"])
def test_a_field_that_no_file_can_have_is_refused(letter: str) -> None:
    with pytest.raises(UsageError, match="is not text in UTF-8"):
        ReadingSettings(text_field=f"a{letter}")
    ReadingSettings(text_field="\ud7ff\ue000")


def test_an_encoding_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="nonsense"):
        ReadingSettings(encoding="nonsense")


@pytest.mark.parametrize(
    ("separator", "text"),
    [
        (b"\n\n", b"a\n\nb\r\n\r\nc\n\r\nd\r\n\ne"),
        (b"\n-\n", b"a\n-\nb\r\n-\nc\n-\r\nd\r\n-\r\ne"),
        (b"\n", b"a\nb\r\nc\nd\r\ne"),
        (
            b"\n" * 5,
            b"a" + b"\n" * 5 + b"b" + b"\r\n" * 5 + b"c" + b"\n" * 5 + b"d" + b"\n" * 5 + b"e",
        ),
    ],
)
def test_lines_of_one_separator_may_end_differently(separator: bytes, text: bytes) -> None:
    spellings = separator_spellings(separator)
    found = iter_separated(text, Segment(0, 0, 0, len(text)), spellings)
    assert [text[begin:end] for begin, end, _ in found] == [b"a", b"b", b"c", b"d", b"e"]
    assert len(set(spellings)) == len(spellings) <= 16


def test_a_separator_that_names_its_line_ends_is_found_as_it_is() -> None:
    assert separator_spellings(b"\r\n\n") == (b"\r\n\n",)
    assert separator_spellings(b"") == (b"",)
