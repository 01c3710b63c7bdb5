"""Read inputs of any format and size as blocks of whole documents.

In:      InputFile rows; plain or compressed text, jsonl, parquet
Out:     TextBlock: a few MiB of bytes and their origin; or single documents
Memory:  one block, one cut window and one decompression buffer per reader

Blocks are cut at fixed positions (the first document border after every `block_bytes` of a stream),
so they are the same for any number of workers. If no border is near, the document itself is cut at
a line border, and the block records that.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lowtide import files
from lowtide.corpus.cutting import PROBE_BYTES, context_bytes, cut_text, find_cut, read_at
from lowtide.corpus.decompression import open_stream
from lowtide.corpus.grouping import (
    is_plain_text,
    join_blocks,
    join_small_blocks,
    plan_streams,
)
from lowtide.corpus.inputs import InputFile, InputList, InputSlice, expand_inputs
from lowtide.corpus.jsonrows import extract_json_rows
from lowtide.corpus.longrows import iter_jsonl_blocks
from lowtide.corpus.nontext import check_text
from lowtide.corpus.textblocks import (
    BLOCK_BYTES,
    DEFAULT_SEPARATOR,
    Paths,
    ReadingSettings,
    Segment,
    Stream,
    StreamPaths,
    TextBlock,
    iter_separated,
)
from lowtide.errors import DataError, LowtideError, from_os_error
from lowtide.quickclasses import dataclass
from lowtide.stores.paths import is_stored

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "BLOCK_BYTES",
    "DEFAULT_SEPARATOR",
    "Document",
    "InputFile",
    "ReadingSettings",
    "Segment",
    "Stream",
    "TextBlock",
    "block_documents",
    "check_text",
    "check_text_field",
    "cut_text",
    "expand_inputs",
    "extract_json_rows",
    "is_plain_text",
    "is_text",
    "iter_blocks",
    "iter_documents",
    "plan_streams",
    "read_block",
]

ItemT = TypeVar("ItemT")
_FIRST_ROWS_BYTES = 1 << 16
_NUMBERS_AT_ONCE = 1 << 12


@dataclass(frozen=True)
class Document:
    """One document, or a part of one too large for a block."""

    input_index: int
    ordinal: int
    """Where it starts in its input: a byte offset (text, jsonl) or a row (parquet)."""
    text: bytes
    is_first: bool = True
    is_last: bool = True


def read_block(stream: Stream, number: int, options: ReadingSettings) -> TextBlock | None:
    """Read block `number` of a random-access stream; None if the block before has all of it."""
    if stream.num_blocks == 1:
        return _read_group(stream, options)
    source = stream.inputs[0]
    try:
        if number == 0 or options.skip_bad:  # all blocks of a skipped file are skipped
            with source.path.open("rb", buffering=0) as file:
                check_text(source, file.read(PROBE_BYTES))
    except (OSError, DataError) as error:
        _skip_bad(source, options, error, tell=number == 0)
        return None
    try:
        with source.path.open("rb", buffering=0) as file:
            begin, inside = find_cut(file, source, number * options.block_bytes, options)
            end, cut = find_cut(file, source, (number + 1) * options.block_bytes, options)
            data = read_at(file, begin, end - begin)
            _require_size(source, begin + len(data), wanted=end)
    except OSError as error:
        raise from_os_error(error) from None
    if begin >= end:
        return None
    return TextBlock(
        stream=stream.index,
        number=number,
        kind=source.format.block_kind,
        data=data,
        segments=(Segment(source.index, begin, 0, len(data)),),
        continues=inside,
        continued=cut,
        stored_bytes=len(data),
    )


def _read_group(stream: Stream, options: ReadingSettings) -> TextBlock:
    blocks: list[TextBlock] = []
    for source in stream.inputs:
        try:
            data = (
                source.path.read_bytes()
                if is_stored(source.path)
                else files.read_whole(source.path)
            )
            _require_size(source, len(data))
            check_text(source, data[:PROBE_BYTES])
        except (OSError, DataError) as error:
            _skip_bad(source, options, error)
            continue
        segment = Segment(source.index, 0, 0, len(data))
        blocks.append(
            TextBlock(
                stream.index, 0, source.format.block_kind, data, (segment,), stored_bytes=len(data)
            )
        )
    if not blocks:
        return TextBlock(stream.index, 0, stream.inputs[0].format.block_kind, b"", ())
    return join_blocks(blocks, number=0)


def _require_size(source: InputFile, size: int, *, wanted: int | None = None) -> None:
    """Refuse a file that became shorter since it was found: its text has changed."""
    if size < (source.size_bytes if wanted is None else wanted):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(source.path))


def _skip_bad(
    source: InputFile, options: ReadingSettings, error: OSError | DataError, *, tell: bool = True
) -> None:
    """Raise the error of an unusable file, or with `skip_bad_inputs` report it as a notice."""
    problem = from_os_error(error) if isinstance(error, OSError) else error
    if not options.skip_bad:
        raise problem from None
    if tell:
        options.on_notice(f"{source.path}: {problem.message}; skipped")


def is_text(source: InputFile, head: bytes, options: ReadingSettings) -> bool:
    """True if a file's head is text; if not, raise an error, or send a notice if it is skipped."""
    try:
        check_text(source, head[:PROBE_BYTES])
    except DataError as error:
        _skip_bad(source, options, error)
        return False
    return True


