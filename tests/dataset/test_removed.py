"""The text and lines of a block that several finders remove."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.dataset.removed import RemovedText, leave_out_with, list_finders


def finder(name: str, marks: dict[int, list[int]] | None = None) -> Any:
    rows = marks or {}
    return SimpleNamespace(
        marks=lambda block: np.array(rows.get(block, []), "<u4").tobytes(),
        leave_out=lambda block, hashes: memoryview(bytes(hashes) + f" {name}{block}".encode()),
    )


def test_only_finders_that_were_used_count() -> None:
    one = finder("a")
    assert list_finders(None, one, None) == [one]
    assert list_finders(None) == []


@pytest.mark.parametrize("first", [0, 5])
def test_marks_and_lines_are_sorted_together(first: int) -> None:
    lines: Any = SimpleNamespace(
        load=lambda block: memoryview(np.array([3, 9] if block == 1 else [], "<u4").tobytes())
    )
    finders = [finder("a", {first + 1: [7, 1 << 31]}), finder("b", {first + 1: [5], first: [4]})]
    removed = RemovedText(lines, finders, first_block=first)
    blocks = [np.frombuffer(removed.load(block), "<u4").tolist() for block in range(3)]
    assert blocks == [[4], [3, 5, 7, 9, 1 << 31], []]
    alone = RemovedText(None, finders, first_block=first)
    assert np.frombuffer(alone.load(1), "<u4").tolist() == [5, 7, 1 << 31]
    assert bytes(alone.load(2)) == b""


def test_hashes_of_earlier_blocks_stay() -> None:
    assert leave_out_with([]) is None
    leave_out = leave_out_with([finder("a"), finder("b")], first_block=2)
    assert leave_out is not None
    found = [bytes(leave_out(block, memoryview(b"h"))) for block in range(4)]
    assert found == [b"h", b"h", b"h a0 b0", b"h a1 b1"]
    every = leave_out_with([finder("a")])
    assert every is not None and bytes(every(0, memoryview(b"h"))) == b"h a0"
