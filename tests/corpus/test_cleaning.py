"""Cleaning and filtering: the native core against plain Python, on text that is meant to hurt."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import _native
from lowtide.corpus import cleaning
from lowtide.corpus.cleaning import clean_block
from lowtide.corpus.reading import ReadingSettings, Segment, TextBlock, block_documents
from lowtide.corpus.removals import RULE_TEXTS, RULES
from lowtide.corpus.settings import CleaningSettings
from lowtide.corpus.usersteps import StepError
from lowtide.errors import DataError, UsageError

sys.path.insert(0, str(Path(__file__).parent))
import oracle

NO_FILTER = CleaningSettings(filter=False)
DOCUMENT_ROW = np.dtype(
    [
        (name, "<u8")
        for name in (
            *("input_index", "ordinal", "begin", "end"),
            *("hash_low", "hash_high", "line_base", "flags"),
        )
    ]
)
NASTY = st.lists(
    st.sampled_from(
        [
            *(
                b"a",
                b"Bc",
                b" ",
                b"  ",
                b"\t",
                b"\n",
                b"\n\n",
                b"\r\n",
                b"\r",
                b"\0",
                b"\x7f",
                b"\x0b",
            ),
            *(b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf"),
            *(text.encode() for text in ("é", "e\u0301", "\u0301", "\u0323\u0307", "\u0307\u0323")),
            *(text.encode() for text in ("\u00a0", "\u3000", "\u2028", "\x85", "\ufeff", "\u200b")),
            *(
                text.encode()
                for text in ("한글", "\u1112\u1161\u11ab", "Å", "\u212b", "漢字", "\U0001f600")
            ),
            b"plain words that make the line longer than one block of thirty-two bytes",
        ]
    ),
    max_size=60,
).map(b"".join)


def clean(
    raw: bytes, options: CleaningSettings = NO_FILTER, *, separator: bytes = b"<|endoftext|>"
) -> tuple[_native.CleanedBlock, list[str]]:
    block = TextBlock(0, 0, "text", raw, (Segment(0, 0, 0, len(raw)),))
    cleaned = clean_block(block, ReadingSettings(separator=separator), options, paths={})
    rows = np.frombuffer(cleaned.documents, DOCUMENT_ROW)
    text = cleaned.text.tobytes()
    return cleaned, [text[row["begin"] : row["end"]].decode() for row in rows]


def counts(cleaned: _native.CleanedBlock) -> dict[str, int]:
    return {rule: count for rule, (count, _) in zip(RULES, cleaned.counts, strict=True) if count}


def test_options_and_rules_are_those_of_the_native_core() -> None:
    ours = set(CleaningSettings.__dataclass_fields__) | {"collect_characters"}
    others = {"rules", "rule_limit", "mask", "languages", "min_language_score", "language_model"}
    others |= {"score", "score_label", "keep_above", "keep_top", "step"}
    assert ours - others == set(_native.CLEANING_OPTIONS) - {"mask_kinds"}
    assert len(set(RULES)) == len(RULES) == len(clean(b"")[0].counts)
    assert all(RULE_TEXTS[rule] for rule in RULES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_line_words": -1}, "--min-line-words -1 is negative"),
        ({"max_repetition": 0.0}, r"--max-repetition 0\.0 must be in \(0, 1\]"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CleaningSettings(**options)


@given(raw=NASTY)
@settings(max_examples=500)
def test_native_cleaning_is_the_oracle(raw: bytes) -> None:
    expected = oracle.clean_document(raw)
    _, documents = clean(raw, separator=b"")
    assert documents == ([expected] if expected.strip() else [])


@given(raw=st.binary(max_size=300))
@settings(max_examples=300)
def test_any_bytes(raw: bytes) -> None:
    expected = oracle.clean_document(raw)
    _, documents = clean(raw, separator=b"")
    assert documents == ([expected] if expected.strip() else [])


@given(text=st.text(max_size=200))
@settings(max_examples=150)
def test_any_text_and_cleaning_twice_changes_nothing(text: str) -> None:
    raw = text.encode("utf-8", "replace")
    expected = oracle.clean_document(raw)
    _, documents = clean(raw, separator=b"")
    assert documents == ([expected] if expected.strip() else [])
    for document in documents:
        assert clean(document.encode(), separator=b"")[1] == [document]


def test_every_code_point() -> None:
    # Planes 4 to 13 are empty, and ideographs are all alike.
    codes = [*range(0xD800), *range(0xE000, 0x20000), *range(0x2F700, 0x30000), 0xE0001, 0x10FFFF]
    for start in range(0, len(codes), 5000):
        raw = "\n".join(f"x{chr(code)}y" for code in codes[start : start + 5000]).encode()
        _, documents = clean(raw, separator=b"")
        assert documents == [oracle.clean_document(raw)]


@given(raw=NASTY)
def test_without_normalizing_only_invalid_bytes_change(raw: bytes) -> None:
    options = dataclasses.replace(NO_FILTER, normalize=False)
    _, documents = clean(raw, options, separator=b"")
    expected = raw.decode("utf-8", "replace")
    assert documents == ([expected] if expected.strip(" \t\r\n") else [])


def test_a_line_of_marks_is_composed_in_time_proportional_to_it() -> None:
    begin = time.process_time()
    _, texts = clean(("e" + "\u0323\u0301" * 150_000).encode())
    assert time.process_time() - begin < 5
    assert texts[0].startswith("\u1eb9\u0323")


def test_lowercase() -> None:
    options = dataclasses.replace(NO_FILTER, lowercase=True)
    _, documents = clean("ÄPFEL und BIRNEN\nİstanbul STRASSE ΣΑΣ".encode(), options)
    assert documents == ["äpfel und birnen\ni\u0307stanbul strasse σας"]


def test_what_was_changed_is_counted() -> None:
    cleaned, _ = clean(b"a\xff\xfeb\0\x01 e\xcc\x81")
    assert counts(cleaned) == {"invalid_utf8": 2, "control_character": 2, "composed_line": 1}


@pytest.mark.parametrize("separator", [b"\n", b"\n\n", b"a\nb", b"\n--\n", b"aa", b""])
@given(
    data=st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b"b", b"--", b" "])).map(b"".join),
    cut=st.integers(0, 20),
)
def test_documents_are_those_of_plain_python(separator: bytes, data: bytes, cut: int) -> None:
    """Also where line ends in a separator are those of Windows, and in several segments."""
    cut = min(cut, len(data))
    segments = (Segment(3, 500, 0, cut), Segment(4, 0, cut, len(data)))
    block = TextBlock(0, 0, "text", data, segments)
    reading = ReadingSettings(separator=separator)
    exact = CleaningSettings(filter=False, normalize=False, dedup=False)
    cleaned = clean_block(block, reading, exact, paths={})
    text, rows = bytes(cleaned.text), np.frombuffer(cleaned.documents, DOCUMENT_ROW)
    found = [(row["input_index"], row["ordinal"], text[row["begin"] : row["end"]]) for row in rows]
    assert found == [
        (document.input_index, document.ordinal, document.text)
        for document in block_documents(block, reading, {})
        if document.text.strip()
    ]


def test_documents_are_separated_and_numbered_by_offset() -> None:
    cleaned, documents = clean(b"one<|endoftext|>\n\n<|endoftext|>two\n")
    assert documents == ["one", "two"]
    assert np.frombuffer(cleaned.documents, DOCUMENT_ROW)["ordinal"].tolist() == [0, 31]
    assert counts(cleaned) == {"document_empty": 1}
    assert cleaned.documents_in == 3


@pytest.mark.parametrize(
    ("options", "rule", "kept"),
    [
        ({"min_line_chars": 4}, "line_too_short", "äöüß five\nlonger line here"),
        ({"max_line_chars": 9}, "line_too_long", "äöüß five\nabc"),
        ({"min_line_words": 2}, "line_few_words", "äöüß five\nlonger line here"),
    ],
)
def test_line_limits(options: dict[str, int], rule: str, kept: str) -> None:
    none = {"min_document_chars": 0, "min_document_words": 0}
    cleaned, documents = clean(
        "äöüß five\nabc\nlonger line here".encode(), CleaningSettings(**none, **options)
    )
    assert documents == [kept]
    assert counts(cleaned) == {rule: 1}
    assert len(cleaned.samples) == 1


@pytest.mark.parametrize(
    ("options", "text", "rule"),
    [
        ({}, "too short", "document_too_short"),
        ({}, "onlyoneword" * 9, "document_few_words"),
        ({"max_document_chars": 50}, "many words " * 9, "document_too_long"),
    ],
)
def test_document_limits(options: dict[str, int], text: str, rule: str) -> None:
    cleaned, documents = clean(text.encode(), CleaningSettings(**options))
    assert documents == []
    assert counts(cleaned) == {rule: 1}
    assert not len(cleaned.hashes), "a removed document's lines must not count as seen"


def test_scripts_without_blanks_have_words() -> None:
    text = "白日依山盡,黃河入海流,欲窮千里目,更上一層樓"
    assert clean(text.encode(), CleaningSettings())[1] == [text]


def repeated_share(line: bytes) -> float:
    """Of one 8-byte piece in 16, chosen by its content, the share that came before; in Python."""
    line = line[:768]
    words = [int.from_bytes(line[at : at + 8], "little") for at in range(len(line) - 7)]
    mixed = [word * 0x9E3779B97F4A7C15 & (1 << 64) - 1 for word in words]
    chosen = [value for value in mixed if value < 1 << 60][:128]
    seen: set[int] = set()
    again = 0
    for value in chosen:
        place = value >> 42 & 4095
        again += place in seen
        seen.add(place)
    return again / len(chosen) if len(chosen) >= 16 else 0.0


@given(st.binary(min_size=1, max_size=90), st.integers(1, 40), st.binary(max_size=500))
def test_repetition_is_measured_alike_with_and_without_vectors(
    phrase: bytes, times: int, rest: bytes
) -> None:
    line = phrase * times + rest
    measured = _native.testing.measure_repetition(line)
    assert measured == _native.testing.measure_repetition(line, vectors=False)
    if len(line) >= 64:
        runs = sum(a == b for a, b in itertools.pairwise(line)) / (len(line) - 1)
        assert measured == max(runs, repeated_share(line) if len(line) >= 384 else 0.0)


@pytest.mark.parametrize(
    "line",
    [
        "=" * 80,
        "- " * 2 + "-" * 70,
        "buy now, while it lasts! " * 40,
        "0" * 5000,
        "spam and eggs " * 80,
    ],
)
def test_repetitive_lines_are_removed(line: str) -> None:
    good = "An ordinary sentence that nobody would want to lose."
    cleaned, documents = clean(f"{good}\n{line}".encode(), CleaningSettings())
    assert documents == [good]
    assert counts(cleaned) == {"line_repetitive": 1}


# Room for clean text is made in parts of a kilobyte, and characters lie across their ends.
@pytest.mark.parametrize("letter", ["b ", "é", "漢", "\U0001f600", "\ufffd"])
def test_carriage_returns_end_lines_of_any_length(letter: str) -> None:
    lines = [letter * count + "é." for count in (1, 250, 255, 256, 341, 512, 1023, 1024, 3000)]
    text = "a" + "\n".join(lines)
    _, expected = clean(text.encode())
    assert expected == [text]
    assert clean(text.replace("\n", "\r").encode())[1] == expected
    assert clean(text.replace("\n", "\u2028").encode())[1] == expected


def test_ordinary_long_lines_are_kept() -> None:
    words = [f"word{number * 7919 % 1000}" for number in range(1000)]
    table = " | ".join(f"{number}" for number in range(400))
    text = " ".join(words) + "\n" + table
    cleaned, documents = clean(text.encode(), CleaningSettings())
    assert documents == [text]
    assert counts(cleaned) == {}


def make_jsonl(rows: list[str]) -> TextBlock:
    raw = "\n".join(rows).encode()
    return TextBlock(0, 0, "jsonl", raw, (Segment(0, 0, 0, len(raw)),))


@given(
    texts=st.lists(st.text(min_size=1, max_size=40), max_size=8),
    ascii_only=st.booleans(),
    extra=st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        ),
        max_leaves=6,
    ),
)
def test_native_json_is_python_json(texts: list[str], ascii_only: bool, extra: object) -> None:
    rows = [
        json.dumps({"more": extra, "text": text, "z": 1}, ensure_ascii=ascii_only) for text in texts
    ]
    data = np.frombuffer("\n".join(rows).encode("utf-8", "surrogatepass"), dtype=np.uint8)
    text, ends, _, bad = _native.extract_jsonl(data, "text")
    assert not len(bad)
    begins = [0, *ends.tolist()][: len(ends)]
    found = [text.tobytes()[begin:end].decode() for begin, end in zip(begins, ends, strict=True)]
    assert found == texts


def json_text(row: str) -> str | None:
    """What Python's json says of a row: its text, or nothing."""
    try:
        value = json.loads(row)
    except (ValueError, RecursionError):
        return None
    text = value.get("text") if isinstance(value, dict) else None
    return text if isinstance(text, str) else None


