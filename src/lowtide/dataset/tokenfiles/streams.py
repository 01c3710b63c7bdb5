"""Token ids in files of any format, read as one stream, and written from one.

In:      TokenFile rows, opened by the format modules in this folder
Out:     TokenStream: ids a few MiB at a time, and document ends
Memory:  `STEP_TOKENS` ids and their document ends; indexes are read in pieces and searched on disk,
         so they may be of any size
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import xxhash

from lowtide import files
from lowtide.arrays import np
from lowtide.dataset.tokenfiles.intact import require_intact
from lowtide.errors import DataError
from lowtide.quickclasses import dataclass

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "INDEX_ROWS",
    "STEP_TOKENS",
    "Opening",
    "TokenFile",
    "TokenStream",
    "WrittenFiles",
    "iter_lengths",
    "new_file",
    "read_ends",
    "read_rows",
    "write_ids",
]

STEP_TOKENS = 1 << 18
INDEX_ROWS = 1 << 16


@dataclass(frozen=True)
class Opening:
    """Parameters to open a file, besides its path."""

    dtype: np.dtype[Any] | None = None
    """The type of ids in a file that does not record it."""
    on_notice: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class TokenFile:
    """Ids in a file: their offset and number, and where documents end."""

    path: Path
    byte_offset: int
    num_tokens: int
    dtype: np.dtype[Any]
    num_documents: int = 0
    """Documents with an end in `ends_path`; 0 if ends are not recorded."""
    ends_path: Path | None = None
    """The file with the ends of documents: our .docs, or Megatron's index."""
    ends_offset: int = 0
    ends_are_lengths: bool = False
    num_sequences: int = 0
    """Sequences of Megatron's index if documents are not one each; else 0."""
    begins_document: bool = False
    """True if a document that the file before leaves open does not go on in this one."""
    checksum: str | None = None
    """xxh3-128 of the whole file, if known."""
    ends_checksum: str | None = None
    """xxh3-128 of the whole of `ends_path`, if known."""
    index_rows: int = INDEX_ROWS
    """Rows of `ends_path` that are read at a time."""

    def require_intact(self) -> None:
        """Verify the checksums of both files, if known."""
        require_intact(self.path, self.checksum)
        if self.ends_path is not None:
            require_intact(self.ends_path, self.ends_checksum)


@dataclass(frozen=True)
class TokenStream:
    """The ids of one split, in any format, as one stream."""

    parts: Sequence[TokenFile]
    end_id: int | None = None
    """The id at the ends of documents, if they are not in a file."""
    _intact: set[Path] = field(default_factory=set)
    """Files whose checksums were verified."""
    step_tokens: int = STEP_TOKENS
    """Ids that are read at a time."""

    def require_intact(self, part: TokenFile) -> None:
        """Verify a file's checksum before any of it is used; once per file.

        It is read a second time for that, from the page cache if the file is a shard.
        """
        if part.path not in self._intact:
            part.require_intact()
            self._intact.add(part.path)

    @property
    def num_tokens(self) -> int:
        """All ids of the stream."""
        return sum(part.num_tokens for part in self.parts)

    def iter_chunks(
        self, first: int, last: int
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]]:
        """Ids `first` to `last`, a few MiB at a time, and the document ends in each chunk."""
        base = 0
        for part in self.parts:
            begin, end = max(first - base, 0), min(last - base, part.num_tokens)
            if begin < end:
                self.require_intact(part)
            for start in range(begin, end, self.step_tokens):
                stop = min(start + self.step_tokens, end)
                ids = _read_ids(part, start, stop)
                yield ids, self._find_ends(part, ids, start, stop)
            base += part.num_tokens

    def _find_ends(
        self, part: TokenFile, ids: npt.NDArray[Any], start: int, stop: int
    ) -> npt.NDArray[np.int64]:
        if part.ends_path is not None:
            found = [
                ends[(ends > start) & (ends <= stop)] - start
                for ends in _iter_ends(part, start, stop)
            ]
            return np.concatenate(found) if found else np.empty(0, np.int64)
        if self.end_id is None:
            return np.empty(0, np.int64)
        return np.flatnonzero(ids == self.end_id) + 1


def _read_ids(part: TokenFile, start: int, stop: int) -> npt.NDArray[Any]:
    with part.path.open("rb", buffering=0) as file:
        file.seek(part.byte_offset + start * part.dtype.itemsize)
        data = file.read((stop - start) * part.dtype.itemsize)
    if len(data) != (stop - start) * part.dtype.itemsize:
        raise DataError("the file ends too early", path=part.path)
    return np.frombuffer(data, dtype=part.dtype)


def _iter_ends(part: TokenFile, start: int, stop: int) -> Iterator[npt.NDArray[np.int64]]:
    """The document ends in (start, stop], a chunk of the index at a time.

    Empty documents end where the one before does, and are left out.
    """
    assert part.ends_path is not None
    with part.ends_path.open("rb", buffering=0) as file:
        row = _find_row(file, part, start)
        last = start
        while row < part.num_documents:
            ends = read_ends(file, part, row, min(row + part.index_rows, part.num_documents))
            if np.any(np.diff(ends, prepend=ends[:1]) < 0) or int(ends[-1]) > part.num_tokens:
                raise DataError("document ends must rise and stay in the file", path=part.ends_path)
            kept = ends[np.diff(ends, prepend=last) > 0]
            if len(kept):
                yield kept
                last = int(kept[-1])
            if last >= stop:
                return
            row += len(ends)


