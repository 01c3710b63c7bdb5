"""Reading: every byte of every input comes once, in order, whatever it is stored in."""

from __future__ import annotations

import bz2
import dataclasses
import errno
import gzip
import json
import lzma
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lowtide.corpus import reading
from lowtide.corpus.decompression import open_stream
from lowtide.corpus.inputs import expand_inputs
from lowtide.errors import DataError, LowtideError, UsageError

SMALL = reading.ReadingSettings(block_bytes=64)
SEPARATOR = b"<|endoftext|>"


def blocks_of(path: Path, options: reading.ReadingSettings) -> list[reading.TextBlock]:
    streams = reading.plan_streams(expand_inputs([path]), options)
    return [
        block
        for stream in streams
        for block in reading.iter_blocks(stream, options)
        if block is not None
    ]


def compress(data: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.compress(data)
    if suffix == ".xz":
        return lzma.compress(data, preset=0)
    if suffix == ".bz2":
        return bz2.compress(data)
    return zstandard.ZstdCompressor().compress(data)


def test_documents_of_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one<|endoftext|>\ntwo<|endoftext|><|endoftext|>three")
    documents = list(reading.iter_documents([path]))
    assert [document.text for document in documents] == [b"one", b"\ntwo", b"three"]
    assert [document.ordinal for document in documents] == [0, 16, 46]


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst", ".bz2"])
@given(
    words=st.lists(
        st.sampled_from([b"word", b" ", b"\n", SEPARATOR, "äß→".encode(), b"<|end", b"oftext|>"]),
        max_size=200,
    )
)
def test_blocks_are_the_same_plain_and_compressed(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, words: list[bytes]
) -> None:
    text = b"".join(words)
    folder = tmp_path_factory.mktemp("blocks")
    plain = folder / "a.txt"
    plain.write_bytes(text)
    stored = folder / f"b.txt{suffix}"
    stored.write_bytes(compress(text, suffix) if suffix else text)
    expected = blocks_of(plain, SMALL)
    found = blocks_of(stored, SMALL)
    assert b"".join(block.data for block in expected) == text
    assert [(b.data, b.continues, b.continued) for b in found if b.data] == [
        (b.data, b.continues, b.continued) for b in expected if b.data
    ]
    for block in expected:
        block.data.decode()  # never cut inside a character
        assert len(block.data) <= 3 * SMALL.block_bytes


def test_parts_of_a_large_document_join_up(tmp_path: Path) -> None:
    text = "\n".join(f"line {number} of a long document" for number in range(100)).encode()
    path = tmp_path / "a.txt"
    path.write_bytes(text + SEPARATOR + b"short")
    documents = list(reading.iter_documents([path], SMALL))
    large = [document for document in documents if document.text != b"short"]
    assert b"".join(document.text for document in large) == text
    assert [document.is_first for document in large] == [True] + [False] * (len(large) - 1)
    assert [document.is_last for document in large] == [False] * (len(large) - 1) + [True]
    assert documents[-1].text == b"short" and documents[-1].is_first and documents[-1].is_last


def test_small_files_share_a_block(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text(f"file {number}")
    (block,) = blocks_of(tmp_path, reading.ReadingSettings())
    assert len(block.segments) == 5
    texts = [document.text for document in reading.iter_documents([tmp_path])]
    assert texts == [f"file {number}".encode() for number in range(5)]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("block_bytes", [48, 1 << 20])
def test_jsonl(tmp_path: Path, suffix: str, block_bytes: int) -> None:
    texts = ["first", "second\nline", "ünïcode \U0001f600", "x" * 300, "last"]
    data = "\n".join(json.dumps({"id": 1, "text": text}) for text in texts).encode() + b"\n\n"
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(compress(data, suffix) if suffix else data)
    options = reading.ReadingSettings(block_bytes=block_bytes)
    found: dict[int, bytes] = {}  # a row that no block holds comes in parts
    for document in reading.iter_documents([path], options):
        assert document.is_first == (document.ordinal not in found)
        found[document.ordinal] = found.get(document.ordinal, b"") + document.text
    assert [text.decode() for text in found.values()] == texts


def test_jsonl_without_the_field(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n{"body": "bad"}\nnot json\n{"text": "good too"}\n')
    with pytest.raises(
        DataError,
        match="row at byte 17: not a JSON object with text in field 'text'; its fields: 'body'",
    ):
        list(reading.iter_documents([path]))
    notices: list[str] = []
    options = reading.ReadingSettings(skip_bad=True, on_notice=notices.append)
    assert [d.text for d in reading.iter_documents([path], options)] == [b"good", b"good too"]
    assert len(notices) == 1
    assert "1 more in the same block" in notices[0]
    path.write_text('{"text": "good"}\nnot json\n')
    with pytest.raises(DataError, match="row at byte 17: not JSON: Expecting value"):
        list(reading.iter_documents([path]))


def test_parquet(tmp_path: Path) -> None:
    texts = ["first", None, "second " * 100, "third"]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts, "id": [1, 2, 3, 4]}), path)
    documents = list(reading.iter_documents([path], SMALL))
    joined = [
        b"".join(d.text for d in documents if d.ordinal == row).decode()
        for row in sorted({d.ordinal for d in documents})
    ]
    assert joined == [text for text in texts if text]
    assert sorted({d.ordinal for d in documents}) == [0, 2, 3]
    with pytest.raises(DataError, match="no column 'body'; there are text, id"):
        list(reading.iter_documents([path], reading.ReadingSettings(text_field="body")))
    with pytest.raises(DataError, match="column 'id' holds int64, expected text") as wrong:
        list(reading.iter_documents([path], reading.ReadingSettings(text_field="id")))
    assert "the columns are text, id" in wrong.value.message
    assert wrong.value.next_step == "name the column of text with --text-field"
    for kind in (pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()):
        pq.write_table(pa.table({"text": pa.array(["eins", None, "zwei"], kind)}), path)
        assert [document.text for document in reading.iter_documents([path])] == [b"eins", b"zwei"]
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match="not a parquet file"):
        list(reading.iter_documents([path]))