def native_text(row: str) -> str | None:
    data = np.frombuffer(row.encode(), dtype=np.uint8)
    text, ends, _, _ = _native.extract_jsonl(data, "text")
    return text.tobytes().decode() if len(ends) else None


PIECES = [
    *"{}[],:\"\\-'é\t\x00\x1f\x7f\ufeff\u2028",
    *('"text"', '"text":"a"', "\\u0041", "\\u00", "\\n", "\\x", "//", "/**/"),
    *("0", "1", "-1", "01", "-0", "-01", "1.", ".5", "1.5", "1e5", "1E+5", "1e-", "+1", "0x1"),
    *("true", "True", "tru", "truefalse", "null", "nul", "false"),
    *("NaN", "-NaN", "nan", "Infinity", "-Infinity", "+Infinity"),
]


@given(
    before=st.lists(st.sampled_from(PIECES), max_size=7),
    wrap=st.sampled_from(["%s", '{"text":"a","b":%s}', '{"b":[%s],"text":"a"}', '{"text":"%s"}']),
)
def test_native_json_accepts_what_python_accepts(before: list[str], wrap: str) -> None:
    row = wrap % "".join(before)
    if not row.startswith("\ufeff"):  # ours overlooks a mark at the start of a row
        assert native_text(row) == json_text(row)


