"""Learn a tokenizer with any number of workers that share a folder: all count, one learns merges.

In:      TokenizerTrainingSettings with --engine files; the same command on every machine
Out:     a tokenizer byte-identical to that of one machine
Memory:  each worker stays within its own budget; the counts of a part are a file

Counts can be added in any order, so parts of the text are counted separately. All counts of a part
are stored: a piece that is rare in one part may be frequent in others.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lowtide import _native
from lowtide.corpus.contents import PART_BYTES, fold_parts, hash_parts
from lowtide.corpus.cutting import PROBE_BYTES
from lowtide.corpus.inputs import InputFile, InputList
from lowtide.corpus.reading import ReadingSettings, is_plain_text, is_text
from lowtide.engine.localcopies import LocalCopies
from lowtide.engine.outputs import OutputWriter
from lowtide.engine.records import Records
from lowtide.engine.shared import run_in_phases
from lowtide.engine.tasks import Task, Uncommitted
from lowtide.errors import DataError
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass
from lowtide.tokenizer.counting import CountingNeeds, count_inputs, refuse_stretch
from lowtide.tokenizer.limits import CountingLimits

__all__ = ["CountPart", "SharedCounting", "count_together", "cut_inputs"]

COUNT_STAGE = "count"
LEARN_STAGE = "learn"
STAGES = (COUNT_STAGE, LEARN_STAGE)
_MOST_PARTS = 30_000
_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class CountPart:
    """Inputs `first` to `last`, whole; or the bytes `begin` to `end` of one plain file."""

    first: int
    last: int
    begin: int = 0
    end: int | None = None


def find_part_bytes(total_bytes: int) -> int:
    """How much text one task counts; a multiple of the stretches that files are hashed in.

    >>> find_part_bytes(10**9) >> 20, find_part_bytes(10**14) >> 20
    (256, 3200)
    """
    return max(256 << 20, -(-total_bytes // _MOST_PARTS // PART_BYTES) * PART_BYTES)


def cut_inputs(inputs: InputList, part_bytes: int, *, encoding: str) -> list[CountPart]:
    """Cut inputs into parts of about `part_bytes`; only plain text is cut inside a file."""
    parts: list[CountPart] = []
    begin = held = 0

    def flush(end: int) -> None:
        nonlocal begin, held
        if end > begin:
            parts.append(CountPart(begin, end))
        begin, held = end, 0

    for place, source in enumerate(inputs):
        if source.size_bytes > part_bytes and is_plain_text(source, encoding=encoding):
            flush(place)
            parts += [
                CountPart(place, place + 1, first, min(first + part_bytes, source.size_bytes))
                for first in range(0, source.size_bytes, part_bytes)
            ]
            begin = place + 1
            continue
        if held + source.size_bytes > part_bytes:
            flush(place)
        held += source.size_bytes
    flush(len(inputs))
    return parts


@dataclass(frozen=True)
class SharedCounting:
    """What counting depends on, as one worker sees it."""

    inputs: InputList
    parts: Sequence[CountPart]
    options: ReadingSettings
    needs: CountingNeeds
    limits: CountingLimits
    records: Records
    make_counter: Callable[[Path], _native.PieceCounter]
    """Makes a counter that spills into a folder."""

    def count(self, index: int) -> Uncommitted:
        """Count a part and write its counts."""
        part = self.parts[index]
        with self.records.scratch_folder() as folder:
            counter = self.make_counter(folder)
            contents = self._count_part(counter, part)
            counts = folder / "counts"
            facts = {
                "bytes": counter.bytes_done,
                "pieces": counter.pieces_done,
                "longest": counter.longest_piece,
                "contents": contents,
            }
            ends = array("Q", counter.save(str(counts)))
            task = Task(COUNT_STAGE, index)
            return self.records.write(task, partial(_write, counts, ends), facts=lambda: facts)

    def _count_part(self, counter: _native.PieceCounter, part: CountPart) -> list[list[str] | None]:
        """Count a part; return the hashes of each input's content in it."""
        if part.end is None:
            inputs = self.inputs[part.first : part.last]
            count_inputs(counter, inputs, self.options, needs=self.needs, limits=self.limits)
            return [self._hash(source, 0, source.size_bytes) for source in inputs]
        source = self.inputs[part.first]
        with source.path.open("rb") as file:
            if is_text(source, file.read(PROBE_BYTES), self.options):
                self._count_range(counter, source, part.begin, part.end)
        return [self._hash(source, part.begin, part.end)]

    def _hash(self, source: InputFile, begin: int, end: int) -> list[str] | None:
        return hash_parts(source, begin, end, part_bytes=self.limits.hash_part_bytes)

    def _count_range(
        self, counter: _native.PieceCounter, source: InputFile, begin: int, end: int
    ) -> None:
        path, size = str(source.path), source.size_bytes
        first = counter.find_file_cut(path, begin, size)
        last = counter.find_file_cut(path, end, size)
        try:
            counter.count_file(path, first, last, last)
        except ValueError as error:  # no place to cut
            size = int(str(error).split()[0])
            raise refuse_stretch(size, source, self.options, self.needs) from None

    def add_up(self, counter: _native.PieceCounter, folder: Path) -> dict[str, Any]:
        """Add the counts of all parts to a counter; return the bytes of their text.

        `folder` is for local copies of counts in an object store.
        """
        totals = {"bytes": 0, "pieces": 0}
        copies = LocalCopies(folder)
        for task, facts in self._iter_facts():
            output = self.records.open(task)
            path, begin = copies.find(output, "counts")
            ends = output.read("ends").cast("Q").tolist()
            counter.add_saved(str(path), begin, ends, facts["longest"])
            for name in totals:
                totals[name] += facts[name]
        if not totals["bytes"]:
            raise DataError(
                "there is no text in the input files", next_step="name files that are not empty"
            )
        return totals

    def _iter_facts(self) -> Iterator[tuple[Task, dict[str, Any]]]:
        for index in range(len(self.parts)):
            task = Task(COUNT_STAGE, index)
            yield task, self.records.read(task)["facts"]

    def contents(self) -> list[str | None]:
        """The hash of every input, from those of its parts."""
        found: list[list[str] | None] = [[] for _ in self.inputs]
        for part, (_, facts) in zip(self.parts, self._iter_facts(), strict=True):
            for place, rows in enumerate(facts["contents"], part.first):
                before = found[place]
                found[place] = None if before is None or rows is None else before + rows
        return [None if rows is None else fold_parts(rows) for rows in found]