def iter_blocks(
    stream: Stream, options: ReadingSettings, *, known: int = 0
) -> Iterator[TextBlock | None]:
    """Read a stream's blocks in order; the first `known` are skipped and yielded as None."""
    if stream.random_access:
        for number in range(stream.num_blocks):
            yield None if number < known else read_block(stream, number, options)
        return
    for number, block in enumerate(_iter_in_order(stream, options)):
        yield None if number < known else block


def _iter_in_order(stream: Stream, options: ReadingSettings) -> Iterator[TextBlock]:
    source = stream.inputs[0]
    if source.format.iter_rows is not None:
        # With the parquet reader it takes 3 ms to import, which plain text does not need.
        from lowtide.corpus.rows import iter_row_blocks

        rows = source.format.iter_rows(source, options)
        return iter_row_blocks(stream, options, _until_damage(rows, source, options))
    blocks = (
        block
        for source in stream.inputs
        for block in _until_damage(_iter_stream(stream.index, source, options), source, options)
    )
    if len(stream.inputs) == 1:
        return blocks
    return join_small_blocks(blocks, block_bytes=options.block_bytes)


def _until_damage(
    items: Iterator[ItemT], source: InputFile, options: ReadingSettings
) -> Iterator[ItemT]:
    """Yield blocks up to damage, which is an error, or a notice with `skip_bad_inputs`."""
    try:
        yield from items
    except DataError as error:
        if not options.skip_bad:
            raise
        _tell_damage(source, options, error)
    except OSError as error:
        if not options.skip_bad:
            raise from_os_error(error) from None
        _tell_damage(source, options, from_os_error(error))


def _tell_damage(source: InputFile, options: ReadingSettings, error: LowtideError) -> None:
    options.on_notice(f"{source.path}: {error.message}; the rest of it skipped")


def _iter_stream(stream: int, source: InputFile, options: ReadingSettings) -> Iterator[TextBlock]:
    """Cut a compressed or re-encoded file into blocks, by the same rule as a plain one."""
    back = context_bytes(options.separator)
    held = bytearray()
    base = number = stored = 0
    inside = ended = False
    on_damage = partial(_tell_damage, source, options) if options.skip_bad else None
    with open_stream(source, options, on_damage=on_damage) as reader:
        if source.format.block_kind == "jsonl":
            yield from iter_jsonl_blocks(
                stream, source, options, reader, partial(check_text, source)
            )
            return
        while not ended:
            nominal = (number + 1) * options.block_bytes
            wanted = nominal + options.window_bytes + back - base
            while len(held) < wanted and not ended:
                part = reader.read(wanted - len(held))
                ended = not part
                held += part
            if number == 0:
                check_text(source, bytes(held[:PROBE_BYTES]))
            end, cut = len(held), False
            if not ended or len(held) > nominal - base:
                end, cut = _cut_stream(held, nominal - base, ended, options)
            if end > 0:
                data = bytes(held[:end])
                del held[:end]
                read_so_far = reader.stored_position()
                yield TextBlock(
                    stream=stream,
                    number=number,
                    kind=source.format.block_kind,
                    data=data,
                    segments=(Segment(source.index, base, 0, len(data)),),
                    continues=inside,
                    continued=cut,
                    stored_bytes=read_so_far - stored,
                )
                stored, base, inside = read_so_far, base + end, cut
                number += 1
            ended = ended and not held