def test_json_marks_and_depth() -> None:
    assert native_text('\ufeff{"text": "a"}') == "a"
    deep = "[" * 100_000
    assert native_text(f'{{"b": {deep}{"]" * 100_000}, "text": "a"}}') == "a"
    assert native_text(f'{{"b": {deep}, "text": "a"}}') is None


@pytest.mark.parametrize(
    "row",
    [
        "{",
        "[1]",
        '{"text": 5}',
        '{"text": "a"',
        '{"text": "\\x"}',
        '{"text": "a"} x',
        '"text"',
        "{}",
        '{"text": "a", "n": 01}',
        '{"text": "a\tb"}',
    ],
)
def test_rows_without_text_are_named(row: str) -> None:
    block = make_jsonl(['{"text": "some good text in the first row"}', row])
    with pytest.raises(DataError, match="row at byte 44") as caught:
        clean_block(block, ReadingSettings(), NO_FILTER, paths={0: Path("x.jsonl")})
    assert "x.jsonl" in str(caught.value)
    notices: list[str] = []
    options = ReadingSettings(skip_bad=True, on_notice=notices.append)
    cleaned = clean_block(block, options, NO_FILTER, paths={0: Path("x.jsonl")})
    assert len(np.frombuffer(cleaned.documents, DOCUMENT_ROW)) == 1 and len(notices) == 1


