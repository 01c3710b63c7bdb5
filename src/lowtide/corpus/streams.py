"""Decompress and re-encode files while they are read.

In:      an InputFile
Out:     a reader of UTF-8 bytes that knows how far it is in the stored file
Memory:  one buffer of 1 MiB, and what the decompressor needs
"""

from __future__ import annotations

import codecs
import gzip
import lzma
import zlib
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from lowtide.corpus.inputs import InputFile
from lowtide.errors import DataError, UsageError
from lowtide.settings import import_when_used

if TYPE_CHECKING:
    import zstandard
else:
    zstandard = import_when_used("zstandard")

__all__ = ["StreamReader", "open_stream"]

_BUFFER_BYTES = 1 << 20


def open_stream(source: InputFile, *, encoding: str = "utf-8") -> StreamReader:
    """Open an input for reading in order, decompressed and as UTF-8."""
    return StreamReader(source, encoding)


class _ZstdReader:
    """Reads all frames of a zstd file; the library's own reader is silent about a cut-off end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder: Any = None

    def read(self, size: int) -> bytes:
        while True:
            block = self._file.read(min(size, _BUFFER_BYTES // 8))
            if not block:
                if self._decoder is not None:
                    raise EOFError("the file ends inside a zstd frame")
                return b""
            output = b""
            while block:
                if self._decoder is None:
                    self._decoder = zstandard.ZstdDecompressor().decompressobj()
                output += self._decoder.decompress(block)
                block = b""
                if self._decoder.eof:
                    block = self._decoder.unused_data
                    self._decoder = None
            if output:
                return output

    def close(self) -> None:
        self._file.close()


class StreamReader:
    """Gives decompressed UTF-8 bytes; damage is an error that names the file."""

    def __init__(self, source: InputFile, encoding: str) -> None:
        self._source = source
        self._file: BinaryIO = source.path.open("rb", buffering=_BUFFER_BYTES)
        self._reader: Any = self._open(source.compression)
        self._decoder: codecs.IncrementalDecoder | None = None
        if encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
            try:
                self._decoder = codecs.getincrementaldecoder(encoding)("replace")
            except LookupError:
                self._file.close()
                raise UsageError(
                    f"unknown encoding {encoding!r}", next_step="--encoding utf-8, latin-1, …"
                ) from None
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
            text = self._decoder.decode(block, final=not block)
            self._done = not block
            if text:
                return text.encode("utf-8", "surrogatepass")
        return b""

    def _read_block(self, size: int) -> bytes:
        try:
            return self._reader.read(min(size, _BUFFER_BYTES))
        except (
            EOFError,
            zlib.error,
            gzip.BadGzipFile,
            lzma.LZMAError,
            zstandard.ZstdError,
        ) as error:
            raise DataError(
                f"damaged or cut-off {self._source.compression} file: {error}",
                path=self._source.path,
                next_step="fetch the file again, or keep what is readable with --skip-bad-inputs",
            ) from None
