"""Read inputs as blocks of whole documents, wherever the text is stored and however large it is.

In:      InputFile rows; plain or compressed text, jsonl, parquet
Out:     TextBlock: a few MiB of bytes and where they come from; or single documents
Memory:  one block, one cut window and one decompression buffer per reader

Blocks are cut at fixed places (the first document border after every `block_bytes` of a stream), so
they are the same for any number of workers. Where no border is near, the document itself is cut at
a line border, and the block says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from lowtide import _native
from lowtide.corpus.hub import iter_hub_texts
from lowtide.corpus.inputs import InputFile, expand_inputs
from lowtide.corpus.streams import open_stream
from lowtide.errors import DataError, from_os_error

__all__ = [
    "DEFAULT_SEPARATOR",
    "Document",
    "InputFile",
    "ReadingOptions",
    "Segment",
    "Stream",
    "TextBlock",
    "expand_inputs",
    "extract_json_rows",
    "iter_blocks",
    "iter_documents",
    "plan_streams",
    "read_block",
]

DEFAULT_SEPARATOR = "<|endoftext|>"
BLOCK_BYTES = 4 << 20
_GROUP_FILES = 1024
_PROBE_BYTES = 64 << 10
_LETTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_BLANKS = frozenset(b" \t\r\n\v\f")


@dataclass(frozen=True)
class ReadingOptions:
    """How inputs become documents."""

    separator: bytes = DEFAULT_SEPARATOR.encode()
    """What stands between documents of a text file; empty: each file is one document."""
    text_field: str = "text"
    """The field of a jsonl row, the column of a parquet file."""
    encoding: str = "utf-8"
    block_bytes: int = BLOCK_BYTES
    max_row_bytes: int = 256 << 20
    """A jsonl row longer than this is refused; text has no such limit."""
    skip_bad: bool = False
    """Leave out what cannot be read, and say so, instead of stopping."""
    on_notice: Callable[[str], None] = field(default=lambda _: None, compare=False)

    @property
    def window_bytes(self) -> int:
        """How far past its nominal end a block looks for a document border."""
        return self.block_bytes // 2


@dataclass(frozen=True)
class Segment:
    """A stretch of a block that comes from one input."""

    input_index: int
    offset: int
    """Where in the (decompressed) input it starts: a byte, or a row of a parquet file."""
    begin: int
    end: int


@dataclass(frozen=True)
class Stream:
    """What is read in order as one: a large file, or a handful of small ones."""

    index: int
    inputs: tuple[InputFile, ...]
    random_access: bool
    """Blocks can be read by number, so several workers can share the stream."""
    num_blocks: int | None
    """How many there are at most, where that is known before reading."""

    @property
    def size_bytes(self) -> int:
        """Bytes as stored."""
        return sum(source.size_bytes for source in self.inputs)


@dataclass(frozen=True)
class TextBlock:
    """Bytes of whole documents, except where the flags say that one was cut."""

    stream: int
    number: int
    kind: str
    """text (documents between separators), jsonl (a row a line) or rows (`row_ends` says where)."""
    data: bytes
    segments: tuple[Segment, ...]
    row_ends: npt.NDArray[np.uint64] | None = None
    continues: bool = False
    """Its first document began in the block before."""
    continued: bool = False
    """Its last document goes on in the next block."""
    stored_bytes: int = 0
    """What reading this block took from the disk, for progress."""


@dataclass(frozen=True)
class Document:
    """One document, or a part of one too large for a block."""

    input_index: int
    ordinal: int
    """Where it starts in its input: the byte (text, jsonl) or the row (parquet)."""
    text: bytes
    is_first: bool = True
    is_last: bool = True


def plan_streams(inputs: Sequence[InputFile], options: ReadingOptions) -> list[Stream]:
    """Group inputs into streams: small plain text files together, everything else alone."""
    streams: list[Stream] = []
    group: list[InputFile] = []

    def flush() -> None:
        if group:
            streams.append(Stream(len(streams), tuple(group), True, 1))
            group.clear()

    utf8 = _is_utf8(options.encoding)
    for source in inputs:
        plain = source.compression is None and source.kind == "text" and utf8
        if plain and source.size_bytes <= options.block_bytes // 4:
            held = sum(member.size_bytes for member in group)
            if len(group) == _GROUP_FILES or held + source.size_bytes > options.block_bytes:
                flush()
            group.append(source)
            continue
        flush()
        random_access = source.compression is None and source.kind in ("text", "jsonl") and utf8
        count = -(-source.size_bytes // options.block_bytes) if random_access else None
        streams.append(Stream(len(streams), (source,), random_access, count))
    flush()
    return streams


def _is_utf8(encoding: str) -> bool:
    return encoding.lower().replace("_", "-") in ("utf-8", "utf8")


def read_block(stream: Stream, number: int, options: ReadingOptions) -> TextBlock | None:
    """Read block `number` of a random-access stream; None when a neighbour holds all of it."""
    source = stream.inputs[0]
    if stream.num_blocks == 1 and source.kind == "text":
        return _read_group(stream, options)
    try:
        with source.path.open("rb", buffering=0) as file:
            if number == 0:
                _check_text(source, _pread(file, 0, _PROBE_BYTES), options)
            begin, inside = _find_cut(file, source, number * options.block_bytes, options)
            end, cut = _find_cut(file, source, (number + 1) * options.block_bytes, options)
            data = _pread(file, begin, end - begin)
    except OSError as error:
        raise from_os_error(error) from None
    if begin >= end:
        return None
    return TextBlock(
        stream=stream.index,
        number=number,
        kind=source.kind,
        data=data,
        segments=(Segment(source.index, begin, 0, len(data)),),
        continues=inside,
        continued=cut,
        stored_bytes=len(data),
    )


def _read_group(stream: Stream, options: ReadingOptions) -> TextBlock:
    parts: list[bytes] = []
    segments: list[Segment] = []
    position = 0
    for source in stream.inputs:
        try:
            data = source.path.read_bytes()
        except OSError as error:
            if not options.skip_bad:
                raise from_os_error(error) from None
            options.on_notice(f"{source.path}: {error.strerror}; skipped")
            continue
        try:
            _check_text(source, data[:_PROBE_BYTES], options)
        except DataError as error:
            if not options.skip_bad:
                raise
            options.on_notice(f"{source.path}: {error.message}; skipped")
            continue
        segments.append(Segment(source.index, 0, position, position + len(data)))
        parts.append(data)
        position += len(data)
    return TextBlock(
        stream=stream.index,
        number=0,
        kind="text",
        data=parts[0] if len(parts) == 1 else b"".join(parts),
        segments=tuple(segments),
        stored_bytes=stream.size_bytes,
    )


def _pread(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    parts: list[bytes] = []
    while size > 0 and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_text(source: InputFile, probe: bytes, options: ReadingOptions) -> None:
    """Refuse what is no text at all, before a dataset is made of it."""
    if probe.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(
            "this looks like UTF-16, not UTF-8",
            path=source.path,
            next_step="--encoding utf-16",
        )
    if b"\0" in probe:
        raise DataError(
            f"this looks like a binary file: byte {probe.index(0)} is NUL",
            path=source.path,
            next_step="take it out of the inputs, or skip such files with --skip-bad-inputs",
        )


def _find_cut(
    file: BinaryIO, source: InputFile, nominal: int, options: ReadingOptions
) -> tuple[int, bool]:
    """Give where the block that nominally ends at `nominal` ends, and whether inside a document."""
    if nominal <= 0:
        return 0, False
    if nominal >= source.size_bytes:
        return source.size_bytes, False
    if source.kind == "jsonl":
        return _find_line_end(file, source, nominal, options), False
    back = max(len(options.separator) - 1, 1)
    wanted = min(_PROBE_BYTES, options.window_bytes)
    while True:  # a border is usually near: look close first, then all over the window
        window = _pread(file, nominal - back, back + wanted + back)
        cut = cut_text(window, back, options.separator, len(window) - back)
        if cut is not None and not cut[1]:
            return nominal - back + cut[0], False
        if nominal + options.window_bytes >= source.size_bytes:
            if nominal + wanted >= source.size_bytes:
                return source.size_bytes, False  # the end of the file is a border too
        elif wanted >= options.window_bytes:
            return nominal - back + (cut[0] if cut is not None else len(window)), True
        wanted = min(wanted * 8, options.window_bytes)


def _find_line_end(file: BinaryIO, source: InputFile, nominal: int, options: ReadingOptions) -> int:
    position = nominal - 1
    while position < source.size_bytes:
        window = _pread(file, position, _PROBE_BYTES)
        found = window.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(window)
        if position - nominal > options.max_row_bytes:
            raise DataError(
                f"the row at byte {nominal} is longer than {options.max_row_bytes} bytes",
                path=source.path,
                next_step="give more --memory, or split the row",
            )
    return source.size_bytes


def cut_text(window: bytes, start: int, separator: bytes, limit: int) -> tuple[int, bool] | None:
    """Find where to cut a window at or after `start`: (position, inside a document).

    First choice is the end of a separator. Else a line border between two words, where every
    pre-tokenization pattern cuts anyway; else any line border, any blank, any character.
    """
    if separator:
        found = window.find(separator, start - len(separator) + 1)
        if found >= 0 and found + len(separator) > start and found <= limit:
            return found + len(separator), False
    if start >= len(window):
        return None
    position = window.find(b"\n", start)
    first_line = position + 1 if 0 <= position < limit else 0
    while 0 <= position < min(limit, len(window) - 1):
        before, after = window[position - 1] if position else 10, window[position + 1]
        if before not in _BLANKS and after in _LETTERS:
            return position + 1, True
        position = window.find(b"\n", position + 1)
    if first_line:
        return first_line, True
    position = window.find(b" ", start)
    if 0 < position < limit:
        return position, True  # a blank belongs to the word after it
    position = start
    while position < len(window) and window[position] & 0xC0 == 0x80:
        position += 1
    return position, True


def iter_blocks(
    stream: Stream, options: ReadingOptions, *, known: int = 0
) -> Iterator[TextBlock | None]:
    """Read a stream's blocks in order; the first `known` of them come as None, cheaply."""
    if stream.random_access:
        for number in range(stream.num_blocks or 0):
            yield None if number < known else read_block(stream, number, options)
        return
    source = stream.inputs[0]
    if source.kind == "parquet":
        blocks = _iter_row_blocks(stream, options, _iter_parquet(source, options))
    elif source.kind == "hub":
        texts = iter_hub_texts(str(source.path), split=source.split, text_field=options.text_field)
        blocks = _iter_row_blocks(stream, options, ((text, 0) for text in texts))
    else:
        blocks = _iter_stream(stream, options)
    try:
        for number, block in enumerate(blocks):
            yield None if number < known else block
    except DataError as error:
        if not options.skip_bad:
            raise
        options.on_notice(f"{source.path}: {error.message}; the rest of it skipped")
    except OSError as error:
        if not options.skip_bad:
            raise from_os_error(error) from None
        options.on_notice(f"{source.path}: {error.strerror}; the rest of it skipped")


