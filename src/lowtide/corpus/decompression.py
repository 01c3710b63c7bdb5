"""Decompress files, and convert them to UTF-8, while they are read.

In:      an InputFile
Out:     a reader of UTF-8 bytes that knows its position in the stored file
Memory:  one buffer of 1 MiB, and the window that the file was compressed with; a window larger
         than a reader's limit is an error
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
import zlib
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from lowtide.corpus.encodings import (
    TELLING_BYTES,
    explain_undecodable,
    make_decoder,
    refuse_utf8,
)
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.textblocks import ReadingSettings
from lowtide.corpus.xzdictionaries import (
    XZ_HEADER_BYTES,
    XZ_MAGIC,
    block_dictionary_bytes,
    later_dictionary_bytes,
)
from lowtide.errors import BudgetError, DataError
from lowtide.memory import format_size, smallest_budget
from lowtide.quickclasses import dataclass
from lowtide.settings import import_when_used
from lowtide.stores.paths import is_stored

if TYPE_CHECKING:
    import zstandard
else:
    zstandard = import_when_used("zstandard")

__all__ = [
    "StreamReader",
    "StreamsReader",
    "ZstdReader",
    "check_reader_bytes",
    "open_stream",
    "read_zstd_frame",
    "window_bytes",
]

_BUFFER_BYTES = 1 << 20
_ZSTD_MAGIC, _ZSTD_SKIPPABLE = 0xFD2FB528, 0x184D2A50
_LARGEST_WINDOW = 1 << 31
_OTHER_BYTES = 1 << 20  # buffers and tables of a decompressor
_BZIP2_BYTES = 4 << 20  # a block of 900 kB and its permutation, the most of any level


def open_stream(
    source: InputFile,
    options: ReadingSettings | None = None,
    *,
    on_damage: Callable[[DataError], None] | None = None,
) -> StreamReader:
    """Open an input for reading in order, decompressed and as UTF-8.

    Damage raises an error; with `on_damage`, that is called and the stream ends.
    """
    return StreamReader(source, options or ReadingSettings(), on_damage)


def check_reader_bytes(
    needed: int, options: ReadingSettings, *, path: Path, what: str, remedy: str = ""
) -> None:
    """Refuse a file that exceeds a reader's memory, and name the budget it needs."""
    if needed <= options.reader_bytes:
        return
    budget = options.budget_bytes or options.reader_bytes
    advice = smallest_budget(budget + options.reader_cost * (needed - options.reader_bytes))
    raise BudgetError(
        f"{what}: reading it takes {format_size(needed)}, "
        f"{format_size(options.reader_bytes)} of the budget are left for that",
        path=path,
        next_step=advice + remedy,
    )


def window_bytes(source: InputFile) -> int:
    """Memory for decompressing a file, by the headers in it; 0 if they do not say.

    Only the first header of an object in a store is read, because each takes a request.
    """
    try:
        with source.path.open("rb") as file:
            is_local = not is_stored(source.path)
            if source.compression == "zstd":
                return _zstd_window_bytes(file, all_frames=is_local) + _OTHER_BYTES
            if source.compression == "xz":
                first = _xz_dictionary_bytes(file.read(1024))
                return max(first, later_dictionary_bytes(file) if is_local else 0) + _OTHER_BYTES
    except (OSError, EOFError, ValueError, IndexError):
        return 0  # reading the file will report the error
    if source.compression == "bzip2":
        return _BZIP2_BYTES + _OTHER_BYTES
    return _OTHER_BYTES if source.compression else 0


def _zstd_window_bytes(file: BinaryIO, *, all_frames: bool) -> int:
    """The largest window of all frames; their blocks are skipped."""
    frame = read_zstd_frame(file)
    largest = 0 if frame is None else frame.window_bytes
    try:
        while frame is not None and all_frames:
            is_last = False
            while not is_last:
                is_last, size = _read_block_header(_take(file, 3))
                file.seek(size, os.SEEK_CUR)
            file.seek(4 if frame.has_checksum else 0, os.SEEK_CUR)
            frame = read_zstd_frame(file)
            largest = max(largest, 0 if frame is None else frame.window_bytes)
    except (EOFError, ValueError):
        pass  # truncated or damaged: reported when it is read
    return largest


