"""Rows of jsonl: texts, ends and places, and what is said of every kind of row without text."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.corpus import jsonrows
from lowtide.corpus.jsonrows import extract_json_rows
from lowtide.corpus.textblocks import ReadingSettings, Segment, TextBlock
from lowtide.errors import DataError

PATHS = {3: Path("a.jsonl"), 4: Path("b.jsonl")}


def make_block(*parts: bytes, first_offset: int = 0) -> TextBlock:
    """A block of one segment for each part, from inputs 3, 4 and so on."""
    data = b"".join(parts)
    segments: list[Segment] = []
    begin = 0
    for index, part in enumerate(parts, start=3):
        segments.append(Segment(index, first_offset, begin, begin + len(part)))
        begin += len(part)
    return TextBlock(0, 0, "jsonl", data, tuple(segments))


def explain(line: bytes, **options: object) -> str:
    with pytest.raises(DataError) as caught:
        extract_json_rows(make_block(line + b"\n"), ReadingSettings(**options), PATHS)
    assert str(caught.value.path) == "a.jsonl"
    begin, _, reason = caught.value.message.partition(": ")
    mend = "repair the row" if reason.startswith("not JSON") else "name the field with --text-field"
    assert caught.value.next_step == f"{mend}, or skip such rows with --skip-bad-inputs"
    assert begin == "row at byte 0"
    return reason


def test_texts_of_several_inputs_are_one_after_the_other() -> None:
    rows = [b'{"text": "ab"}\n{"text": "c"}\n', b'{"text": "def"}\n']
    text, ends, offsets, inputs = extract_json_rows(
        make_block(*rows, first_offset=100), ReadingSettings(), PATHS
    )
    assert bytes(text) == b"abcdef"
    assert ends.tolist() == [2, 3, 6]
    assert offsets.tolist() == [100, 115, 100]
    assert inputs.tolist() == [3, 3, 4]


@pytest.mark.parametrize("blank", [b"", b"\n", b" \r\n\n"])
def test_a_byte_order_mark_may_stand_before_blank_lines_or_nothing(blank: bytes) -> None:
    """As exports of an empty table have it; the mark was called a row that is no JSON."""
    mark = b"\xef\xbb\xbf"
    rows = [mark + blank, mark + blank.rstrip(b"\n") + b'{"text": "a"}\n' + blank]
    text, ends, _, inputs = extract_json_rows(make_block(*rows), ReadingSettings(), PATHS)
    assert (bytes(text), ends.tolist(), inputs.tolist()) == (b"a", [1], [4])


def test_null_is_an_empty_document_as_in_parquet() -> None:
    rows = b'{"text": null}\n{"text": "a"}\n{"text":null, "b": 1}\n{"text": "b", "text": null}\n'
    text, ends, offsets, _ = extract_json_rows(make_block(rows), ReadingSettings(), PATHS)
    assert bytes(text) == b"a"
    assert ends.tolist() == [0, 1, 1, 1]
    assert offsets.tolist() == [0, 15, 29, 51]
    with pytest.raises(DataError, match="not JSON"):
        extract_json_rows(make_block(b'{"text": nul}\n'), ReadingSettings(), PATHS)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[1, 2]", "not a JSON object with text in field 'text', but an array"),
        (b'{"text": 5}', "field 'text' is not text, but a number"),
        (b'{"text": [null]}', "field 'text' is not text, but an array"),
        (b'{"text": true}', "field 'text' is not text, but true"),
        (b'{"text": {"a": 1}}', "field 'text' is not text, but an object"),
        (b"1.5", "not a JSON object with text in field 'text', but a number"),
        (b"{}", "not a JSON object with text in field 'text'; its fields: none"),
        (b'{"b": 1}', "not a JSON object with text in field 'text'; its fields: 'b'"),
    ],
)
def test_what_a_row_has_instead_is_said(line: bytes, reason: str) -> None:
    assert explain(line) == reason


@pytest.mark.parametrize(("line", "word"), [(b"{oops", "Expecting"), (b"[" * 100_000, "recursion")])
def test_what_is_no_json_is_called_so(line: bytes, word: str) -> None:
    reason = explain(line)
    assert reason.startswith("not JSON: ") and word in reason


def test_eight_names_of_fields_are_named() -> None:
    names = [f"f{number}" for number in range(9)]
    rows = ["{" + ", ".join(f'"{name}": 1' for name in names[:count]) + "}" for count in (8, 9)]
    listed = ", ".join(map(repr, names[:8]))
    assert explain(rows[0].encode()).endswith(f"its fields: {listed}")
    assert explain(rows[1].encode()).endswith(f"its fields: {listed}, ...")


def test_a_long_row_is_not_taken_apart() -> None:
    fill = jsonrows._LONG_ROW - len(b'{"b": ""}')
    assert explain(b'{"b": "' + b"x" * fill + b'"}').endswith("its fields: 'b'")
    longer = explain(b'{"b": "' + b"x" * (fill + 1) + b'"}')
    assert longer == "256.0 KiB that are not a JSON object with text in field 'text'"


@pytest.mark.parametrize(("count", "more"), [(1, ""), (2, " (and 1 more in the same block)")])
def test_skipped_rows_are_told_once(count: int, more: str) -> None:
    told: list[str] = []
    rows = b'{"text": "a"}\n' + b"5\n" * count
    options = ReadingSettings(skip_bad=True, on_notice=told.append)
    text, ends, _, _ = extract_json_rows(make_block(rows, first_offset=7), options, PATHS)
    assert (bytes(text), ends.tolist()) == (b"a", [1])
    reason = "not a JSON object with text in field 'text', but a number"
    assert told == [f"a.jsonl: row at byte 21: {reason}; skipped{more}"]
