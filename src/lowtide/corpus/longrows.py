"""Split rows and texts of any size into parts, so that only a block is in memory.

In:      jsonl, read sequentially; a text that can be read piece by piece
Out:     TextBlock: whole rows unchanged, a long row's text in parts, cut between lines
Memory:  one block and its window; a long row and its text are in the temporary folder (TMPDIR)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from lowtide import _native
from lowtide.arrays import np
from lowtide.corpus.cutting import PROBE_BYTES, cut_text, read_at
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.textblocks import ReadingSettings, Segment, TextBlock
from lowtide.errors import DataError
from lowtide.memory import format_size
from lowtide.scratch import scratch_file
from lowtide.stores.paths import is_stored

if TYPE_CHECKING:
    from lowtide.corpus.decompression import StreamReader

__all__ = ["has_long_rows", "iter_jsonl_blocks", "iter_text_parts"]

_READ_BYTES = 1 << 20


def has_long_rows(source: InputFile, options: ReadingSettings) -> bool:
    """True if a plain jsonl file has a row larger than a block; it is then read in order.

    Reads 16 KiB for each block if rows are short.
    """
    if is_stored(source.path):
        return True  # in an object store a request for each block costs more than reading in order
    size = source.size_bytes
    nominal = options.block_bytes
    try:
        with source.path.open("rb", buffering=0) as file:
            while nominal + options.window_bytes < size:
                if not _has_line_end(file, nominal - 1, nominal + options.window_bytes):
                    return True
                nominal += options.block_bytes
    except OSError:
        return False  # reading it will report the error
    return False


def _has_line_end(file: BinaryIO, begin: int, end: int) -> bool:
    wanted = PROBE_BYTES // 4
    while begin < end:
        part = read_at(file, begin, min(wanted, end - begin))
        if b"\n" in part:
            return True
        if not part:
            return True  # the file became shorter
        begin += len(part)
        wanted = PROBE_BYTES
    return False


def iter_text_parts(
    read: Callable[[int], bytes], size: int, options: ReadingSettings
) -> Iterator[bytes]:
    """Cut a text of `size` bytes into parts of about a block; `read(n)` returns its next n bytes.

    >>> from io import BytesIO
    >>> text = b"one\\ntwo\\nsix\\nten"
    >>> list(iter_text_parts(BytesIO(text).read, len(text), ReadingSettings(block_bytes=6)))
    [b'one\\ntwo\\n', b'six\\nten']
    """
    start, window_bytes = options.block_bytes, options.window_bytes
    held, left = b"", size
    while left > start + window_bytes:
        held += read(start + window_bytes - len(held))
        window = held[start - 1 :]
        cut = cut_text(window, 1, b"", len(window) - 1)
        end = start - 1 + cut[0] if cut is not None else len(held)
        yield held[:end]
        held, left = held[end:], left - end
    yield held + read(left - len(held))


def iter_jsonl_blocks(
    stream: int,
    source: InputFile,
    options: ReadingSettings,
    reader: StreamReader,
    check: Callable[[bytes], None],
) -> Iterator[TextBlock]:
    """Cut jsonl into blocks of whole rows, by the same rule as a file that is read in place.

    A row is long if no line ends near a block's nominal end; it is split into separate blocks.
    `check` is called with the first bytes.
    """
    blocks = _JsonlBlocks(stream, source, options, reader)
    blocks.fill(PROBE_BYTES)
    check(bytes(blocks.held))
    yield from blocks.run()


class _JsonlBlocks:
    def __init__(
        self, stream: int, source: InputFile, options: ReadingSettings, reader: StreamReader
    ) -> None:
        self.stream = stream
        self.source = source
        self.options = options
        self.reader = reader
        self.held = bytearray()
        self.base = 0  # offset of `held` in the stream
        self.ended = False
        self.number = self.stored = 0

    def run(self) -> Iterator[TextBlock]:
        block, window = self.options.block_bytes, self.options.window_bytes
        nominal = block
        while True:
            while nominal <= self.base:  # a long row included this block's bytes too
                nominal += block
            start = nominal - self.base
            self.fill(start + window + 1)
            found = self.held.find(b"\n", start - 1, start + window)
            if found >= 0:
                yield self.take_rows(found + 1)
            elif len(self.held) <= start + window:
                break  # end of file; the last row may lack a line end
            else:
                begin = self.held.rfind(b"\n", 0, start) + 1
                if begin:
                    yield self.take_rows(begin)
                yield from self.iter_long_row()
        if self.held:
            yield self.take_rows(len(self.held))

    def fill(self, size: int) -> None:
        while len(self.held) < size and not self.ended:
            part = self.reader.read(size - len(self.held))
            self.ended = not part
            self.held += part

    def take_rows(self, size: int) -> TextBlock:
        data = bytes(self.held[:size])
        del self.held[:size]
        segment = Segment(self.source.index, self.base, 0, size)
        self.base += size
        return self.make_block(self.source.format.block_kind, data, segment)

    def make_block(self, kind: str, data: bytes, segment: Segment, **more: Any) -> TextBlock:
        stored = self.reader.stored_position()
        block = TextBlock(
            stream=self.stream,
            number=self.number,
            kind=kind,
            data=data,
            segments=(segment,),
            stored_bytes=stored - self.stored,
            **more,
        )
        self.stored = stored
        self.number += 1
        return block

    def iter_long_row(self) -> Iterator[TextBlock]:
        """Read a row that begins at `held`; it and its text are stored on disk, not in memory."""
        offset = self.base
        with scratch_file() as row, scratch_file() as text:
            size = self.spool_row(row)
            row.flush()
            count = _native.extract_long_row(row.fileno(), self.options.text_field, text.fileno())
            row.truncate(0)
            if count < 0:
                self.refuse(offset, size)
                return
            done = 0
            for part in iter_text_parts(text.read, count, self.options):
                segment = Segment(self.source.index, offset, 0, len(part))
                ends = np.array([len(part)], dtype=np.uint64)
                begun, done = done > 0, done + len(part)
                yield self.make_block(
                    "rows", part, segment, row_ends=ends, continues=begun, continued=done < count
                )

    def spool_row(self, row: IO[bytes]) -> int:
        """Write the row that begins at `held` to a file; the bytes after it stay in `held`."""
        size = 0
        while True:
            found = self.held.find(b"\n")
            end = found if found >= 0 else len(self.held)
            row.write(self.held[:end])
            size += end
            del self.held[: end + 1]
            if found >= 0 or self.ended:
                self.base += size + (found >= 0)
                return size
            self.fill(_READ_BYTES)

    def refuse(self, offset: int, size: int) -> None:
        field = self.options.text_field
        message = (
            f"row at byte {offset}: {format_size(size)} that are not a JSON object with text in "
            f"field {field!r}"
        )
        if not self.options.skip_bad:
            raise DataError(
                message,
                path=self.source.path,
                next_step="name the field with --text-field, "
                "or skip such rows with --skip-bad-inputs",
            )
        self.options.on_notice(f"{self.source.path}: {message}; skipped")