def test_half_a_surrogate_pair_is_replaced() -> None:
    block = make_jsonl(['{"text": "\\ud83d\\ude00 \\ud83d! \\ude00"}'])
    cleaned = clean_block(block, ReadingSettings(), NO_FILTER, paths={})
    assert cleaned.text.tobytes().decode() == "\U0001f600 \ufffd! \ufffd"


def take_step(
    monkeypatch: pytest.MonkeyPatch, texts: list[bytes], make: Any, **options: Any
) -> tuple[Any, list[bytes]]:
    """A block of documents after a step that is `make`, and what the step was given."""
    given: list[bytes] = []

    def apply(step: str, parts: list[memoryview]) -> Any:
        assert step == "rules.py:keep"
        given.extend(map(bytes, parts))
        return (part if (made := make(bytes(part))) == bytes(part) else made for part in parts)

    monkeypatch.setattr(cleaning, "apply_step", apply)
    data = b"\0".join(texts)
    flags = {name: options.pop(name) for name in ("continues", "continued") if name in options}
    collect = {name: options.pop(name) for name in ("collect_characters",) if name in options}
    block = TextBlock(0, 0, "text", data, (Segment(3, 500, 0, len(data)),), **flags)
    chosen = CleaningSettings(filter=False, **options)
    object.__setattr__(chosen, "step", "rules.py:keep")
    found = clean_block(block, ReadingSettings(separator=b"\0"), chosen, paths={3: Path("a.txt")},
                        **collect)  # type: ignore[arg-type]  # fmt: skip
    return found, given


