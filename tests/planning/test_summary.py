"""Words of a plan that its whole texts do not show."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide import packages
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


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize(("installed", "words"), [
    (True, "interpreter and {}, as measured here, on the host"),
    (False, "interpreter and {} for CPUs, as they usually are: none is installed here"),
])  # fmt: skip
def test_what_a_program_takes_is_measured_or_usual(
    monkeypatch: pytest.MonkeyPatch, installed: bool, words: str, backend: str
) -> None:
    monkeypatch.setattr(packages, "has_package", lambda name: installed)
    assert summary._describe_program(backend) == words.format(backend)


def test_the_time_is_measured_or_it_is_said_why_not() -> None:
    unknown = SimpleNamespace(seconds=None, tokens_per_second=None)
    known = SimpleNamespace(seconds=7200.0, tokens_per_second=1500.0)

    def words(**changes: Any) -> str:
        parts: Any = {"compute": unknown, "trial": None, "speed": None, **changes}
        return summary._describe_time(SimpleNamespace(**parts))  # pyright: ignore

    failed = SimpleNamespace(problem="no step ended in 90 seconds")
    assert words(compute=known, trial=failed) == (
        f"1.5k tokens/s measured here: about {summary._duration(7200.0)}"
    )
    assert words(trial=failed) == "time not known: no step ended in 90 seconds"
    assert words(speed=object()) == "time not measured; estimated:"