@pytest.mark.parametrize(
    "table",
    [
        pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["a.b", "a.b"]),
        pa.table({"a": [{"b": "a field"}], "a.b": ["a column"]}),
    ],
)
def test_two_parquet_columns_of_one_name_are_refused(tmp_path: Path, table: Any) -> None:
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"2 columns are called 'a\.b'\n"):
        list(
            reading.iter_documents(
                [tmp_path / "a.parquet"], reading.ReadingSettings(text_field="a.b")
            )
        )


def test_a_parquet_column_whose_name_has_dots_is_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a.b": ["other"], "a": ["this"]}), tmp_path / "a.parquet")
    for name, text in (("a", b"this"), ("a.b", b"other")):
        options = reading.ReadingSettings(text_field=name)
        assert [d.text for d in reading.iter_documents([tmp_path / "a.parquet"], options)] == [text]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_cut_off_file_is_named_or_kept_as_far_as_it_goes(tmp_path: Path, suffix: str) -> None:
    text = b"".join(b"document %d<|endoftext|>" % number for number in range(20000))
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(compress(text, suffix)[:-40])
    with pytest.raises(DataError, match="damaged or cut-off") as caught:
        list(reading.iter_documents([path], SMALL))
    assert path.name in str(caught.value)
    notices: list[str] = []
    options = reading.ReadingSettings(block_bytes=4096, skip_bad=True, on_notice=notices.append)
    texts = [document.text for document in reading.iter_documents([path], options)]
    assert texts[:-1] == [b"document %d" % number for number in range(len(texts) - 1)]
    assert len(notices) == 1
    # Also what the last, unfinished block had.
    options = dataclasses.replace(options, block_bytes=1 << 20)
    assert [document.text for document in reading.iter_documents([path], options)] == texts
    assert len(texts) > 10_000


def test_zstd_of_all_kinds(tmp_path: Path) -> None:
    text = b"".join(b"document %d<|endoftext|>" % number for number in range(9000))
    frame = zstandard.ZstdCompressor(level=19, write_checksum=True).compress(text)
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    frame += stream.compress(text) + stream.flush()
    skipped = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"12345"
    path = tmp_path / "a.txt.zst"
    path.write_bytes(skipped + frame + skipped + zstandard.compress(b"") + zstandard.compress(text))
    assert b"".join(block.data for block in blocks_of(path, SMALL)) == 3 * text
    for cut in (1, 3, 5, 8, 13, len(frame) - 1):
        path.write_bytes(frame[:cut])
        with pytest.raises(DataError, match="damaged or cut-off zstd"):
            blocks_of(path, SMALL)


