"""Reports of cleaning: what blocks say is added up, and written as metadata have it."""

from __future__ import annotations

from typing import Any

from lowtide.corpus.ranking import ScoreCut
from lowtide.corpus.removals import RULES, Report


def counts_of(**rows: tuple[int, int]) -> list[tuple[int, int]]:
    return [rows.get(rule, (0, 0)) for rule in RULES]


FIRST, SECOND = RULES[0], RULES[3]


def make_report() -> Report:
    report = Report()
    report.add(
        counts_of(**{FIRST: (2, 30)}), [(0, b"one \xff"), (0, "two")], documents_in=5, lines_in=6,
        bytes_in=700, languages={"en": (3, 300), "de": (1, 10)}, unknown_characters=4,
    )  # fmt: skip
    report.add(
        counts_of(**{FIRST: (1, 5), SECOND: (7, 70)}), [(0, "three"), (0, "four"), (3, "other")],
        documents_in=10, lines_in=20, bytes_in=30, languages={"de": (5, 50), "fr": (3, 1)},
    )  # fmt: skip
    return report


def test_blocks_are_added_up() -> None:
    """Three examples of a rule are kept, the first ones."""
    report = make_report()
    assert (report.documents_in, report.lines_in, report.bytes_in) == (15, 26, 730)
    assert report.unknown_characters == 4
    assert report.counts[0] == [3, 35] and report.counts[3] == [7, 70]
    assert report.samples[0] == ["one \ufffd", "two", "three"] and report.samples[3] == ["other"]
    assert report.languages == {"en": [3, 300], "de": [6, 60], "fr": [3, 1]}


def test_a_report_is_the_same_after_a_file() -> None:
    report, again = make_report(), Report()
    again.add_state(report.as_state())
    assert again.as_state() == report.as_state()
    assert again.as_json() == report.as_json()
    again.add_state(report.as_state())
    assert again.counts[0] == [6, 70] and again.documents_in == 30
    assert again.unknown_characters == 8 and again.languages["de"] == [12, 120]
    older: dict[str, Any] = report.as_state()
    del older["unknown_characters"], older["languages"]
    older["counts"] = older["counts"][:2]  # rules are only added
    plain = Report()
    plain.add_state(older)
    assert plain.unknown_characters == 0 and plain.languages == {}
    assert plain.counts[0] == [3, 35] and plain.counts[3] == [0, 0]


def test_metadata_have_what_there_was() -> None:
    """Rules that removed something, languages by their documents, a cut if there is one."""
    report = make_report()
    assert report.as_json() == {
        "documents_in": 15,
        "lines_in": 26,
        "bytes_in": 730,
        "rules": {
            FIRST: {"count": 3, "bytes": 35, "examples": ["one \ufffd", "two", "three"]},
            SECOND: {"count": 7, "bytes": 70, "examples": ["other"]},
        },
        "languages": {
            "de": {"count": 6, "bytes": 60},
            "en": {"count": 3, "bytes": 300},
            "fr": {"count": 3, "bytes": 1},
        },
        "unknown_characters": 4,
    }
    assert list(report.as_json()["languages"]) == ["de", "en", "fr"]
    report.cut = ScoreCut(0x3F000000 << 32, 20, 2)
    assert report.as_json()["score"] == report.cut.as_json()
    assert Report().as_json() == {"documents_in": 0, "lines_in": 0, "bytes_in": 0, "rules": {}}
