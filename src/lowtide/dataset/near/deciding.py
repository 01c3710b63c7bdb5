"""The stages that compare candidate pairs: n-gram sets of their documents, then the decisions.

In:      pairs (near.pairs), clean text
Out:     sets: one file per part, the n-grams of each document, sorted; decide: one file, a row for
         each removed document, with the one kept for it and their similarity
Memory:  sets: one block, its n-grams; decide: two documents' n-grams, 8 bytes for 256 documents

Deciding is one task, because whether a document is kept depends on whether earlier ones are. It
reads only the sets it compares, and stops at the first document that is similar enough.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from lowtide import _native, files
from lowtide.arrays import np
from lowtide.dataset.near.job import NearJob
from lowtide.dataset.near.pairs import PAIR_STAGE
from lowtide.engine.localcopies import LocalCopies
from lowtide.engine.outputs import Output, OutputWriter
from lowtide.engine.tasks import Task, Uncommitted
from lowtide.errors import DataError

__all__ = ["DECIDE_STAGE", "DecideStage", "SetStage"]

SET_STAGE = "near-sets"
DECIDE_STAGE = "near-decide"
_ROW_BYTES = _native.NEAR_COPY_ROW_BYTES
_NO_PLACE = (1 << 64) - 1


class _Wanted:
    """Which documents of a part are in pairs, requested block by block, in order."""

    def __init__(self, output: Output, begin: int, end: int, *, step_bytes: int) -> None:
        self._output = output
        self._step_bytes = step_bytes
        self._next = begin * _native.PLACE_PAIR_BYTES
        self._end = end * _native.PLACE_PAIR_BYTES
        self._rows = np.zeros((0, 2), "<u8")

    def take(self, block: int) -> bytes:
        """The wanted documents of a block, as rows (place, what is wanted)."""
        after = np.uint64((block + 1) << 32)
        while self._next < self._end and (not len(self._rows) or self._rows[-1, 0] < after):
            end = min(self._next + self._step_bytes, self._end)
            data = self._output.read("wanted", begin=self._next, end=end)
            rows = np.frombuffer(data, dtype="<u8").reshape(-1, 2)
            self._rows = np.concatenate([self._rows, rows])
            self._next = end
        count = int(np.searchsorted(self._rows[:, 0], after))
        taken, self._rows = self._rows[:count], self._rows[count:]
        return taken.tobytes()


class SetStage:
    """A task for each part; a part without any document in a pair is not read again."""

    name = SET_STAGE

    def __init__(self, job: NearJob) -> None:
        self._job = job

    def count_tasks(self) -> int:
        """One for each part."""
        return self._job.num_parts

    def run(self, index: int) -> Uncommitted:
        """Write the sets of a part."""
        records = self._job.records
        pairs = records.open(Task(PAIR_STAGE, 0))
        begin, end = pairs.read("starts", begin=8 * index, end=8 * (index + 2)).cast("q")
        wanted = _Wanted(pairs, begin, end, step_bytes=self._job.limits.step_bytes)

        def write(output: OutputWriter) -> dict[str, Any]:
            with records.scratch_folder() as folder, tempfile.TemporaryFile(dir=folder) as rows:
                output.begin("grams")
                if begin < end:
                    self._write_sets(output, index, wanted, rows)
                rows.seek(0)
                output.begin("index")
                while data := rows.read(self._job.limits.step_bytes):
                    output.write(data)
            return {}

        return records.write(Task(self.name, index), write)

    def _write_sets(
        self, output: OutputWriter, index: int, wanted: _Wanted, rows: IO[bytes]
    ) -> None:
        sets = _native.GramSets(self._job.options.ngram)
        position = 0
        for block, load in enumerate(self._job.iter_part(index), self._job.first_blocks[index]):
            places = wanted.take(block)
            if places:
                try:
                    sets.make(*load(), block, places, position)
                except ValueError:  # documents that do not exist
                    raise _changed() from None
                output.write(sets.grams)
                rows.write(sets.index)
                position += len(sets.grams) // 8


def _changed() -> DataError:
    return DataError(
        "the text changed while it was read, between two passes over it",
        next_step="see that no input is written to, remove the work folder, and start again",
    )


class DecideStage:
    """One task: processes all pairs in the order of the corpus."""

    name = DECIDE_STAGE

    def __init__(self, job: NearJob) -> None:
        self._job = job

    def count_tasks(self) -> int:
        """One."""
        return 1

    def run(self, index: int) -> None:
        """Commit the documents to remove."""
        records = self._job.records
        pairs = records.open(Task(PAIR_STAGE, 0))
        with records.scratch_folder() as folder:
            path = folder / "removed"
            os.close(files.create_file(path))
            decider = _native.NearDecider(
                list(self._iter_sets(LocalCopies(folder))),
                self._job.options.threshold,
                self._copies_left_from(),
                path,
            )
            size = pairs.size("pairs")
            step = self._job.limits.step_bytes
            for begin in range(0, size, step):
                end = min(begin + step, size)
                rows = np.frombuffer(pairs.read("pairs", begin=begin, end=end), dtype="<u8")
                later = rows[::2] >= np.uint64(self._job.first_block << 32)
                decider.add(rows.reshape(-1, 2)[later].tobytes())
            decider.finish()
            with path.open("rb") as removed:
                records.commit(
                    Task(self.name, index),
                    lambda output: self._write(output, removed, decider, pairs.header),
                )

    def _copies_left_from(self) -> int:
        """The first place from which exact copies are left to deduplication, which compares hashes.

        Documents before `first_block` are not included: they are as stored, perhaps without some
        lines, so their hashes differ.
        """
        return self._job.first_block << 32 if self._job.leave_copies else _NO_PLACE

    def _iter_sets(self, copies: LocalCopies) -> Iterator[tuple[int, Any, int, int, int]]:
        job = self._job
        for part in range(job.num_parts):
            output = job.records.open(Task(SET_STAGE, part))
            count = output.size("index") // _native.GRAM_SET_ROW_BYTES
            if count:
                path, offset = copies.find(output, "index")
                _, grams_at = copies.find(output, "grams")
                yield job.first_blocks[part] << 32, path, offset, count, grams_at

    def _write(
        self,
        output: OutputWriter,
        removed: IO[bytes],
        decider: _native.NearDecider,
        pairs: dict[str, Any],
    ) -> dict[str, Any]:
        """Write the rows, the start of each block's rows, and the counts."""
        counts = np.zeros(self._job.first_blocks[-1] + 1, dtype="<i8")
        removed.seek(0)
        output.begin("removed")
        while data := removed.read(self._job.limits.step_bytes):
            output.write(data)
            places = np.frombuffer(data, dtype="<u8").reshape(-1, _ROW_BYTES // 8)[:, 0]
            blocks, found = np.unique(places >> np.uint64(32), return_counts=True)
            counts[blocks.astype("<i8") + 1] += found
        output.section("starts", np.cumsum(counts).astype("<i8").tobytes())
        return {
            **pairs,
            **self._count_documents(),
            "compared": decider.num_compared,
            "unlike": decider.num_unlike,
            "removed": decider.num_removed,
        }

    def _count_documents(self) -> dict[str, int]:
        counts = {"signed": 0, "skipped": 0}
        for part in range(self._job.num_parts):
            near = self._job.records.open(Task(self._job.sign_stage, part)).header["near"]
            counts = {name: count + near[name] for name, count in counts.items()}
        return counts