def test_a_few_bytes_of_zstd_are_never_many_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstandard.compress(b"the same words again\n" * 1_000_000))
    (source,) = expand_inputs([path])
    with open_stream(source) as stream:
        sizes = [len(part) for part in iter(lambda: stream.read(1000), b"")]
    assert sum(sizes) == 21_000_000 and max(sizes) <= 128 << 10


def test_binary_and_utf16_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"ab\0cd")
    with pytest.raises(DataError, match="binary file: byte 2 is NUL"):
        list(reading.iter_documents([path]))
    path.write_bytes("text".encode("utf-16"))
    with pytest.raises(DataError, match="looks like UTF-16"):
        list(reading.iter_documents([path]))
    options = reading.ReadingSettings(encoding="utf-16")
    assert [d.text for d in reading.iter_documents([path], options)] == [b"text"]
    with pytest.raises(UsageError, match="not an encoding of text files"):
        list(reading.iter_documents([path], reading.ReadingSettings(encoding="klingon")))


@pytest.mark.parametrize("encoding", ["utf-16-le", "UTF_16_BE", "utf-32-le"])
def test_utf8_is_not_read_as_something_wider(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.txt"
    options = reading.ReadingSettings(encoding=encoding)
    for text in (
        "plain text, long enough to tell\n" * 3,
        "Wörter, lang genug für einen Schluß" * 3,
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match="looks like UTF-8, not utf-"):
            list(reading.iter_documents([path], options))
        parts = [gzip.compress(part.encode()) for part in (text[:20], text[20:])]
        (tmp_path / "b.txt.gz").write_bytes(b"".join(parts))  # read a part at a time
        with pytest.raises(DataError, match="looks like UTF-8, not utf-"):
            list(reading.iter_documents([tmp_path / "b.txt.gz"], options))
        skipping = dataclasses.replace(options, skip_bad=True)
        assert list(reading.iter_documents([path], skipping)) == []
    for text in ("中" * 31, "中文的字" * 40, "plain text, long enough to tell" * 3):
        path.write_bytes(text.encode(encoding))  # of the first every byte is ASCII in UTF-16
        assert [d.text.decode() for d in reading.iter_documents([path], options)] == [text]


def test_empty_files_hold_no_documents(tmp_path: Path) -> None:
    for name in ("a.txt", "b.jsonl"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b""))
    assert list(reading.iter_documents([tmp_path])) == []


def test_error_of_the_system_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    inputs = expand_inputs([tmp_path / "a.txt"])
    (tmp_path / "a.txt").unlink()
    with pytest.raises(LowtideError, match="no such file"):
        list(reading.iter_documents(inputs))


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("rows", [3, 4000])
@pytest.mark.parametrize("left", [0, 10, 60])
def test_a_file_that_becomes_shorter_is_an_error(
    tmp_path: Path, name: str, rows: int, left: int
) -> None:
    path = tmp_path / name
    path.write_bytes(b'{"text": "some words of a document"}\n' * rows)
    inputs = reading.expand_inputs([path])
    os.truncate(path, left)
    options = reading.ReadingSettings(block_bytes=1 << 12)
    with pytest.raises(LowtideError) as caught:
        list(reading.iter_documents(inputs, options))
    assert str(caught.value.path) == str(path)
    if not (name == "a.jsonl" and left):  # half a row is told first
        assert "changed while it was read" in caught.value.message


def test_a_rest_that_the_disk_does_not_give_is_told_or_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"x")
    (source,) = expand_inputs([path])

    def rows() -> Iterator[int]:
        yield 1
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    notices: list[str] = []
    patient = reading.ReadingSettings(skip_bad=True, on_notice=notices.append)
    assert list(reading._until_damage(rows(), source, patient)) == [1]
    (notice,) = notices
    assert notice.startswith(f"{path}: ") and notice.endswith("the rest of it skipped")
    with pytest.raises(LowtideError):
        list(reading._until_damage(rows(), source, reading.ReadingSettings()))


