"""Data types for blocks of text, the streams they come from, and how inputs are read.

Memory:  a block holds its bytes; everything else is a few numbers
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lowtide.corpus.encodings import check_encoding
from lowtide.corpus.inputs import InputFile, InputSlice
from lowtide.errors import UsageError
from lowtide.quickclasses import dataclass

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "BLOCK_BYTES",
    "DEFAULT_SEPARATOR",
    "Paths",
    "ReadingSettings",
    "Segment",
    "Stream",
    "StreamPaths",
    "TextBlock",
    "iter_separated",
    "separator_spellings",
]

DEFAULT_SEPARATOR = "<|endoftext|>"
BLOCK_BYTES = 4 << 20
_MOST_MIXED = 4
"""Line ends in a separator of which each may be one of Windows: 16 spellings."""


def separator_spellings(separator: bytes) -> tuple[bytes, ...]:
    r"""A separator, and where it contains line ends also with those of Windows, or with both.

    >>> separator_spellings(b"\n-\n"), separator_spellings(b"--")
    ((b'\n-\n', b'\n-\r\n', b'\r\n-\n', b'\r\n-\r\n'), (b'--',))
    """
    first, *others = separator.split(b"\n")
    if not others or b"\r" in separator:
        return (separator,)
    if len(others) > _MOST_MIXED:
        return separator, separator.replace(b"\n", b"\r\n")
    return tuple(
        first + b"".join(chain.from_iterable(zip(ends, others, strict=True)))
        for ends in product((b"\n", b"\r\n"), repeat=len(others))
    )


def _ignore(_: str) -> None:
    """Not a lambda: settings are pickled with the loaders that have them."""


@dataclass(frozen=True)
class ReadingSettings:
    """How inputs become documents."""

    separator: bytes = DEFAULT_SEPARATOR.encode()
    """Separator of documents in a text file; empty: each file is one document."""
    text_field: str = "text"
    """The field of a jsonl row, the column of a parquet file."""
    encoding: str = "utf-8"
    block_bytes: int = BLOCK_BYTES
    large_page_bytes: int = 8 << 20
    """Texts of a parquet page larger than this are streamed one by one."""
    reader_bytes: int = 1 << 30
    """Memory limit of a reader besides its block: a decompressor's window, a parquet page. A file
    that needs more is refused."""
    budget_bytes: int | None = None
    """The whole budget, for the error message of a refusal."""
    reader_cost: int = 1
    """By how much a larger budget has to be larger to give a reader one byte more."""
    skip_bad: bool = False
    """Skip what cannot be read, with a notice, instead of stopping."""
    on_notice: Callable[[str], None] = field(default=_ignore, compare=False)

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        if any("\ud800" <= letter <= "\udfff" for letter in self.text_field):
            raise UsageError(
                f"--text-field {self.text_field!r} is not text in UTF-8, as names of fields are"
            )

    def noticing(self, on_notice: Callable[[str], None]) -> ReadingSettings:
        """The same settings with another callback for notices; they are not checked again."""
        other = object.__new__(ReadingSettings)
        other.__dict__.update(self.__dict__, on_notice=on_notice)
        return other

    @property
    def separators(self) -> tuple[bytes, ...]:
        """How the separator may be written in a text."""
        return separator_spellings(self.separator)

    @property
    def window_bytes(self) -> int:
        """How far past its nominal end a document border is searched for."""
        return self.block_bytes // 2

    @property
    def longest_bytes(self) -> int:
        """The longest text that is not split over blocks."""
        return self.block_bytes + self.window_bytes


@dataclass(frozen=True)
class Segment:
    """A range of a block that comes from one input."""

    input_index: int
    offset: int
    """Where in the (decompressed) input it starts: a byte, or a row of a parquet file."""
    begin: int
    end: int


def iter_separated(
    data: bytes, segment: Segment, separators: Sequence[bytes]
) -> Iterator[tuple[int, int, bool]]:
    """Begin and end of each document of a segment, and whether no separator ends it."""
    begin = segment.begin
    marks = b"|".join(map(re.escape, filter(None, separators)))
    for found in re.compile(marks).finditer(data, begin, segment.end) if marks else ():
        yield begin, found.start(), False
        begin = found.end()
    yield begin, segment.end, True


@dataclass(frozen=True)
class Stream:
    """Inputs that are read in order as one: a large file, or several small ones."""

    index: int
    inputs: Sequence[InputFile]
    random_access: bool
    """Blocks can be read by number, so several workers can share the stream."""
    num_blocks: int
    """Maximum number of blocks of a random-access stream; others are read to their end."""

    @property
    def size_bytes(self) -> int:
        """Bytes as stored."""
        if isinstance(self.inputs, InputSlice):
            return self.inputs.total_bytes
        return sum(source.size_bytes for source in self.inputs)


class Paths(Protocol):
    """Paths of inputs, for messages."""

    def get(self, index: int, /) -> Path | None:
        """The path of an input, by its number."""
        ...


class StreamPaths:
    """The paths of all inputs of some streams: 8 bytes for each stream."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = [stream for stream in streams if stream.inputs]
        self._first = array("q", (stream.inputs[0].index for stream in self._streams))

    def get(self, index: int, /) -> Path | None:
        """The path of an input, by its number."""
        number = bisect_right(self._first, index) - 1
        if number < 0:
            return None
        inputs = self._streams[number].inputs
        place = index - inputs[0].index
        return inputs[place].path if place < len(inputs) else None


@dataclass(frozen=True)
class TextBlock:
    """Bytes of whole documents, except where the flags say that one was cut."""

    stream: int
    number: int
    kind: str
    """text (documents between separators), jsonl (a row per line) or rows (ends in `row_ends`)."""
    data: bytes
    segments: tuple[Segment, ...]
    row_ends: npt.NDArray[np.uint64] | None = None
    continues: bool = False
    """Its first document began in the block before."""
    continued: bool = False
    """Its last document continues in the next block."""
    stored_bytes: int = 0
    """Bytes read from disk for this block, for progress."""
