"""Rows of any size: the same texts as of short ones, in parts, with a block in memory."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import _native
from lowtide.corpus import reading
from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.longrows import has_long_rows
from lowtide.errors import DataError

SMALL = reading.ReadingSettings(block_bytes=4096)
WORDS = 'some words of a text, é ü 中文 \U0001f600 "quoted" back\\slash\ttab\n'


def texts_of(path: Path, options: reading.ReadingSettings) -> list[str]:
    """The documents of a file, their parts put together."""
    found: list[str] = []
    held = b""
    for document in reading.iter_documents([path], options):
        assert document.is_first == (not held)
        held += document.text
        if document.is_last:
            found.append(held.decode())
            held = b""
    assert not held
    return found


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_long_rows_among_short_ones(tmp_path: Path, suffix: str, ensure_ascii: bool) -> None:
    source = random.Random(1)
    texts = [WORDS * source.choice([1, 2, 30, 400, 3000]) for _ in range(30)]
    rows = [
        json.dumps(
            {"text": "an earlier one", "other": ["x" * (len(text) // 3), {"a": [1.5e3, None]}]}
            | {"id": number, "text": text},
            ensure_ascii=ensure_ascii,
        )
        for number, text in enumerate(texts)
    ]
    data = ("\n".join(rows) + ("\n" if ensure_ascii else "")).encode()
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    assert texts_of(path, SMALL) == texts
    (stream,) = reading.plan_streams(expand_inputs([path]), SMALL)
    blocks = [block for block in reading.iter_blocks(stream, SMALL) if block is not None]
    assert max(len(block.data) for block in blocks) <= SMALL.block_bytes + SMALL.window_bytes
    assert sum(block.stored_bytes for block in blocks) == path.stat().st_size
    assert [block.number for block in blocks] == list(range(len(blocks)))


@given(st.lists(st.integers(0, 300), max_size=30), st.booleans(), st.integers(16, 80))
@settings(max_examples=60, deadline=None)
def test_blocks_are_the_same_in_place_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], newline: bool, block: int
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    rows = [json.dumps({"text": "a" * size}).encode() for size in sizes]
    data = b"\n".join(rows) + (b"\n" if newline else b"")
    (folder / "a.jsonl").write_bytes(data)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(data))
    options = reading.ReadingSettings(block_bytes=block)
    found = []
    for name in ("a.jsonl", "a.jsonl.gz"):
        (source,) = expand_inputs([folder / name])
        stream = reading.Stream(0, (source,), False, None)
        if name == "a.jsonl" and not has_long_rows(source, options):
            stream = reading.Stream(0, (source,), True, -(-len(data) // block))
        blocks = [part for part in reading.iter_blocks(stream, options) if part is not None]
        found.append([(part.kind, part.data, part.continues, part.continued) for part in blocks])
        assert [len(text) for text in texts_of(folder / name, options)] == [
            size for size in sizes if size
        ]
    assert found[0] == found[1]


def test_an_empty_line_behind_a_long_row_at_a_border_is_rows_again(tmp_path: Path) -> None:
    options = reading.ReadingSettings(block_bytes=64)
    long_row = b'{"text": "%s"}\n' % (b"a" * (64 * 40 - 1 - 13))
    assert len(long_row) == 64 * 40 - 1
    short = b'{"text": "b"}\n'
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(long_row + b"\n" + 60 * short))
    (source,) = expand_inputs([path])
    stream = reading.Stream(0, (source,), False, 0)
    blocks = [part for part in reading.iter_blocks(stream, options) if part is not None]
    kinds = [part.kind for part in blocks]
    rows = kinds.index("jsonl")
    assert set(kinds[:rows]) == {"rows"} and set(kinds[rows:]) == {"jsonl"}
    assert blocks[rows].data == b"\n"


@pytest.mark.parametrize(
    "row",
    [
        '{"text": "x%s", "text": 5}',
        '{"body": "x%s"}',
        '{"text": "x%s"',
        '{"text": "x%s"} more',
        '["x%s"]',
        '{"%s": 1}',
        '{"a": ' + "[" * 2_000_000 + ', "x": "%s"}',
    ],
)
def test_a_bad_long_row_is_named_or_skipped(tmp_path: Path, row: str) -> None:
    good = '{"text": "a good one"}\n'
    path = tmp_path / "a.jsonl"
    path.write_text(good + row % ("y" * 300_000) + "\n" + good)
    with pytest.raises(DataError, match=f"row at byte {len(good)}: .* that are not a JSON object"):
        texts_of(path, SMALL)
    notices: list[str] = []
    options = reading.ReadingSettings(block_bytes=4096, skip_bad=True, on_notice=notices.append)
    assert texts_of(path, options) == ["a good one", "a good one"]
    assert len(notices) == 1


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
            max_leaves=8,
        ),
        max_size=4,
    ),
    st.text(max_size=50),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_a_row_in_a_file_reads_as_one_in_memory(
    tmp_path_factory: pytest.TempPathFactory, row: dict[str, object], text: str, ascii_only: bool
) -> None:
    folder = tmp_path_factory.mktemp("row")
    data = json.dumps(row | {"text": text}, ensure_ascii=ascii_only).encode("utf-8", "replace")
    rows = _native.extract_jsonl(data, "text")
    with (folder / "row").open("w+b") as file, (folder / "text").open("w+b") as out:
        file.write(data)
        file.flush()
        count = _native.extract_long_row(file.fileno(), "text", out.fileno())
        assert out.read()[:count] == rows[0].tobytes()
        assert count == len(rows[0])


def test_a_file_that_cannot_be_read_is_reported_by_who_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n" * 9000)
    (source,) = expand_inputs([path])
    path.unlink()
    assert has_long_rows(source, SMALL) is False