def _iter_stream(stream: Stream, options: ReadingOptions) -> Iterator[TextBlock]:
    """Cut a compressed or re-encoded stream into blocks, by the same rule as a plain file."""
    source = stream.inputs[0]
    back = max(len(options.separator) - 1, 1)
    held = bytearray()
    base = window = number = stored = 0  # a long row fills several windows, and is one block
    inside = ended = False
    with open_stream(source, encoding=options.encoding) as reader:
        while not ended:
            nominal = (window + 1) * options.block_bytes
            wanted = nominal + options.window_bytes + back - base
            while len(held) < wanted and not ended:
                part = reader.read(wanted - len(held))
                ended = not part
                held += part
            if window == 0:
                _check_text(source, bytes(held[:_PROBE_BYTES]), options)
            end, cut = len(held), False
            if not ended or len(held) > nominal - base:
                end, cut, ended = _cut_stream(held, nominal - base, ended, reader, source, options)
            if end > 0:
                data = bytes(held[:end])
                del held[:end]
                read_so_far = reader.stored_position()
                yield TextBlock(
                    stream=stream.index,
                    number=number,
                    kind=source.kind,
                    data=data,
                    segments=(Segment(source.index, base, 0, len(data)),),
                    continues=inside,
                    continued=cut,
                    stored_bytes=read_so_far - stored,
                )
                stored, base, inside = read_so_far, base + end, cut
                number += 1
            window += 1
            ended = ended and not held


