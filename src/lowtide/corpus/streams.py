"""Decompress and re-encode files while they are read.

In:      an InputFile
Out:     a reader of UTF-8 bytes that knows how far it is in the stored file
Memory:  one buffer of 1 MiB, and what the decompressor needs
"""

from __future__ import annotations

import codecs
import gzip
import lzma
import os
import zlib
from collections.abc import Callable
from io import BufferedReader
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from lowtide.corpus.encodings import explain_undecodable, make_decoder
from lowtide.corpus.inputs import InputFile
from lowtide.errors import DataError
from lowtide.settings import import_when_used

if TYPE_CHECKING:
    import zstandard
else:
    zstandard = import_when_used("zstandard")

__all__ = ["StreamReader", "open_stream"]

_BUFFER_BYTES = 1 << 20
_ZSTD_MAGIC, _ZSTD_SKIPPABLE = 0xFD2FB528, 0x184D2A50
_ZSTD_WINDOW_LOG = 27


def open_stream(
    source: InputFile,
    *,
    encoding: str = "utf-8",
    on_damage: Callable[[DataError], None] | None = None,
) -> StreamReader:
    """Open an input for reading in order, decompressed and as UTF-8.

    Damage is an error; or `on_damage` is told, and what came before it is all there is.
    """
    return StreamReader(source, encoding, on_damage)


class _ZstdReader:
    """Reads all frames of a zstd file, block by block, so that no few bytes become many at once.

    The library's own readers hold all that a piece of input becomes (1.7 GiB of 56 KB, of a text
    that repeats itself), or are silent about a cut-off end.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder: Any = None
        self._has_checksum = False

    def read1(self, _: int) -> bytes:
        """Give the next block, whatever its size; empty at the end."""
        while self._decoder is not None or self._begin_frame():
            if text := self._read_block():
                return text
        return b""

    def _begin_frame(self) -> bool:
        """Read up to the first block of the next frame; False at the end of the file."""
        while magic := self._file.read(4):
            number = int.from_bytes(magic.ljust(4, b"\0"), "little")
            if number & 0xFFFFFFF0 == _ZSTD_SKIPPABLE and len(magic) == 4:
                self._file.seek(int.from_bytes(self._take(4), "little"), os.SEEK_CUR)
                continue
            if number != _ZSTD_MAGIC:
                raise zstandard.ZstdError("what follows is no zstd frame")
            flags = self._take(1)
            single, self._has_checksum = flags[0] >> 5 & 1, bool(flags[0] >> 2 & 1)
            window = b"" if single else self._take(1)
            if window and window[0] >> 3 > _ZSTD_WINDOW_LOG - 10:
                raise zstandard.ZstdError("made with --long, it needs more than 128 MiB to be read")
            size_bytes = (single, 2, 4, 8)[flags[0] >> 6]
            rest = self._take((0, 1, 2, 4)[flags[0] & 3] + size_bytes)
            self._decoder = zstandard.ZstdDecompressor().decompressobj()
            self._decoder.decompress(magic + flags + window + rest)
            return True
        return False

    def _read_block(self) -> bytes:
        """Decompress one block, which is at most 128 KiB of text."""
        header = self._take(3)
        word = int.from_bytes(header, "little")
        is_run, size = word >> 1 & 3 == 1, word >> 3
        data = header + self._take(1 if is_run else size)
        last = bool(word & 1)
        if last and self._has_checksum:
            data += self._take(4)
        text: bytes = self._decoder.decompress(data)
        if last:
            self._decoder = None
        return text

    def _take(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError("the file ends inside a zstd frame")
        return data

    def close(self) -> None:
        self._file.close()


class StreamReader:
    """Gives decompressed UTF-8 bytes; damage is an error that names the file."""

    def __init__(
        self, source: InputFile, encoding: str, on_damage: Callable[[DataError], None] | None
    ) -> None:
        self._source = source
        self._encoding = encoding
        self._decoder: codecs.IncrementalDecoder | None = make_decoder(encoding)
        self._on_damage = on_damage
        self._file = cast("BufferedReader", source.path.open("rb", buffering=_BUFFER_BYTES))
        self._reader: Any = self._open(source.compression)
        self._done = False

    def _open(self, compression: str | None) -> Any:
        if compression == "gzip":
            return gzip.GzipFile(fileobj=self._file)
        if compression == "xz":
            return lzma.LZMAFile(cast("IO[bytes]", self._file))
        if compression == "zstd":
            return _ZstdReader(self._file)
        return self._file

    def __enter__(self) -> StreamReader:
        return self

    def __exit__(self, *details: object) -> None:
        if self._reader is not self._file:
            self._reader.close()
        self._file.close()

    def stored_position(self) -> int:
        """Give how many bytes of the stored file have been read."""
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
            return self._decoder.decode(block, final=not block)
        except ValueError as error:  # what "replace" cannot pass over, such as a missing mark
            reason = explain_undecodable(self._encoding, error)
        damage = DataError(reason.message, path=self._source.path, next_step=reason.next_step)
        if self._on_damage is None:
            raise damage
        self._on_damage(damage)
        self._done = True
        return ""

    def _read_block(self, size: int) -> bytes:
        try:
            # Not read: what it had gathered before it came to the damage would be lost.
            return self._reader.read1(min(size, _BUFFER_BYTES))
        except (
            EOFError,
            zlib.error,
            gzip.BadGzipFile,
            lzma.LZMAError,
            zstandard.ZstdError,
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
