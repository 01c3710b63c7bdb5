"""Going through bytes with wide vectors: the same answers as one byte at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lowtide import _native

# Mostly what cleaning looks for, so that runs and borders are frequent.
BYTES = st.lists(
    st.sampled_from([*b"ab  \t\n<|>", 0x1F, 0x7E, 0x7F, 0x80, 0xFF]), max_size=200
).map(bytes)


def scan(text: bytes) -> tuple[int, bool, int]:
    """What `scan_line` gives, as its description says it."""
    line = text.split(b"\n", 1)[0]
    rest = line.lstrip(b" \t")
    plain = all(0x20 <= byte <= 0x7E for byte in rest) and b"  " not in rest
    plain = plain and not rest.endswith(b" ") and (bool(rest) or not line)
    repeated = sum(one == other for one, other in pairwise(line))
    return len(line), plain, repeated


@pytest.mark.parametrize("vectors", [True, False])
@settings(max_examples=300)
@given(text=BYTES, before=st.integers(0, 70))
@example(text=b"", before=0)
@example(text=b"x" * 64 + b" " + b" y", before=0)
@example(text=b" " * 64, before=0)
@example(text=b"  a b\n", before=0)
def test_lines(vectors: bool, text: bytes, before: int) -> None:
    text = b"ab" * (before // 2) + text
    assert _native.testing.scan_line(text, vectors) == scan(text)


@pytest.mark.parametrize("vectors", [True, False])
@settings(max_examples=300)
@given(text=BYTES, wanted=st.sampled_from([b"", b"a", b"<|", b"<|>", b"a\n", b"ab" * 40]))
@example(text=b"-" * 63 + b"<|>", wanted=b"<|>")
@example(text=b"<|", wanted=b"<|>")
def test_separators(vectors: bool, text: bytes, wanted: bytes) -> None:
    expected = text.find(wanted) if wanted else -1
    assert _native.testing.find_bytes(text, wanted, vectors) == expected