def _cut_stream(
    held: bytearray,
    nominal: int,
    ended: bool,
    reader: Any,
    source: InputFile,
    options: ReadingOptions,
) -> tuple[int, bool, bool]:
    """Give (end, inside a document, stream ended) for the block that should end at `nominal`."""
    if nominal <= 0:  # a long row took this block's bytes as well
        return 0, False, ended
    if source.kind == "jsonl":
        position = held.find(b"\n", nominal - 1)
        while position < 0 and not ended:
            if len(held) - nominal > options.max_row_bytes:
                raise DataError(
                    f"a row is longer than {options.max_row_bytes} bytes",
                    path=source.path,
                    next_step="give more --memory, or split the row",
                )
            start = len(held)
            part = reader.read(options.block_bytes)
            ended = not part
            held += part
            position = held.find(b"\n", start)
        return (position + 1 if position >= 0 else len(held)), False, ended
    back = max(len(options.separator) - 1, 1)
    window = bytes(held[max(nominal - back, 0) : nominal + options.window_bytes + back])
    start = min(nominal, back)
    cut = cut_text(window, start, options.separator, len(window) - back)
    at_end = ended and len(held) <= nominal + options.window_bytes
    if cut is None or (cut[1] and at_end):
        return len(held), False, ended
    return nominal - start + cut[0], cut[1], ended


