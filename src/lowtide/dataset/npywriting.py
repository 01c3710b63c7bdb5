"""Write the ids of one text as a .npy: from a plain file natively, or text by text.

In:      an input file, or its texts; a tokenizer
Out:     OUT, renamed to its final name together with its group of files; `finish` runs before that
Memory:  a window of text and its ids for each worker; a batch of texts and its ids
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

import numpy as np
import xxhash

from lowtide import files
from lowtide.corpus.inputs import InputFile, changed_input, has_changed
from lowtide.corpus.reading import ReadingSettings, iter_blocks, iter_documents, plan_streams
from lowtide.dataset.tokenfiles.npy import NPY_HEADER_BYTES, npy_header
from lowtide.errors import BudgetError
from lowtide.journal import Journal
from lowtide.memory import MemoryBudget, format_size, smallest_budget, usable_cores
from lowtide.publishing import PublishGroup
from lowtide.quickclasses import dataclass
from lowtide.stores.paths import checksum_path
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.filesteps import iter_file_steps
from lowtide.tokenizer.stretches import Stretch, unseen_words
from lowtide.unfinished import list_leftovers, unused_name

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "WORKER_BYTES",
    "Encoded",
    "PlainFile",
    "checksum_npy",
    "encode_batches",
    "encode_documents",
    "held_bytes",
    "iter_batches",
    "iter_parts",
    "write_encoded",
]

WORKER_BYTES = 24 << 20
"""Memory of a worker: a cache, a window and its ids, and merging a long piece."""
_WINDOW_BYTES = 1 << 20
_HELD_ANYWAY = 4 * _WINDOW_BYTES
_BATCH_BYTES = 2 << 20
_TEXT_BYTES = 256  # overhead of a text in a batch: its Python objects, and those of its ids
_UNFINISHED = "unfinished"

Finish = Callable[[int, str, IO[bytes]], None]
"""Called with the number of ids, the checksum of the text, and the .npy, open at its beginning."""


@dataclass(frozen=True)
class PlainFile:
    """Encoding a plain file natively, on all cores, straight into the output."""

    source: InputFile
    out: Path
    tokenizer: Tokenizer
    dtype: np.dtype[Any]
    workers: int
    budget: MemoryBudget
    num_workers: int | None
    """The requested number of workers, if given."""
    find_stretch: Callable[[], Stretch]
    """Finds the longest text that has to be held, for the error message of a refusal."""
    on_notice: Callable[[str], None]
    group: PublishGroup
    step_bytes: int = 64 << 20
    window_bytes: int = _WINDOW_BYTES

    def encode(self, on_progress: Callable[[int], None], finish: Finish) -> int:
        """Encode all of the file, resuming an interrupted run."""
        work = _open_unfinished(self)
        count = work.count
        with os.fdopen(work.descriptor, "r+b") as file:
            for position, so_far in self.iter_steps(file, (work.position, work.count)):
                count = so_far
                work.text.advance_file(self.source.path, position)
                if has_changed(self.source):  # otherwise the checksum could be of a later text
                    raise changed_input(self.source)
                if position < self.source.size_bytes:
                    os.fsync(file.fileno())
                    work.note(position, count, self.dtype.itemsize)
                on_progress(position)
            _write_header(file, count, self.dtype)
            finish(count, work.text.hexdigest(), file)
        self.group.add(work.path, self.out)
        self.group.call_after(work.journal.remove)
        return count

    def iter_steps(self, file: BinaryIO, done: tuple[int, int]) -> Iterator[tuple[int, int]]:
        """Encode the file in steps; yields (bytes read, ids written) so far."""
        source, largest = self.source, max(self.budget.remaining_bytes, _HELD_ANYWAY)
        normalizes = self.tokenizer.data.normalizer != "none"
        if normalizes:  # text and normalized text are held at once
            largest = max(largest // 2, _HELD_ANYWAY)
        try:
            yield from iter_file_steps(
                self.tokenizer.native,
                source.path,
                size=source.size_bytes,
                out=file.fileno(),
                out_path=self.out,
                id_bytes=self.dtype.itemsize,
                num_workers=self.workers,
                out_offset=NPY_HEADER_BYTES,
                done=done,
                step_bytes=self.step_bytes,
                window_bytes=self.window_bytes,
                largest_window=largest,
            )
        except ValueError as error:  # no place to cut
            size = int(str(error).split()[0])
            found = self.find_stretch()
            needed = max(held_bytes(Stretch(size), normalizes), held_bytes(found, normalizes))
            # A larger budget is used for more workers too.
            workers = (self.num_workers or usable_cores()) - self.workers
            needed += self.budget.total_bytes - self.budget.remaining_bytes + WORKER_BYTES * workers
            raise BudgetError(
                f"there is no place to cut in {format_size(size)} of text "
                f"({str(error).partition('cut ')[2]}), which are held at once",
                path=source.path,
                next_step=f"{smallest_budget(needed)}{unseen_words(found.unseen_bytes)}, or put "
                "line ends into it if it may be cut",
            ) from None


def held_bytes(stretch: Stretch, normalizes: bool) -> int:
    """Additional memory for encoding a text without a place to cut."""
    if stretch.size_bytes + _WINDOW_BYTES <= _HELD_ANYWAY:
        return 0
    return (stretch.size_bytes + 2 * _WINDOW_BYTES) * (2 if normalizes else 1)


class _Digest:
    """The checksum of a file, one step behind its reading or writing, from the page cache."""

    def __init__(self, start: int = 0) -> None:
        self._digest = xxhash.xxh3_128()
        self._done = start

    def advance(self, descriptor: int, position: int) -> None:
        """Advance to a byte of the file, or to its end if that is before."""
        while self._done < position:
            part = os.pread(descriptor, min(1 << 20, position - self._done), self._done)
            if not part:
                return  # truncated meanwhile, which is detected by its size
            self._digest.update(part)
            self._done += len(part)

    def advance_file(self, path: Path, position: int) -> None:
        with path.open("rb", buffering=0) as file:
            self.advance(file.fileno(), position)

    def hexdigest(self) -> str:
        """The checksum so far."""
        return self._digest.hexdigest()


@dataclass(frozen=True)
class _Unfinished:
    """Ids in a file without its final name yet, and their text."""

    path: Path
    journal: Journal
    descriptor: int
    identity: list[Any]
    text: _Digest
    ids: _Digest
    position: int = 0
    count: int = 0

    def note(self, position: int, count: int, id_bytes: int) -> None:
        """Record how many bytes of text are encoded, and how many ids are on disk."""
        self.ids.advance(self.descriptor, NPY_HEADER_BYTES + count * id_bytes)
        place = {"position": position, "count": count}
        sums = {"text": self.text.hexdigest(), "ids": self.ids.hexdigest()}
        self.journal.write({"identity": self.identity, "name": self.path.name, **place, **sums})


def _open_unfinished(job: PlainFile) -> _Unfinished:
    """Open the unfinished file of an interrupted command for the same text; else start over."""
    source, out = job.source, job.out
    place = out.with_name(f".{out.name}.{_UNFINISHED}.json")
    journal = Journal(place, verb="pretokenize", version=2)
    identity = [source.size_bytes, source.modified_ns, job.tokenizer.fingerprint]
    left = list_leftovers(out, _UNFINISHED)
    notes = journal.read(on_notice=job.on_notice)
    if notes is not None and notes["identity"] == identity:
        path = out.parent / notes["name"]
        descriptor = _open_regular(path) if path in left else None
        if descriptor is not None:
            text, ids = _Digest(), _Digest(NPY_HEADER_BYTES)
            text.advance_file(source.path, notes["position"])
            ids.advance(descriptor, NPY_HEADER_BYTES + notes["count"] * job.dtype.itemsize)
            if (text.hexdigest(), ids.hexdigest()) == (notes["text"], notes["ids"]):
                done = notes["position"], notes["count"]
                return _Unfinished(path, journal, descriptor, identity, text, ids, *done)
            os.close(descriptor)
            job.on_notice(
                "the text or its ids are not as an interrupted command left them: the work begins "
                "anew"
            )
    for path in left:
        path.unlink(missing_ok=True)
    journal.remove()
    path = unused_name(out, _UNFINISHED)
    new = _Digest(), _Digest(NPY_HEADER_BYTES)
    return _Unfinished(path, journal, files.create_file(path), identity, *new)


def _open_regular(path: Path) -> int | None:
    """Open a file for writing, unless it is a symbolic link or has other names."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return descriptor
    os.close(descriptor)
    return None


