"""Count the pieces of a corpus in a fixed amount of memory, resuming an interrupted run.

In:      input files (plain, compressed, jsonl, parquet)
Out:     a native PieceCounter that holds every distinct piece with its count
Memory:  the counter's tables, and one batch of text (`batch_bytes`) if files are not plain text
"""

from __future__ import annotations

import dataclasses
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from lowtide import _native
from lowtide.corpus.contents import ContentLog
from lowtide.corpus.cutting import PROBE_BYTES
from lowtide.corpus.decompression import StreamReader, open_stream
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.reading import (
    ReadingSettings,
    block_documents,
    is_plain_text,
    is_text,
    iter_blocks,
    plan_streams,
)
from lowtide.errors import BudgetError, DataError
from lowtide.files import checksum_bytes, checksum_file, read_whole
from lowtide.journal import Journal
from lowtide.memory import format_size, smallest_budget
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass
from lowtide.tokenizer.learning import planned_bytes, repeated_bytes
from lowtide.tokenizer.limits import CountingLimits
from lowtide.tokenizer.stretches import Stretch, find_stretch, unseen_words

__all__ = [
    "CountCheckpoints",
    "CountingNeeds",
    "InputPlace",
    "count_inputs",
    "count_pieces",
    "held_bytes",
    "refuse_stretch",
]

_PLAIN_HOLDS, _STREAM_HOLDS = 3 << 20, 6 << 20  # stretch that the smallest tables allow
# In such a stretch most pairs are equally frequent: within a few megabytes, rounds over a file
# learn hardly anything at a time, or cannot begin (1 MiB of DNA letters in 12.5).
_HARD_STRETCH, _HARD_TABLES = 256 << 10, 64 << 20
_MARGIN_BYTES = 2 << 20  # initial size of a window or batch, and of a read
_FILE_BYTES = 64  # overhead of a small file besides its text
_ROWS_AT_ONCE = 1 << 15  # more than in a block of ordinary documents


@dataclass(frozen=True)
class InputPlace:
    """The progress of counting: whole inputs, then bytes (text) or blocks (rows) of the next."""

    input_index: int = 0
    offset: int = 0


class CountCheckpoints:
    """Stored progress of counting: a position in the corpus and the run files up to it."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.bytes_before = 0
        self.pieces_before = 0  # counted by interrupted runs, like the bytes
        self.contents: ContentLog | None = None
        self._journal = Journal(folder / "counting.json", verb="train-tokenizer", version=2)
        self._sums: dict[tuple[str, int, int], str] = {}  # of runs, by name, size and time
        self._key = checksum_bytes(key.encode())

    def restore(
        self, counter: _native.PieceCounter, on_notice: Callable[[str], None] = lambda _: None
    ) -> InputPlace:
        """Return the last checkpoint's position and load its runs into the counter; drop others.

        If the content of a file has changed, all counts are dropped; a new time alone is ignored.
        """
        place, runs = InputPlace(), list[str]()
        state = self._read(on_notice)
        if state is not None and self.contents is not None:
            other = self.contents.restore(state["contents"], state["input_index"], state["offset"])
            if other is not None:
                on_notice(f"{other.path} changed meanwhile: counting begins anew")
                state = None
        if state is not None:
            place, runs = InputPlace(state["input_index"], state["offset"]), list(state["runs"])
            self.bytes_before, self.pieces_before = state["bytes"], state["pieces"]
        for path in self.folder.glob("*.run"):
            if path.name not in runs:
                path.unlink()
        counter.adopt([str(self.folder / run) for run in runs])
        return place

    def _read(self, on_notice: Callable[[str], None]) -> dict[str, Any] | None:
        """The last checkpoint, if it is of this corpus and its runs exist; else None."""
        state = self._journal.read(on_notice=on_notice)
        if state is None or state["key"] != self._key:
            return None
        if (self.contents is None) != ("contents" not in state):
            return None
        for run, checksum in state["runs"].items():
            if self._checksum(self.folder / run) != checksum:
                on_notice(f"{run} is not as it was written: counting begins anew")
                return None
        return state

    def _checksum(self, run: Path) -> str | None:
        """The checksum of a run file, which is read once; None if it does not exist."""
        try:
            status = run.stat()
            key = run.name, status.st_size, status.st_mtime_ns
            if key not in self._sums:
                self._sums[key] = checksum_file(run)
        except OSError:
            return None
        return self._sums[key]

    def save(self, place: InputPlace, counter: _native.PieceCounter) -> None:
        """Write the counts to disk and store the position."""
        state = {
            "key": self._key,
            **dataclasses.asdict(place),
            "bytes": self.bytes_before + counter.bytes_done,
            "pieces": self.pieces_before + counter.pieces_done,
            "runs": {Path(run).name: self._checksum(Path(run)) for run in counter.checkpoint()},
            **({} if self.contents is None else {"contents": self.contents.state()}),
        }
        self._journal.write(state)


class _Meter:
    """How many stored bytes have been counted, also while native code is running."""

    def __init__(self, counter: _native.PieceCounter, done: int = 0) -> None:
        self.counter = counter
        self.done = done
        self._mark: int | None = None

    def follow(self) -> None:
        """From now on add the counter's own bytes, which are bytes as stored."""
        self._mark = self.counter.bytes_done

    def settle(self, stored_bytes: int) -> None:
        """Set the total of stored bytes that are done."""
        self._mark = None
        self.done = stored_bytes

    def __call__(self) -> tuple[float, dict[str, float]]:
        mark = self._mark
        running = 0 if mark is None else self.counter.bytes_done - mark
        return self.done + running, {"pieces": self.counter.pieces_done}