def _cut_stream(
    held: bytearray, nominal: int, ended: bool, options: ReadingSettings
) -> tuple[int, bool]:
    """Return (end, inside a document) for the block that should end at `nominal`."""
    back = context_bytes(options.separator)
    window = bytes(held[max(nominal - back, 0) : nominal + options.window_bytes + back])
    start = min(nominal, back)
    cut = cut_text(window, start, options.separator, len(window) - back)
    at_end = ended and len(held) <= nominal + options.window_bytes
    if cut is None or (cut[1] and at_end):
        return len(held), False
    return nominal - start + cut[0], cut[1]


def iter_documents(
    inputs: Sequence[InputFile] | Iterable[str | Path], options: ReadingSettings | None = None
) -> Iterator[Document]:
    """Return every document of the inputs in order; one too large for a block in parts.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "two.txt"
    >>> _ = path.write_text("one<|endoftext|>two")
    >>> [document.text for document in iter_documents([path])]
    [b'one', b'two']
    """
    options = options or ReadingSettings()
    sources = _as_sources(inputs)
    streams = plan_streams(sources, options)
    paths = StreamPaths(streams)
    for stream in streams:
        for block in iter_blocks(stream, options):
            if block is not None:
                yield from block_documents(block, options, paths)


def _as_sources(inputs: Sequence[InputFile] | Iterable[str | Path]) -> Sequence[InputFile]:
    if isinstance(inputs, InputList | InputSlice):
        return inputs  # as Python objects 200,000 of them would take 80 MiB
    rows = list(inputs)
    if rows and isinstance(rows[0], InputFile):
        return [row for row in rows if isinstance(row, InputFile)]
    return expand_inputs([row for row in rows if not isinstance(row, InputFile)])


def check_text_field(inputs: Sequence[InputFile], text_field: str) -> None:
    """Raise the error of the first rows of jsonl if they have no text in this field."""
    rows = next((source for source in inputs if source.format.block_kind == "jsonl"), None)
    if rows is not None:
        options = ReadingSettings(text_field=text_field, block_bytes=_FIRST_ROWS_BYTES)
        next(iter_documents([rows], options), None)


def block_documents(block: TextBlock, options: ReadingSettings, paths: Paths) -> Iterator[Document]:
    """Split a block into documents; empty ones are left out."""
    if block.kind == "jsonl":
        yield from _jsonl_documents(block, options, paths)
    elif block.kind == "rows" and block.row_ends is not None:
        begin = 0
        segment = block.segments[0]
        last_row = len(block.row_ends) - 1
        for row, end in enumerate(_iter_numbers(block.row_ends)):
            if end > begin:
                yield Document(
                    segment.input_index,
                    segment.offset + row,
                    block.data[begin:end],
                    is_first=not (block.continues and row == 0),
                    is_last=not (block.continued and row == last_row),
                )
            begin = end
    else:
        yield from _text_documents(block, options)


def _text_documents(block: TextBlock, options: ReadingSettings) -> Iterator[Document]:
    for segment in block.segments:
        for begin, end, is_last in iter_separated(block.data, segment, options.separators):
            first = not (block.continues and begin == 0)
            last = not (block.continued and end == len(block.data) and is_last)
            if end > begin:
                ordinal = segment.offset + begin - segment.begin
                yield Document(segment.input_index, ordinal, block.data[begin:end], first, last)


def _jsonl_documents(
    block: TextBlock, options: ReadingSettings, paths: Paths
) -> Iterator[Document]:
    text, ends, offsets, inputs = extract_json_rows(block, options, paths)
    begin = 0
    columns = map(_iter_numbers, (ends, offsets, inputs))
    for end, offset, index in zip(*columns, strict=True):
        if end > begin:
            yield Document(index, offset, text[begin:end].tobytes())
        begin = end


def _iter_numbers(column: npt.NDArray[Any]) -> Iterator[int]:
    """Numbers as Python ints, in chunks, because many empty rows would take too much memory."""
    for begin in range(0, len(column), _NUMBERS_AT_ONCE):
        yield from column[begin : begin + _NUMBERS_AT_ONCE].tolist()
