"""Reading: every byte of every input comes once, in order, whatever it is stored in."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import json
import lzma
import os
import random
from collections.abc import Iterator
from pathlib import Path

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
    return zstandard.ZstdCompressor().compress(data)


def test_documents_of_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one<|endoftext|>\ntwo<|endoftext|><|endoftext|>three")
    documents = list(reading.iter_documents([path]))
    assert [document.text for document in documents] == [b"one", b"\ntwo", b"three"]
    assert [document.ordinal for document in documents] == [0, 16, 46]


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
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
    with pytest.raises(DataError, match="column 'id' holds int64, expected text"):
        list(reading.iter_documents([path], reading.ReadingSettings(text_field="id")))
    for kind in (pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()):
        pq.write_table(pa.table({"text": pa.array(["eins", None, "zwei"], kind)}), path)
        assert [document.text for document in reading.iter_documents([path])] == [b"eins", b"zwei"]
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match="not a parquet file"):
        list(reading.iter_documents([path]))


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


@pytest.mark.parametrize("suffix", ["gz", "zst", "xz"])
def test_progress_of_a_compressed_file_is_what_was_read_of_it(tmp_path: Path, suffix: str) -> None:
    pack = {
        "gz": gzip.compress,
        "zst": zstandard.compress,
        "xz": lambda text: lzma.compress(text, preset=0),
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
