"""Words of a plan that its whole texts do not show."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide import modelverbs, packages
from lowtide.errors import BudgetError
from lowtide.planning import make_plan, summary
from lowtide.planning.settings import PlanSettings
from lowtide.planning.summary import describe_plan, plan_error


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


@pytest.mark.parametrize(
    ("given", "told", "step"),
    [
        ({"ram": "8GiB", "disk": "100GiB"}, None, None),
        ({"ram": "600MiB", "size": "100M"}, None, None),  # with changes, which are in its commands
        (
            {"ram": "8GiB", "disk": "1GiB", "size": "30M"},
            r"does not fit: prepare needs [\d.]+ GiB of disk, 1.0 GiB are free",
            r"free [\d.]+ GiB of disk",
        ),
        ({"ram": "330MiB"}, "does not fit: training needs .* of memory", "a smaller model"),
    ],
)  # fmt: skip
def test_a_plan_that_does_not_fit_ends_in_an_error(
    given: dict[str, Any], told: str | None, step: str | None
) -> None:
    plan = make_plan(**given, measure=False)
    error = plan_error(plan)
    assert (error is None) == plan.fits == (told is None)
    shown = modelverbs.run_plan(PlanSettings(**given, measure=False))
    assert "".join(shown.parts) == describe_plan(plan)
    if error is not None and told is not None and step is not None:
        assert re.match(told, error.message) and re.match(f".*{step}", error.next_step or "")
        assert isinstance(shown.error, BudgetError) and shown.error.message == error.message
    else:
        assert shown.error is None