def count_pieces(
    counter: _native.PieceCounter,
    inputs: Sequence[InputFile],
    *,
    needs: CountingNeeds,
    options: ReadingSettings,
    checkpoints: CountCheckpoints,
    progress: Progress,
    limits: CountingLimits,
) -> None:
    """Count every piece of `inputs`, from the last checkpoint on."""
    place = checkpoints.restore(counter, progress.note)
    starts = _starts_of(inputs)
    first = min(starts[place.input_index] + place.offset, starts[-1])
    meter = _Meter(counter, first)
    job = _Job(
        counter,
        inputs,
        [text.encode() for text in needs.specials],
        options,
        limits,
        needs,
        checkpoints.contents,
    )
    last_checkpoint = time.monotonic()
    if place != InputPlace():
        progress.note(f"going on at {100 * first / max(starts[-1], 1):.0f} % of the text")
    with progress.phase("counting", total=starts[-1], unit="B", start=first, poll=meter):
        for reached in job.run(place, meter, starts):
            if time.monotonic() - last_checkpoint > limits.checkpoint_seconds:
                checkpoints.save(reached, counter)
                last_checkpoint = time.monotonic()
    if counter.bytes_done == 0 and place == InputPlace():
        raise DataError(
            "there is no text in the input files",
            path=inputs[0].path if len(inputs) == 1 else None,
            next_step="name files that are not empty",
        )


def count_inputs(
    counter: _native.PieceCounter,
    inputs: Sequence[InputFile],
    options: ReadingSettings,
    *,
    needs: CountingNeeds,
    limits: CountingLimits,
) -> None:
    """Count every piece of `inputs`, from the beginning to the end."""
    specials = [text.encode() for text in needs.specials]
    job = _Job(counter, inputs, specials, options, limits, needs)
    for _ in job.run(InputPlace(), _Meter(counter), _starts_of(inputs)):
        pass


def _starts_of(inputs: Sequence[InputFile]) -> array[int]:
    """The offset of each input in the stored bytes of all, and the end of the last one."""
    starts = array("q", [0])
    for source in inputs:
        starts.append(starts[-1] + source.size_bytes)
    return starts


@dataclass(frozen=True)
class CountingNeeds:
    """Data for the error message about a text that does not fit the memory."""

    inputs: Sequence[InputFile]
    """All inputs, because the longest stretch may be in one that is not reached yet."""
    specials: Sequence[str]
    other_bytes: int = 0
    """The part of a larger budget that tables do not get: the program, all requested threads."""
    max_token_bytes: int | None = None

    def find_stretch(self, options: ReadingSettings) -> Stretch:
        """The longest stretch without a place to cut."""
        specials = [text.encode() for text in self.specials]
        return find_stretch(self.inputs, options, lambda text: _native.last_cut(text, specials))


def held_bytes(stretch: Stretch, max_token_bytes: int | None = None) -> int:
    """Memory of tables and tokens to count such a stretch; 0 if it fits in any case."""
    needed = 0
    if stretch.size_bytes > (_STREAM_HOLDS if stretch.in_stream else _PLAIN_HOLDS):
        copies = 2 if stretch.in_stream else 1  # one is scanned, one is counted
        # An eighth of the tables, which get three quarters of the rest.
        needed = copies * (stretch.size_bytes + _MARGIN_BYTES) * 8 * 4 // 3
    if stretch.size_bytes > _HARD_STRETCH:
        needed = max(needed, min(planned_bytes(stretch.size_bytes, 1), _HARD_TABLES))
    if not stretch.repeats:
        return needed
    repeated = repeated_bytes(
        stretch.size_bytes, text_bytes=stretch.text_bytes, max_token_bytes=max_token_bytes
    )
    return max(needed, repeated)


def refuse_stretch(
    size: int, source: InputFile, options: ReadingSettings, needs: CountingNeeds
) -> BudgetError:
    """The error for a file with a longer stretch without a cut than the counter may hold."""
    found = needs.find_stretch(options)
    here = Stretch(size, not is_plain_text(source, encoding=options.encoding))
    needed = needs.other_bytes + max(
        held_bytes(found, needs.max_token_bytes), held_bytes(here, needs.max_token_bytes)
    )
    unseen = unseen_words(found.unseen_bytes)
    return BudgetError(
        f"there is no place to cut in {format_size(max(size, found.size_bytes))} of text, which "
        "are held at once",
        path=source.path,
        next_step=f"{smallest_budget(needed)}{unseen}, or put line ends into it if it may be cut",
    )


