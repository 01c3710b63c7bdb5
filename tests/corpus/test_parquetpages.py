"""Page headers tell what a parquet column takes, and what takes too much is refused beforehand."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lowtide.corpus import parquetpages, reading
from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.parquetpages import (
    ColumnPages,
    Page,
    PageError,
    read_column_pages,
    read_varint,
)
from lowtide.errors import BudgetError, DataError

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


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_a_row_group_without_rows_has_no_pages(tmp_path: Path, use_dictionary: bool) -> None:
    path = tmp_path / "a.parquet"
    rows = pa.table({"text": ["some text", "more of it"]})
    with pq.ParquetWriter(path, rows.schema, use_dictionary=use_dictionary) as writer:
        for table in (rows.slice(0, 0), rows, rows.slice(0, 0)):
            writer.write_table(table)
    (source,) = expand_inputs([path])
    with path.open("rb") as file, pq.ParquetFile(path) as opened:
        assert opened.metadata.num_row_groups == 3
        empty = opened.metadata.row_group(0).column(0)
        assert list(parquetpages.iter_pages(file, empty)) == []
    documents = reading.iter_documents([source], reading.ReadingSettings())
    assert [document.text for document in documents] == [b"some text", b"more of it"]


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


def test_a_text_larger_than_its_dictionary_is_damage_not_a_need_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"text number {number}" for number in range(2000)]
    pq.write_table(pa.table({"text": texts}), path, compression="none")
    data = bytearray(path.read_bytes())
    at = data.index(b"text number 1000")
    data[at - 1] = 0x7F  # of its length
    path.write_bytes(data)
    (source,) = expand_inputs([path])
    assert reader_bytes([source], reading.ReadingSettings()) < 8 * MIB
    with pytest.raises(DataError, match="damaged parquet file: a text of a dictionary that is"):
        list(reading.iter_documents([source], reading.ReadingSettings()))


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


@pytest.mark.parametrize(("column_bytes", "is_damaged"), [(999, True), (1000, False), (0, False)])
def test_a_page_larger_than_its_column_is_damage_not_a_need_of_memory(
    column_bytes: int, is_damaged: bool
) -> None:
    """A changed byte asked for gigabytes. Some writers leave the size of the column out."""
    header = b"\x15" + varint(0) + b"\x15" + varint(2000) + b"\x15" + varint(20) + b"\0"
    chunk = SimpleNamespace(
        num_values=1,
        data_page_offset=0,
        has_dictionary_page=False,
        total_compressed_size=len(header) + 10,
        total_uncompressed_size=column_bytes,
    )
    pages = parquetpages.iter_pages(io.BytesIO(header + bytes(10)), chunk)
    if is_damaged:
        with pytest.raises(PageError, match="a page of 1000 bytes, in a column that has 999"):
            list(pages)
    else:
        assert [page.unpacked for page in pages] == [1000]


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


DATA, DICTIONARY, DATA_V2 = 0, 2, 3
ABOUT = {DATA: 5, DICTIONARY: 7, DATA_V2: 8}


def page(kind: int, about: dict[int, Any], *, packed: int = 10, unpacked: int = 20) -> Page:
    """A page whose header says this of it, beside what headers of other kinds would say."""
    others = {field: {1: 99, 2: 99, 3: 99, 4: 99} for field in ABOUT.values()}
    header = {1: kind, **others, ABOUT[kind]: about}
    return Page(header, 100, packed=packed, unpacked=unpacked)


@pytest.mark.parametrize("kind", ABOUT)
def test_how_many_values_a_page_has(kind: int) -> None:
    given = ({1: 7}, {1: 0}, {1: -3}, {})
    assert [page(kind, about).num_values for about in given] == [7, 0, 0, 0]
    assert page(kind, {}).is_dictionary == (kind == DICTIONARY)
    assert page(kind, {}).is_data == (kind != DICTIONARY)


@pytest.mark.parametrize(
    ("kind", "about", "encoding", "levels", "packed"),
    [
        (DATA, {2: 8, 4: 7, 5: 3, 6: 4, 7: False}, 8, None, True),
        (DATA_V2, {2: 8, 4: 7, 5: 3, 6: 4, 7: False}, 7, 7, False),
        (DATA_V2, {4: 2, 5: 3, 7: True}, 2, 3, True),
        (DATA_V2, {4: 2, 6: 4}, 2, 4, True),
        (DATA_V2, {4: 0, 5: -3, 6: -4}, 0, 0, True),
        (DATA_V2, {5: -3, 6: 4}, None, 4, True),
        (DATA_V2, {}, None, 0, True),
    ],
)
def test_how_a_page_of_rows_is_stored(
    kind: int, about: dict[int, Any], encoding: int | None, levels: int | None, packed: bool
) -> None:
    found = page(kind, about)
    assert found.encoding == encoding
    assert found.is_of_dictionary == (encoding in (2, 8))
    assert (found.level_bytes, found.is_packed) == (levels, packed)


@pytest.mark.parametrize("kind", [-1, 1, 4])
def test_a_page_of_an_unknown_kind_says_nothing_of_itself(kind: int) -> None:
    for header in (
        {1: kind, 5: {1: 3}, 7: {1: 3}, 8: {1: 3}},
        {1: DATA},
        {1: DATA, 5: 3},
    ):
        with pytest.raises(PageError, match="a page without its header"):
            _ = Page(header, 0, packed=1, unpacked=1).num_values
    assert not Page({1: kind}, 0, packed=1, unpacked=1).is_data
    assert not Page({}, 0, packed=1, unpacked=1).is_dictionary


PLAIN, NUMBERS, RUNS, LARGE = 0, 8, 3, 1000


@pytest.mark.parametrize(
    ("found", "streamable"),
    [
        (page(DICTIONARY, {1: 1 << 20}), True),
        (page(DICTIONARY, {1: (1 << 20) + 1}), False),
        (page(DATA, {2: PLAIN, 3: RUNS}, unpacked=LARGE + 1), True),
        (page(DATA, {2: PLAIN, 3: 4}), False),  # which rows have a text is packed in another way
        (page(DATA_V2, {4: PLAIN, 3: 4}, packed=LARGE + 1), True),
        (page(DATA, {2: NUMBERS, 3: RUNS}, packed=LARGE, unpacked=LARGE), True),
        (page(DATA, {2: NUMBERS, 3: 4}), False),
        (page(DATA, {2: NUMBERS, 3: RUNS}, packed=LARGE + 1), False),
        (page(DATA, {2: NUMBERS, 3: RUNS}, unpacked=LARGE + 1), False),
        (page(DATA_V2, {4: 2}, packed=LARGE, unpacked=LARGE), True),
        (page(DATA_V2, {4: 2}, unpacked=LARGE + 1), False),
        (page(DATA_V2, {4: 7}), False),
    ],
)  # fmt: skip
def test_which_pages_are_read_text_by_text(found: Page, streamable: bool) -> None:
    assert found.is_streamable(LARGE) == streamable


@pytest.mark.parametrize(
    ("found", "rows"),
    [
        (page(DATA, {1: 4, 2: PLAIN}, unpacked=30), (7.5, 30)),
        (page(DATA, {1: 1, 2: PLAIN}, unpacked=30), (30, 30)),
        (page(DATA, {1: 0, 2: PLAIN}, unpacked=30), (30, 30)),
        (page(DATA, {1: 4, 2: NUMBERS}, unpacked=30), (55, 55)),
        (page(DATA_V2, {1: 4, 4: 2}, unpacked=30), (55, 55)),
        (page(DATA_V2, {1: 4, 4: 7}, unpacked=30), (30, 30)),
    ],
)
def test_the_bytes_of_rows_in_a_page(found: Page, rows: tuple[float, int]) -> None:
    assert parquetpages._row_bytes(found, 55) == rows


def test_what_reading_rows_of_a_column_holds() -> None:
    """Packed and unpacked page, seven times a batch or three times the longest value."""
    pages = ColumnPages(1, 20, 300, 100, streamed_bytes=None, large_page_bytes=19)
    assert [pages.held_bytes(rows) for rows in (0, 1, 2, 5)] == [941, 941, 1441, 3541]
    assert not pages.is_streamed
    streamed = [replace(pages, streamed_bytes=7, large_page_bytes=size) for size in (19, 20)]
    assert [(one.is_streamed, one.held_bytes(1)) for one in streamed] == [(True, 7), (False, 941)]
    assert [pages.batch_rows(*most) for most in ((9, 1000), (99, 1000), (9, 199), (9, 99))] == [
        9, 10, 1, 1,
    ]  # fmt: skip


def dictionary_of(*sizes: int) -> bytes:
    return b"".join(size.to_bytes(4, "little") + b"v" * size for size in sizes)


@pytest.mark.parametrize("codec", ["UNCOMPRESSED", "SNAPPY", "ZSTD"])
def test_the_longest_value_of_a_dictionary(codec: str) -> None:
    """Looked for where the page is worth it; a page that cannot be read counts as one value."""
    data = dictionary_of(5000, 7000, 4376, 0)
    stored = (
        data if codec == "UNCOMPRESSED" else pa.Codec(codec.lower()).compress(data).to_pybytes()
    )

    def longest(large_page_bytes: int, unpacked: int = len(data), skip: int = 3) -> int:
        found = page(DICTIONARY, {}, packed=len(stored), unpacked=unpacked)
        file = io.BytesIO(bytes(100) + b"abc"[:skip] + stored)
        return parquetpages._longest_value(
            file, replace(found, position=103), codec, large_page_bytes
        )

    size = len(data)
    assert size == (16 << 10) + 8
    assert longest(size) == longest(1 << 20) == 7000
    assert longest(size - 1) == size  # too large
    assert longest(1 << 20, unpacked=16 << 10) == 16 << 10  # too small
    if codec != "UNCOMPRESSED":
        assert longest(1 << 20, skip=1) == size  # damaged


def test_values_are_read_to_the_last_byte() -> None:
    for sizes in ((1, 17_000), (17_000, 20_000, 1), (16_380, 0)):
        data = dictionary_of(*sizes)
        found = replace(page(DICTIONARY, {}, packed=len(data), unpacked=len(data)), position=0)
        assert parquetpages._longest_value(io.BytesIO(data), found, "UNCOMPRESSED", 1 << 20) == (
            max(sizes)
        )


def test_a_header_that_never_ends_is_read_a_few_times_only() -> None:
    """16 times as much each time: up to 16 MiB, beyond which nothing is taken for a header."""
    sizes: list[int] = []

    class File(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            sizes.append(size or 0)
            return super().read(size)

    text = b"\x18" + varint(1 << 30)
    with pytest.raises(PageError, match=r"^no page header at byte 0$"):
        parquetpages._read_header(File(text + bytes(300 << 10)), 0)
    assert sizes[:3] == [4 << 10, 64 << 10, 1 << 20]
    assert max(sizes[3:]) < 1 << 20  # the file has no more


@pytest.mark.parametrize(("data", "number"), [
    (b"\x00", 0), (b"\x7f", 127), (b"\x80\x01", 128), (b"\xff" * 9 + b"\x01", (1 << 64) - 1),
    (b"\x85\x80\x04", 5 + (4 << 14)),
])  # fmt: skip
def test_numbers_of_seven_bits_a_byte(data: bytes, number: int) -> None:
    assert read_varint(b"_" + data + b"\xff", 1) == (number, 1 + len(data))
    with pytest.raises(IndexError):
        read_varint(data[:-1], 0)
    with pytest.raises(PageError, match="a number without end"):
        read_varint(b"\x80" * 10 + b"\x01", 0)


@pytest.mark.parametrize(
    ("header", "fields"),
    [
        (b"\x25" + varint(0) + b"\x15" + varint(0) + b"\0", {2: 0, 3: 0}),
        (b"\x35" + varint(0) + b"\0", {3: 0}),  # nothing is said of its size when unpacked
        (b"\x35" + varint(2) + b"\0", {3: 1}),
    ],
)
def test_a_page_may_be_empty(header: bytes, fields: dict[int, int]) -> None:
    assert parquetpages._read_header(io.BytesIO(header), 0) == (fields, len(header))
