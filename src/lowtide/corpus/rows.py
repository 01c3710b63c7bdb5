"""Texts that come row by row (parquet, Hugging Face datasets), gathered into blocks.

In:      texts in the order of the rows
Out:     TextBlock; a text larger than a block in parts, cut between lines
Memory:  one block, one batch of rows, and six times the largest text; a compressed parquet file is
         unpacked in the temporary folder (TMPDIR)
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from lowtide.arrays import np
from lowtide.corpus.cutting import cut_text, long_row
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.streams import open_stream
from lowtide.corpus.textblocks import ReadingOptions, Segment, Stream, TextBlock
from lowtide.errors import DataError

__all__ = ["iter_parquet_rows", "iter_row_blocks"]

_BATCH_ROWS = 256


def iter_row_blocks(
    stream: Stream, options: ReadingOptions, rows: Iterator[tuple[bytes, int]]
) -> Iterator[TextBlock]:
    """Gather rows (text, stored bytes) into blocks; a text larger than a block comes in parts."""
    texts: list[bytes] = []
    held = stored = number = row = 0
    for text, stored_bytes in rows:
        stored += stored_bytes
        row += 1
        if len(text) <= options.block_bytes + options.window_bytes:
            texts.append(text)
            held += len(text)
            if held < options.block_bytes:
                continue
        if texts:
            first = row - len(texts) if texts[-1] is text else row - 1 - len(texts)
            yield _rows_block(stream, number, texts, first, stored)
            number, held, stored, texts = number + 1, 0, 0, []
        if len(text) > options.block_bytes + options.window_bytes:
            if len(text) > options.max_row_bytes:
                raise long_row(stream.inputs[0].path, f"{row - 1}", len(text))
            for begin, end in _cut_long_text(text, options):
                part = _rows_block(stream, number, [text[begin:end]], row - 1, stored)
                yield replace(part, continues=begin > 0, continued=end < len(text))
                number, stored = number + 1, 0
    if texts:
        yield _rows_block(stream, number, texts, row - len(texts), stored)


def _cut_long_text(text: bytes, options: ReadingOptions) -> Iterator[tuple[int, int]]:
    begin = 0
    while len(text) - begin > options.block_bytes + options.window_bytes:
        start = begin + options.block_bytes
        window = text[start - 1 : start + options.window_bytes]
        cut = cut_text(window, 1, b"", len(window) - 1)
        end = start - 1 + cut[0] if cut is not None else start + options.window_bytes
        yield begin, end
        begin = end
    yield begin, len(text)


def iter_parquet_rows(source: InputFile, options: ReadingOptions) -> Iterator[tuple[bytes, int]]:
    """Give the texts of a parquet file's column, each with its share of the stored bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with contextlib.ExitStack() as stack:
        stored = (
            source.path if source.compression is None else stack.enter_context(_unpacked(source))
        )
        try:
            opened = pq.ParquetFile(stored, pre_buffer=False, buffer_size=1 << 20)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"not a parquet file: {error}", path=source.path, next_step="fetch the file again"
            ) from None
        file = stack.enter_context(opened)
        _check_column(file.schema_arrow, source.path, options.text_field)
        row_bytes = source.size_bytes // max(file.metadata.num_rows, 1)
        try:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=[options.text_field]):
                for value in batch.column(0).cast(pa.large_binary()).to_pylist():
                    yield value or b"", row_bytes
        except (pa.ArrowException, OSError) as error:  # OSError: also what cannot be unpacked
            raise DataError(
                f"damaged parquet file: {error}",
                path=source.path,
                next_step="fetch the file again, or keep what is readable with --skip-bad-inputs",
            ) from None


@contextlib.contextmanager
def _unpacked(source: InputFile) -> Generator[IO[bytes]]:
    """Give a decompressed copy without a name: a parquet file has to be read from its end."""
    with tempfile.TemporaryFile() as copy:
        with open_stream(source) as stream:
            while block := stream.read(1 << 20):
                copy.write(block)
        copy.seek(0)
        yield copy


def _check_column(schema: Any, path: Path, name: str) -> None:
    import pyarrow as pa

    if name not in schema.names:
        raise DataError(
            f"no column {name!r}; there are {', '.join(schema.names)}",
            path=path,
            next_step="name the column of text with --text-field",
        )
    kind = schema.field(name).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    kinds = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary())
    if kind not in kinds:  # binary: some programs write text without saying that it is
        raise DataError(f"column {name!r} holds {kind}, expected text", path=path)


def _rows_block(
    stream: Stream, number: int, texts: list[bytes], first_row: int, stored_bytes: int
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
