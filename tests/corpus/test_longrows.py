"""Rows of any size: the same texts as of short ones, in parts, with a block in memory."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import _native
from lowtide.corpus import longrows, reading
from lowtide.corpus.cutting import cut_text
from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.longrows import has_long_rows, iter_text_parts
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


@pytest.mark.parametrize("size", [14, 15, 16, 23, 24, 25, 31, 32, 33, 47])
def test_a_row_is_long_where_no_line_ends_near_the_end_of_a_block(
    tmp_path: Path, size: int
) -> None:
    """By every place that a single line end, or one beside that of the last block, can have."""
    options = reading.ReadingSettings(block_bytes=10)  # and a window of 5
    path = tmp_path / "a.jsonl"
    for other in (None, 20, 29):
        for place in range(size):
            data = bytearray(b"x" * size)
            for at in (place, other):
                if at is not None and at < size:
                    data[at] = 10
            path.write_bytes(data)
            (source,) = expand_inputs([path])
            nominals = range(10, size - 5, 10)
            expected = any(b"\n" not in data[near - 1 : near + 5] for near in nominals)
            assert has_long_rows(source, options) is expected, (place, other)


def test_line_ends_are_looked_for_close_by_first(tmp_path: Path) -> None:
    """16 KiB, then 64 KiB at a time, and no further than the window."""
    asked: list[tuple[int, int]] = []

    class File(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            asked.append((self.tell(), size or 0))
            return super().read(size)

    kib = 1 << 10
    data = b"x" * (200 * kib)
    assert longrows._has_line_end(File(data), 7, 100 * kib) is False
    assert asked == [(7, 16 * kib), (16 * kib + 7, 64 * kib), (80 * kib + 7, 20 * kib - 7)]
    asked.clear()
    assert longrows._has_line_end(File(data + b"\n"), 150 * kib, 201 * kib) is True
    assert [begin for begin, _ in asked[:2]] == [150 * kib, 166 * kib]
    assert longrows._has_line_end(File(b"xx"), 1, 5) is True  # it became shorter
    assert longrows._has_line_end(File(b"xx"), 5, 5) is False


@given(st.text(st.sampled_from("ab \n\u00e9"), max_size=120), st.integers(2, 40))
@settings(max_examples=150, deadline=None)
def test_a_text_is_cut_as_a_file_of_it_would_be(text: str, block: int) -> None:
    data = text.encode()
    options = reading.ReadingSettings(block_bytes=block)
    window = block // 2
    expected, begin = [], 0
    while len(data) - begin > block + window:
        near = data[begin + block - 1 : begin + block + window]
        cut = cut_text(near, 1, b"", len(near) - 1)
        end = begin + block + window if cut is None else begin + block - 1 + cut[0]
        expected.append(data[begin:end])
        begin = end
    asked: list[int] = []
    source = io.BytesIO(data)

    def read(size: int) -> bytes:
        asked.append(size)
        return source.read(size)

    found = list(iter_text_parts(read, len(data), options))
    assert found == [*expected, data[begin:]]
    assert sum(asked) == len(data) and min(asked) >= 0


class Reader:
    """A stream that gives a few bytes at a time, and counts each as two that are stored."""

    def __init__(self, data: bytes, most: int) -> None:
        self._file, self._most = io.BytesIO(data), most

    def read(self, size: int) -> bytes:
        assert size > 0
        return self._file.read(min(size, self._most))

    def stored_position(self) -> int:
        return 2 * self._file.tell()


@given(
    st.lists(st.integers(0, 120), max_size=12), st.booleans(), st.integers(16, 60),
    st.sampled_from([1, 7, 1000]),
)  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_rows_are_cut_into_blocks_by_hand(
    sizes: list[int], newline: bool, block: int, most: int
) -> None:
    rows = [json.dumps({"text": "a" * size}).encode() for size in sizes]
    data = b"\n".join(rows) + (b"\n" if newline and rows else b"")
    options = reading.ReadingSettings(block_bytes=block)
    window = block // 2
    expected: list[tuple[str, int, bytes, bool, bool]] = []
    base, nominal = 0, block
    while True:
        while nominal <= base:
            nominal += block
        found = data.find(b"\n", nominal - 1, nominal + window)
        if len(data) <= nominal:
            break
        if found >= 0:
            expected.append(("jsonl", base, data[base : found + 1], False, False))
            base = found + 1
            continue
        if len(data) <= nominal + window:
            break
        begin = data.rfind(b"\n", base, nominal) + 1
        if begin > base:
            expected.append(("jsonl", base, data[base:begin], False, False))
            base = begin
        end = data.find(b"\n", base)
        end = len(data) if end < 0 else end
        text = json.loads(data[base:end])["text"].encode()
        parts = list(iter_text_parts(io.BytesIO(text).read, len(text), options))
        last = len(parts) - 1
        expected += [
            ("rows", base, part, at > 0, at < last) for at, part in enumerate(parts)
        ]  # fmt: skip
        base = min(end + 1, len(data))
    if base < len(data):
        expected.append(("jsonl", base, data[base:], False, False))
    source = reading.InputFile(4, Path("a.jsonl"), "jsonl", "gzip", 2 * len(data))
    checked: list[bytes] = []
    reader: Any = Reader(data, most)
    blocks = list(longrows.iter_jsonl_blocks(3, source, options, reader, checked.append))
    assert checked == [data]  # less than a probe
    shown = [
        (one.kind, one.segments[0].offset, one.data, one.continues, one.continued) for one in blocks
    ]
    assert shown == expected
    assert [(one.stream, one.number) for one in blocks] == [(3, at) for at in range(len(blocks))]
    for one in blocks:
        (segment,) = one.segments
        assert (segment.input_index, segment.begin, segment.end) == (4, 0, len(one.data))
        assert one.kind == "jsonl" or (
            one.row_ends is not None and one.row_ends.tolist() == [len(one.data)]
        )
    assert sum(one.stored_bytes for one in blocks) == (2 * len(data) if blocks else 0)


def test_the_first_bytes_are_checked_and_no_more(tmp_path: Path) -> None:
    data = b'{"text": "a"}\n' * 20_000
    checked: list[bytes] = []
    reader: Any = Reader(data, 1 << 20)
    source = reading.InputFile(0, Path("a.jsonl"), "jsonl", "gzip", len(data))
    blocks = longrows.iter_jsonl_blocks(0, source, SMALL, reader, checked.append)
    assert b"".join(block.data for block in blocks) == data
    assert checked == [data[: 64 << 10]]


def test_a_long_row_that_is_none_is_told_with_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "b"}\n' + b"x" * (3 << 20)))
    notices: list[str] = []
    options = reading.ReadingSettings(block_bytes=4096, skip_bad=True, on_notice=notices.append)
    assert texts_of(path, options) == ["b"]
    said = "row at byte 14: 3.0 MiB that are not a JSON object with text in field 'text'"
    assert notices == [f"{path}: {said}; skipped"]
    with pytest.raises(DataError) as caught:
        texts_of(path, SMALL)
    assert (caught.value.message, caught.value.path) == (said, path)
