"""Facts of several commands on one dataset are added up."""

from __future__ import annotations

from lowtide.reporting.datasetfacts import merge_reports


def test_what_several_commands_removed_is_added_up() -> None:
    rule = {"count": 2, "bytes": 10, "examples": ["x"]}
    languages = {"en": {"count": 3, "bytes": 30}}
    one = {"documents_in": 1, "bytes_in": 100, "rules": {"short": rule}, "languages": languages}
    total = merge_reports([one, one, {"rules": {}}])
    assert total["rules"] == {"short": {"count": 4, "bytes": 20, "examples": ["x"]}}
    assert total["languages"] == {"en": {"count": 6, "bytes": 60}}
    assert (total["documents_in"], total["bytes_in"]) == (2, 200)