@pytest.mark.parametrize("suffix", ["gz", "zst", "xz", "bz2"])
def test_progress_of_a_compressed_file_is_what_was_read_of_it(tmp_path: Path, suffix: str) -> None:
    pack = {
        "gz": gzip.compress,
        "zst": zstandard.compress,
        "xz": lambda text: lzma.compress(text, preset=0),
        "bz2": bz2.compress,
    }[suffix]
    packed = pack(random.Random(5).randbytes(3 << 20).hex().encode())
    path = tmp_path / f"a.txt.{suffix}"
    path.write_bytes(packed)
    (source,) = expand_inputs([path])
    positions: list[int] = []
    with open_stream(source) as reader:
        while reader.read(1 << 18):
            positions.append(reader.stored_position())
    assert positions == sorted(positions)
    assert positions[0] < source.size_bytes // 2 and positions[-1] == source.size_bytes
    with path.open("ab") as file:  # grown since it was listed: progress stays within what was
        file.write(packed)
    with open_stream(source) as reader:
        while reader.read(1 << 18):
            assert reader.stored_position() <= source.size_bytes


def test_a_field_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--text-field '.udcff' is not text"):
        reading.ReadingSettings(text_field="\udcff")
    assert reading.ReadingSettings(text_field="\ud7ff\ue000").text_field == "\ud7ff\ue000"


def test_a_group_of_files_that_are_all_bad_is_an_empty_block(tmp_path: Path) -> None:
    for name in ("good", "bad", "worse"):
        (tmp_path / f"{name}.txt").write_bytes(b"good" if name == "good" else b"\0")
    notices: list[str] = []
    options = reading.ReadingSettings(skip_bad=True, on_notice=notices.append)
    paths = [tmp_path / "bad.txt", tmp_path / "worse.txt"]
    sources = expand_inputs(paths)
    stream = reading.Stream(index=3, inputs=sources, random_access=True, num_blocks=1)
    assert reading.read_block(stream, 0, options) == reading.TextBlock(3, 0, "text", b"", ())
    assert [notice.endswith("; skipped") for notice in notices] == [True, True]
    documents = reading.iter_documents([*paths, tmp_path / "good.txt"], options)
    assert [(document.input_index, document.text) for document in documents] == [(2, b"good")]


def block_of(kind: str, data: bytes, *segments: tuple[int, int, int, int], **more: Any) -> Any:
    rows = tuple(reading.Segment(*segment) for segment in segments)
    return reading.TextBlock(0, 0, kind, data, rows, **more)


def shown(block: Any, separator: bytes = b"--") -> list[tuple[int, int, bytes, bool, bool]]:
    options = reading.ReadingSettings(separator=separator)
    return [
        (one.input_index, one.ordinal, one.text, one.is_first, one.is_last)
        for one in reading.block_documents(block, options, {})
    ]


@pytest.mark.parametrize("continues", [False, True])
@pytest.mark.parametrize("continued", [False, True])
def test_documents_of_a_block_of_two_files(continues: bool, continued: bool) -> None:
    """With their place in their file; only the first and the last can be parts of larger ones."""
    data = b"ab--c----d--" + b"--ef--g"
    block = block_of(
        "text", data, (4, 100, 0, 12), (5, 0, 12, 19), continues=continues, continued=continued
    )
    assert shown(block) == [
        (4, 100, b"ab", not continues, True),
        (4, 104, b"c", True, True),
        (4, 109, b"d", True, True),
        (5, 2, b"ef", True, True),
        (5, 6, b"g", True, not continued),
    ]


def test_a_separator_at_the_end_ends_the_last_document() -> None:
    block = block_of("text", b"ab--", (0, 0, 0, 4), continued=True)
    assert shown(block) == [(0, 0, b"ab", True, True)]
    assert shown(block_of("text", b"ab--", (0, 0, 0, 4)), separator=b"") == [
        (0, 0, b"ab--", True, True)
    ]
    assert shown(block_of("text", b"", (0, 0, 0, 0))) == []