def change_some(text: bytes) -> bytes | None:
    return None if b"drop" in text else text.replace(b"change", b"altered it")


def counts_of(found: Any) -> dict[str, tuple[int, int]]:
    return {rule: row for rule, row in zip(RULES, found.counts, strict=True) if any(row)}


def test_what_a_step_makes_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [b"stays as it is", b"drop this one", b"change this one", b"drop " * 60, b"last of all"]
    found, given = take_step(monkeypatch, texts, change_some)
    cleaned = [text.rstrip() for text in texts]
    assert given == cleaned
    rows = np.frombuffer(found.documents, DOCUMENT_ROW)
    kept = [bytes(found.text[row["begin"] : row["end"]]) for row in rows]
    assert kept == [b"stays as it is", b"altered it this one", b"last of all"]
    assert rows["input_index"].tolist() == [3, 3, 3]
    places = [500 + sum(len(one) + 1 for one in texts[:number]) for number in (0, 2, 4)]
    assert rows["ordinal"].tolist() == places
    assert rows["flags"].tolist() == [cleaning.FIRST | cleaning.LAST] * 3
    counts = counts_of(found)
    assert counts.pop("document_step") == (2, len(cleaned[1]) + len(cleaned[3]))
    assert counts.pop("step_changed") == (1, len(cleaned[2]))
    samples = {(RULES[rule], bytes(text)) for rule, text in found.samples}
    assert ("document_step", cleaned[1]) in samples
    assert ("document_step", cleaned[3][:160]) in samples
    assert ("step_changed", cleaned[2]) in samples
    assert (found.documents_in, found.lines_in) == (5, 5)
    assert found.bytes_in == sum(map(len, texts))