def _read_block_header(header: bytes) -> tuple[bool, int]:
    """True if a block of a zstd frame is the last one, and its size in bytes."""
    word = int.from_bytes(header, "little")
    is_run = word >> 1 & 3 == 1
    return bool(word & 1), 1 if is_run else word >> 3


@dataclass(frozen=True)
class _Frame:
    """The header of a zstd frame."""

    header: bytes
    window_bytes: int
    has_checksum: bool


def read_zstd_frame(file: BinaryIO) -> _Frame | None:
    """Read up to the first block of the next frame; None at the end of the file."""
    while magic := file.read(4):
        number = int.from_bytes(magic.ljust(4, b"\0"), "little")
        if number & 0xFFFFFFF0 == _ZSTD_SKIPPABLE and len(magic) == 4:
            file.seek(int.from_bytes(_take(file, 4), "little"), os.SEEK_CUR)
            continue
        if number != _ZSTD_MAGIC:
            raise ValueError("what follows is not a zstd frame")
        flags = _take(file, 1)
        single = flags[0] >> 5 & 1
        window = b"" if single else _take(file, 1)
        dictionary = _take(file, (0, 1, 2, 4)[flags[0] & 3])
        size = _take(file, (single, 2, 4, 8)[flags[0] >> 6])
        content = int.from_bytes(size, "little") + (256 if len(size) == 2 else 0)
        needed = content
        if window:  # a text shorter than the window does not fill it
            needed = (1 << (10 + (window[0] >> 3))) // 8 * (8 + (window[0] & 7))
            needed = min(needed, content) if size else needed
        header = magic + flags + window + dictionary + size
        return _Frame(header, needed, bool(flags[0] >> 2 & 1))
    return None