def _write(counts: Path, ends: array[int], output: OutputWriter) -> dict[str, Any]:
    output.begin("counts")
    with counts.open("rb") as file:
        while data := file.read(_COPY_BYTES):
            output.write(data)
    output.section("ends", memoryview(ends).cast("B"))
    return {}


@dataclass(frozen=True)
class _CountStage:
    counting: SharedCounting
    name: str = COUNT_STAGE

    def count_tasks(self) -> int:
        """One for each part."""
        return len(self.counting.parts)

    def run(self, index: int) -> Uncommitted:
        """Count a part."""
        return self.counting.count(index)


@dataclass(frozen=True)
class _LearnStage:
    counting: SharedCounting
    learn: Callable[[], None]
    name: str = LEARN_STAGE

    def count_tasks(self) -> int:
        """One."""
        return 1

    def run(self, index: int) -> None:
        """Learn merges from all counts, and write the tokenizer."""
        self.learn()
        self.counting.records.commit_record(Task(self.name, index), facts={})


def count_together(
    counting: SharedCounting,
    learn: Callable[[], None],
    progress: Progress,
    *,
    is_finished: Callable[[], bool],
    lease_seconds: float,
) -> None:
    """Count with other workers until all is counted; one learns, the others wait for it."""
    run_in_phases(
        [_CountStage(counting), _LearnStage(counting, learn)],
        counting.records,
        progress,
        num_workers=1,  # counting one part keeps all cores busy
        is_finished=is_finished,
        lease_seconds=lease_seconds,
        without_phase=[LEARN_STAGE],
    )