@pytest.mark.parametrize("continues", [False, True])
@pytest.mark.parametrize("continued", [False, True])
def test_documents_of_rows(continues: bool, continued: bool) -> None:
    ends = np.array([2, 2, 5, 9], np.uint64)
    block = block_of(
        "rows", b"abcdefghi", (3, 70, 0, 9), row_ends=ends, continues=continues, continued=continued
    )
    assert shown(block) == [
        (3, 70, b"ab", not continues, True),
        (3, 72, b"cde", True, True),
        (3, 73, b"fghi", True, not continued),
    ]


def test_many_rows_are_numbered_some_at_a_time() -> None:
    ends = np.arange(1, 9001, dtype=np.uint64)
    found = shown(block_of("rows", b"x" * 9000, (0, 5, 0, 9000), row_ends=ends))
    assert [one[1] for one in found] == list(range(5, 9005))
    assert all(one[2] == b"x" for one in found)


@pytest.mark.parametrize("number", range(5))
def test_a_block_is_read_by_its_number(tmp_path: Path, number: int) -> None:
    """300 bytes in blocks of 64, cut at lines; what a neighbour holds all of is none."""
    path = tmp_path / "a.txt"
    text = b"".join(b"line %03d of it\n" % n for n in range(20))
    path.write_bytes(text)
    (stream,) = reading.plan_streams(expand_inputs([path]), SMALL)
    every = [reading.read_block(stream, n, SMALL) for n in range(stream.num_blocks)]
    block = every[number]
    assert b"".join(one.data for one in every if one is not None) == text
    if block is None:
        return
    begin = sum(len(one.data) for one in every[:number] if one is not None)
    assert block.segments == (reading.Segment(0, begin, 0, len(block.data)),)
    assert (block.stream, block.number, block.kind) == (0, number, "text")
    assert block.stored_bytes == len(block.data)
    assert block.continues == (begin > 0)
    assert block.continued == (begin + len(block.data) < len(text))


@pytest.mark.parametrize("known", range(6))
def test_blocks_that_are_known_come_as_none(tmp_path: Path, known: int) -> None:
    text = b"".join(b"line %03d of it\n" % n for n in range(20))
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text))
    for stream in reading.plan_streams(expand_inputs([tmp_path]), SMALL):
        whole = list(reading.iter_blocks(stream, SMALL))
        found = list(reading.iter_blocks(stream, SMALL, known=known))
        assert found == [None] * min(known, len(whole)) + whole[known:]


@pytest.mark.parametrize(
    ("probe", "why", "step"),
    [
        (b"\xff\xfea\0", "this looks like UTF-16, not UTF-8", "--encoding utf-16"),
        (b"\xfe\xff\0a", "this looks like UTF-16, not UTF-8", "--encoding utf-16"),
        (b"\xff\xfe\0\0a\0\0\0", "this looks like UTF-32, not UTF-8", "--encoding utf-32"),
        (b"\0\0\xfe\xff\0\0\0a", "this looks like UTF-32, not UTF-8", "--encoding utf-32"),
        (b"abc\0d\0", "this looks like a binary file: byte 3 is NUL", "take it out of the inputs"),
        (b"PK\3\4 a.txt", "this file is a zip archive, expected text", "unpack it, and name"),
        (b"a.txt".ljust(257, b"\0") + b"ustar", "this file is a tar archive, expected text", ""),
        (b"7z\xbc\xaf\x27\x1c\0", "this file is a 7z archive, expected text", "unpack it"),
        (b"Rar!\x1a\7", "this file is a rar archive, expected text", "unpack it"),
        (b"%PDF-1.7\n", "this file is a PDF, expected text", "extract its text first"),
        (
            gzip.compress(b"a", mtime=0),
            "this file is compressed with gzip, expected text",
            "unpack it, or",
        ),
        (bz2.compress(b"a"), "this file is compressed with bzip2, expected text", "unpack it, or"),
        (lzma.compress(b"a"), "this file is compressed with xz, expected text", "unpack it, or"),
        (
            zstandard.compress(b"a"),
            "this file is compressed with zstd, expected text",
            "unpack it, or name it with the suffix .zst",
        ),
    ],
)
def test_what_is_no_text_is_named(probe: bytes, why: str, step: str) -> None:
    source = reading.InputFile(0, Path("a.txt"), "text", None, 9)
    with pytest.raises(DataError) as caught:
        reading.check_text(source, probe)
    assert (caught.value.message, caught.value.path) == (why, Path("a.txt"))
    assert str(caught.value.next_step).startswith(step)
    told: list[str] = []
    skipping = reading.ReadingSettings(skip_bad=True, on_notice=told.append)
    assert reading.is_text(source, probe, skipping) is False
    assert told == [f"a.txt: {why}; skipped"]
    assert reading.is_text(source, b"text \xff\xfe", skipping) is True and len(told) == 1


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ('[{"text": "one"},\n {"text": "two"}]', "jq -c '.[]' makes"),
        ('\ufeff\n[\n  {\n    "text": "one"}]', "jq -c '.[]' makes"),
        ('["one", "two"]', "jq -c '.[] | {text: .}' makes"),
        ("[]", None),
        ("[1, 2]", None),
        ("[ wiki ] {", None),
        ("words [ {", None),
        ('{"text": "one"}', None),
    ],
)
@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".txt"])
def test_a_json_array_is_no_plain_text(
    tmp_path: Path, suffix: str, text: str, command: str | None
) -> None:
    """Its brackets and names were learned as if they were words."""
    data = text.encode()
    (tmp_path / f"a{suffix}").write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    if command is None or suffix == ".txt":
        assert [document.text for document in reading.iter_documents([tmp_path / f"a{suffix}"])]
        return
    with pytest.raises(DataError, match="one JSON array, expected a JSON object on each") as caught:
        list(reading.iter_documents([tmp_path / f"a{suffix}"]))
    assert str(caught.value.next_step).startswith(command)


