"""Pages larger than a reader holds give the same texts as a library that holds them."""

from __future__ import annotations

import io
import os
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import _native
from lowtide.corpus import largepages, parquetpages, reading
from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.inputs import expand_inputs
from lowtide.errors import BudgetError, DataError

MIB = 1 << 20
OPTIONS = reading.ReadingSettings(
    reader_bytes=5 * MIB, block_bytes=8 << 10, large_page_bytes=100_000
)


def make_texts(count: int = 30, size: int = 24_000) -> list[str | None]:
    source = random.Random(7)
    words = ["".join(source.choices("etaoinsh", k=5)) for _ in range(5000)]
    lines = [" ".join(source.choices(words, k=200)) for _ in range(100)]
    texts: list[str | None] = [
        "\n".join(source.choices(lines, k=size // 1200)) for _ in range(count)
    ]
    texts[3:3] = ["short", None, ""]
    return [*texts, texts[0], None, "the end"]


def write(path: Path, texts: list[str | None], **options: Any) -> Path:
    pq.write_table(pa.table({"number": range(len(texts)), "text": texts}), path, **options)
    return path


def read(path: Path, options: reading.ReadingSettings = OPTIONS) -> dict[int, str]:
    found: dict[int, bytes] = {}
    for document in reading.iter_documents([path], options):
        found[document.ordinal] = found.get(document.ordinal, b"") + document.text
    return {row: text.decode() for row, text in found.items()}


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_large_pages_are_read_in_little_memory(
    tmp_path: Path, compression: str, version: str, use_dictionary: bool
) -> None:
    texts = make_texts()
    path = write(
        tmp_path / "a.parquet",
        texts,
        compression=compression,
        data_page_version=version,
        use_dictionary=use_dictionary,
        data_page_size=1 * MIB,
    )
    assert reader_bytes(expand_inputs([path]), OPTIONS) < 5 * MIB
    assert read(path) == {row: text for row, text in enumerate(texts) if text}


def test_documents_of_330_kb_as_a_stock_writer_stores_them(tmp_path: Path) -> None:
    texts = make_texts(30, 330_000)
    path = write(tmp_path / "a.parquet", texts)
    options = reading.ReadingSettings(reader_bytes=5 * MIB)
    assert reader_bytes(expand_inputs([path]), options) < 5 * MIB
    assert read(path, options) == {row: text for row, text in enumerate(texts) if text}


def test_a_column_without_nulls_and_many_rows_of_a_dictionary(tmp_path: Path) -> None:
    texts = [text for text in make_texts(24) if text] * 3
    schema = pa.schema([pa.field("text", pa.string(), nullable=False)])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts}, schema=schema), path)
    assert reader_bytes(expand_inputs([path]), OPTIONS) < 5 * MIB
    assert list(read(path).values()) == texts


def test_encodings_that_need_a_whole_page_are_refused_with_what_they_take(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        make_texts(),
        use_dictionary=False,
        column_encoding={"text": "DELTA_BYTE_ARRAY", "number": "PLAIN"},
        data_page_size=1 * MIB,
    )
    needed = reader_bytes(expand_inputs([path]), OPTIONS)
    with pytest.raises(BudgetError, match="has a page of"):
        read(path, replace(OPTIONS, reader_bytes=needed - 1))


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
def test_damage_is_an_error_that_names_the_file(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / "a.parquet", make_texts(), compression=compression)
    data = bytearray(path.read_bytes())
    for at in range(40, len(data) // 2, 500):
        data[at] ^= 0x55
    path.write_bytes(data)
    try:
        read(path)
    except DataError as error:
        assert "damaged parquet file" in error.message
    else:
        assert compression == "none"  # letters are other ones, nothing tells


@given(st.data())
def test_numbers_as_parquet_packs_them(data: st.DataObject) -> None:
    width = data.draw(st.integers(0, 20))
    numbers = data.draw(st.lists(st.integers(0, (1 << width) - 1), min_size=1, max_size=80))
    packed = bytearray()
    expected: list[int] = []
    for begin in range(0, len(numbers), 8):
        group = numbers[begin : begin + 8]
        if len(group) < 8 or data.draw(st.booleans()):
            for number in group:
                packed += bytes([3 << 1]) + number.to_bytes((width + 7) // 8, "little")
                expected += [number] * 3
        else:
            bits = sum(number << (width * place) for place, number in enumerate(group))
            packed += bytes([3]) + bits.to_bytes(width, "little")
            expected += group
    assert list(largepages._iter_numbers(bytes(packed), width)) == expected


@pytest.mark.parametrize(
    ("packed", "expected"),
    [(b"\x80", "ends in the middle of a number"), (b"\x80" * 20, "a number without end")],
)
def test_numbers_that_do_not_end_are_refused(packed: bytes, expected: str) -> None:
    with pytest.raises(parquetpages.PageError, match=expected):
        list(largepages._iter_numbers(packed, 3))


def unpack(packed: bytes) -> tuple[int, bytes]:
    with tempfile.TemporaryFile() as stored, tempfile.TemporaryFile() as text:
        stored.write(b"before" + packed)
        stored.flush()
        count = _native.unpack_snappy(stored.fileno(), 6, len(packed), text.fileno())
        return count, text.read()


@given(st.binary(max_size=3000), st.integers(1, 2000))
def test_snappy(part: bytes, times: int) -> None:
    text = part * times
    packed = pa.Codec("snappy").compress(text, asbytes=True)
    assert unpack(packed) == (len(text), text)
    assert unpack(packed[:-1])[0] == -1
    assert unpack(packed + b"\0x")[0] == -1


def test_snappy_may_reach_back_further_than_what_is_held() -> None:
    text = random.Random(1).randbytes(3 * MIB)
    size = len(text) + 10
    length = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21])
    literal = bytes([62 << 2]) + (len(text) - 1).to_bytes(3, "little") + text
    copy = bytes([9 << 2 | 3]) + (len(text) - 5).to_bytes(4, "little")
    assert unpack(length + literal + copy) == (size, text + text[5:15])
    before = bytes([9 << 2 | 3]) + (len(text) + 1).to_bytes(4, "little")
    assert unpack(length + literal + before)[0] == -1


