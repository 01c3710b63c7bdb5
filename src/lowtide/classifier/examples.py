"""Choose the examples of a classifier: passages of documents, a sample of each class by hash.

In:      clean blocks (corpus), in any order
Out:     one work file per block with passages that may be in the sample; then the sample itself
Memory:  two hashes for each example of a class; then a few numbers for each

A sample is the passages with the smallest hashes of their text. So it depends neither on workers
nor on the order of files, and equal texts are one example. While blocks are read, the largest hash
that can still be in the sample decreases, and passages above it are not written: of N passages for
a sample of k, about k(1 + ln(N/k)) are written.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide import _native
from lowtide.arrays import np
from lowtide.corpus.reading import TextBlock
from lowtide.corpus.workfiles import WorkFile, open_work_file, write_work_file
from lowtide.counts import counted
from lowtide.errors import DataError
from lowtide.quickclasses import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["GOOD", "OTHER", "PASSAGE_BYTES", "Examples", "Sampler", "choose_examples"]

PASSAGE_BYTES = 8192
OTHER, GOOD = 0, 1
_NAMES = ("--other", "--good")
_ALL = (1 << 64) - 1
_FEWEST = 10
_MOST_PARTS = 1024
_HELD_OUT = 10  # one example in so many
_MOST_HELD_OUT = 20_000  # of a class
_ROW_FIELDS = [("hash", "<u8"), ("group", "<u8"), ("size", "<u4"), ("label", "<u4")]


class Sampler:
    """Receives clean blocks and writes the passages that may be in the sample of their class."""

    def __init__(self, folder: Path, *, num_good: int, max_examples: int) -> None:
        self._folder = folder
        self._num_good = num_good
        self._most = max_examples
        self._lock = threading.Lock()
        self._hashes = [array("Q"), array("Q")]
        self._limits = [_ALL, _ALL]
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def limits(self) -> tuple[int, int]:
        """The largest hash of each class that can be in its sample."""
        self._shrink(0)
        return self._limits[OTHER], self._limits[GOOD]

    def path(self, block_path: Path) -> Path:
        """The path of the passages of the block in `block_path`."""
        return self._folder / f"{block_path.stem}.examples"

    def take(
        self, place: int, path: Path, block: TextBlock, cleaned: _native.CleanedBlock
    ) -> WorkFile:
        """Write passages of a clean block; its text is no longer needed."""
        rows, text = _native.pick_passages(
            cleaned.text,
            cleaned.documents,
            self._num_good,
            PASSAGE_BYTES,
            self._limits[OTHER],
            self._limits[GOOD],
        )
        work = write_work_file(self.path(path), {}, {"rows": rows, "text": text})
        self._count(rows)
        return work

    def pass_by(self, place: int, work: WorkFile) -> None:
        """Include a block that an earlier command has finished."""
        self._count(open_work_file(self.path(work.path)).read("rows"))

    def stop(self) -> None:
        """Nothing to do: no caller waits here for an earlier block."""

    def _count(self, rows: memoryview) -> None:
        table = np.frombuffer(rows, np.dtype(_ROW_FIELDS))
        with self._lock:
            for label in (OTHER, GOOD):
                self._hashes[label].frombytes(table["hash"][table["label"] == label].tobytes())
        self._shrink(self._most)

    def _shrink(self, slack: int) -> None:
        """Drop hashes that cannot be in the sample, once there are `slack` too many."""
        with self._lock:
            for label in (OTHER, GOOD):
                if len(self._hashes[label]) <= self._most + slack:
                    continue
                smallest = np.unique(np.frombuffer(self._hashes[label], np.uint64))[: self._most]
                self._hashes[label] = array("Q", smallest.tobytes())
                if len(smallest) == self._most:
                    self._limits[label] = int(smallest[-1])


@dataclass(frozen=True)
class Examples:
    """The sample: the position and the class of each text."""

    paths: Sequence[Path]
    files: NDArray[np.int32]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    labels: NDArray[np.uint8]
    order: NDArray[np.uint64]
    """A random number for each, from its text."""
    held_out: NDArray[np.bool_]
    in_both: int
    """Other texts that are also among the good ones, and left out."""

    def count(self, label: int, *, held_out: bool) -> int:
        """The number of training or test examples of a class."""
        return int(np.count_nonzero((self.labels == label) & (self.held_out == held_out)))


def choose_examples(
    paths: Sequence[Path],
    limits: tuple[int, int],
    *,
    max_examples: int,
    seed: int,
    most_parts: int = _MOST_PARTS,
) -> Examples:
    """The sample of both classes, from the work files of all blocks in order."""
    rows = _load_rows(paths, limits, max_examples, most_parts)
    table, files, offsets, in_both = _choose(rows, max_examples)
    labels = table["label"].astype(np.uint8)
    _require_classes(labels, in_both)
    order = _mix(table["hash"] ^ np.uint64(seed))
    held_out = np.zeros(len(table), bool)
    for label in (OTHER, GOOD):
        places = np.flatnonzero(labels == label)
        held_out[places[_hold_out(_mix(table["group"][places]), order[places])]] = True
    sizes = table["size"].astype(np.int64)
    return Examples(paths, files, offsets, sizes, labels, order, held_out, in_both)


def _load_rows(paths: Sequence[Path], limits: tuple[int, int], most: int, most_parts: int) -> _Rows:
    """All rows that may be in the sample; copies of a text are dropped periodically."""
    parts: list[_Rows] = []
    held, room = 0, 0
    for number, (table, text_at) in enumerate(_iter_tables(paths)):
        sizes = table["size"].astype(np.int64)
        limit = np.where(table["label"] == GOOD, np.uint64(limits[GOOD]), np.uint64(limits[OTHER]))
        places = np.flatnonzero(table["hash"] <= limit)
        if not len(places):
            continue
        offsets = (text_at + np.cumsum(sizes) - sizes)[places]
        parts.append(_Rows(table[places], np.full(len(places), number, np.int32), offsets))
        held += len(places)
        if held > room:
            parts = [_join(parts).first_of_equals(most)]
            held = len(parts[0].table)
            room = held + most
        elif len(parts) > most_parts:  # many small arrays take more memory than their rows
            parts = [_join(parts)]
    return _join(parts)


@dataclass(frozen=True)
class _Rows:
    """Passages in the order of their files: the file of each, and the offset of its text."""

    table: NDArray[np.void]
    files: NDArray[np.int32]
    offsets: NDArray[np.int64]

    def take(self, places: NDArray[np.int64]) -> _Rows:
        """A selection of the rows."""
        return _Rows(self.table[places], self.files[places], self.offsets[places])

    def places(self, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first example of each text of both classes, by the smallest hashes."""
        of = [np.flatnonzero(self.table["label"] == label) for label in (OTHER, GOOD)]
        hashes = self.table["hash"]
        firsts = [rows[np.unique(hashes[rows], return_index=True)[1]][:most] for rows in of]
        return firsts[OTHER], firsts[GOOD]

    def first_of_equals(self, most: int) -> _Rows:
        """The first of equal texts of a class, in the original order."""
        return self.take(np.sort(np.concatenate(self.places(most))))