def test_a_large_bad_file_is_told_once(tmp_path: Path) -> None:
    """Its first block says it, all are left out."""
    (tmp_path / "a.txt").write_bytes(b"\0" + b"x" * 200)
    told: list[str] = []
    options = reading.ReadingSettings(block_bytes=64, skip_bad=True, on_notice=told.append)
    (stream,) = reading.plan_streams(expand_inputs([tmp_path]), options)
    assert stream.num_blocks > 2
    assert [reading.read_block(stream, n, options) for n in range(stream.num_blocks)] == (
        [None] * stream.num_blocks
    )
    assert len(told) == 1
    plain = dataclasses.replace(options, skip_bad=False)
    assert reading.read_block(stream, 1, plain) is not None  # who reads the first one says it
    with pytest.raises(DataError, match="byte 0 is NUL"):
        reading.read_block(stream, 0, plain)


@pytest.mark.parametrize(
    ("size", "wanted", "short"),
    [(9, None, True), (10, None, False), (11, None, False), (4, 5, True), (5, 5, False)],
)
def test_a_file_has_the_bytes_that_it_had(size: int, wanted: int | None, short: bool) -> None:
    source = reading.InputFile(0, Path("a.txt"), "text", None, 10)
    if not short:
        reading._require_size(source, size, wanted=wanted)
        return
    with pytest.raises(OSError, match=r"a\.txt") as caught:
        reading._require_size(source, size, wanted=wanted)
    assert caught.value.errno == errno.ESTALE


def test_a_separator_at_the_beginning_begins_no_document() -> None:
    assert shown(block_of("text", b"--ab", (0, 0, 0, 4))) == [(0, 2, b"ab", True, True)]
    assert shown(block_of("text", b"----", (0, 0, 0, 4))) == []
    rows = block_of("rows", b"ab", (0, 7, 0, 2), row_ends=np.array([0, 2], np.uint64))
    assert shown(rows) == [(0, 8, b"ab", True, True)]


@pytest.mark.parametrize("mark", [b"\n", b" ", SEPARATOR])
def test_what_lies_beyond_the_window_cuts_nothing(tmp_path: Path, mark: bytes) -> None:
    """By every place of one mark around the window's end, plain and compressed."""
    for place in range(60, 125):
        text = b"x" * place + mark + b"y" * 200
        (tmp_path / "a.txt").write_bytes(text)
        (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text, 1))
        plain, packed = (blocks_of(tmp_path / name, SMALL) for name in ("a.txt", "b.txt.gz"))
        assert [block.data for block in packed] == [block.data for block in plain]
        assert [block.continued for block in packed] == [block.continued for block in plain]
