"""Page headers tell what a parquet column takes, and what takes too much is refused beforehand."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lowtide.corpus import parquetpages, reading
from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.parquetpages import ColumnPages, PageError, read_column_pages
from lowtide.errors import BudgetError

MIB = 1 << 20


def pages_of(path: Path, texts: list[str | None], **options: Any) -> ColumnPages:
    pq.write_table(pa.table({"number": range(len(texts)), "text": texts}), path, **options)
    with path.open("rb") as file, pq.ParquetFile(path) as opened:
        return read_column_pages(
            file, opened.metadata.row_group(0).column(1), large_page_bytes=8 << 20
        )


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_plain_pages(tmp_path: Path, compression: str, version: str) -> None:
    texts = [chr(97 + number % 26) * 1000 for number in range(3000)]
    pages = pages_of(
        tmp_path / "a.parquet",
        [*texts, None],
        compression=compression,
        use_dictionary=False,
        data_page_size=64 << 10,
        data_page_version=version,
    )
    assert 64_000 <= pages.unpacked_bytes <= 1_100_000
    assert 1000 <= pages.row_bytes <= 1010
    assert pages.value_bytes == pages.unpacked_bytes
    assert (pages.packed_bytes < pages.unpacked_bytes // 4) == (compression != "none")


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_a_dictionary_that_unpacks_far_beyond_its_file(tmp_path: Path, compression: str) -> None:
    texts = ["a" * 300_000, "b" * 400_000] * 60
    path = tmp_path / "a.parquet"
    pages = pages_of(path, texts, compression=compression)
    assert pages.row_bytes == pages.value_bytes == 400_000
    assert pages.batch_rows(256, 2 * MIB) == 5
    (source,) = expand_inputs([path])
    needed = reader_bytes([source], reading.ReadingSettings())
    assert needed == pages.held_bytes(5) < 20 * MIB
    options = reading.ReadingSettings(reader_bytes=needed, block_bytes=64 << 10)
    found: dict[int, int] = {}
    for document in reading.iter_documents([source], options):
        found[document.ordinal] = found.get(document.ordinal, 0) + len(document.text)
    assert list(found.values()) == [len(text) for text in texts]


def test_incremental_pages_may_repeat_all_of_a_row(tmp_path: Path) -> None:
    pages = pages_of(
        tmp_path / "a.parquet",
        ["a" * 50_000] * 1000,
        use_dictionary=False,
        column_encoding={"number": "PLAIN", "text": "DELTA_BYTE_ARRAY"},
    )
    assert pages.row_bytes == pages.unpacked_bytes >= 50_000


def test_a_cell_too_large_for_the_memory_is_refused_with_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pages = pages_of(path, ["short", "x" * 3_000_000])
    (source,) = expand_inputs([path])
    needed = reader_bytes([source], reading.ReadingSettings())
    assert needed == pages.held_bytes(1) >= 3 * 3_000_000
    options = reading.ReadingSettings(reader_bytes=MIB, budget_bytes=40 * MIB)
    with pytest.raises(BudgetError, match=r"row group 0 has a page of 2.9 MiB") as raised:
        list(reading.iter_documents([source], options))
    assert raised.value.next_step is not None
    assert f"--memory {-(-(40 * MIB + needed) // (8 * MIB)) * 8}MiB" in raised.value.next_step


def test_what_is_no_page_header_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pages_of(path, ["some text"] * 10)
    with path.open("rb") as file, pq.ParquetFile(path) as opened:
        chunk = opened.metadata.row_group(0).column(1)
        for filler in (b"\xff" * 5000, b"\x1d" * 5000, b""):
            bad = tmp_path / "bad"
            bad.write_bytes(b"\0" * chunk.data_page_offset + filler)
            with bad.open("rb") as stored, pytest.raises(PageError):
                read_column_pages(stored, chunk, large_page_bytes=8 << 20)
        assert file.read(4) == b"PAR1"


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (1, b"", True),
        (2, b"", False),
        (3, b"\x07", 7),
        (4, varint(10), 5),
        (5, varint(9), -5),
        (6, varint(2 << 40), 1 << 40),
        (7, b"12345678", None),
        (8, varint(300) + b"s" * 300, None),
        (9, b"\x25" + varint(8) + varint(400), None),
        (10, b"\x33abc", None),
        (9, b"\xf3" + varint(20) + b"t" * 20, None),
        (12, b"\x15" + varint(6) + b"\x00", {1: 3}),
    ],
)
def test_fields_of_every_kind_are_read_or_passed_by(kind: int, value: bytes, read: object) -> None:
    """Before the sizes of a page, whose fields are 2 and 3: the next one is found after each."""
    header = bytes([16 | kind]) + value + b"\x15" + varint(200) + b"\x15" + varint(180) + b"\0rest"
    fields, end = parquetpages._read_header(io.BytesIO(header), 0)
    assert fields == {1: read, 2: 100, 3: 90}
    assert header[end:] == b"rest"


def test_a_field_may_name_its_number() -> None:
    header = b"\x05" + varint(4) + varint(8) + b"\x05" + varint(6) + varint(10) + b"\0"
    assert parquetpages._read_header(io.BytesIO(header), 0) == ({2: 4, 3: 5}, len(header))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\x25" + varint(1) + b"\x15" + varint(2) + b"\0",  # less than nothing when unpacked
        b"\x25" + varint(2) + b"\x15" + varint(1) + b"\0",  # less than nothing as stored
        b"\x25" + varint(2) + b"\0",  # no size
        b"\x38" + varint(0) + b"\0",  # a size that is text
        b"\x1b\0",  # a field of an unknown kind
        b"\x15" + b"\x80" * 10 + b"\0",
    ],
)
def test_what_is_no_header_is_refused(header: bytes) -> None:
    with pytest.raises(parquetpages.PageError, match="no page header"):
        parquetpages._read_header(io.BytesIO(header), 0)


def test_a_long_header_is_read_whole() -> None:
    size = parquetpages._HEADER_BYTES + 100
    header = (
        b"\x18" + varint(size) + b"s" * size + b"\x15" + varint(4) + b"\x15" + varint(8) + b"\0"
    )
    assert parquetpages._read_header(io.BytesIO(header), 0)[0] == {1: None, 2: 2, 3: 4}


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("null", [False, True])
def test_the_window_of_a_page_is_read_behind_its_levels(
    tmp_path: Path, version: str, null: bool
) -> None:
    """Where they stand before the texts and unpacked, the zstd frame begins after them."""
    texts = [chr(97 + number % 26) * 1000 for number in range(300)]
    options: dict[str, Any] = {"use_dictionary": False, "data_page_version": version}
    given = [*texts, None] if null else texts
    path = tmp_path / "a.parquet"
    plain = pages_of(path, given, compression="none", **options)
    packed = pages_of(path, given, compression="zstd", **options)
    assert plain.streamed_bytes is not None and packed.streamed_bytes is not None
    window = packed.streamed_bytes - plain.streamed_bytes
    assert 300_000 <= window <= packed.unpacked_bytes  # of a text so short, all of it


@pytest.mark.parametrize(
    ("dictionary", "of_dictionary", "held"),
    [(True, False, 800), (False, False, 12), (False, True, 12 + 70 + 2 * 900)],
)
@pytest.mark.parametrize("codec", ["SNAPPY", "ZSTD"])
def test_what_a_page_takes_whose_texts_are_not_held(
    monkeypatch: pytest.MonkeyPatch, codec: str, dictionary: bool, of_dictionary: bool, held: int
) -> None:
    """Places of a dictionary, a bit of a row, packed and unpacked numbers twice; and a window."""
    about: dict[str, Any] = {
        "is_dictionary": dictionary, "is_data": not dictionary, "is_of_dictionary": of_dictionary,
        "num_values": 100, "unpacked": 900, "position": 30, "level_bytes": 5,
    }  # fmt: skip
    begins: list[int] = []
    windows = iter((300, 5000))

    def read_frame(file: io.BytesIO) -> Any:
        begins.append(file.tell())
        return SimpleNamespace(window_bytes=next(windows))

    monkeypatch.setattr(parquetpages, "read_zstd_frame", read_frame)
    for packed, window in ((70, 300), (70, 900), (0, 0)):
        page: Any = SimpleNamespace(**about, packed=packed)
        found = parquetpages._streamed_bytes(io.BytesIO(bytes(99)), page, codec)
        less = 70 - packed if of_dictionary else 0
        assert found == held - less + (window if codec == "ZSTD" else 0)
    assert begins == ([30 if dictionary else 35] * 2 if codec == "ZSTD" else [])