def test_parts_of_documents_are_not_given_to_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [b"drop the end of one", b"drop this one", b"stays", b"drop the beginning of one"]
    found, given = take_step(monkeypatch, texts, change_some, continues=True, continued=True)
    assert given == texts[1:3]
    rows = np.frombuffer(found.documents, DOCUMENT_ROW)
    kept = [bytes(found.text[row["begin"] : row["end"]]) for row in rows]
    assert kept == [texts[0], texts[2], texts[3]]
    assert rows["flags"].tolist() == [cleaning.LAST, cleaning.FIRST | cleaning.LAST, cleaning.FIRST]
    counts = counts_of(found)
    assert counts["rules_unjudged"] == (2, len(texts[0]) + len(texts[3]))
    assert counts["document_step"] == (1, len(texts[1]))


def test_a_document_that_a_step_fails_on_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(step: str, parts: list[memoryview]) -> Any:
        yield parts[0]
        error = StepError("--step failed: no")
        error.document = 1
        raise error

    texts = [b"the end of one", b"stays", b"fails", b"last"]
    monkeypatch.setattr(cleaning, "apply_step", fail)
    data = b"\0".join(texts)
    block = TextBlock(0, 0, "text", data, (Segment(3, 500, 0, len(data)),), continues=True)
    chosen = CleaningSettings(filter=False)
    object.__setattr__(chosen, "step", "rules.py:keep")
    with pytest.raises(StepError) as caught:
        clean_block(block, ReadingSettings(separator=b"\0"), chosen, paths={3: Path("a.txt")})  # type: ignore[arg-type]
    place = 500 + data.index(b"fails")
    assert caught.value.message == (
        f"--step failed: no, on the document at {place} (byte or row) of this file"
    )
    assert caught.value.path == Path("a.txt")


def test_what_a_step_made_is_cleaned_and_hashed_as_other_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the options of the block, but for rules of quality, which have judged it."""
    made = "e\u0301cole A  \nsame line of words\nsame line of words".encode()
    found, _ = take_step(
        monkeypatch, [b"change"], lambda _: made, lowercase=True, collect_characters=True
    )
    whole = "\u00e9cole a\nsame line of words\nsame line of words"
    assert bytes(found.text).decode() == whole
    bits = int.from_bytes(found.characters, "little")
    assert {chr(at) for at in range(bits.bit_length()) if bits >> at & 1} == set(whole)
    data = whole.encode()
    block = TextBlock(0, 0, "text", data, (Segment(3, 500, 0, len(data)),))
    plain = clean_block(block, ReadingSettings(), CleaningSettings(filter=False), paths={})
    assert bytes(found.hashes) == bytes(plain.hashes) and len(plain.hashes) > 0
    for name, value in (("dedup", False), ("min_dedup_chars", 1000), ("normalize", False)):
        other, _ = take_step(monkeypatch, [b"change"], lambda _: made, **{name: value})
        assert (bytes(other.hashes) == bytes(plain.hashes)) is False


def test_what_the_second_pass_changes_is_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the text that the step made, beside what was changed before it."""
    plain, _ = take_step(monkeypatch, [b"with\x01 a control"], lambda text: text)
    once = counts_of(plain)
    assert sum(count for count, _ in once.values()) == 1
    (rule,) = once
    both, _ = take_step(monkeypatch, [b"with\x01 a control", b"x"], lambda text: b"new\x02 one")
    counts = counts_of(both)
    assert counts.pop("step_changed") == (2, len(b"with a control") + 1)
    assert counts[rule][0] == 3  # one before the step, one of each text that it made


