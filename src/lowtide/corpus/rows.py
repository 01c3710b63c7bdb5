"""Collect texts that are read row by row (parquet, Hugging Face datasets) into blocks.

In:      texts in the order of the rows
Out:     TextBlock; a text larger than a block in parts, cut between lines
Memory:  one block, one batch of rows limited by bytes, and a few times a parquet page below 8 MiB
         (an error if that exceeds a reader's limit); larger pages, and compressed parquet files,
         are unpacked in the temporary folder (TMPDIR)
"""

from __future__ import annotations

import contextlib
import importlib
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from lowtide.arrays import np
from lowtide.corpus.decompression import check_reader_bytes, open_stream, window_bytes
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.largepages import Row, StoredText, iter_large_rows
from lowtide.corpus.longrows import iter_text_parts
from lowtide.corpus.parquetpages import ColumnPages, PageError, read_column_pages
from lowtide.corpus.textblocks import ReadingSettings, Segment, Stream, TextBlock
from lowtide.errors import DataError
from lowtide.memory import format_size
from lowtide.packages import import_package
from lowtide.scratch import scratch_file
from lowtide.settings import import_when_used
from lowtide.stores.paths import is_stored

if TYPE_CHECKING:
    import zstandard
else:
    zstandard = import_when_used("zstandard")

__all__ = ["iter_parquet_rows", "iter_row_blocks", "parquet_bytes"]

_BATCH_ROWS = 256
_BATCH_BYTES = 2 << 20
_ROW_GROUPS_PLANNED = 256
_ROW_BYTES = 64
"""The minimum bytes counted for a row, so that millions of empty rows fill a block too."""
_NAME_COLUMN = "name the column of text with --text-field"
_SHORT_BYTES = 1 << 10
_FEWEST_ROWS = 16


def iter_row_blocks(
    stream: Stream, options: ReadingSettings, rows: Iterator[tuple[Row | memoryview, int]]
) -> Iterator[TextBlock]:
    """Gather rows (text, stored bytes) into blocks; a text larger than a block is split."""
    texts: list[bytes | memoryview] = []
    held = stored = number = row = 0
    most_rows = max(options.block_bytes // _ROW_BYTES, _FEWEST_ROWS)
    for text, stored_bytes in rows:
        stored += stored_bytes
        row += 1
        is_long = isinstance(text, StoredText) or len(text) > options.longest_bytes
        if not isinstance(text, StoredText) and not is_long:
            # A view takes 300 bytes, and keeps its whole batch in memory.
            texts.append(bytes(text) if len(text) <= _SHORT_BYTES else text)
            held += len(text)
            if held < options.block_bytes and len(texts) < most_rows:
                continue
        if texts:
            first = row - len(texts) - is_long
            block = _rows_block(stream, number, texts, first, stored)
            number, held, stored, texts = number + 1, 0, 0, []  # first, to free it
            yield block
            del block
        if is_long:
            done = 0
            for part in iter_text_parts(_reader_of(text), len(text), options):
                begun, done = done > 0, done + len(part)
                block = _rows_block(stream, number, [part], row - 1, stored)
                yield replace(block, continues=begun, continued=done < len(text))
                number, stored = number + 1, 0
    if texts:
        yield _rows_block(stream, number, texts, row - len(texts), stored)


def _reader_of(text: Row | memoryview) -> Callable[[int], bytes]:
    if isinstance(text, StoredText):
        return text.reader()
    view = memoryview(text)
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        part = bytes(view[position : position + size])
        position += len(part)
        return part

    return read


def _why_held(pages: ColumnPages, chunk: Any) -> str:
    """The reason why a page cannot be unpacked on disk, for the error."""
    if pages.streamed_bytes is not None:
        return ""
    kinds = ", ".join(chunk.encodings)
    return f", packed by {chunk.compression} and encoded as {kinds}, which is read as a whole"


def iter_parquet_rows(
    source: InputFile, options: ReadingSettings
) -> Iterator[tuple[Row | memoryview, int]]:
    """Return the texts of a parquet file's column, each with its share of the stored bytes."""
    pa = _import_pyarrow(source.path)
    with _opened(source, options) as (file, stored):
        row_bytes = source.size_bytes // max(file.metadata.num_rows, 1)
        try:
            for group in range(file.metadata.num_row_groups):
                chunk, has_nulls = _find_chunk(file, group, options.text_field)
                pages = read_column_pages(stored, chunk, large_page_bytes=options.large_page_bytes)
                num_rows = pages.batch_rows(_BATCH_ROWS, _BATCH_BYTES)
                check_reader_bytes(
                    pages.held_bytes(num_rows),
                    options,
                    path=source.path,
                    what=f"row group {group} has a page of {format_size(pages.unpacked_bytes)}, "
                    f"and texts of up to {format_size(pages.value_bytes)}"
                    + _why_held(pages, chunk),
                    remedy="; or write the file again with smaller pages, packed by zstd, snappy "
                    "or gzip, the long texts as files",
                )
                if pages.is_streamed:
                    for text in iter_large_rows(
                        stored, chunk, has_nulls=has_nulls, most_bytes=options.longest_bytes
                    ):
                        yield text, row_bytes
                    continue
                for batch in file.iter_batches(
                    batch_size=num_rows,
                    row_groups=[group],
                    columns=[options.text_field],
                    use_threads=False,
                ):
                    for value in batch.column(0).cast(pa.large_binary()):
                        text = value.as_buffer()
                        yield memoryview(text) if text is not None else b"", row_bytes
        # OSError and the next two: the page cannot be unpacked
        except (pa.ArrowException, PageError, OSError, zlib.error, zstandard.ZstdError) as error:
            raise DataError(
                f"damaged parquet file: {error}",
                path=source.path,
                next_step="fetch the file again, or keep what is readable with --skip-bad-inputs",
            ) from None


def parquet_bytes(source: InputFile, options: ReadingSettings) -> int:
    """Memory for reading a parquet file besides its block, by its first row groups."""
    needed = window_bytes(source)
    if source.compression is not None:
        return needed  # its contents are checked when it is unpacked
    try:
        with _opened(source, options) as (file, stored):
            for group in range(min(file.metadata.num_row_groups, _ROW_GROUPS_PLANNED)):
                chunk = _find_chunk(file, group, options.text_field)[0]
                pages = read_column_pages(stored, chunk, large_page_bytes=options.large_page_bytes)
                num_rows = pages.batch_rows(_BATCH_ROWS, _BATCH_BYTES)
                needed = max(needed, pages.held_bytes(num_rows))
    except (DataError, PageError, OSError):
        return needed  # reading it will report the error
    return needed


@contextlib.contextmanager
def _opened(source: InputFile, options: ReadingSettings) -> Generator[tuple[Any, BinaryIO]]:
    """Return a file opened by pyarrow, and the stored file."""
    pa = _import_pyarrow(source.path)
    pq = importlib.import_module("pyarrow.parquet")
    with contextlib.ExitStack() as stack:
        # Otherwise pyarrow keeps memory of pages, up to 30 MiB, while other inputs are read.
        stack.callback(pa.default_memory_pool().release_unused)
        stored = stack.enter_context(
            cast("BinaryIO", source.path.open("rb"))
            if source.compression is None
            else _unpacked(source, options)
        )
        try:
            opened = pq.ParquetFile(
                stored if source.compression or is_stored(source.path) else source.path,
                pre_buffer=False,
                buffer_size=1 << 20,
            )
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"not a parquet file: {error}", path=source.path, next_step="fetch the file again"
            ) from None
        file = stack.enter_context(opened)
        _check_column(file, source.path, options.text_field)
        yield file, cast("BinaryIO", stored)