def _write_header(file: IO[bytes], count: int, dtype: np.dtype[Any]) -> None:
    """Write the header after counting the ids, and seek to the beginning of the file."""
    file.seek(0)
    file.write(npy_header(count, dtype))
    file.truncate(NPY_HEADER_BYTES + count * dtype.itemsize)
    file.seek(0)


def checksum_npy(file: IO[bytes], on_read: Callable[[int], None]) -> str:
    """Checksum a .npy after it was written, because its header with the count is written last."""
    digest = xxhash.xxh3_128()
    while part := file.read(1 << 20):
        digest.update(part)
        on_read(len(part))
    return digest.hexdigest()


Encoded = Iterator[tuple[list["npt.NDArray[Any]"], int]]
"""Arrays of ids in order, some at a time, each with the number of text bytes done."""


def write_encoded(
    encoded: Encoded,
    source: InputFile,
    out: Path,
    dtype: np.dtype[Any],
    on_progress: Callable[[int], None],
    finish: Finish,
    group: PublishGroup,
) -> int:
    """Write the ids of a text to `out` as they arrive; return their number."""
    count = 0
    checksum = checksum_path(source.path)
    with files.atomic_file(out, publisher=group.add) as file:
        file.write(npy_header(0, dtype))
        for arrays, done in encoded:
            for ids in arrays:
                file.write(np.ascontiguousarray(ids, dtype=dtype).data)
                count += len(ids)
            on_progress(min(done, source.size_bytes))
        _write_header(file, count, dtype)
        finish(count, checksum, file)
    return count


