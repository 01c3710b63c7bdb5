"""Words of a plan that its whole texts do not show."""

from __future__ import annotations

import pytest

from lowtide.planning import summary


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "1 minute"),
        (89, "1 minute"),
        (91, "2 minutes"),
        (5399, "90 minutes"),
        (5400, "1.5 hours"),
        (172_799, "48.0 hours"),
        (172_800, "2.0 days"),
    ],
)
def test_times_are_in_the_unit_people_think_of(seconds: float, words: str) -> None:
    assert summary._duration(seconds) == words