@pytest.mark.parametrize("continues", [False, True])
@pytest.mark.parametrize("continued", [False, True])
def test_rows_are_documents_with_the_numbers_of_their_rows(
    continues: bool, continued: bool
) -> None:
    texts = [b"first row", b"second", b"third row of them"]
    ends = np.cumsum([len(text) for text in texts]).astype(np.uint64)
    block = TextBlock(
        0, 0, "rows", b"".join(texts), (Segment(3, 70, 0, int(ends[-1])),), row_ends=ends,
        continues=continues, continued=continued,
    )  # fmt: skip
    found = clean_block(block, ReadingSettings(), CleaningSettings(filter=False), paths={})
    rows = np.frombuffer(found.documents, DOCUMENT_ROW)
    assert [bytes(found.text[row["begin"] : row["end"]]) for row in rows] == texts
    assert rows["input_index"].tolist() == [3, 3, 3]
    assert rows["ordinal"].tolist() == [70, 71, 72]
    flags = [3, 3, 3]
    flags[0] -= cleaning.FIRST if continues else 0
    flags[2] -= cleaning.LAST if continued else 0
    assert rows["flags"].tolist() == flags
    empty = np.array([], np.uint64)
    nothing = TextBlock(0, 0, "rows", b"", (Segment(3, 0, 0, 0),), row_ends=empty)
    found = clean_block(nothing, ReadingSettings(), CleaningSettings(filter=False), paths={})
    assert len(found.documents) == 0


# Marks above and below, two that form one sign, jamo, a composition that is excluded, and a letter
# that is a composition itself.
_MARKED = st.lists(
    st.sampled_from("ea\u0301\u0323\u0308\u1100\u1161\u11a8\u0958\u212b\u01d5\u0915\u093c \u00e9x"),
    max_size=12,
).map("".join)


@given(lines=st.lists(_MARKED, max_size=6))
@settings(max_examples=150, deadline=None)
def test_parts_of_lines_are_composed_as_whole_lines_are(lines: list[str]) -> None:
    """With one set of options for all, so that parts are remembered from line to line."""
    kept = cleaning.native_options(NO_FILTER)
    for text in ("\n".join(lines), "".join(lines)):
        data = text.encode()
        block = TextBlock(0, 0, "text", data, (Segment(0, 0, 0, len(data)),))
        cleaned = clean_block(block, ReadingSettings(), NO_FILTER, paths={}, native=kept)
        again = clean_block(block, ReadingSettings(), NO_FILTER, paths={})
        wanted = [unicodedata.normalize("NFC", line).rstrip(" ") for line in text.split("\n")]
        assert bytes(cleaned.text).decode().split() == " ".join(wanted).split()
        assert bytes(cleaned.text) == bytes(again.text) and cleaned.counts == again.counts


def test_a_part_is_asked_for_once() -> None:
    asked: list[bytes] = []

    def compose(part: bytes) -> bytes:
        asked.append(part)
        return unicodedata.normalize("NFC", part.decode()).encode()

    data = "one e\u0301 and e\u0301, a\u0323 too\nand e\u0301 again".encode()
    options = cleaning.native_options(NO_FILTER)
    for _ in range(2):
        found = _native.clean_text(data, [], [(0, 0, 0, len(data))], False, False, options, compose)
        assert bytes(found.text).decode() == "one \u00e9 and \u00e9, \u1ea1 too\nand \u00e9 again"
    assert [part.decode() for part in asked] == ["e\u0301", "a\u0323"]


def test_threads_that_compose_count_no_references() -> None:
    """They do not hold the interpreter: two that count at once lose a reference, or make one up."""

    def compose(part: bytes) -> bytes:
        return unicodedata.normalize("NFC", part.decode()).encode()

    lines = (f"word e\u0301 a\u0323 {chr(97 + number % 26)}\u0301" for number in range(4000))
    data = "\n".join(lines).encode()
    options = cleaning.native_options(NO_FILTER)
    before = sys.getrefcount(compose)

    def clean() -> int:
        segments = [(0, 0, 0, len(data))]
        return _native.clean_text(data, [], segments, False, False, options, compose).lines_in

    with ThreadPoolExecutor(4) as pool:
        assert {task.result() for task in [pool.submit(clean) for _ in range(8)]} == {4000}
    assert sys.getrefcount(compose) == before