def _end_ids(tokenizer: Tokenizer) -> npt.NDArray[np.uint32]:
    end = tokenizer.end_of_text_id
    return np.array([] if end is None else [end], dtype=np.uint32)


def encode_batches(
    batches: Iterator[tuple[list[bytes], list[bool]]], tokenizer: Tokenizer, num_workers: int
) -> Encoded:
    """Encode text by text, with end-of-text after marked texts."""
    end, done = _end_ids(tokenizer), 0
    for texts, marks in batches:
        found = tokenizer.encode_batch(texts, special="text", num_workers=num_workers)
        done += sum(map(len, texts))
        yield (
            [
                part
                for ids, marked in zip(found, marks, strict=True)
                for part in ((ids, end) if marked else (ids,))
            ],
            done,
        )


def encode_documents(parts: Iterator[tuple[bytes, bool]], tokenizer: Tokenizer) -> Encoded:
    """Encode document by document, also those in several parts, with end-of-text after each."""
    end, done = _end_ids(tokenizer), 0
    left = next(parts, None)
    is_ended = False

    def one_document() -> Iterator[bytes]:
        nonlocal left, done, is_ended
        is_ended = False
        while left is not None and not is_ended:
            text, marked = left
            yield text
            done += len(text)
            left, is_ended = next(parts, None), marked

    while left is not None:
        for ids in tokenizer.iter_encoded(one_document(), special="text"):
            yield [ids], done
        if is_ended:
            yield [end], done


def iter_batches(
    source: InputFile, reading: ReadingSettings
) -> Iterator[tuple[list[bytes], list[bool]]]:
    texts: list[bytes] = []
    marks: list[bool] = []
    held = 0
    for text, marked in iter_parts(source, reading):
        if held and held + len(text) + _TEXT_BYTES > _BATCH_BYTES:
            yield texts, marks
            texts, marks, held = [], [], 0
        texts.append(text)
        marks.append(marked)
        held += len(text) + _TEXT_BYTES
    if texts:
        yield texts, marks


def iter_parts(source: InputFile, reading: ReadingSettings) -> Iterator[tuple[bytes, bool]]:
    """Texts in order, each with a flag if a document ends after it."""
    is_text = source.format.block_kind == "text"
    return _iter_pieces(source, reading) if is_text else _iter_rows(source, reading)


def _iter_pieces(source: InputFile, reading: ReadingSettings) -> Iterator[tuple[bytes, bool]]:
    """Return a whole text, cut at its separators: the same ids as for a plain file."""
    for stream in plan_streams([source], reading):
        for block in iter_blocks(stream, reading):
            if block is not None:
                parts = block.data.split(reading.separator)
                yield from ((part, True) for part in parts[:-1])
                yield parts[-1], False


def _iter_rows(source: InputFile, reading: ReadingSettings) -> Iterator[tuple[bytes, bool]]:
    for document in iter_documents([source], reading):
        yield document.text, document.is_last