def test_numbers_of_no_bits_are_zeros_in_runs_and_in_groups() -> None:
    """A dictionary of one text: three groups of eight, and a run of five."""
    data = bytes([3 << 1 | 1, 5 << 1])
    assert list(largepages._iter_numbers(data, 0)) == [0] * 29  # pyright: ignore


def test_a_stretch_of_what_is_no_file_is_copied_into_one() -> None:
    stored = io.BytesIO(bytes(range(100)))
    with largepages._in_a_file(stored, 10, 50) as (descriptor, place):  # pyright: ignore
        assert os.pread(descriptor, 80, place) == bytes(range(10, 60))


@pytest.mark.parametrize("codec", ["SNAPPY", "ZSTD", "GZIP"])
def test_a_page_takes_the_place_of_the_one_before(codec: str) -> None:
    """Of a larger page nothing stays on the disk; a page of another size than said is refused."""
    with tempfile.TemporaryFile() as stored, tempfile.TemporaryFile() as into:
        for size in (5000, 300):
            text = random.Random(size).randbytes(size)
            packed = pa.Codec(codec.lower()).compress(text, asbytes=True)
            stored.seek(0)
            stored.write(b"before" + packed)
            stored.flush()
            found = largepages._unpack(stored, 6, len(packed), size, codec, into)  # pyright: ignore
            assert found == (into, 0, size) and into.read() == text
            assert os.fstat(into.fileno()).st_size == size
            with pytest.raises(
                parquetpages.PageError, match=f"unpacks to {size} bytes, its header"
            ):
                largepages._unpack(stored, 6, len(packed), size + 1, codec, into)  # pyright: ignore
        plain = largepages._unpack(stored, 6, 9, 9, "UNCOMPRESSED", into)  # pyright: ignore
        assert plain == (stored, 6, 9)


def test_texts_lie_one_after_the_other() -> None:
    """Each after its length; a longer one than is held comes as its place."""
    rows = [b"ab", b"", b"cdefg"]
    data = b"".join(len(row).to_bytes(4, "little") + row for row in rows)
    file = io.BytesIO(b"--" + data)
    texts = largepages._Texts(file, 2, len(data), 4)  # pyright: ignore
    assert (texts.next(), texts.next()) == (b"ab", b"")
    long = texts.next()
    assert long == largepages.StoredText(file, 2 + len(data) - 5, 5) and texts.left == 0
    assert isinstance(long, largepages.StoredText)
    read = long.reader()
    assert (len(long), read(2), read(9), read(1)) == (5, b"cd", b"efg", b"")
    with pytest.raises(parquetpages.PageError, match="a page that ends before byte"):
        texts.next()
    short = largepages._Texts(file, 2, len(data) - 1, 4)  # pyright: ignore
    with pytest.raises(parquetpages.PageError, match="a text that is longer than its page"):
        short.find_places(3)
    whole = largepages._Texts(file, 2, len(data), 5)  # pyright: ignore
    whole.find_places(3)
    assert [whole.at(number) for number in (2, 0, 1)] == [b"cdefg", b"ab", b""]
    with pytest.raises(parquetpages.PageError, match="text 3 of a dictionary that has 3"):
        whole.at(3)
    again = largepages._Texts(file, 2, len(data), 5)  # pyright: ignore
    assert again.take(6) == data[:6] and again.left == len(data) - 6
    assert again.take(again.left) == data[6:]
    with pytest.raises(parquetpages.PageError, match="in the middle of 1 bytes"):
        again.take(1)


@pytest.mark.parametrize("width", [1, 2, 3, 9])
def test_long_runs_of_groups_are_read_some_at_a_time(width: int) -> None:
    """More than are unpacked at once, and not all of them of the same number."""
    numbers = [number * 7 % (1 << width) for number in range(8 * 1100)]
    bits = sum(number << (width * place) for place, number in enumerate(numbers))
    head = 1100 << 1 | 1
    packed = bytes([head & 127 | 128, head >> 7]) + bits.to_bytes(width * 1100, "little")
    assert list(largepages._iter_numbers(packed, width)) == numbers  # pyright: ignore