def _import_pyarrow(path: Path) -> Any:
    return import_package("pyarrow", "a parquet file", path=path)


def _find_chunk(file: Any, group: int, name: str) -> tuple[Any, bool]:
    """The column's chunk of a row group, and whether rows may be without a text."""
    metadata = file.metadata.row_group(group)
    for number in range(metadata.num_columns):
        chunk = metadata.column(number)
        if chunk.path_in_schema == name:
            return chunk, file.schema.column(number).max_definition_level > 0
    raise PageError(f"row group {group} has no column {name!r}")


@contextlib.contextmanager
def _unpacked(source: InputFile, options: ReadingSettings) -> Generator[IO[bytes]]:
    """Return a decompressed copy without a name, because a parquet file is read from its end."""
    with scratch_file() as copy:
        with open_stream(source, replace(options, encoding="utf-8")) as stream:
            while block := stream.read(1 << 20):
                copy.write(block)
        copy.seek(0)
        yield copy


def _check_column(file: Any, path: Path, name: str) -> None:
    pa = _import_pyarrow(path)
    schema = file.schema_arrow
    if name not in schema.names:
        raise DataError(
            f"no column {name!r}; there are {', '.join(schema.names)}",
            path=path,
            next_step=_NAME_COLUMN,
        )
    # A field `b` of a column `a` has the path `a.b`, which may be a column's name as well.
    paths = [file.schema.column(place).path for place in range(len(file.schema))]
    if schema.names.count(name) > 1 or paths.count(name) > 1:
        raise DataError(
            f"{max(schema.names.count(name), paths.count(name))} columns are called {name!r}",
            path=path,
            next_step="write the file again with another name for each column",
        )
    kind = schema.field(name).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    kinds = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary())
    if kind not in kinds:  # binary: some programs write text without saying that it is
        raise DataError(
            f"column {name!r} holds {kind}, expected text; the columns are "
            f"{', '.join(schema.names)}",
            path=path,
            next_step=_NAME_COLUMN,
        )


def _rows_block(
    stream: Stream,
    number: int,
    texts: Sequence[bytes | memoryview],
    first_row: int,
    stored_bytes: int,
) -> TextBlock:
    data = b"".join(texts)
    ends = np.cumsum(np.fromiter(map(len, texts), dtype=np.uint64, count=len(texts)))
    return TextBlock(
        stream=stream.index,
        number=number,
        kind="rows",
        data=data,
        segments=(Segment(stream.inputs[0].index, first_row, 0, len(data)),),
        row_ends=ends.astype(np.uint64),
        stored_bytes=stored_bytes,
    )