@dataclass(frozen=True)
class _Job:
    counter: _native.PieceCounter
    inputs: Sequence[InputFile]
    specials: list[bytes]
    options: ReadingSettings
    limits: CountingLimits
    needs: CountingNeeds
    contents: ContentLog | None = None

    def run(self, place: InputPlace, meter: _Meter, starts: Sequence[int]) -> Iterator[InputPlace]:
        """Count input after input; yield the position after each step."""
        index = place.input_index
        offset = place.offset
        while index < len(self.inputs):
            source = self.inputs[index]
            if self._is_small(source) and offset == 0:
                index = self._count_small_files(index)
                meter.settle(starts[index])
                yield InputPlace(index)
                continue
            if self._is_plain(source):
                steps = self._count_plain(source, offset, meter, starts[index])
            elif source.format.block_kind == "text":
                steps = self._count_stream(source, offset, meter, starts[index])
            else:
                steps = self._count_rows(source, offset, meter, starts[index])
            for reached in steps:
                if self.contents is not None and self._is_plain(source):
                    self.contents.reach(index, reached)
                yield InputPlace(index, reached)
            index, offset = index + 1, 0
            if self.contents is not None:
                self.contents.reach(index)
            meter.settle(starts[index])
            yield InputPlace(index)

    def _is_plain(self, source: InputFile) -> bool:
        return is_plain_text(source, encoding=self.options.encoding)

    def _is_small(self, source: InputFile) -> bool:
        return self._is_plain(source) and source.size_bytes <= self.limits.small_file_bytes

    def _count_small_files(self, index: int) -> int:
        texts: list[bytes] = []
        read: list[bytes] = []
        held = 0
        while index < len(self.inputs) and held < self.limits.batch_bytes:
            source = self.inputs[index]
            if not self._is_small(source):
                break
            index += 1
            text = read_whole(source.path)
            read.append(text)
            held += len(text) + _FILE_BYTES
            if is_text(source, text, self.options):
                texts.append(text)
        if self.contents is not None:
            self.contents.add(read)
        self.counter.count_texts(texts)
        return index

    def _count_plain(
        self, source: InputFile, offset: int, meter: _Meter, start: int
    ) -> Iterator[int]:
        with source.path.open("rb") as file:
            if not is_text(source, file.read(PROBE_BYTES), self.options):
                return
        while offset < source.size_bytes:
            meter.follow()
            stop = min(offset + self.limits.round_bytes, source.size_bytes)
            try:
                offset = self.counter.count_file(str(source.path), offset, stop, source.size_bytes)
            except ValueError as error:  # no place to cut
                size = int(str(error).split()[0])
                raise refuse_stretch(size, source, self.options, self.needs) from None
            meter.settle(start + offset)
            yield offset

    def _count_stream(
        self, source: InputFile, offset: int, meter: _Meter, start: int
    ) -> Iterator[int]:
        """Count compressed or re-encoded text; `offset` counts its decompressed bytes."""
        held = bytearray()
        skip = offset
        is_first = True
        with open_stream(source, self.options) as reader:
            while part := self._read_part(reader):
                if is_first and not is_text(source, part, self.options):
                    return
                is_first = False
                dropped = min(skip, len(part))
                skip -= dropped
                held += part[dropped:]
                if len(held) < self.limits.batch_bytes:
                    continue
                cut = _native.last_cut(bytes(held), self.specials)
                # It is held twice more: in the search for a place to cut, and while it is counted.
                largest = max(self.counter.largest_window // 2, self.limits.batch_bytes)
                if not cut and len(held) > largest:
                    size = len(held)
                    del held
                    raise refuse_stretch(size, source, self.options, self.needs)
                if cut:
                    self.counter.count_texts([bytes(held[:cut])])
                    del held[:cut]
                    offset += cut
                    meter.settle(start + reader.stored_position())
                    yield offset
        self.counter.count_texts([bytes(held)])

    def _read_part(self, reader: StreamReader) -> bytes:
        try:
            return reader.read(self.limits.batch_bytes)
        except DataError as error:
            if not self.options.skip_bad:
                raise
            self.options.on_notice(f"{error.message}: {error.path}")
            return b""

    def _count_rows(
        self, source: InputFile, offset: int, meter: _Meter, start: int
    ) -> Iterator[int]:
        """Count the texts of a jsonl or parquet file; `offset` counts its blocks."""
        paths = {source.index: source.path}
        stored = 0
        for stream in plan_streams([source], self.options):
            for number, block in enumerate(iter_blocks(stream, self.options, known=offset), 1):
                if block is None:
                    continue
                documents = block_documents(block, self.options, paths)
                while texts := [row.text for row in islice(documents, _ROWS_AT_ONCE)]:
                    self.counter.count_texts(texts)
                stored += block.stored_bytes
                meter.settle(start + min(stored, source.size_bytes))
                yield number
