"""What decides a preparation's result, as its plan has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowtide.dataset.finishing import find_other_setting, plan_settings
from lowtide.dataset.settings import PrepareSettings


@dataclass(frozen=True, kw_only=True)
class _LaterSettings(PrepareSettings):
    """Settings of a later version, with one rule more."""

    max_marks: int = 0


def test_a_setting_that_came_later_changes_no_plan_by_its_default() -> None:
    """Else every dataset would be another one with the next version."""
    given: dict[str, Any] = {"input_files": ("a.txt",), "out_dir": Path("out")}
    plan = plan_settings(PrepareSettings(**given))
    assert plan_settings(_LaterSettings(**given)) == plan
    assert plan_settings(_LaterSettings(**given, max_marks=3)) == {**plan, "max_marks": 3}


def test_a_setting_of_either_plan_alone_is_a_difference() -> None:
    plan = plan_settings(PrepareSettings(input_files=("a.txt",), out_dir=Path("out")))
    assert find_other_setting(plan, {**plan, "rules": "c4"}) == ("--rules", "none", "c4")
    assert find_other_setting({**plan, "rules": "c4"}, plan) == ("--rules", "c4", "none")
    assert find_other_setting({**plan, "memory": "1GiB"}, plan) is None  # decides nothing
    assert find_other_setting(plan, {**plan, "max_marks": 3}) == ("--max-marks", "none", 3)
