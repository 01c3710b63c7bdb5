"""Dictionaries of xz files: of every stream, behind padding of any length."""

from __future__ import annotations

import functools
import io
import lzma
import random

import pytest

from lowtide.corpus import xzdictionaries
from lowtide.corpus.xzdictionaries import block_dictionary_bytes, later_dictionary_bytes

MIB = 1 << 20
STEP = xzdictionaries._PADDING_STEP


@functools.cache
def stream(dictionary: int, size: int = 100) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": dictionary}]
    return lzma.compress(random.Random(size).randbytes(size), filters=filters)


def largest(data: bytes) -> int:
    return later_dictionary_bytes(io.BytesIO(data))


@pytest.mark.parametrize("bits", range(12, 33))
def test_any_size_that_a_header_can_name(bits: int) -> None:
    for number, size in ((2 * (bits - 12), 1 << bits), (2 * (bits - 12) + 1, 3 << (bits - 1))):
        header = bytes([2, 0, 0x21, 1, number]) + bytes(8)
        assert block_dictionary_bytes(header) == min(size, (1 << 32) - 1)


def test_other_filters_are_passed_by() -> None:
    delta = bytes([3, 1, 0])
    for flags, sizes in ((1, b""), (0x41, b"\x85\x01"), (0xC1, b"\x85\x01\x07")):
        header = bytes([3, flags]) + sizes + delta + bytes([0x21, 1, 16]) + bytes(4)
        assert block_dictionary_bytes(header) == MIB
    assert block_dictionary_bytes(bytes([1, 0]) + delta + bytes(4)) == 0


@pytest.mark.parametrize("padding", [0, 4, 400, STEP - 4, STEP, STEP + 4, 3 * STEP])
@pytest.mark.parametrize("size", [100, 3 * STEP])
def test_the_largest_of_all_streams(padding: int, size: int) -> None:
    sizes = [2 * MIB, 8 * MIB, MIB]
    for turn in range(3):
        turned = [*sizes[turn:], *sizes[:turn]]
        assert largest(b"".join(stream(one, size) + bytes(padding) for one in turned)) == 8 * MIB


def test_of_what_is_damaged_what_stands_behind_it_counts() -> None:
    first, last = stream(8 * MIB), stream(2 * MIB)
    assert largest(first[:-1] + b"x" + last) == 2 * MIB  # the end of the first is not one
    assert largest(first + b"x" + last) == 2 * MIB
    assert largest(first + last[:-1]) == 0
    assert largest(b"") == largest(bytes(STEP)) == 0


@pytest.mark.parametrize(
    ("data", "number"),
    [(b"\x00", 0), (b"\x7f", 127), (b"\x80\x01", 128), (b"\x85\x80\x04", 65_541)],
)
def test_numbers_of_seven_bits_a_byte(data: bytes, number: int) -> None:
    assert xzdictionaries._number(b"_" + data + b"_", 1) == (number, 1 + len(data))
    with pytest.raises(IndexError):
        xzdictionaries._number(data[:-1], 0)


def test_sizes_of_blocks_are_filled_up_to_four() -> None:
    index = bytes([0, 3, 0x85, 0x01, 9, 8, 9, 1, 9])
    assert list(xzdictionaries._iter_sizes(index)) == [136, 8, 4]
