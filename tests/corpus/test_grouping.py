"""Small files share blocks: every document of every file, under its own name, in any storage."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import zstandard

from lowtide.corpus import reading
from lowtide.corpus.cleaning import DOCUMENT_ROW_BYTES, clean_block
from lowtide.corpus.inputs import InputFile, expand_inputs
from lowtide.corpus.reading import ReadingSettings
from lowtide.corpus.settings import CleaningSettings
from lowtide.errors import DataError


def write_files(folder: Path, kind: str, count: int) -> list[str]:
    folder.mkdir(exist_ok=True)
    texts = [f"what file {number} says" for number in range(count)]
    for number, text in enumerate(texts):
        line = text if kind.startswith("txt") else json.dumps({"text": text})
        data = line.encode() + b"\n" * (number % 3)
        if kind.endswith(".gz"):
            data = gzip.compress(data)
        elif kind.endswith(".zst"):
            data = zstandard.compress(data)
        (folder / f"{number:05d}.{kind}").write_bytes(data)
    return texts


@pytest.mark.parametrize("kind", ["txt", "jsonl", "txt.gz", "jsonl.gz", "txt.zst", "jsonl.zst"])
def test_many_small_files_are_few_blocks(tmp_path: Path, kind: str) -> None:
    texts = write_files(tmp_path, kind, 300)
    inputs = expand_inputs([tmp_path])
    options = ReadingSettings()
    streams = reading.plan_streams(inputs, options)
    blocks = [block for stream in streams for block in reading.iter_blocks(stream, options)]
    assert len(streams) == len(blocks) == 1
    documents = list(reading.iter_documents(inputs, options))
    assert [document.text.decode().rstrip() for document in documents] == texts
    assert [document.input_index for document in documents] == list(range(300))
    paths = {source.index: source.path for source in inputs}
    assert blocks[0] is not None
    cleaned = clean_block(blocks[0], options, CleaningSettings(filter=False), paths=paths)
    rows = np.frombuffer(cleaned.documents, "<u8").reshape(-1, DOCUMENT_ROW_BYTES // 8)
    assert np.array_equal(rows[:, 0], np.arange(300)) and not rows[:, 1].any()


@pytest.mark.parametrize("kind", ["txt.gz", "jsonl.zst"])
def test_blocks_stay_small(tmp_path: Path, kind: str) -> None:
    texts = write_files(tmp_path, kind, 300)
    options = ReadingSettings(block_bytes=4096)
    inputs = expand_inputs([tmp_path])
    streams = reading.plan_streams(inputs, options)
    blocks = [block for stream in streams for block in reading.iter_blocks(stream, options)]
    assert 1 < len(streams) <= len(blocks) < 60
    assert all(block is not None and len(block.data) <= 4096 for block in blocks)
    documents = list(reading.iter_documents(inputs, options))
    assert [document.text.decode().rstrip() for document in documents] == texts


def test_a_small_file_that_holds_much_is_cut(tmp_path: Path) -> None:
    long = "the same words again and again\n" * 1000
    for name, text in (("a", "first file"), ("b", long), ("c", "last file")):
        (tmp_path / f"{name}.txt.gz").write_bytes(gzip.compress(text.encode()))
    options = ReadingSettings(block_bytes=8192)
    (stream,) = reading.plan_streams(expand_inputs([tmp_path]), options)
    blocks = [block for block in reading.iter_blocks(stream, options) if block is not None]
    assert [block.number for block in blocks] == list(range(len(blocks)))
    assert max(len(block.data) for block in blocks) < 20_000
    documents = list(reading.iter_documents(expand_inputs([tmp_path]), options))
    assert documents[0].text == b"first file" and documents[-1].text == b"last file"
    assert b"".join(document.text for document in documents[1:-1]).decode() == long


def test_kinds_are_not_mixed(tmp_path: Path) -> None:
    write_files(tmp_path, "txt", 2)
    (tmp_path / "a.jsonl").write_text('{"text": "of another kind"}')
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"of a third kind"))
    inputs = expand_inputs([tmp_path])
    streams = reading.plan_streams(inputs, ReadingSettings())
    assert [len(stream.inputs) for stream in streams] == [2, 1, 1]
    assert len(list(reading.iter_documents(inputs))) == 4


def skipping(inputs: list[InputFile], notices: list[str]) -> list[str]:
    options = ReadingSettings(skip_bad=True, on_notice=notices.append)
    return [document.text.decode() for document in reading.iter_documents(inputs, options)]


@pytest.mark.parametrize("kind", ["txt", "jsonl", "txt.gz", "jsonl.gz"])
def test_one_bad_file_among_many_is_named_or_skipped(tmp_path: Path, kind: str) -> None:
    write_files(tmp_path, kind, 9)
    bad = tmp_path / f"00004.{kind}"
    bad.write_bytes(b"\0\0\0")
    inputs = expand_inputs([tmp_path])
    with pytest.raises(DataError) as caught:
        list(reading.iter_documents(inputs))
    assert caught.value.path == bad
    notices: list[str] = []
    assert len(skipping(inputs, notices)) == 8
    assert len(notices) == 1 and str(bad) in notices[0]


def test_a_large_bad_file_is_skipped_with_all_its_blocks(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("words")
    (tmp_path / "large.txt").write_bytes(b"\0" + b"words " * 2_000_000)
    inputs = expand_inputs([tmp_path])
    notices: list[str] = []
    assert skipping(inputs, notices) == ["words"]
    assert len(notices) == 1 and "large.txt" in notices[0]


@pytest.mark.parametrize(("size", "per_block"), [(3000, 2), (4096, 2), (4097, 1), (1000, 8)])
def test_small_files_that_expand_fill_blocks_and_no_more(
    tmp_path: Path, size: int, per_block: int
) -> None:
    """Each takes 30 bytes on the disk; what counts is what comes out of it."""
    for number in range(9):
        (tmp_path / f"{number}.txt.gz").write_bytes(gzip.compress(b"x" * size))
    options = ReadingSettings(block_bytes=8192)
    (stream,) = reading.plan_streams(expand_inputs([tmp_path]), options)
    blocks = [block for block in reading.iter_blocks(stream, options) if block is not None]
    expected = [per_block] * (9 // per_block) + [9 % per_block] * (9 % per_block > 0)
    assert [len(block.data) for block in blocks] == [size * count for count in expected]
    assert [block.number for block in blocks] == list(range(len(blocks)))


def test_no_more_than_so_many_files_are_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [InputFile(n, Path(f"{n}.txt"), "text", None, size_bytes=1) for n in range(3000)]
    streams = reading.plan_streams(inputs, ReadingSettings())
    assert [len(stream.inputs) for stream in streams] == [1024, 1024, 952]


def test_a_group_is_as_large_as_a_block_and_no_larger(tmp_path: Path) -> None:
    """Files up to a quarter of a block share it: exactly one block of bytes, or of many files."""
    options = ReadingSettings(block_bytes=400)

    def groups(*sizes: int) -> list[int]:
        folder = tmp_path / "-".join(map(str, sizes))
        folder.mkdir()
        for number, size in enumerate(sizes):
            (folder / f"{number:02d}.txt").write_bytes(b"x" * size)
        streams = reading.plan_streams(expand_inputs([folder]), options)
        return [len(stream.inputs) for stream in streams]

    assert groups(100, 100, 100, 100) == [4]
    assert groups(100, 100, 100, 99, 2) == [4, 1]
    assert groups(100, 100, 100, 100, 100, 100, 100, 100) == [4, 4]  # each begins with nothing
    assert groups(100, 101, 100) == [1, 1, 1]  # more than a quarter: a stream of its own


def test_streams_of_every_kind(tmp_path: Path) -> None:
    """Which inputs, whether blocks have numbers, and how many there are of these."""
    sizes = {"a.txt": 99, "b.txt": 1, "c.jsonl": 100, "d.txt": 401, "e.txt.gz": 12, "f.txt.gz": 13,
             "g.txt": 400, "h.parquet": 9, "i.jsonl": 800}  # fmt: skip
    for name, size in sizes.items():
        (tmp_path / name).write_bytes((b"x" * 9 + b"\n") * (size // 10) + b"y" * (size % 10))
    streams = reading.plan_streams(expand_inputs([tmp_path]), ReadingSettings(block_bytes=400))
    shown = [
        (stream.index, "".join(one.path.name[0] for one in stream.inputs), stream.random_access,
         stream.num_blocks, stream.size_bytes)
        for stream in streams
    ]  # fmt: skip
    assert shown == [
        (0, "ab", True, 1, 100), (1, "c", True, 1, 100), (2, "d", True, 2, 401),
        (3, "e", False, 0, 12), (4, "f", False, 0, 13), (5, "g", True, 1, 400),
        (6, "h", False, 0, 9), (7, "i", True, 2, 800),
    ]  # fmt: skip
    other = reading.plan_streams(
        expand_inputs([tmp_path]), ReadingSettings(block_bytes=4000, encoding="latin-1")
    )
    assert [(stream.random_access, stream.num_blocks) for stream in other] == [(False, 0)] * len(
        other
    )
