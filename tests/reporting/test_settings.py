"""Settings of reports: defaults and limits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from lowtide.errors import UsageError
from lowtide.reporting.settings import ReportSettings

REPORT = {
    "sample": (),
    "text_field": "text",
    "watch": False,
    "port": 0,
    "interval": 2.0,
    "checkpoints_dir": Path("checkpoints"),
}


def test_defaults_are_those_of_the_help() -> None:
    fields = dataclasses.fields(ReportSettings)
    given = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    assert {name: value for name, value in given.items() if value is not None} == REPORT


@pytest.mark.parametrize(
    ("options", "fine"),
    [
        ({"port": 0}, True),
        ({"port": 65535, "watch": True}, True),
        ({"port": 65535}, False),  # nothing is served
        ({"interval": 9.0}, False),
        ({"text_field": "body", "sample": ("a.jsonl",)}, True),
        ({"text_field": "body"}, False),
        ({"port": -1}, False),
        ({"port": 65536}, False),
        ({"interval": 0.1, "watch": True}, True),
        ({"interval": 0.09}, False),
        ({"watch": True}, True),
        ({"out": Path("r.html")}, True),
        ({"watch": True, "out": Path("r.html")}, False),
    ],
)
def test_limits_are_where_they_are_said_to_be(options: dict[str, Any], fine: bool) -> None:
    if fine:
        ReportSettings(target="run", **options)
        return
    with pytest.raises(UsageError, match=f"^{list(options)[-1]} is "):
        ReportSettings(target="run", **options)