def _find_row(file: Any, part: TokenFile, start: int) -> int:
    """The first document that ends after `start`, by binary search on disk."""
    low, high = 0, part.num_documents
    while low < high:
        middle = (low + high) // 2
        if int(read_ends(file, part, middle, middle + 1)[0]) > start:
            high = middle
        else:
            low = middle + 1
    return low


def read_ends(file: Any, part: TokenFile, first: int, last: int) -> npt.NDArray[np.int64]:
    """Ends of documents `first` to `last`: a .docs file contains them; Megatron's index has the
    start and length of each, or of the sequences that they are made of."""
    if part.num_sequences:
        return _read_group_ends(file, part, first, last)
    if not part.ends_are_lengths:
        return read_rows(file, part, part.ends_offset + 8 * first, last - first, "<u8")
    lengths = read_rows(file, part, part.ends_offset + 4 * first, last - first, "<i4")
    pointers_at = part.ends_offset + 4 * part.num_documents
    pointers = read_rows(file, part, pointers_at + 8 * first, last - first, "<i8")
    ends = pointers // part.dtype.itemsize + lengths
    if np.any(lengths < 0) or np.any(ends[:-1] * part.dtype.itemsize != pointers[1:]):
        raise DataError(
            f"the documents from {first} on do not follow one another in the file",
            path=part.ends_path,
        )
    return ends


def _read_group_ends(file: Any, part: TokenFile, first: int, last: int) -> npt.NDArray[np.int64]:
    """Ends of documents of several sequences: where the sequence after each begins."""
    pointers_at = part.ends_offset + 4 * part.num_sequences
    bounds_at = pointers_at + 8 * part.num_sequences
    nexts = read_rows(file, part, bounds_at + 8 * (first + 1), last - first, "<i8")
    ends = np.full(len(nexts), part.num_tokens, np.int64)
    stop = min(int(nexts[-1]) + 1, part.num_sequences)
    for begin in range(int(nexts[0]), stop, part.index_rows):
        count = min(part.index_rows, stop - begin)
        pointers = read_rows(file, part, pointers_at + 8 * begin, count, "<i8")
        here = (nexts >= begin) & (nexts < begin + count)
        ends[here] = pointers[nexts[here] - begin] // part.dtype.itemsize
    return ends


def read_rows(
    file: Any, part: TokenFile, offset: int, count: int, dtype: str
) -> npt.NDArray[np.int64]:
    """Numbers of a file's index, as int64."""
    size = count * np.dtype(dtype).itemsize
    data = os.pread(file.fileno(), size, offset)
    if len(data) != size:
        raise DataError("the index ends too early", path=part.ends_path)
    return np.frombuffer(data, dtype=dtype).astype(np.int64)


def iter_lengths(source: TokenStream) -> Iterator[npt.NDArray[np.int64]]:
    """The documents' lengths, some at a time; ids after the last end count as one more document."""
    carried = 0
    for part in source.parts:
        if carried and part.begins_document:
            yield np.array([carried], dtype=np.int64)
            carried = 0
        done = 0
        source.require_intact(part)
        pieces = _iter_ends(part, 0, part.num_tokens) if part.ends_path is not None else ()
        for ends in pieces:
            lengths = np.diff(ends, prepend=done)
            lengths[0] += carried
            carried, done = 0, int(ends[-1])
            yield lengths
        carried += part.num_tokens - done
    if carried:
        yield np.array([carried], dtype=np.int64)


@dataclass(frozen=True)
class WrittenFiles:
    """The complete files of an export."""

    rows: dict[str, tuple[int, str]]
    """Size and xxh3-128, by name."""
    on_written: Callable[[], None]
    """Called after each finished file."""


class _HashedFile:
    """A file whose checksum is computed while it is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = xxhash.xxh3_128()
        self._size = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._size += len(data)

    def describe(self) -> tuple[int, str]:
        return self._size, self._digest.hexdigest()


@contextlib.contextmanager
def new_file(path: Path, written: WrittenFiles) -> Generator[_HashedFile | None]:
    """Open a file to write; None if it exists, and is known to be complete."""
    if path.name in written.rows:
        yield None
        return
    with files.atomic_file(path) as file:
        hashed = _HashedFile(file)
        yield hashed
    written.rows[path.name] = hashed.describe()
    written.on_written()


def write_ids(
    file: _HashedFile | None, stream: TokenStream, first: int, last: int, dtype: np.dtype[Any]
) -> None:
    """Write ids `first` to `last` as `dtype`."""
    if file is None:
        return
    for ids, _ in stream.iter_chunks(first, last):
        file.write(ids.astype(dtype, copy=False).tobytes())