def _iter_row_blocks(
    stream: Stream, options: ReadingOptions, rows: Iterator[tuple[bytes, int]]
) -> Iterator[TextBlock]:
    """Gather rows (text, stored bytes) into blocks."""
    texts: list[bytes] = []
    held = stored = number = first_row = 0
    for text, stored_bytes in rows:
        texts.append(text)
        held += len(text)
        stored += stored_bytes
        if held >= options.block_bytes:
            yield _rows_block(stream, number, texts, first_row, stored)
            first_row, number, held, stored, texts = first_row + len(texts), number + 1, 0, 0, []
    if texts:
        yield _rows_block(stream, number, texts, first_row, stored)


def _iter_parquet(source: InputFile, options: ReadingOptions) -> Iterator[tuple[bytes, int]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(source.path, pre_buffer=False, buffer_size=1 << 20)
    except pa.ArrowInvalid as error:
        raise DataError(f"not a parquet file: {error}", path=source.path) from None
    with file:
        _check_column(file.schema_arrow, source.path, options.text_field)
        row_bytes = source.size_bytes // max(file.metadata.num_rows, 1)
        try:
            for batch in file.iter_batches(batch_size=256, columns=[options.text_field]):
                for value in batch.column(0).cast(pa.large_binary()).to_pylist():
                    yield value or b"", row_bytes
        except pa.ArrowException as error:
            raise DataError(f"damaged parquet file: {error}", path=source.path) from None


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
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
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


def iter_documents(
    inputs: Sequence[InputFile] | Iterable[str | Path], options: ReadingOptions | None = None
) -> Iterator[Document]:
    """Give every document of the inputs in order; one too large for a block comes in parts.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "two.txt"
    >>> _ = path.write_text("one<|endoftext|>two")
    >>> [document.text for document in iter_documents([path])]
    [b'one', b'two']
    """
    options = options or ReadingOptions()
    rows = list(inputs)
    sources: list[InputFile] = (
        [row for row in rows if isinstance(row, InputFile)]
        if rows and isinstance(rows[0], InputFile)
        else expand_inputs([row for row in rows if not isinstance(row, InputFile)])
    )
    paths = {source.index: source.path for source in sources}
    for stream in plan_streams(sources, options):
        for block in iter_blocks(stream, options):
            if block is not None:
                yield from block_documents(block, options, paths)


def block_documents(
    block: TextBlock, options: ReadingOptions, paths: dict[int, Path]
) -> Iterator[Document]:
    """Take a block apart into documents; empty ones are left out."""
    if block.kind == "jsonl":
        yield from _jsonl_documents(block, options, paths)
    elif block.kind == "rows" and block.row_ends is not None:
        begin = 0
        for row, end in enumerate(block.row_ends.tolist()):
            if end > begin:
                segment = block.segments[0]
                yield Document(segment.input_index, segment.offset + row, block.data[begin:end])
            begin = end
    else:
        yield from _text_documents(block, options)


def _text_documents(block: TextBlock, options: ReadingOptions) -> Iterator[Document]:
    for segment in block.segments:
        begin = segment.begin
        while begin <= segment.end:
            found = (
                block.data.find(options.separator, begin, segment.end) if options.separator else -1
            )
            end = found if found >= 0 else segment.end
            first = not (block.continues and begin == 0)
            last = not (block.continued and end == len(block.data) and found < 0)
            if end > begin:
                ordinal = segment.offset + begin - segment.begin
                yield Document(segment.input_index, ordinal, block.data[begin:end], first, last)
            if found < 0:
                break
            begin = end + len(options.separator)


def _jsonl_documents(
    block: TextBlock, options: ReadingOptions, paths: dict[int, Path]
) -> Iterator[Document]:
    text, ends, offsets = extract_json_rows(block, options, paths)
    begin = 0
    for end, offset in zip(ends.tolist(), offsets.tolist(), strict=True):
        if end > begin:
            yield Document(block.segments[0].input_index, offset, text[begin:end].tobytes())
        begin = end


def extract_json_rows(
    block: TextBlock, options: ReadingOptions, paths: dict[int, Path]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """The texts of a jsonl block, where each ends, and at which byte of the input its row begins.

    Rows without text in the field are an error, or a notice where they are to be skipped.
    """
    segment = block.segments[0]
    data = np.frombuffer(block.data, dtype=np.uint8)
    text, ends, offsets, bad = _native.extract_jsonl(data, options.text_field)
    if len(bad):
        begin = int(bad[0])
        path = paths.get(segment.input_index)
        reason = _explain_row(block.data[begin:].split(b"\n", 1)[0], options.text_field)
        message = f"row at byte {segment.offset + begin}: {reason}"
        if not options.skip_bad:
            raise DataError(
                message,
                path=path,
                next_step="name the field with --text-field, "
                "or skip such rows with --skip-bad-inputs",
            )
        more = f" (and {len(bad) - 1} more in the same block)" if len(bad) > 1 else ""
        options.on_notice(f"{path}: {message}; skipped{more}")
    return text, ends, offsets + np.uint64(segment.offset)


def _explain_row(line: bytes, field: str) -> str:
    try:
        row = json.loads(line.decode("utf-8", "replace").lstrip("\ufeff"))
    except (json.JSONDecodeError, RecursionError) as error:
        return f"not JSON: {error}"
    if not isinstance(row, dict):
        return f"no JSON object with text in field {field!r}, but a {type(row).__name__}"
    if field in row:
        return f"field {field!r} is no text, but a {type(row[field]).__name__}"
    names = [str(name) for name in cast(dict[str, object], row)]
    there = ", ".join(repr(name) for name in names[:8]) + (", ..." if len(names) > 8 else "")
    return f"no JSON object with text in field {field!r}; its fields: {there or 'none'}"