def _join(parts: Sequence[_Rows]) -> _Rows:
    if not parts:
        return _Rows(np.array([], _ROW_FIELDS), np.array([], np.int32), np.array([], np.int64))
    return _Rows(
        np.concatenate([part.table for part in parts]),
        np.concatenate([part.files for part in parts]),
        np.concatenate([part.offsets for part in parts]),
    )


def _iter_tables(paths: Sequence[Path]) -> Iterator[tuple[NDArray[np.void], int]]:
    for path in paths:
        work = open_work_file(path)
        yield np.frombuffer(work.read("rows"), np.dtype(_ROW_FIELDS)), work.sections["text"][0]


def _choose(
    rows: _Rows, most: int
) -> tuple[NDArray[np.void], NDArray[np.int32], NDArray[np.int64], int]:
    """The first example of each distinct text, limited per class; how many were in both.

    A text in both classes counts as good.
    """
    other, good = rows.places(most)
    both = np.isin(rows.table["hash"][other], rows.table["hash"][good])
    chosen = rows.take(np.sort(np.concatenate([other[~both], good])))
    return chosen.table, chosen.files, chosen.offsets, int(np.count_nonzero(both))


def _require_classes(labels: NDArray[np.uint8], in_both: int) -> None:
    for label in (GOOD, OTHER):
        count = int(np.count_nonzero(labels == label))
        if count >= _FEWEST:
            continue
        why = "after cleaning, equal texts counted once"
        if label == OTHER and in_both:
            why += f"; {in_both:,} more are among those of --good"
        raise DataError(
            f"{_NAMES[label]} has {counted(count, 'different passage')} ({why}), "
            f"a classifier needs {_FEWEST} at least",
            next_step=f"name more files with {_NAMES[label]}, or other ones",
        )


def _hold_out(groups: NDArray[np.uint64], order: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The indices of test examples: whole groups of neighbouring documents, a tenth of all.

    If one such group is most of a class, its passages are divided.
    """
    wanted = min(max(len(groups) // _HELD_OUT, 1), _MOST_HELD_OUT)
    by_group = np.lexsort((order, groups))
    last = groups[by_group[wanted - 1]]
    whole = int(np.searchsorted(groups[by_group], last, side="right"))
    return by_group[: whole if 2 * whole <= len(groups) else wanted]


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """New random numbers from hashes, because the hashes that chose the sample are all small."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
