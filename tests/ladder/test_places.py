"""Parts of the states, by their borders; what is in them is tested by the engine as a whole."""

from __future__ import annotations

from lowtide.ladder import places


def test_a_part_is_as_long_as_its_borders_are_apart() -> None:
    assert places._length(slice(0, 7)) == 7
    assert places._length(slice(30, 37)) == 7
