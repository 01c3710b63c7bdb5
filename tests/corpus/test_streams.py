"""What a file was compressed with counts as memory: it is known from its first bytes."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest
import zstandard

from lowtide.corpus.inputs import InputFile, expand_inputs
from lowtide.corpus.streams import open_stream, window_bytes
from lowtide.corpus.textblocks import ReadingOptions
from lowtide.errors import BudgetError

MIB = 1 << 20
TEXT = b"some words, and some more of them\n" * 100_000


def write_zstd(path: Path, window_log: int, *, known_size: bool = False) -> InputFile:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=window_log)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    if known_size:
        path.write_bytes(compressor.compress(TEXT))
    else:
        with path.open("wb") as file, compressor.stream_writer(file) as writer:
            writer.write(TEXT)
    return expand_inputs([path])[0]


def write_xz(path: Path, dictionary: int) -> InputFile:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": dictionary}]
    path.write_bytes(lzma.compress(TEXT, filters=filters))
    return expand_inputs([path])[0]


def read_all(source: InputFile, options: ReadingOptions) -> bytes:
    with open_stream(source, options) as reader:
        return b"".join(iter(lambda: reader.read(MIB), b""))


@pytest.mark.parametrize("window_log", [20, 23, 27, 30, 31])
def test_zstd_windows(tmp_path: Path, window_log: int) -> None:
    source = write_zstd(tmp_path / "a.txt.zst", window_log)
    assert window_bytes(source) == (1 << window_log) + MIB
    with pytest.raises(BudgetError, match=r"compressed with a window of") as raised:
        read_all(source, ReadingOptions(reader_bytes=1 << window_log, budget_bytes=64 * MIB))
    assert raised.value.next_step is not None and "--memory 72MiB" in raised.value.next_step
    assert read_all(source, ReadingOptions(reader_bytes=(1 << window_log) + MIB)) == TEXT


def test_a_zstd_text_shorter_than_its_window_does_not_fill_it(tmp_path: Path) -> None:
    source = write_zstd(tmp_path / "a.txt.zst", 27, known_size=True)
    assert window_bytes(source) == len(TEXT) + MIB


@pytest.mark.parametrize("dictionary", [1 * MIB, 64 * MIB, 96 * MIB])
def test_xz_dictionaries(tmp_path: Path, dictionary: int) -> None:
    source = write_xz(tmp_path / "a.txt.xz", dictionary)
    assert window_bytes(source) == dictionary + MIB
    with pytest.raises(BudgetError, match=r"compressed with a window of"):
        read_all(source, ReadingOptions(reader_bytes=dictionary))
    assert read_all(source, ReadingOptions(reader_bytes=dictionary + MIB)) == TEXT


def test_what_is_damaged_says_nothing_of_its_window(tmp_path: Path) -> None:
    for name, data in (("a.txt.zst", b"\x28\xb5"), ("a.txt.xz", b"\xfd7zXZ\0"), ("b.zst", b"")):
        (tmp_path / name).write_bytes(data)
        (source,) = expand_inputs([tmp_path / name])
        assert window_bytes(source) <= MIB
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(TEXT))
    assert window_bytes(expand_inputs([tmp_path / "a.txt.gz"])[0]) == MIB