def _take(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError("the file ends inside a zstd frame")
    return data


def _xz_dictionary_bytes(head: bytes) -> int:
    """The dictionary of an xz file's first block, or of a file of the older lzma format."""
    if not head.startswith(XZ_MAGIC):
        return int.from_bytes(head[1:5], "little") if head[:1] == b"\x5d" else 0
    return block_dictionary_bytes(head[XZ_HEADER_BYTES:])


class ZstdReader:
    """Reads all frames of a zstd file, block by block, so that memory stays bounded.

    The library's own readers hold the whole expansion of a piece of input (56 KB of repetitive text
    expanded to 1.7 GiB), or do not notice a truncated end.
    """

    def __init__(self, file: BinaryIO, check: Callable[[int], None]) -> None:
        self._file = file
        self._check = check
        self._decoder: Any = None
        self._has_checksum = False

    def read1(self, _: int) -> bytes:
        """Return the next block, whatever its size; empty at the end."""
        while self._decoder is not None or self._begin_frame():
            if text := self._read_block():
                return text
        return b""

    def _begin_frame(self) -> bool:
        """Read up to the first block of the next frame; False at the end of the file."""
        frame = read_zstd_frame(self._file)
        if frame is None:
            return False
        self._check(frame.window_bytes + _OTHER_BYTES)
        self._has_checksum = frame.has_checksum
        decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        self._decoder = decompressor.decompressobj()
        self._decoder.decompress(frame.header)
        return True

    def _read_block(self) -> bytes:
        """Decompress one block, which is at most 128 KiB of text."""
        header = _take(self._file, 3)
        last, size = _read_block_header(header)
        data = header + _take(self._file, size)
        if last and self._has_checksum:
            data += _take(self._file, 4)
        text: bytes = self._decoder.decompress(data)
        if last:
            self._decoder = None
        return text

    def close(self) -> None:
        self._file.close()


class StreamsReader:
    """Reads all streams of an xz or bzip2 file, and the padding that may be between them.

    lzma.LZMAFile and bz2.BZ2File silently treat anything that is not the start of a stream as the
    end of the file: text after padding would be lost.
    """

    def __init__(self, file: BinaryIO, make_decoder: Callable[[], Any]) -> None:
        self._file = file
        self._make_decoder = make_decoder
        self._decoder: Any = make_decoder()
        self._held = b""  # read, but not decompressed yet

    def read1(self, size: int) -> bytes:
        """Return some of the text; empty at the end."""
        while self._decoder is not None or self._begin_stream():
            decoder: Any = self._decoder
            if decoder.needs_input and not self._held:
                self._held = self._file.read(_BUFFER_BYTES)
                if not self._held:
                    raise EOFError("the file ends inside a compressed stream")
            text = _decompress(decoder, self._held, size)
            self._held = decoder.unused_data
            if decoder.eof:
                self._decoder = None
            if text:
                return text
        return b""

    def _begin_stream(self) -> bool:
        """Skip padding up to the next stream; False at the end of the file."""
        while not (held := self._held.lstrip(b"\0")):
            self._held = self._file.read(_BUFFER_BYTES)
            if not self._held:
                return False
        self._held = held
        self._decoder = self._make_decoder()
        return True

    def close(self) -> None:
        self._file.close()


def _decompress(decoder: Any, data: bytes, size: int) -> bytes:
    try:
        return decoder.decompress(data, size)
    except OSError as error:  # bz2 calls damage so; nothing was read from the disk here
        raise ValueError(error) from None


class StreamReader:
    """Returns decompressed UTF-8 bytes; damage is an error that names the file."""

    def __init__(
        self,
        source: InputFile,
        options: ReadingSettings,
        on_damage: Callable[[DataError], None] | None,
    ) -> None:
        self._source = source
        self._options = options
        self._encoding = options.encoding
        self._decoder: codecs.IncrementalDecoder | None = make_decoder(options.encoding)
        self._head: bytes | None = b""  # until there is enough text to check whether it is text
        self._on_damage = on_damage
        self._file = cast("BufferedReader", source.path.open("rb", buffering=_BUFFER_BYTES))
        try:
            self._reader: Any = self._open(source.compression)
        except BaseException:
            self._file.close()
            raise
        self._done = False

    def _open(self, compression: str | None) -> Any:
        if compression == "gzip":
            return gzip.GzipFile(fileobj=self._file)
        if compression == "xz":
            self._check_window(window_bytes(self._source))
            return StreamsReader(self._file, lzma.LZMADecompressor)
        if compression == "bzip2":
            return StreamsReader(self._file, bz2.BZ2Decompressor)
        if compression == "zstd":
            return ZstdReader(self._file, self._check_window)
        return self._file

    def _check_window(self, needed: int) -> None:
        size = format_size(needed - _OTHER_BYTES)
        check_reader_bytes(
            needed,
            self._options,
            path=self._source.path,
            what=f"this file was compressed with a window of {size}",
            remedy="; or compress it again with a smaller window, without --long or --ultra",
        )

    def __enter__(self) -> StreamReader:
        return self

    def __exit__(self, *details: object) -> None:
        if self._reader is not self._file:
            self._reader.close()
        self._file.close()

    def stored_position(self) -> int:
        """Return how many bytes of the stored file have been read."""
        return min(self._file.tell(), self._source.size_bytes)

    def read(self, size: int) -> bytes:
        """Read up to about `size` bytes; empty at the end."""
        while not self._done:
            block = self._read_block(size)
            if self._decoder is None:
                self._done = not block
                return block
            text = self._decode(block)
            self._done = self._done or not block
            if text:
                return text.encode("utf-8", "surrogatepass")
        return b""

    def _decode(self, block: bytes) -> str:
        assert self._decoder is not None
        try:
            if self._head is not None:
                self._head += block
                refuse_utf8(self._encoding, self._head)
                if len(self._head) >= TELLING_BYTES:
                    self._head = None
            return self._decoder.decode(block, final=not block)
        except DataError as error:
            reason = error
        except ValueError as error:  # a missing byte order mark, which "replace" does not cover
            reason = explain_undecodable(self._encoding, error)
        damage = DataError(reason.message, path=self._source.path, next_step=reason.next_step)
        if self._on_damage is None:
            raise damage
        self._on_damage(damage)
        self._done = True
        return ""

    def _read_block(self, size: int) -> bytes:
        try:
            # read1, because read would lose the data it had collected before the damage.
            return self._reader.read1(min(size, _BUFFER_BYTES))
        except (
            EOFError,
            zlib.error,
            gzip.BadGzipFile,
            lzma.LZMAError,
            zstandard.ZstdError,
            ValueError,
        ) as error:
            damage = DataError(
                f"damaged or cut-off {self._source.compression} file: {error}",
                path=self._source.path,
                next_step="fetch the file again, or keep what is readable with --skip-bad-inputs",
            )
            if self._on_damage is None:
                raise damage from None
            self._on_damage(damage)
            return b""
